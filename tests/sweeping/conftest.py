"""A schedule of made-up parts."""

import pytest
from schedule_parts import PROTOCOL, Server, Watcher, gpus, pool_of

from effbench.sweeping import client, devices, pool, schedule
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.plan import Settings


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    """Each test has a folder of locks of its own."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A schedule, and what it records. It has run the trials that are `planned`."""
    for module in (client, devices, schedule):
        monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(client, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))

    def build(
        planned=(), answer=None, *, server=None, slots=None, pools=None, record=None, **given
    ):
        recorded, server = [], server or Server(answer)
        pools = pools or {HERE: pool_of(server, tmp_path / "cache")}
        more = {
            name: given.pop(name)
            for name in ("stop", "history", "duet_rule", "progress", "host_speeds")
            if name in given
        }
        executor = {"lock_timeout_s": 30.0, "foreign_wait_s": 0.0, **given.pop("executor", {})}
        settings = Settings.with_defaults(
            **{"protocol": PROTOCOL, "timeout_s": 30.0, **given, "executor": executor}
        )
        record = record or (lambda trial, one: recorded.append(one))
        progress = more.pop("progress", None) or Watcher()
        made = schedule.Schedule(pools, slots or gpus(1), settings, record, progress, **more)
        made.recorded, made.server = recorded, server
        if planned:
            made.run(list(planned))
        return made

    return build


@pytest.fixture
def started(monkeypatch):
    """The made-up servers that pools start."""
    made = []
    monkeypatch.setattr(
        pool, "ForkServer", lambda **options: made.append(Server(**options)) or made[-1]
    )
    return made
