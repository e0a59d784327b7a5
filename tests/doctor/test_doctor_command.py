"""`effbench doctor` as a user runs it, with made-up machines."""

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml

from effbench.cli import doctor
from effbench.cli import main as command_line
from effbench.core.errors import WorkerError


@pytest.fixture
def here(tmp_path, monkeypatch, answer):
    """An H200's machine, an empty folder, and a fork server that gives `here.answer`."""
    state = SimpleNamespace(answer=answer, closed=0)

    class Server:
        def call(self, task, payload, timeout_s, env=None):
            if isinstance(state.answer, BaseException):
                raise state.answer
            return state.answer

        def close(self):
            state.closed += 1

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    monkeypatch.setattr(doctor, "ForkServer", Server)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    return state


def test_an_h200(here, capsys):
    assert command_line.run(["doctor"]) == 0
    said = capsys.readouterr().out.splitlines()
    areas = [line for line in said if line[:1].isalpha() and "warnings" not in line]
    assert areas == ["software", "GPU", "CPU"]
    assert "✓ the C++ compiler works" in said
    assert "✓ GPU 0: NVIDIA H200, 140 GiB" in said
    assert said[-1] == "problems: 0, warnings: 0"
    assert here.closed == 1


def test_a_problem_is_exit_code_1(here, capsys):
    here.answer["gpus"] = []
    assert command_line.run(["doctor"]) == 1
    assert "✗ torch sees no CUDA device; the driver has 1" in capsys.readouterr().out


def test_a_worker_that_does_not_start(here, capsys):
    here.answer = WorkerError("the fork server ended while starting: No module named 'torch'")
    assert command_line.run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "✗ the fork server ended while starting" in said
    assert "CPU load" in said


def test_interrupted_while_looking(here, capsys):
    here.answer = KeyboardInterrupt()
    assert command_line.run(["doctor"]) == 130
    assert capsys.readouterr().err == "effbench: interrupted\n"
    assert here.closed == 1
