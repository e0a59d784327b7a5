"""phase=training from the command line."""

import pytest

from effbench.store import Store


def rows(cli) -> list[dict]:
    """The results of the newest sweep."""
    with Store.open(cli.db) as store:
        return store.results(store.find_sweep("last").id)


@pytest.mark.slow
def test_a_training_step_is_compared_with_a_training_step(workshop):
    """Inference is there once, whatever is swept of training."""
    workshop.sweep("model=tiny", "bs=4", "phase=inference,training", "mode=eager,default,cuda-graph",
                   "training.lr=1e-4,1e-5")  # fmt: skip
    found = {(row["phase"], row["params"].get("training", {}).get("lr"), row["mode"]): row for row in rows(workshop)}
    assert len(found) == 3 + 6
    for (phase, lr, mode), row in found.items():
        assert ("training" in row["params"]) == (phase == "training")
        if mode == "default":
            assert (row["status"], row["graph_breaks"]) == ("ok", 0), row["reason"]
            assert row["speedup"] == pytest.approx(found[phase, lr, "eager"]["latency_ms"] / row["latency_ms"])
            assert row["compile_cold_s"] > 0
        elif mode == "cuda-graph":
            assert (row["status"], row["latency_ms"]) == ("unsupported", None)


def test_steps_that_diverge_while_they_are_timed(workshop):
    """The curvature is 500: each step is 2.5 times as long as the way to the minimum."""
    workshop.sweep("model=custom", "model.module._target_=mischief.Explodes", "model.inputs.x.shape=[8]", "bs=6",
                   "phase=training", "training.optimizer=sgd", "training.lr=0.005", "training.loss=mean")  # fmt: skip
    (row,) = rows(workshop)
    assert row["status"] == "incorrect"
    assert "after timing: training diverged; choose a smaller training.lr" in row["reason"]
