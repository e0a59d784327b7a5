"""Modes, training and two checkouts through real sweeps on the CPU."""

import pytest
from whole_sweeps import results_of, trials_of

from effbench.core.environments import names_by
from effbench.core.meeting import ALONE, DUET
from effbench.store import Store


@pytest.mark.slow
def test_a_package_compiled_ahead_of_time(cli):
    """Its rounds take turns with two caches."""
    rounds = ("protocol.rounds=3", "protocol.compilations=2")
    done = cli.sweep("model=tiny", "bs=2", "mode=eager,aot-inductor", *rounds)
    assert done.code == 0, done
    trials = [trial for trial in trials_of(cli.db) if trial["mode"] == "aot-inductor"]
    cold, _, warm = trials
    assert [trial["compile_cache"] for trial in trials] == ["cold", "cold", "warm"]
    assert [trial["compilation"] for trial in trials] == [0, 1, 0]
    assert cold["compile_s"] > warm["compile_s"] > 0
    sizes = [trial["extra"]["facts"]["package_bytes"] for trial in (cold, warm)]
    assert sizes[0] == sizes[1] > 10_000
    assert cold["graph_breaks"] is None, "Dynamo's counters say nothing of it"


def test_steps_that_diverge_while_they_are_timed(workshop):
    """The curvature is 500: each step is ten times as long as the way to the minimum."""
    workshop.sweep(
        "model=custom",
        "model.module._target_=mischief.Explodes",
        "model.inputs.x.shape=[8]",
        "bs=6",
        "phase=training",
        "training.optimizer=sgd",
        "training.lr=0.02",
        "training.loss=mischief.mean",
    )
    (row,) = results_of(workshop.db)
    assert row["status"] == "incorrect"
    assert "after timing: training diverged; choose a smaller training.lr" in row["reason"]


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
def test_each_checkout_runs_its_own_code_in_turn(cli):
    """The new one is slower, and fails at bs=2."""
    for name, sleep_s, largest in (("old", 0, 9), ("new", 0.004, 1)):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        (folder / "shared.py").write_text(f"SLEEP_S = {sleep_s}\nLARGEST = {largest}\n")
    done = cli.sweep(
        "model=custom",
        "model.module._target_=net.Net",
        "model.inputs.x.shape=[4]",
        "bs=1,2",
        "folder=old,new",
        "protocol.rounds=3",
    )
    assert done.code == 1
    assert "Net folder=new bs=2 eager float32: error: " in done.out
    with Store.open(cli.db) as store:
        names = names_by(store.environments(), "folder")
    rows = {(names[row["environment_id"]], row["bs"]): row for row in results_of(cli.db)}
    assert {key: (row["status"], row["trials"]) for key, row in rows.items()} == {
        ("old", 1): ("ok", 3),
        ("new", 1): ("ok", 3),
        ("old", 2): ("ok", 3),
        ("new", 2): ("error", 1),
    }
    old, new = rows["old", 1], rows["new", 1]
    assert new["latency_ms"] > 4 > old["latency_ms"]
    assert new["speedup"] == old["speedup"] == 1, "each has its own baseline"
    assert "too large for the new one" in rows["new", 2]["reason"]
    duets = [
        trial["extra"][DUET] for trial in trials_of(cli.db) if trial["cell_key"] == old["cell_key"]
    ]
    assert len(duets) == 6 and all(ALONE not in duet for duet in duets)
    table = cli.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
