"""A schedule of made-up parts."""

from __future__ import annotations

import pytest
from effbench.sweeping import schedule as scheduling
from schedule_parts import PROTOCOL, Server, Watcher, gpus

from effbench.cell import Trial
from effbench.sweep.interpreters import HERE
from effbench.sweep.pool import Servers
from effbench.sweep.schedule import Place, Schedule


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A schedule in a folder of locks of its own, and what it records."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(scheduling, "POLL_S", 0.01)
    monkeypatch.setattr(scheduling, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))

    def build(server=None, slots=None, places=None, ceilings=None, **options):
        recorded: list[Trial] = []
        settings = {"protocol": PROTOCOL, "timeout_s": 30.0, "isolation": "fork", "lock_timeout_s": 30.0,
                    "record": lambda job, trial: recorded.append(trial), "observer": Watcher()}  # fmt: skip
        if places is None:
            servers = Servers(server or Server(), make=lambda: scheduling.ForkServer())
            places = {HERE: Place(servers, tmp_path / "cache", ceilings)}
        made = Schedule(places=places, slots=slots or gpus(1), **{**settings, **options})
        made.recorded = recorded
        return made

    return build
