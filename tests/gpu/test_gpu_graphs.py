"""Graphs captured by hand: right for changing inputs, and overwritten by the next call."""

from __future__ import annotations

import pytest
import torch

from effbench.measure.memory import graph_pool_bytes
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph


class TwoInputs(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x, *, scale):
        return self.layer(x) * scale


@pytest.mark.filterwarnings("default")  # Inductor's advice on TF32
@pytest.mark.parametrize("mode", [CudaGraph(), CompiledCudaGraph(inner="default")], ids=["cuda-graph", "compile+graph"])
def test_replays_follow_their_inputs(mode):
    module = TwoInputs().cuda().eval()
    with torch.inference_mode():
        x, scale = torch.randn(4, 64, device="cuda"), torch.randn(4, 1, device="cuda")
        prepared = mode.prepare(module, (x,), {"scale": scale})
        first = prepared.step(x, scale=scale)
        kept = first.clone()
        for _ in range(3):
            x, scale = torch.randn_like(x), torch.randn_like(scale)
            torch.testing.assert_close(prepared.step(x, scale=scale), module(x, scale=scale), rtol=1e-3, atol=1e-3)
        torch.cuda.synchronize()
        assert not torch.equal(first, kept), "the static output is overwritten by the next call"
        assert graph_pool_bytes(torch.device("cuda")) > 0


def test_inputs_of_another_shape_are_refused():
    module = torch.nn.Linear(8, 8).cuda()
    with torch.inference_mode():
        prepared = CudaGraph().prepare(module, (torch.randn(4, 8, device="cuda"),), {})
        with pytest.raises(RuntimeError):
            prepared.step(torch.randn(5, 8, device="cuda"))
