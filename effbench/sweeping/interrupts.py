"""A Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever its main thread happens to be. In a destructor or a weak reference's callback,
which importing uses by the hundred, it is printed and dropped. Here the first one is also remembered, for the sweep to
look at before it runs.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_seen = threading.Event()


def seen() -> bool:
    """Whether there was a Ctrl-C since `remembered` began."""
    return _seen.is_set()


@contextmanager
def remembered() -> Iterator[None]:
    """Within, Ctrl-C raises KeyboardInterrupt as ever and is remembered; one that Python drops is not printed.

    Does nothing outside the main thread, or where SIGINT is ignored or handled by somebody else.
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

    def unraisable(found: Any) -> None:
        if not issubclass(found.exc_type, KeyboardInterrupt):
            hook(found)

    hook = sys.unraisablehook
    sys.unraisablehook = unraisable
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
        _seen.clear()
