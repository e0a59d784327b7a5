"""`effbench doctor` as a user runs it, and with made-up machines."""

import json
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml

from effbench import cli as command_line
from effbench.commands import doctor
from effbench.doctor import calibration
from effbench.doctor.finding import Machine
from effbench.errors import WorkerError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An H200's machine in files, an empty folder, and a fork server that gives `here.answer`."""
    state = SimpleNamespace(answer=None, closed=0, folder=tmp_path)

    class Server:
        def call(self, task, payload, timeout_s, env=None):
            if isinstance(state.answer, BaseException):
                raise state.answer
            return state.answer

        def close(self):
            state.closed += 1

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "ForkServer", Server)
    monkeypatch.setattr(doctor, "Machine", lambda db: Machine(db, environ={}, root=tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    return state


def test_an_h200(here, answer, capsys):
    here.answer = answer
    assert command_line.run(["doctor"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line[:1].isalpha() and "warnings" not in line] == [
        "software",
        "GPU",
        "CPU",
        "storage",
        "calibration",
    ]
    assert "✓ GPU 0: NVIDIA H200, 140 GiB" in said
    assert (said[-1], here.closed) == ("problems: 0, warnings: 0", 1)


def test_a_problem_is_exit_code_1_and_stops_the_calibration(here, answer, capsys, monkeypatch):
    here.answer = answer
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlDeviceGetComputeMode=2))
    assert command_line.run(["doctor"]) == 1
    assert "✗ GPU 0: compute mode is prohibited" in capsys.readouterr().out
    monkeypatch.setattr(calibration, "measure_ceilings", None)
    assert command_line.run(["doctor", "--calibrate"]) == 1
    assert "not calibrated" in capsys.readouterr().err


def test_a_worker_that_does_not_start(here, capsys):
    here.answer = WorkerError("the fork server ended while starting: No module named 'torch'")
    assert command_line.run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "✗ the fork server ended while starting" in said and "storage" in said
    assert command_line.run(["doctor", "--quick"]) == 2
    assert "--quick needs --calibrate" in capsys.readouterr().err


def test_ceilings_that_cannot_be_measured(here, answer, capsys, monkeypatch):
    def measure(server, store, environment_id, slot):
        assert [slot.gpu] == answer["gpus"]
        return outcome

    here.answer = {**answer, "facts": {"host_ms": 0.05}}
    monkeypatch.setattr(calibration.pool, "measure_ceilings", measure)
    monkeypatch.setattr(
        calibration, "measure_noise", lambda *args: [] if args[-1] == {"host_ms": 0.05} else None
    )
    for outcome in (None, "too little free device memory"):
        assert command_line.run(["doctor", "--calibrate"]) == (0 if outcome is None else 1)
        said = f"✗ GPU 0: its ceilings could not be measured: {outcome}"
        assert (said in capsys.readouterr().out) is (outcome is not None)


def test_interrupted_while_looking(here, capsys):
    here.answer = KeyboardInterrupt()
    assert command_line.run(["doctor"]) == 130
    assert (capsys.readouterr().err, here.closed) == ("effbench: interrupted\n", 1)


@pytest.mark.slow
def test_for_real_on_the_cpu(cli):
    """Through the command line: a quick calibration, then what is known of it."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    done = cli.run("doctor", "--calibrate", "--quick", "--format", "json", env=hidden)
    assert (done.code, done.err) == (0, "")
    said = json.loads(done.out)
    found = said["calibration"]["noise"]
    assert said["calibration"]["ceilings"] is None
    assert (found["protocol"], found["device"], found["gpu_bound"]) == ("quick", "cpu", None)
    assert [cell["trials"] for cell in found["launch_bound"]["cells"]] == [4, 4]
    assert found["launch_bound"]["smallest_slowdown"] >= 0.02
    assert 0.001 < found["host_ms"] < 10
    looked = cli.run("doctor", env=hidden).out
    assert "a standard sweep (5 trials per cell) can show slowdowns from" in looked
    assert "\x1b" not in looked
