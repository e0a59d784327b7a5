"""Behaviour checks: what the task answers, and what becomes of one that dies, hangs or is
interrupted."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from own_cells import PhasePipe
from schedule_parts import Server, without_result

from effbench.core.cell import Status
from effbench.core.errors import UnsupportedError
from effbench.core.message import CheckRequest
from effbench.run.checks import run_checks
from effbench.worker import check


def fine(device, **settings):
    return {"device": str(device), "settings": settings, "seeded": torch.rand(1).item()}


def unsupported(device):
    raise UnsupportedError("it needs CUDA")


def wrong(device):
    raise ValueError("first line\nsecond line")


def gives_a_tensor(device):
    return {"fact": torch.ones(1)}


def gives_nothing(device):
    return None


def answer_of(name, **settings):
    request = CheckRequest(f"test_run_checks.{name}", settings, device="cpu")
    return check.run_task(request.to_json(), PhasePipe())


def test_the_facts_of_a_check():
    first, again = answer_of("fine", width=3), answer_of("fine")
    assert (first["status"], first["reason"]) == (Status.OK, None)
    assert first["facts"]["device"] == "cpu"
    assert first["facts"]["settings"] == {"width": 3}
    assert first["facts"]["seeded"] == again["facts"]["seeded"]


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("unsupported", Status.UNSUPPORTED, "it needs CUDA"),
        ("wrong", Status.ERROR, "ValueError: first line"),
        ("gives_a_tensor", Status.ERROR, "TypeError: the facts are not plain JSON: "),
        ("gives_nothing", Status.ERROR, "TypeError: a check must return a dict of facts"),
        ("no_such", Status.ERROR, "ConfigError: _target_=test_run_checks.no_such: "),
    ],
)
def test_a_check_that_fails(name, status, reason):
    answer = answer_of(name)
    assert answer["status"] == status
    assert answer["reason"].startswith(reason)
    assert answer["facts"] is None
    assert ("Traceback" in answer.get("traceback", "")) == (status == Status.ERROR)


def test_a_check_that_dies_or_hangs_costs_itself_alone():
    died = without_result(code=-signal.SIGABRT, log="last words")
    answers = iter([died, None, {"result": {"status": "ok"}}])
    server = Server(lambda request, env: next(answers))
    requests = [CheckRequest("a.check", device="cpu")] * 3
    found = run_checks(requests, server, [], timeout_s=0.1)
    assert [one["status"] for one in found] == ["crashed", "timeout", "ok"]
    assert found[0]["reason"] == "killed by SIGABRT (in check)"
    assert found[0]["log"] == "last words"
    assert found[1]["reason"] == "not done after 0.1 s (in check)"
    assert len(server.killed) == 1
    folders = {payload["cache_dir"] for payload in server.sent}
    assert len(folders) == 3, "each has its own caches"
    assert not any(Path(folder).exists() for folder in folders)


def test_ctrl_c_ends_the_check(ctrl_c):
    def press(request, env):
        time.sleep(0.1)  # until the check is waited for
        os.kill(os.getpid(), signal.SIGINT)

    server = Server(press)
    with pytest.raises(KeyboardInterrupt):
        run_checks([CheckRequest("a.check", device="cpu")], server, [])
    assert len(server.killed) == 1
