"""A schedule of made-up parts."""

import threading

import pytest
from schedule_parts import PROTOCOL, Server, Store, Watcher, gpus, pool_of

from effbench.run import client, devices, pool, schedule
from effbench.run.interpreters import HERE
from effbench.run.plan import Settings
from effbench.run.running import RunningSweep


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
        planned=(),
        answer=None,
        *,
        server=None,
        slots=None,
        pools=None,
        history=None,
        duet_rule=None,
        executor=None,
        **given,
    ):
        server = server or Server(answer)
        pools = pools or {HERE: pool_of(server)}
        parts = {"progress": Watcher(), "stop": threading.Event(), "store": Store()}
        parts |= {name: given.pop(name) for name in parts.keys() & given.keys()}
        settings = Settings.with_defaults(
            **{"protocol": PROTOCOL, "timeout_s": 30.0, **given},
            executor={"lock_timeout_s": 30.0, "foreign_wait_s": 0.0, **(executor or {})},
        )
        sweep = RunningSweep(
            sweep_id="s",
            settings=settings,
            pools=pools,
            environments={interpreter: f"e{number}" for number, interpreter in enumerate(pools)},
            caches=tmp_path / "caches",
            first_rounds=(0,),
            history=history or {},
            **parts,
        )
        for one in pools.values():
            one.stop = sweep.stop
        runs = list(dict.fromkeys([*sweep.history, *(trial.run for trial in planned)]))
        made = schedule.Schedule(sweep, slots or gpus(1), runs, duet_rule)
        made.server, made.progress, made.recorded = server, sweep.progress, sweep.store.recorded
        if planned:
            made.run(made.rounds.needed(planned))
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
