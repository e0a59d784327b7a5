"""The signals that ask a sweep to stop."""

import os
import signal
import threading

import pytest

from effbench.run.interrupts import stop_on_ctrl_c


@pytest.mark.parametrize(
    ("number", "set_before", "stops"),
    [
        (signal.SIGINT, signal.SIG_DFL, True),
        (signal.SIGTERM, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_IGN, False),  # nohup keeps the sweep running
    ],
)
def test_signals_that_ask_the_sweep_to_stop(ctrl_c, number, set_before, stops):
    stop = threading.Event()
    before = signal.signal(number, set_before)
    try:
        with stop_on_ctrl_c(stop):
            os.kill(os.getpid(), number)
            assert stop.wait(5 if stops else 0) == stops
        assert signal.getsignal(number) is set_before
    finally:
        signal.signal(number, before)
