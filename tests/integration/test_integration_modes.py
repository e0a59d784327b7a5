"""Modes, training and two checkouts through real sweeps on the CPU."""

from collections import defaultdict

import pytest
from whole_sweeps import results_of, trials_of

from effbench.core.environments import names_by
from effbench.core.meeting import ALONE, DUET
from effbench.store import Store


@pytest.fixture(scope="module")
def trials(cli_in, tmp_path_factory):
    """Trials of modes that compile by mode, in order."""
    cli = cli_in(tmp_path_factory.mktemp("compiled"))
    done = cli.sweep(
        "model=tiny",
        "bs=2",
        "mode=eager,default,aot-inductor",
        "protocol.rounds=3",
        "protocol.compilations=2",
    )
    assert done.code == 0, done.err
    by_mode: dict[str, list[dict]] = defaultdict(list)
    for trial in trials_of(cli.db):
        assert trial["status"] == "ok", trial["reason"]
        by_mode[trial["mode"]].append(trial)
    return by_mode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "caches"),
    [
        ("default", ["cold", "cold", "warm"]),
        ("aot-inductor", ["cold", "cold", "warm"]),
    ],
)
def test_rounds_of_a_mode_that_compiles_take_turns_with_its_caches(trials, mode, caches):
    assert [trial["compile_cache"] for trial in trials[mode]] == caches
    assert [trial["compilation"] for trial in trials[mode]] == [0, 1, 0]


@pytest.mark.slow
def test_a_package_compiled_ahead_of_time(trials):
    cold, _, warm = trials["aot-inductor"]
    assert cold["compile_s"] > warm["compile_s"] > 0
    sizes = [trial["extra"]["facts"]["package_bytes"] for trial in (cold, warm)]
    assert sizes[0] == sizes[1] > 10_000
    assert cold["graph_breaks"] is None, "Dynamo's counters say nothing of it"


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
    found = {}
    for row in results_of(workshop.db):
        found[row["phase"], row["params"].get("training", {}).get("lr"), row["mode"]] = row
    assert len(found) == 3 + 6
    for (phase, lr, mode), row in found.items():
        assert ("training" in row["params"]) == (phase == "training")
        if mode == "default":
            assert (row["status"], row["graph_breaks"]) == ("ok", 0), row["reason"]
            separate = found[phase, lr, "eager"]["latency_ms"] / row["latency_ms"]
            assert row["separate_speedup"] == pytest.approx(separate)


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


@pytest.fixture(scope="module")
def checkouts(cli_in, tmp_path_factory):
    """A sweep of two checkouts: the new one is slower, and fails at bs=2. Only to be read."""
    cli = cli_in(tmp_path_factory.mktemp("checkouts"))
    for name, sleep_s, largest in (("old", 0, 9), ("new", 0.004, 1)):
        folder = cli.folder / name
        folder.mkdir()
        (folder / "net.py").write_text(NET)
        (folder / "shared.py").write_text(f"SLEEP_S = {sleep_s}\nLARGEST = {largest}\n")
    cli.done = cli.sweep(
        "model=custom",
        "model.module._target_=net.Net",
        "model.inputs.x.shape=[4]",
        "bs=1,2",
        "folder=old,new",
        "protocol.rounds=3",
    )
    return cli


@pytest.mark.slow
def test_each_checkout_runs_its_own_code_in_turn(checkouts):
    with Store.open(checkouts.db) as store:
        names = names_by(store.environments(), "folder")
    rows = {(names[row["environment_id"]], row["bs"]): row for row in results_of(checkouts.db)}
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
        trial["extra"][DUET]
        for trial in trials_of(checkouts.db)
        if trial["cell_key"] == old["cell_key"]
    ]
    assert len(duets) == 6 and all(ALONE not in duet for duet in duets)


@pytest.mark.slow
def test_the_output_names_the_checkouts(checkouts):
    assert checkouts.done.code == 1
    for text in (
        "2 cells × 2 folders × 3 rounds",
        "round 3/3 · Net bs=1 eager float32 · new · ok",
        "Net folder=new bs=2 eager float32: error: ",
    ):
        assert text in checkouts.done.out
    table = checkouts.run("show", "--format", "markdown", "--metric", "latency_ms").out.splitlines()
    assert table[0] == "| model | folder | bs | eager |"
