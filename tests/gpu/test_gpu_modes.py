"""The backend cudagraphs, AOTInductor, and parts and pieces under CUDA graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from effbench.models.attention import AttentionBlock
from effbench.models.inputs import Batch
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.base import Example
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph
from effbench.modes.piecewise import PiecewiseGraph

pytestmark = pytest.mark.filterwarnings("default")  # Inductor's advice on TF32
SMALL = ["model=mlp", "model.module.width=128", "bs=2", "dtype=float32"]
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


def agrees(prepared, module: nn.Module):
    args, kwargs = inputs()
    torch.testing.assert_close(
        prepared.step(*args, **kwargs).clone(), module(*args, **kwargs), **CLOSE
    )


def follows(mode, module: nn.Module, calls: int = 5):
    """Prepare, call with changing inputs, compare with the module, which stays as it was."""
    with torch.inference_mode():
        args, kwargs = inputs()
        reference = module(*args, **kwargs).clone()
        prepared = mode.prepare(module, Example(args, kwargs, Batch((4,), (0, 0))))
        for _ in range(calls):
            agrees(prepared, module)
        torch.testing.assert_close(module(*args, **kwargs), reference, rtol=0, atol=0)
        assert not [name for name, part in module.named_modules() if "forward" in vars(part)]
    return prepared


@pytest.mark.parametrize(
    "mode",
    [
        CudaGraphsBackend(),
        Compiled("reduce-overhead", regional=True),
        Compiled("reduce-overhead", dynamic="marked"),
        Compiled("reduce-overhead", dynamic="unbacked"),
        Compiled("reduce-overhead", options={"graph_partition": False}),
        Compiled("lite"),
        CompiledCudaGraph(inner="default", regional="Block"),
    ],
)
def test_parts_and_marks_under_cuda_graphs(mode):
    follows(mode, Stack().cuda().eval(), calls=6)


def test_sweep(swept):
    modes = "mode=eager,cudagraphs"
    by_mode = {trial["mode"]: trial for trial in swept(*SMALL, modes, "protocol.profile=false")}
    assert {(trial["status"], trial["reason"]) for trial in by_mode.values()} == {("ok", None)}
    assert by_mode["cudagraphs"]["graph_pool_bytes"] > 0
    assert (by_mode["cudagraphs"]["cudagraph_skips"], by_mode["cudagraphs"]["compile_cache"]) == (
        0,
        "cold",
    )


def attention_stack() -> nn.Module:
    return nn.Sequential(*(AttentionBlock(16, 64, 4) for _ in range(3))).cuda().eval()


def test_pieces_between_attention():
    """Compiled and eager, with inputs that change; the pieces share a pool."""
    module = attention_stack()
    for inner in (None, "default"):
        with torch.inference_mode():
            with torch.inference_mode(False):
                inputs = [torch.randn(2, 16, 64, device="cuda") for _ in range(4)]
            mode = PiecewiseGraph(inner=inner)
            prepared = mode.prepare(module, Example((inputs[0],), {}, Batch((2,), (0,))))
            for x in inputs:
                torch.testing.assert_close(prepared.step(x), module(x), **CLOSE)
        assert prepared.degraded is None
        assert (prepared.facts["pieces"], prepared.facts["captured_pieces"]) == (7, 4)


def test_pieces_in_a_sweep(swept):
    model = ["model=attention", "model.module.seq=64", "bs=2", "dtype=float32"]
    modes = "mode=eager,piecewise-graph,default+piecewise"
    by_mode = {trial["mode"]: trial for trial in swept(*model, modes, "protocol.profile=false")}
    assert {(trial["status"], trial["reason"]) for trial in by_mode.values()} == {("ok", None)}
    assert by_mode.pop("eager")["cold_capture_s"] == 0
    for mode, trial in by_mode.items():
        counts = trial["extra"]["facts"]
        assert counts["pieces"] > counts["captured_pieces"] > 1, mode
        assert trial["graph_pool_bytes"] > 0
        assert trial["cold_capture_s"] > 0


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("cudagraph_capture_sizes=[64]", "no CUDA graph was captured"),
        ("cudagraph_min_partition_size=1000", "1 of 1 parts ran outside a CUDA graph"),
    ],
)
def test_options_that_leave_out_all_calls_are_degraded(swept, option, words):
    if (
        "size=" in option
        and "triton.cudagraph_min_partition_size" not in torch._inductor.list_options()
    ):
        pytest.skip("needs torch >= 2.12")
    option = f"mode.options.triton.{option}"
    (trial,) = swept(*SMALL, "mode=reduce-overhead", option, "protocol.profile=false")
    assert trial["status"] == "degraded"
    assert words in trial["reason"]


def test_aot_inductor(swept):
    """In workers: what crashes there takes no test with it."""
    trials = swept(*SMALL, "mode=aot-inductor", "protocol.rounds=2", "protocol.profile=false")
    if trials[0]["status"] == "unsupported":
        pytest.skip(trials[0]["reason"])
    assert [(trial["status"], trial["reason"]) for trial in trials] == [("ok", None)] * 2
    assert sorted(trial["compile_cache"] for trial in trials) == ["cold", "warm"]
