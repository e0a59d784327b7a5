"""Ctrl-C where Python would drop it, and the signals that ask a sweep to stop."""

import os
import signal
import sys
import threading

import pytest

from effbench.run import interrupts
from effbench.run.interrupts import remembered, stop_on_ctrl_c


@pytest.fixture(autouse=True)
def ctrl_c():
    """As Python handles it on a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Raising:
    """Python prints what its destructor raises, and continues."""

    def __init__(self, act):
        self.act = act

    def __del__(self):
        self.act()


def test_a_dropped_one_is_remembered_and_stops_the_sweep(capsys):
    stop = threading.Event()
    with remembered():
        with stop_on_ctrl_c(stop):
            assert not stop.is_set()
        Raising(lambda: os.kill(os.getpid(), signal.SIGINT))
        with stop_on_ctrl_c(stop):
            assert stop.is_set()
    assert not interrupts._seen.is_set()
    assert capsys.readouterr().err == ""


def test_another_handler_is_kept_and_other_errors_are_printed(monkeypatch):
    printed = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda dropped: printed.append(str(dropped.exc_value))
    )
    with remembered():
        Raising([].pop)
    assert printed == ["pop from empty list"]
    handler = signal.signal(signal.SIGINT, lambda *_: None)
    own = signal.getsignal(signal.SIGINT)
    with remembered():
        assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize(
    ("number", "set_before", "stops"),
    [
        (signal.SIGINT, signal.SIG_DFL, True),
        (signal.SIGTERM, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_DFL, True),
        (signal.SIGHUP, signal.SIG_IGN, False),  # nohup keeps the sweep running
    ],
)
def test_signals_that_ask_the_sweep_to_stop(number, set_before, stops):
    stop = threading.Event()
    before = signal.signal(number, set_before)
    try:
        with stop_on_ctrl_c(stop):
            os.kill(os.getpid(), number)
            assert stop.wait(5 if stops else 0) == stops
        assert signal.getsignal(number) is set_before
    finally:
        signal.signal(number, before)
