"""Training steps on a GPU: launched one by one, compiled, and captured whole."""

from __future__ import annotations

import pytest

GRAPHS = ("cuda-graph", "compile+graph")


@pytest.fixture(scope="module")
def trials(swept):
    return lambda *overrides: swept(*overrides, "phase=training")


@pytest.fixture(scope="module")
def mlp(trials) -> list[dict]:
    small = ["model=mlp", "model.module.width=256", "model.module.depth=4", "bs=8"]
    all_modes = trials(*small, "mode=eager,default,reduce-overhead,cuda-graph")
    all_modes += trials(*small, "mode=compile+graph", "mode.inner=default")
    assert all_ok(all_modes, 5)
    return all_modes


def all_ok(trials, count):
    assert [(trial["mode"], trial["reason"]) for trial in trials if trial["status"] != "ok"] == []
    return len(trials) == count


def test_every_training_trial_has_its_figures(mlp):
    for trial in mlp:
        for name in (
            "latency_ms",
            "period_ms",
            "gpu_busy_ms",
            "kernels",
            "flops",
            "peak_reserved_bytes",
        ):
            assert trial[name] and trial[name] > 0, (trial["mode"], name)
        assert trial["rel_error"] < 0.2, trial["mode"]
        pools = trial["mode"] in (*GRAPHS, "reduce-overhead")
        assert (trial["graph_pool_bytes"] is not None) == pools, trial["mode"]
        # forward and backward of four layers: the first needs no gradient of its input
        assert trial["flops"] == 2 * 8 * 256 * 256 * (3 * 4 - 1)


def test_every_optimizer_in_eager_and_in_a_graph(trials):
    small = (
        "model=attention",
        "model.module.width=128",
        "model.module.heads=4",
        "model.module.seq=32",
        "bs=4",
    )
    implementations = "training.implementation=foreach,fused,capturable"
    assert all_ok(
        trials(*small, "mode=eager,cuda-graph", implementations, "protocol.profile=false"), 6
    )
    adamw = trials(
        "model=tiny",
        "bs=8",
        "mode=cuda-graph",
        "training.optimizer=sgd,adamw",
        "protocol.profile=false",
        "training.implementation=for-loop",
        "training.set_to_none=false",
        "training.lr=1e-3",
    )
    assert all_ok(adamw, 2)
