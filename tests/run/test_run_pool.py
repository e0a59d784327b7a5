"""Fork servers of a sweep: probed, replaced when dead, renewed each round, closed when nobody uses
them. No process."""

import threading
import time
from dataclasses import replace

import pytest
from made_sweeps import environment
from schedule_parts import FACTS, Server

from effbench.core.cell import Cell
from effbench.core.errors import ConfigError, WorkerError
from effbench.run import pool
from effbench.run.interpreters import HERE, Interpreter
from effbench.run.plan import CellRun
from effbench.run.pool import ServerPool, open_servers
from effbench.run.probe import ProbedMachine, adapt_modes, to_preload

MODE = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
CELL = Cell(
    {"name": "net", "module": {"_target_": "net.Net"}}, 1, MODE, "auto", "inference", "auto"
)

NOTHING = {"modules": [], "networks": [], "modes": []}


class Fake(Server):
    """A server that the probe finds fit unless its folder is `/empty`."""

    preloaded = False

    def wait_ready(self, stop=None):
        if self.dead:
            raise WorkerError(self.dead)

    def call(self, task, payload, timeout_s, stop=None):
        self.wait_ready()
        self.preloaded = task == "preload"
        errors = (
            ["_target_=net.Net: no module named net"]
            if self.options.get("folder") == "/empty"
            else []
        )
        return {
            "errors": errors,
            "settings": {str(MODE): []},
            "gpus": [],
            "details": {},
            "environment": FACTS,
        }


@pytest.fixture
def started(monkeypatch):
    """The servers that were started."""
    made = []
    monkeypatch.setattr(
        pool, "ForkServer", lambda **options: made.append(Fake(**options)) or made[-1]
    )
    return made


class Prompt(ServerPool):
    """The next server has loaded when `take` returns."""

    def take(self, round):
        server = super().take(round)
        deadline = time.monotonic() + 20
        while self.next is not None and self.next not in self.loaded:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return server


def prepared(last_round):
    return Prompt(HERE, Fake(), threading.Event(), NOTHING, last_round)


class TestRounds:
    def test_each_round_has_its_own_and_the_next_one_starts_early(self, started):
        renewed = prepared(2)
        first = renewed.take(0)
        assert first is renewed.lent
        assert first.preloaded
        assert len(started) == 1, "the next one loads meanwhile"
        renewed.give_back(first)
        second = renewed.take(1)
        assert second is started[0]
        assert second.preloaded
        third = renewed.take(2)
        assert renewed.take(1) is third, "a straggler takes the server that is there"
        assert (third, len(started)) == (started[1], 2), "none is started after the last round"

    def test_a_server_is_closed_after_its_last_trial_unless_it_is_borrowed(self, started):
        renewed = prepared(2)
        servers = [renewed.take(number) for number in range(3)]
        assert [server.closed for server in servers] == [False] * 3, "all have a trial"
        for server in servers:
            renewed.give_back(server)
        assert [server.closed for server in servers] == [False, True, False], "one is current"
        renewed.close()
        assert [server.closed for server in servers] == [False, True, True]

    def test_after_one_that_does_not_load_later_rounds_have_their_own_again(self, started):
        renewed = prepared(3)
        first = renewed.take(0)
        started[0].dead = "killed"
        assert [renewed.take(1), renewed.take(1)] == [first, first]
        assert renewed.take(2) is started[1]
        assert len(started) == 3, "one a round"

    def test_a_dead_one_is_replaced(self, started):
        kept = prepared(0)
        kept.current.dead = "ended"
        assert kept.take(0) is started[0]
        started[0].dead = "ended"
        assert kept.take(0) is started[1]
        assert not started[1].closed


class TestOpened:
    def opened(self, *folders, server=None):
        runs = [CellRun(CELL, Interpreter(None, folder)) for folder in folders]
        return open_servers(runs, "eager", threading.Event(), server)

    def test_each_has_a_server_until_the_end_unless_it_was_lent(self, started):
        lent = Fake()
        with self.opened("/good", None, server=lent) as servers:
            folders = [one.machine.environment.flags.get("folder") for one in servers.values()]
            assert folders == ["/good", None]
            assert servers[HERE].server is lent
            assert [server.closed for server in started] == [False]
        assert [server.closed for server in started] == [True]
        assert lent.closed is False

    def test_what_cannot_be_imported_names_the_interpreter(self, started):
        error = r"^folder=/empty: _target_=net\.Net: no module named net$"
        with pytest.raises(ConfigError, match=error), self.opened("/good", "/empty"):
            pass
        assert [server.closed for server in started] == [True, True]

    def test_the_only_interpreter_is_not_named(self, started):
        dead = Fake()
        dead.dead = "the fork server ended while starting: too old"
        error = r"^the fork server ended"
        with pytest.raises(WorkerError, match=error), self.opened(None, server=dead):
            pass


def adapted(first, setting):
    """The modes `first` and `default` with this setting, which at most the latter has."""
    modes = {name: {"name": name, "_target_": "x.X", setting: True} for name in (first, "default")}
    return adapt_modes(modes, {first: [], "default": ["fullgraph"]}, "eager")


def test_the_baseline_omits_what_only_other_modes_have():
    kept = {name: "fullgraph" in mode for name, mode in adapted("eager", "fullgraph").items()}
    assert kept == {"eager": False, "default": True}


@pytest.mark.parametrize(
    ("first", "setting", "errors"),
    [
        (
            "eager",
            "fulgraph",
            r"^mode eager has no setting 'fulgraph': did you mean fullgraph\?; allowed: none$",
        ),
        ("cuda-graph", "fullgraph", "^mode cuda-graph has no setting 'fullgraph'; allowed: none$"),
    ],
)
def test_settings_that_a_mode_does_not_have(first, setting, errors):
    with pytest.raises(ConfigError, match=errors):
        adapted(first, setting)


@pytest.mark.parametrize("starts_cuda", [False, True])
def test_no_model_is_preloaded_if_importing_one_uses_a_gpu(starts_cuda):
    own = {"name": "mlp", "module": {"_target_": "effbench.models.mlp.MLP"}}
    mode = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}
    cells = [Cell(own, 1, mode, "float32", "inference", "auto"), CELL]
    for bs in (1, 8):
        named = {"library": "transformers", "arch": "gpt2", "task": "decode", "max_batch": bs}
        module = {"_target_": "effbench.models.libraries.network", **named}
        cells.append(replace(CELL, model={"name": "gpt2", "module": module}, bs=bs))
    machine = ProbedMachine(environment(), {}, [], {}, starts_cuda)
    preloaded = to_preload(cells, machine)
    assert preloaded["modes"] == [("effbench.modes.eager.Eager", "auto")]
    if starts_cuda:
        assert preloaded["modules"] == preloaded["networks"] == []
    else:
        assert "effbench.models.mlp" in preloaded["modules"]
        assert preloaded["networks"] == [named]  # once for all batch sizes
