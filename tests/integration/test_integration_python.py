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


@pytest.mark.slow
def test_two_checkouts_in_one_sweep(cli):
    """Old and new: the new one is slower, and fails at bs=2."""
    for name, sleep_s, largest in (("old", 0, 9), ("new", 0.004, 1)):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        (folder / "shared.py").write_text(f"SLEEP_S = {sleep_s}\nLARGEST = {largest}\n")
    done = cli.sweep("model=custom", "model.module._target_=net.Net", "model.inputs.x.shape=[4]", "bs=1,2",
                     "folder=old,new", "protocol.rounds=3")  # fmt: skip
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        rows = store.results(sweep.id)
        half_of = names_by(store.environments(row["environment_id"] for row in rows), "folder")
    facts = sweep.host["environments"]
    assert {half_of[one]: (found["folder"], found["given"]) for one, found in facts.items()} == {
        name: (str(cli.folder / name), ["folder"]) for name in ("old", "new")
    }
    small, large = ({half_of[row["environment_id"]]: row for row in rows if row["bs"] == bs} for bs in (1, 2))
    ran = [{name: (row["status"], row["trials"]) for name, row in half.items()} for half in (small, large)]
    assert ran == [{"old": ("ok", 3), "new": ("ok", 3)}, {"old": ("ok", 3), "new": ("error", 1)}]
    assert small["new"]["latency_ms"] > 4 > small["old"]["latency_ms"], "each runs its own code"
    assert small["new"]["cell_key"] == small["old"]["cell_key"]
    assert small["new"]["speedup"] == small["old"]["speedup"] == 1, "each has its own baseline"
    assert "too large for the new one" in large["new"]["reason"]
    assert done.code == 1
    assert "2 cells × 2 interpreters × 3 rounds" in done.out
    assert "Net bs=1 eager float32 · new · round 3/3 · ok" in done.out
    assert "error Net folder=new bs=2 eager float32: " in done.out
    table = cli.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
    assert [line.split("|")[2].strip() for line in table[2:]] == ["old", "old", "new", "new"], "in the order given"
