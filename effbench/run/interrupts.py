"""Handle Ctrl-C, SIGTERM and SIGHUP: none is lost, and the first one asks a sweep to stop.

Python prints and drops a KeyboardInterrupt in a destructor or in a callback of a weak reference,
and imports run hundreds of these. `remembered` keeps such an interrupt for the sweep.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Waits are this short, because handlers of signals run only between them.
POLL_S = 0.2
_seen = threading.Event()
#: Whether `stop_on_ctrl_c` handles signals.
_stopping = threading.Event()


@contextmanager
def remembered() -> Iterator[None]:
    """Remember every Ctrl-C, which still raises KeyboardInterrupt; do not print interrupts that
    Python drops.

    This has no effect outside the main thread, or if SIGINT is ignored or has another handler.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def handler(number: int, frame: Any) -> None:
        _seen.set()
        signal.default_int_handler(number, frame)

    def unraisable(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            hook(dropped)

    hook = sys.unraisablehook
    sys.unraisablehook = unraisable
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
        _seen.clear()


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt in the main thread if `remembered` saw a Ctrl-C before: Python has
    dropped it."""
    if (
        _seen.is_set()
        and threading.current_thread() is threading.main_thread()
        and not _stopping.is_set()
    ):
        raise KeyboardInterrupt


@contextmanager
def stop_on_ctrl_c(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on the first Ctrl-C, SIGTERM or SIGHUP, or on one that `remembered` saw; a second
    one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [signal.SIGINT, signal.SIGTERM, *([] if is_nohup else [signal.SIGHUP])]
    before = {number: signal.signal(number, handler) for number in numbers}
    _stopping.set()
    if _seen.is_set():
        stop.set()
    try:
        yield
    finally:
        _stopping.clear()
        for number, old in before.items():
            signal.signal(number, old)
