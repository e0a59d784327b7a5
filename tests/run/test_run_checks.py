"""Behaviour checks from end to end: the fork server, a child per check, and checks that
misbehave."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from effbench.core.cell import Status
from effbench.core.message import CheckRequest
from effbench.run.checks import run_checks
from effbench.run.client import ForkServer

pytestmark = pytest.mark.slow

CHECKS = """
import os, time
import torch
from effbench.core.errors import UnsupportedError

def fine(device, **settings):
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    return {
        "device": str(device),
        "settings": settings,
        "seeded": torch.rand(1).item(),
        "pid": os.getpid(),
        "cache": cache,
        "cache_is_there": os.path.isdir(os.path.dirname(cache)),
    }

def unsupported(device):
    raise UnsupportedError("it needs CUDA")

def wrong(device):
    raise ValueError("first line\\nsecond line")

def odd(device, kind):
    return {"tensor": {"fact": torch.ones(1)}, "nothing": None}[kind]

def crashes(device):
    print("last words", flush=True)
    os.abort()

def hangs(device, pid_file=os.devnull):
    with open(pid_file, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One that finds the checks in its working directory; torch is loaded in each child."""
    folder = tmp_path_factory.mktemp("checks")
    (folder / "my_checks.py").write_text(CHECKS)
    server = ForkServer(folder=str(folder))
    yield server
    server.close()


def gather(asked, server, **more):
    """`asked`: names of checks with their settings."""
    requests = [
        CheckRequest(f"my_checks.{name}", settings, device="cpu") for name, settings in asked
    ]
    return run_checks(requests, server, [], **more)


ASKED = (
    ("fine", {"width": 3}, Status.OK, None),
    ("unsupported", {}, Status.UNSUPPORTED, "it needs CUDA"),
    ("crashes", {}, Status.CRASHED, "killed by SIGABRT (in running)"),
    ("hangs", {}, Status.TIMEOUT, "not done after 10 s (in running)"),
    ("wrong", {}, Status.ERROR, "ValueError: first line"),
    ("odd", {"kind": "tensor"}, Status.ERROR, "TypeError: fact 'fact' is not plain JSON: "),
    ("odd", {"kind": "nothing"}, Status.ERROR, "TypeError: a check must return a dict of facts"),
    ("no_such", {}, Status.ERROR, "ConfigError: _target_=my_checks.no_such: my_checks has no"),
    ("fine", {}, Status.OK, None),
)


@pytest.fixture(scope="module")
def outcomes(server):
    return gather([asked[:2] for asked in ASKED], server, timeout_s=10)


@pytest.mark.parametrize("place", range(len(ASKED)), ids=lambda place: ASKED[place][0])
def test_each_check_costs_itself_alone(outcomes, place):
    outcome, (_, _, status, reason) = outcomes[place], ASKED[place]
    assert outcome["status"] == status
    assert (outcome["reason"] or "").startswith(reason or "")
    assert (outcome["facts"] is None) == (status != Status.OK)
    assert status != Status.ERROR or "Traceback" in outcome["traceback"]


def test_what_checks_tell(outcomes):
    assert "last words" in outcomes[2]["log"]
    first, again = outcomes[0]["facts"], outcomes[-1]["facts"]
    assert first["device"] == "cpu"
    assert first["settings"] == {"width": 3}
    assert (first["pid"], first["cache"]) != (again["pid"], again["cache"])
    assert first["seeded"] == again["seeded"]
    assert first["cache_is_there"] and not Path(first["cache"]).parent.exists(), "gone afterwards"


def test_ctrl_c_ends_the_check(server, tmp_path, wait_gone):
    pid_file = tmp_path / "pid"

    def press():
        while not (pid_file.exists() and pid_file.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        gather([("hangs", {"pid_file": str(pid_file)})], server)
    wait_gone(int(pid_file.read_text()))
    assert gather([("fine", {})], server)[0]["status"] == Status.OK
