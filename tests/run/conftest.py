"""An executor of made-up parts."""

import contextlib
import signal
import threading

import pytest
from schedule_parts import (
    PROTOCOL,
    A,
    B,
    Server,
    Store,
    Watcher,
    cell_runs,
    gpus,
    probed,
    runs_of,
)

from effbench.run import client, devices, pool
from effbench.run.executors import local
from effbench.run.interpreters import HERE
from effbench.run.plan import Settings, SweepPlan


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    """Each test has a folder of locks of its own."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A local executor, and what it records. It has run the trials that are `planned`."""
    for module in (client, devices, local):
        monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(client, "RETRY_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(local, "held_driver", contextlib.nullcontext)

    def build(
        planned=(),
        answer=None,
        *,
        server=None,
        servers=None,
        history=None,
        progress=None,
        stop=None,
        store=None,
        slots=None,
        duet_rule=None,
        executor=None,
        **settings,
    ):
        server = server or Server(answer)
        servers = servers or {HERE: probed(server)}
        stop = stop or threading.Event()
        given = {"protocol": PROTOCOL, "timeout_s": 30.0, **settings}
        waits = {"lock_timeout_s": 30.0, "foreign_wait_s": 0.0, "renew_server": False}
        waits |= executor or {}
        settings = Settings.with_defaults(**given, executor=waits)
        store = store or Store()
        runs = [*(history or {}), *runs_of(planned)]
        if not runs:
            runs = [*cell_runs(4), *cell_runs(4, device="cpu")]
        plan = SweepPlan(runs, duet_rule=duet_rule)
        made = local.LocalExecutor(settings, servers, plan, "s", progress or Watcher(), stop, store)
        made.caches = tmp_path / "caches"
        for run, trials in (history or {}).items():
            for trial in trials:
                made.rounds.add(run, trial)
        made.slots = slots or gpus(1)
        made.server, made.recorded = server, store.recorded
        if planned:
            made.run_groups(planned)
        return made

    return build


@pytest.fixture
def make_pairs(make):
    """An executor for the interpreters A and B, which has run trials on these `servers`."""

    def build(planned, servers, **options):
        names = {"e0": A, "e1": B}
        found = {one: probed(servers[one], name) for name, one in names.items()}
        made = make(planned, servers=found, **options)
        made.ran_in = [names[name] for name in made.store.environments]
        made.sent = {one: servers[one].sent for one in servers}
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


@pytest.fixture
def ctrl_c():
    """Ctrl-C is handled as on a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
