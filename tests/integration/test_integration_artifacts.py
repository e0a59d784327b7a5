"""Artifacts on request, from the command line to the files; and a process that dies while they are
made."""

import gzip
import json

import pytest
from whole_sweeps import trials_of

pytestmark = pytest.mark.slow
KINDS = "artifacts=[trace,snapshot,code,graph]"
DIES = """
import os, time, torch

class Dies(torch.nn.Linear):
    def __init__(self, hangs=False):
        super().__init__(4, 4)
        self.hangs = hangs

    def forward(self, x):
        # where the graph is looked for: the trace is there by then
        if torch.compiler.is_compiling():
            time.sleep(60) if self.hangs else os._exit(3)
        return super().forward(x)

class Refuses(torch.nn.Module):
    @torch.compiler.disable
    def forward(self, x):
        return x * 2
"""
CUSTOM = ("model=custom", "model.inputs.x.shape=[4]")


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("artifacts"))
    cli.done = cli.sweep(
        "model=tiny", "bs=2", "mode=eager,default", "protocol.rounds=2", "db=mine/x.db", KINDS
    )
    return cli


@pytest.fixture(scope="module")
def trials(swept):
    """(mode, round) -> trial."""
    return {
        (trial["mode"], trial["round"]): trial
        for trial in trials_of(swept.folder / "mine" / "x.db")
    }


def files(swept, trial):
    return {
        name.rpartition("/")[2]: swept.folder / "mine" / name
        for name in trial["extra"]["artifacts"]
    }


@pytest.mark.parametrize(("mode", "code"), [("eager", []), ("default", ["code-1.py"])])
def test_every_kind_that_the_cpu_has(swept, trials, mode, code):
    assert swept.done.code == 0, swept.done
    trial = trials[mode, 0]
    found = files(swept, trial)
    assert sorted(found) == [*code, "graph-1.txt", "trace.json.gz"]
    events = json.loads(gzip.decompress(found["trace.json.gz"].read_bytes()))["traceEvents"]
    assert sum(event.get("ph") == "X" for event in events) >= 3 * 2, "two layers, three calls"
    graph = found["graph-1.txt"].read_text()
    assert "linear" in graph and "relu" in graph
    assert all("def call(" in found[name].read_text() for name in code)
    notes = trial["extra"]["artifact_notes"]
    assert notes["snapshot"] == "a memory snapshot needs CUDA"
    assert ("code" in notes) == (not code)
    assert (trial["status"], trial["phase"]) == ("ok", "artifacts")


def test_measured_compilation_is_that_of_the_mode(trials):
    """A graph looked for at the end is no recompilation, and leaves the cache warm for the next
    round."""
    for round, state in ((0, "cold"), (1, "warm")):
        trial = trials["default", round]
        assert (trial["compile_cache"], trial["recompiles"], trial["graph_breaks"]) == (state, 0, 0)
        assert trial["extra"]["graphs"] == 1


def left(cli):
    return [
        path
        for path in cli.db.parent.rglob("artifacts/*/*")
        if path.is_file() or any(path.iterdir())
    ]


def test_what_fails_is_a_note(cli):
    """Dynamo refuses; the trial is as good as ever."""
    (cli.folder / "dies.py").write_text(DIES)
    done = cli.sweep(*CUSTOM, "model.module._target_=dies.Refuses", "artifacts=[graph]")
    assert done.code == 0, done
    (trial,) = trials_of(cli.db)
    assert (trial["status"], trial["extra"]["artifacts"], left(cli)) == ("ok", [], [])
    assert trial["extra"]["artifact_notes"]["graph"]
    assert trial["latency_ms"] > 0


@pytest.mark.parametrize("hangs, status", [("false", "crashed"), ("true", "timeout")])
def test_what_is_half_made_is_not_left_behind(cli, hangs, status):
    (cli.folder / "dies.py").write_text(DIES)
    done = cli.sweep(
        *CUSTOM,
        "model.module._target_=dies.Dies",
        f"model.module.hangs={hangs}",
        "artifacts=[trace,graph]",
        "timeout_s=8",
    )
    assert done.code == 1, done
    (trial,) = trials_of(cli.db)
    assert (trial["status"], trial["phase"]) == (status, "artifacts"), trial
    assert "artifacts" not in trial["extra"]
    assert left(cli) == []
