"""Graphed callables, the backend cudagraphs, AOTInductor, guards against stale weights, and parts under CUDA graphs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import effbench
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.callables import GraphedCallables
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.modes.stale_weights import StaleWeightsError
from effbench.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # Inductor's advice on TF32
QUICK = ["protocol=quick", "protocol.budget_s=0.5", "protocol.min_time_s=0.1", "device=cuda"]
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x, scale):
        return torch.relu(self.layer(x)) * scale + self.shift


class Stack(nn.Module):
    """A tensor by position and one by name, parameters and buffers."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 8)

    def forward(self, x, *, scale):
        for layer in self.layers:
            x = layer(x, scale)
        return self.head(x)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def inputs(bs: int = 4) -> tuple[tuple, dict]:
    """As a worker makes them: ordinary tensors, though calls are made in inference mode."""
    with torch.inference_mode(False):
        return (torch.randn(bs, 64, device="cuda"),), {"scale": torch.rand(bs, 1, device="cuda")}


def follows(mode, module: nn.Module, calls: int = 5):
    """Prepare, call with changing inputs, compare with the module, which stays as it was."""
    with torch.inference_mode():
        args, kwargs = inputs()
        reference = module(*args, **kwargs).clone()
        prepared = mode.prepare(module, args, kwargs)
        for _ in range(calls):
            given, named = inputs()
            torch.testing.assert_close(prepared.step(*given, **named).clone(), module(*given, **named), **CLOSE)
        torch.testing.assert_close(module(*args, **kwargs), reference, rtol=0, atol=0)
        assert not [name for name, part in module.named_modules() if "forward" in vars(part)]
    return prepared


@pytest.mark.parametrize(
    ("mode", "graphs"),
    [
        (GraphedCallables(), 1),
        (GraphedCallables(num_warmup_iters=1, share_pool=False), 1),
        (GraphedCallables(only=["layers.*"]), 3),
        (GraphedCallables(only=["layers.*", "head"], share_pool=False), 4),
    ],
    ids=["whole", "own-pool", "parts", "parts-own-pools"],
)
def test_graphed_callables(mode, graphs):
    prepared = follows(mode, Stack().cuda().eval())
    assert prepared.facts["graphs"] == graphs


def test_the_backend_cudagraphs():
    follows(CudaGraphsBackend(), Stack().cuda().eval())


@pytest.mark.parametrize(
    "mode",
    [
        Compiled("reduce-overhead", regional=True),
        Compiled("reduce-overhead", only=["layers.*.layer", "head"]),
        Compiled("reduce-overhead", dynamic="marked"),
        CompiledCudaGraph("default", regional=True),
        CompiledCudaGraph("default", only="layers.1", skip="layers.1.layer"),
        CompiledCudaGraph("default", dynamic="marked"),
    ],
    ids=["trees-regional", "trees-only", "trees-marked", "graph-regional", "graph-only-skip", "graph-marked"],
)
def test_parts_and_marks_under_cuda_graphs(mode):
    mode.batch_dims = ([0], {"scale": 0})
    follows(mode, Stack().cuda().eval(), calls=6)


MODES = [
    pytest.param(lambda guard: CudaGraph(guard=guard), id="cuda-graph"),
    pytest.param(lambda guard: CompiledCudaGraph("default", guard=guard), id="compile+graph"),
    pytest.param(lambda guard: CompiledCudaGraph("default", guard=guard, regional=True), id="compile+graph-regional"),
]


def doubled(layer: nn.Linear) -> nn.Parameter:
    with torch.inference_mode(False):
        return nn.Parameter(layer.weight.detach().clone() * 2)


@pytest.mark.parametrize("make", MODES)
def test_weights_updated_in_place_need_no_recapture(make):
    module = Stack().cuda().eval()
    policies = ("refuse", "recapture") if isinstance(make(None), CudaGraph) else ("recapture",)  # compiling takes time
    for policy in policies:
        prepared = follows(make(policy), module)
        with torch.no_grad():
            module.head.weight.mul_(-1.5)
        with torch.inference_mode():
            given, named = inputs()
            torch.testing.assert_close(prepared.step(*given, **named).clone(), module(*given, **named), **CLOSE)
        assert prepared.facts["recaptures"] == 0


@pytest.mark.parametrize("make", MODES)
def test_rebound_weights_are_refused(make):
    module = Stack().cuda().eval()
    prepared = follows(make("refuse"), module)
    module.layers[2].layer.weight = doubled(module.layers[2].layer)
    given, named = inputs()
    with torch.inference_mode(), pytest.raises(StaleWeightsError, match=r"weight layers.2.layer.weight: another"):
        prepared.step(*given, **named)


@pytest.mark.parametrize("make", MODES)
def test_rebound_weights_are_captured_again(make):
    module = Stack().cuda().eval()
    prepared = follows(make("recapture"), module)
    for times in (1, 2):
        module.layers[1].layer.weight = doubled(module.layers[1].layer)
        with torch.inference_mode():
            for _ in range(2):
                given, named = inputs()
                torch.testing.assert_close(prepared.step(*given, **named).clone(), module(*given, **named), **CLOSE)
        assert prepared.facts["recaptures"] == times


def test_without_a_guard_the_old_weights_go_on():
    module = Stack().cuda().eval()
    prepared = follows(CudaGraph(), module)
    given, named = inputs()
    with torch.inference_mode():
        before = module(*given, **named).clone()
        kept = module.head.weight  # its memory must stay what it is
        module.head.weight = doubled(module.head)
        torch.testing.assert_close(prepared.step(*given, **named).clone(), before, **CLOSE)
    assert kept is not module.head.weight


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes")
    (folder / "modules.py").write_text((Path(__file__).parent / "modules.py").read_text())
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def trials(overrides: list[str]) -> dict[str, dict]:
    """The trials of a sweep by mode."""
    made = effbench.sweep([*overrides, *QUICK])
    with Store.open(made.db) as store:
        names = {cell.key: cell.mode_name for cell in store.planned(made.id)}
        return {names[trial["cell_key"]]: trial for trial in store.trials(made.id)}


def test_sweep(folder):
    found = trials(["model=mlp", "model.module.width=128", "bs=2", "dtype=float32",
                    "mode=eager,graphed-callables,cudagraphs,jit-trace,jit-script"])  # fmt: skip
    assert {(trial["status"], trial["reason"]) for trial in found.values()} == {("ok", None)}, found
    assert found["graphed-callables"]["graph_pool_bytes"] > 0
    assert found["cudagraphs"]["graph_pool_bytes"] > 0
    assert (found["cudagraphs"]["cudagraph_skips"], found["cudagraphs"]["compile_cache"]) == (0, "cold")


def test_aot_inductor(folder):
    """In workers: what crashes there takes no test with it."""
    target = ["model=mlp", "model.module.width=128", "bs=2", "dtype=float32", "mode=eager,aot-inductor"]
    sweep = effbench.sweep([*target, *QUICK, "protocol.rounds=2"])
    with Store.open(sweep.db) as store:
        names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
        found = [trial for trial in store.trials(sweep.id) if names[trial["cell_key"]] == "aot-inductor"]
    if found[0]["status"] == "unsupported":
        pytest.skip(found[0]["reason"])
    assert [(trial["status"], trial["reason"]) for trial in found] == [("ok", None)] * 2
    assert sorted(trial["compile_cache"] for trial in found) == ["cold", "warm"]


def test_what_the_backend_cudagraphs_skips_is_degraded(folder):
    target = ["model=custom", "model.module._target_=modules.HalfOnTheCpu", "model.inputs.x.shape=[16]"]
    trial = trials([*target, "mode=cudagraphs", "dtype=float32"])["cudagraphs"]
    assert trial["status"] == "degraded"
    assert "ran without a CUDA graph" in trial["reason"]
    assert "cpu" in trial["reason"]
