"""Behaviour checks from end to end: the fork server, a child per check, and checks that misbehave."""

from __future__ import annotations

import tempfile
import threading
from contextlib import closing
from pathlib import Path

import pytest

from effbench.cell import Status
from effbench.message import CheckRequest
from effbench.sweeping import checks
from effbench.sweeping.client import ForkServer

pytestmark = pytest.mark.slow

CHECKS = """
import os, signal, time
import torch
from effbench.errors import UnsupportedError

def fine(device, **settings):
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    return {"device": str(device), "settings": settings, "seeded": torch.rand(1).item(), "pid": os.getpid(),
            "cache": cache, "cache_is_there": os.path.isdir(os.path.dirname(cache))}

def unsupported(device):
    raise UnsupportedError("it needs CUDA")

def wrong(device):
    raise ValueError("first line\\nsecond line")

def not_plain(device):
    return {"tensor": torch.ones(1)}

def not_finite(device):
    return {"ratio": float("nan")}

def nothing(device):
    return None

def crashes(device):
    print("last words", flush=True)
    os.abort()

def hangs(device, pid_file=None):
    if pid_file:
        with open(pid_file, "w") as file:
            file.write(str(os.getpid()))
    time.sleep(600)

def kills_the_server(device):
    os.kill(os.getppid(), signal.SIGKILL)
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


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def gather(requests, server, **more):
    return checks.gather(requests, server, [], **more)


def request(name, **more):
    return CheckRequest(f"my_checks.{name}", device="cpu", **more)


def test_each_check_costs_itself_alone(server):
    names = ["fine", "unsupported", "crashes", "hangs", "fine"]
    seen = []
    outcomes = gather([request(name) for name in names], server, timeout_s=10, on_outcome=seen.append)
    assert seen == outcomes
    assert [outcome.request.target for outcome in outcomes] == [f"my_checks.{name}" for name in names]
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == [Status.OK, Status.UNSUPPORTED, Status.CRASHED, Status.TIMEOUT, Status.OK]
    fine, unsupported, crashed, hung, again = outcomes
    assert (fine.facts["device"], fine.reason) == ("cpu", None)
    assert fine.seconds > 0
    assert (unsupported.reason, unsupported.facts) == ("it needs CUDA", None)
    assert crashed.reason == "killed by SIGABRT (in running)" and "last words" in crashed.log
    assert hung.reason == "not done after 10 s (in running)" and hung.seconds >= 10
    assert again.facts["pid"] != fine.facts["pid"]


def test_seeds_settings_and_caches(server):
    asked = [request("fine", settings={"width": 3}), request("fine"), request("fine", seed=1)]
    first, second, other = (outcome.facts for outcome in gather(asked, server))
    assert first["settings"] == {"width": 3}
    assert first["seeded"] == second["seeded"] != other["seeded"]
    assert first["cache"] != second["cache"] and first["cache_is_there"]
    assert not Path(first["cache"]).parent.exists(), "gone afterwards"


def test_an_error_has_its_reason(server):
    expected = {
        "wrong": "ValueError: first line",
        "not_plain": "TypeError: fact 'tensor' is not plain JSON: ",
        "not_finite": "TypeError: fact 'ratio' is not plain JSON: ",
        "nothing": "TypeError: a check returns a dict of facts, not NoneType",
        "no_such": "ConfigError: _target_=my_checks.no_such: my_checks has no no_such",
    }
    for found, reason in zip(gather(map(request, expected), server), expected.values(), strict=True):
        assert found.status is Status.ERROR
        assert found.reason.startswith(reason)
        assert "Traceback" in found.traceback


def test_ctrl_c_ends_the_check(server, tmp_path, wait_gone):
    pid_file = tmp_path / "pid"

    class Interrupted(threading.Event):
        def is_set(self):
            if pid_file.exists() and pid_file.read_text():
                raise KeyboardInterrupt
            return False

    with pytest.raises(KeyboardInterrupt):
        gather([request("hangs", settings={"pid_file": str(pid_file)})], server, stop=Interrupted())
    wait_gone(int(pid_file.read_text()))
    assert gather([request("fine")], server, lock_timeout_s=0.1)[0].status is Status.OK


def test_a_server_that_dies_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "my_checks.py").write_text(CHECKS)
    monkeypatch.chdir(tmp_path)
    with closing(ForkServer(preload=False)) as server:
        found = gather([request("kills_the_server"), request("fine")], server, timeout_s=120)
    assert [outcome.status for outcome in found] == [Status.CRASHED, Status.OK]
    assert "the fork server ended" in found[0].reason
