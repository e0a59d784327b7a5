"""Training steps on a GPU: launched one by one, compiled, and captured whole."""

from __future__ import annotations

import pytest
import torch

from effbench.core.cell import Cell, Status, Trial
from effbench.models.mlp import MLP
from effbench.models.spec import parse_inputs
from effbench.modes.graphs import CudaGraph
from effbench.workloads.base import InputSets
from effbench.workloads.training import TrainingSteps

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
            "min_bytes",
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


def training(module, **settings):
    """Steps that will be in a CUDA graph, over a module whose input is x."""
    settings = {"loss": "mean-square", "implementation": "foreach", "set_to_none": True, **settings}
    cell = Cell(
        {"name": "m"},
        4,
        {"name": "cuda-graph"},
        "float32",
        "training",
        "cuda",
        training=settings,
    )
    trial = Trial(cell.key, 0, Status.OK)
    return TrainingSteps(cell, CudaGraph(), module, trial, parse_inputs({"x": {"shape": [64]}}), 10)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_replayed_step_learns_what_eager_learns(set_to_none):
    """Ten replays against ten eager steps, from the same state, with the inputs changing."""
    torch.manual_seed(0)
    made = training(
        MLP(width=64, depth=3).cuda(), optimizer="adam", lr=1e-3, set_to_none=set_to_none
    )
    inputs = [((torch.randn(4, 64, device="cuda"),), {}) for _ in range(3)]
    made.inputs = InputSets(inputs, inputs)
    made.take_reference()
    eager = made.reference
    prepared = made.prepare(*inputs[0])
    replayed = made.follow(prepared.step)
    assert replayed.losses == pytest.approx(eager.losses, rel=1e-5)
    assert eager.losses[-1] < eager.losses[0]
    for name, value in eager.parameters.items():
        torch.testing.assert_close(replayed.parameters[name], value, rtol=1e-4, atol=1e-5)
    assert made.follow(prepared.step).losses == replayed.losses, "it went back to the initial state"
