"""A schedule of made-up parts."""

from __future__ import annotations

import pytest
from schedule_parts import PROTOCOL, Server, Watcher, gpus, pool_of

from effbench.sweeping import client, devices, pool, schedule
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.plan import Settings


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A schedule in a folder of locks of its own, and what it records."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    for module in (client, devices, schedule):
        monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(schedule, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))

    def build(server=None, slots=None, pools=None, ceilings=None, protocol=PROTOCOL, executor=None, stop=None,
              history=None, record=None, **settings):  # fmt: skip
        recorded = []
        pools = pools or {HERE: pool_of(server or Server(), tmp_path / "cache", ceilings=ceilings)}
        executor = {"lock_timeout_s": 30.0, "foreign_wait_s": 0.0, **(executor or {})}
        settings = Settings.with_defaults(protocol=protocol, executor=executor, **{"timeout_s": 30.0, **settings})
        more = {name: value for name, value in (("stop", stop), ("history", history)) if value is not None}
        made = schedule.Schedule(
            pools=pools, slots=slots or gpus(1), settings=settings, progress=Watcher(),
            record=record or (lambda trial, one: recorded.append(one)), **more,
        )  # fmt: skip
        made.recorded = recorded
        return made

    return build


@pytest.fixture
def started(monkeypatch):
    """The made-up servers that pools start."""
    made = []
    monkeypatch.setattr(pool, "ForkServer", lambda **options: made.append(Server(**options)) or made[-1])
    return made
