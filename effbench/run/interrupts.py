"""Ask a sweep to stop on Ctrl-C, SIGTERM and SIGHUP.

The handler raises nothing, because Python drops a KeyboardInterrupt in a destructor or in a
callback of a weak reference, and imports run hundreds of these.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Waits are this short, because handlers of signals run only between them.
POLL_S = 0.2


class StoppedError(Exception):
    """The sweep was asked to stop while it waited for a device, a fork server or a task."""


@contextmanager
def stop_on_ctrl_c(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on the first Ctrl-C, SIGTERM or SIGHUP; a second Ctrl-C interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup does
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
