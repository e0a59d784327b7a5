"""Modes, training and two checkouts through real sweeps on the CPU."""

import pytest
from whole_sweeps import results_of, trials_of

from effbench.environments import names_by
from effbench.store import Store


@pytest.mark.slow
def test_compilations_torchscript_and_ahead_of_time(workshop):
    modes = "mode=eager,default,jit-trace,jit-script,aot-inductor"
    done = workshop.sweep(
        "model=tiny", "bs=2", modes, "protocol.rounds=3", "protocol.compilations=2"
    )
    assert done.code == 0, done.err
    found: dict[str, list[dict]] = {}
    for trial in trials_of(workshop.db):
        assert trial["status"] == "ok", trial["reason"]
        found.setdefault(trial["mode"], []).append(trial)
    counted = {row["mode"]: row["compilations"] for row in results_of(workshop.db)}
    caches = {name: [trial["compile_cache"] for trial in of] for name, of in found.items()}
    assert caches == {
        "eager": [None] * 3,
        "default": ["cold", "cold", "warm"],
        "jit-trace": ["cold"] * 3,
        "jit-script": ["cold"] * 3,
        "aot-inductor": ["cold", "cold", "warm"],
    }
    for name, trials in found.items():
        numbers = [None] * 3 if name == "eager" else [0, 1, 0]
        assert [(trial["compilation"], trial["kernel_fingerprint"]) for trial in trials] == [
            (n, None) for n in numbers
        ]
        assert counted[name] == (None if name == "eager" else 2)
    cold, _, warm = found["aot-inductor"]
    assert cold["compile_s"] > warm["compile_s"] > 0
    assert (
        cold["extra"]["facts"]["package_bytes"] == warm["extra"]["facts"]["package_bytes"] > 10_000
    )
    assert cold["graph_breaks"] is None, "Dynamo's counters say nothing of it"
    for name in ("jit-trace", "jit-script"):
        facts = found[name][0]["extra"]["facts"]
        assert any("deprecated" in said for said in facts["deprecations"])


@pytest.mark.slow
def test_a_training_step_is_compared_with_a_training_step(workshop):
    """Inference is there once, whatever is swept of training."""
    workshop.sweep(
        "model=tiny",
        "bs=4",
        "phase=inference,training",
        "mode=eager,default,cuda-graph",
        "training.lr=1e-4,1e-5",
    )
    rows = results_of(workshop.db)
    found = {
        (row["phase"], row["params"].get("training", {}).get("lr"), row["mode"]): row
        for row in rows
    }
    assert len(found) == 3 + 6
    for (phase, lr, mode), row in found.items():
        assert ("training" in row["params"]) == (phase == "training")
        if mode == "default":
            assert (row["status"], row["graph_breaks"]) == ("ok", 0), row["reason"]
            assert row["speedup"] == pytest.approx(
                found[phase, lr, "eager"]["latency_ms"] / row["latency_ms"]
            )
            assert row["compile_cold_s"] > 0
        elif mode == "cuda-graph":
            assert (row["status"], row["latency_ms"]) == ("unsupported", None)


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
        "training.loss=mean",
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
def test_two_checkouts_in_one_sweep(cli):
    """Old and new: the new one is slower, and fails at bs=2."""
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
    with Store.open(cli.db) as store:
        (sweep,) = store.sweeps()
        rows = store.results(sweep.id)
        half_of = names_by(store.environments(row["environment_id"] for row in rows), "folder")
    facts = sweep.host["environments"]
    assert {half_of[one]: (found["folder"], found["given"]) for one, found in facts.items()} == {
        name: (str(cli.folder / name), ["folder"]) for name in ("old", "new")
    }
    small, large = (
        {half_of[row["environment_id"]]: row for row in rows if row["bs"] == bs} for bs in (1, 2)
    )
    ran = [
        {name: (row["status"], row["trials"]) for name, row in half.items()}
        for half in (small, large)
    ]
    assert ran == [{"old": ("ok", 3), "new": ("ok", 3)}, {"old": ("ok", 3), "new": ("error", 1)}]
    assert small["new"]["latency_ms"] > 4 > small["old"]["latency_ms"], "each runs its own code"
    assert small["new"]["cell_key"] == small["old"]["cell_key"]
    assert small["new"]["speedup"] == small["old"]["speedup"] == 1, "each has its own baseline"
    assert "too large for the new one" in large["new"]["reason"]
    assert done.code == 1
    assert "2 cells × 2 folders × 3 rounds" in done.out
    assert "Net bs=1 eager float32 · new · round 3/3 · ok" in done.out
    assert "error Net folder=new bs=2 eager float32: " in done.out
    table = cli.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
    assert [line.split("|")[2].strip() for line in table[2:]] == [
        "old",
        "old",
        "new",
        "new",
    ], "in the order given"
