"""Ctrl-C where Python would drop it."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from effbench.sweep import interrupts
from effbench.sweep.interrupts import stop_on_ctrl_c


@pytest.fixture(autouse=True)
def ctrl_c():
    """As Python has it on a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Dropping:
    """Python prints what its destructor raises, and goes on."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_dropped_one_is_remembered_and_stops_the_sweep(capsys):
    stop = threading.Event()
    with interrupts.remembered():
        assert not interrupts._seen.is_set()
        thing = Dropping()
        del thing
        assert interrupts._seen.is_set()
        with stop_on_ctrl_c(stop):
            assert stop.is_set()
    assert not interrupts._seen.is_set()
    assert capsys.readouterr().err == ""


def test_others_are_raised_as_ever():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.remembered():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupts._seen.is_set()


def test_none_means_no_stop():
    stop = threading.Event()
    with interrupts.remembered(), stop_on_ctrl_c(stop):
        assert not stop.is_set()


def test_a_handler_of_somebody_else_is_left_alone(monkeypatch):
    mine = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        handler = signal.getsignal(signal.SIGINT)
        with interrupts.remembered():
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, mine)


def test_other_errors_of_destructors_are_still_printed(monkeypatch):
    class Failing:
        def __del__(self):
            raise ValueError("told")

    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: told.append(str(found.exc_value)))
    with interrupts.remembered():
        thing = Failing()
        del thing
    assert told == ["told"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_that_ask_the_sweep_to_stop(number):
    stop = threading.Event()
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with stop_on_ctrl_c(stop):
            os.kill(os.getpid(), number)
            assert stop.wait(5)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_nohup_keeps_the_sweep_running():
    stop = threading.Event()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_ctrl_c(stop):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)
