"""Two checkouts of a module in one sweep, with real fork servers."""

import pytest

from effbench.environments import names_by
from effbench.store import Store

NET = """
import time
import torch
from shared import SLEEP_S, LARGEST

class Net(torch.nn.Module):
    def forward(self, x):
        if len(x) > LARGEST:
            raise ValueError("too large for the new one")
        time.sleep(SLEEP_S)
        return x + 1
"""
MODEL = ("model=custom", "model.module._target_=net.Net", "model.inputs.x.shape=[4]")
ROUNDS = 3


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def swept(cli_in, tmp_path_factory):
    """Two checkouts, old and new, in one sweep. The new one is slower, and fails at bs=2."""
    cli = cli_in(tmp_path_factory.mktemp("halves"))
    for name, sleep_s, largest in (("old", 0, 9), ("new", 0.004, 1)):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        (folder / "shared.py").write_text(f"SLEEP_S = {sleep_s}\nLARGEST = {largest}\n")
    cli.done = cli.sweep(*MODEL, "bs=1,2", "folder=old,new", f"protocol.rounds={ROUNDS}")
    with Store.open(cli.db) as store:
        (cli.found,) = store.sweeps()
        cli.trials, cli.rows = store.trials(cli.found.id), store.results(cli.found.id)
        cli.environments = store.environments(row["environment_id"] for row in cli.rows)
        cli.cells = store.planned(cli.found.id)
    cli.half_of = names_by(cli.environments, "folder")
    cli.size_of = {cell.key: cell.bs for cell in cli.cells}
    return cli


def test_two_checkouts_in_one_sweep(swept):
    assert sorted(swept.half_of.values()) == ["new", "old"]
    facts = swept.found.host["environments"]
    assert {swept.half_of[one]: (found["folder"], found["given"]) for one, found in facts.items()} == {
        name: (str(swept.folder / name), ["folder"]) for name in ("old", "new")
    }
    small, large = (
        {swept.half_of[row["environment_id"]]: row for row in swept.rows if row["bs"] == bs} for bs in (1, 2)
    )
    assert {name: (row["status"], row["trials"]) for name, row in small.items()} == {
        "old": ("ok", ROUNDS), "new": ("ok", ROUNDS),
    }  # fmt: skip
    assert small["new"]["latency_ms"] > 4 > small["old"]["latency_ms"], "each runs its own code"
    assert small["new"]["cell_key"] == small["old"]["cell_key"]
    assert small["new"]["speedup"] == small["old"]["speedup"] == 1, "each has its own baseline"
    assert {name: (row["status"], row["trials"]) for name, row in large.items()} == {
        "old": ("ok", ROUNDS), "new": ("error", 1),
    }  # fmt: skip
    assert "too large for the new one" in large["new"]["reason"]
    assert swept.done.code == 1


def test_they_take_turns(swept):
    order = sorted(swept.trials, key=lambda trial: (trial["round"], trial["started_at"]))
    small = [trial for trial in order if swept.size_of[trial["cell_key"]] == 1]
    turns = [[swept.half_of[t["environment_id"]] for t in small if t["round"] == number] for number in range(ROUNDS)]
    assert turns == [["old", "new"], ["new", "old"], ["old", "new"]]
    first = [swept.size_of[trial["cell_key"]] for trial in order if trial["round"] == 0]
    assert first in ([1, 1, 2, 2], [2, 2, 1, 1]), "a pair is not torn apart"
    assert len(swept.trials) == 3 * ROUNDS + 1


def test_tables_name_the_interpreters(swept):
    assert "2 cells × 2 interpreters × 3 rounds" in swept.done.out
    assert "Net bs=1 eager float32 · new · round 3/3 · ok" in swept.done.out
    assert "error Net folder=new bs=2 eager float32: " in swept.done.out
    table = swept.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
    assert [line.split("|")[2].strip() for line in table[2:]] == ["old", "old", "new", "new"], "in the order given"
