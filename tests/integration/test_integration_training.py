"""phase=training from the command line: every optimizer that the CPU has, and what is wrong is said to be."""

import pytest

from effbench.store import Store

CUSTOM = ("model=custom", "model.inputs.x.shape=[8]", "bs=6", "phase=training")


def rows(cli) -> list[dict]:
    """Of the newest sweep: its results, each with its parameters and its trial."""
    with Store.open(cli.db) as store:
        sweep = store.find_sweep("last")
        trials = {trial["cell_key"]: trial for trial in store.trials(sweep.id)}
        found = store.results(sweep.id)
    for row in found:
        row["trial"] = trials[row["cell_key"]]
    return found


def statuses(cli) -> dict[tuple[str, str], tuple[str, str]]:
    return {(row["model"], row["mode"]): (row["status"], row["reason"] or "") for row in rows(cli)}


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


def test_modules_and_modes_that_learn_wrongly(workshop):
    workshop.sweep(*CUSTOM, "model.module._target_=learning.Normed,learning.NotANumber",
                   "--config-dir=conf", "mode=eager,PerturbsGradients,Itself")  # fmt: skip
    found = statuses(workshop)
    for cell, status, *parts in (
        (("Normed", "eager"), "ok"),
        (("Normed", "Itself"), "ok"),
        (("Normed", "PerturbsGradients"), "incorrect", "wrong gradient in the first step: layers."),
        (("NotANumber", "eager"), "incorrect", "eager's loss is"),
    ):
        assert found[cell][0] == status and all(part in found[cell][1] for part in parts), (cell, found[cell])
    (normed,) = [row for row in rows(workshop) if (row["model"], row["mode"]) == ("Normed", "eager")]
    assert normed["trial"]["extra"]["dropout_off"] == 1


def test_steps_that_diverge_while_they_are_timed(workshop):
    """The curvature is 500: each step is 2.5 times as long as the way to the minimum."""
    workshop.sweep(*CUSTOM, "model.module._target_=learning.Explodes", "training.optimizer=sgd", "training.lr=0.005",
                   "training.loss=mean")  # fmt: skip
    ((status, reason),) = statuses(workshop).values()
    assert status == "incorrect"
    assert "after timing: training diverged; choose a smaller training.lr" in reason


def test_a_loss_of_ones_own(workshop):
    done = workshop.sweep(*CUSTOM, "model.module._target_=learning.Normed", "training.loss=learning.to_label,mean")
    assert done.code == 0, done
    losses = {row["params"]["training"]["loss"]: row["trial"]["extra"]["training"]["losses"] for row in rows(workshop)}
    assert losses["learning.to_label"][0] > 1 > abs(losses["mean"][0])
    refused = workshop.sweep(*CUSTOM, "model.module._target_=learning.Normed", "training.loss=learning.to_lable")
    assert refused.code == 2
    assert "training.loss=learning.to_lable: learning has no to_lable; did you mean to_label?" in refused.err
