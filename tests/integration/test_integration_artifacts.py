"""Artifacts on request, from the command line to the files."""

from __future__ import annotations

import gzip
import json

import pytest

from effbench.store import Store

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory):
    cli = cli_in(tmp_path_factory.mktemp("artifacts"))
    cli.done = cli.sweep("model=tiny", "bs=2", "mode=eager,default", "protocol.rounds=2", "db=mine/x.db",
                         "artifacts=[trace,snapshot,code,graph]")  # fmt: skip
    return cli


@pytest.fixture(scope="module")
def trials(swept):
    """(mode, round) -> trial."""
    with Store.open(swept.folder / "mine" / "x.db") as store:
        sweep = store.find_sweep("last")
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        return {(names[trial["cell_key"]], trial["round"]): trial for trial in store.trials(sweep.id)}


def files(swept, trial):
    return {name.rpartition("/")[2]: swept.folder / "mine" / name for name in trial["extra"]["artifacts"]}


def test_every_kind_that_the_cpu_has(swept, trials):
    assert swept.done.code == 0, swept.done
    assert sorted(files(swept, trials["eager", 0])) == ["graph-1.txt", "trace.json.gz"]
    assert sorted(files(swept, trials["default", 0])) == ["code-1.py", "graph-1.txt", "trace.json.gz"]
    for mode in ("eager", "default"):
        notes = trials[mode, 0]["extra"]["artifact_notes"]
        assert notes["snapshot"] == "a memory snapshot needs CUDA"
        assert (notes.get("code") is not None) == (mode == "eager")
        assert trials[mode, 0]["status"] == "ok"
        assert trials[mode, 0]["phase"] == "artifacts"


def test_the_files_hold_what_they_are_called(swept, trials):
    for mode in ("eager", "default"):
        found = files(swept, trials[mode, 0])
        events = json.loads(gzip.decompress(found["trace.json.gz"].read_bytes()))["traceEvents"]
        linear = [event for event in events if "addmm" in str(event.get("name")) and event.get("ph") == "X"]
        assert len(linear) >= 3 * 2, "two layers, three calls"
        graph = found["graph-1.txt"].read_text()
        assert "class GraphModule" in graph and "linear" in graph and "relu" in graph
    code = files(swept, trials["default", 0])["code-1.py"].read_text()
    assert "def call(" in code and "cpp" in code


def test_measured_compilation_is_that_of_the_mode(trials):
    """A graph looked for at the end is no recompilation, and leaves the cache warm for the next round."""
    for round, state in ((0, "cold"), (1, "warm")):
        trial = trials["default", round]
        assert (trial["compile_cache"], trial["recompiles"], trial["graph_breaks"]) == (state, 0, 0)
        assert trial["extra"]["graphs"] == 1


def test_they_are_listed(swept, trials):
    listed = swept.run("ls", "--artifacts", "--db", "mine/x.db")
    assert listed.code == 0
    assert listed.out.count("trace.json.gz") == 2
    assert "none: a memory snapshot needs CUDA" in listed.out
    path = files(swept, trials["eager", 0])["graph-1.txt"]
    assert str(path.relative_to(swept.folder)) in listed.out
    path.rename(path.with_suffix(".away"))
    assert "graph-1.txt (gone)" in swept.run("ls", "--artifacts", "--db", "mine/x.db").out


def test_what_fails_is_a_note(swept):
    """Dynamo refuses; the trial is as good as ever."""
    (swept.folder / "refuses.py").write_text(
        "import torch\n\n\n"
        "class Refuses(torch.nn.Module):\n"
        "    @torch.compiler.disable\n"
        "    def forward(self, x):\n"
        "        return x * 2\n"
    )
    done = swept.sweep("model=custom", "model.module._target_=refuses.Refuses", "model.inputs.x.shape=[4]",
                       "artifacts=[graph]", "db=mine/y.db")  # fmt: skip
    assert done.code == 0, done
    with Store.open(swept.folder / "mine" / "y.db") as store:
        (trial,) = store.trials(store.find_sweep("last").id)
    assert (trial["status"], trial["extra"]["artifacts"]) == ("ok", [])
    assert trial["extra"]["artifact_notes"]["graph"]
    assert trial["latency_ms"] > 0
