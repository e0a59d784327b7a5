"""Quantized linear layers: which, their error, and how they are checked."""

import pytest
import torch
from torch import nn

from effbench.core.cell import Status
from effbench.workloads import quantization
from effbench.workloads.endings import Ended


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)
    ).eval()


@pytest.fixture
def inputs():
    return (torch.randn(8, 256),), {}


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("int8-weight-only", 1e-3, 0.02), ("float8-weight-only", 0.01, 0.1)]
)
def test_the_error_of_all_layers(module, inputs, kind, least, most):
    (x,), _ = inputs
    assert least < quantization.quantize(module, kind, inputs) < most
    assert quantization.is_quantized(module[0].weight)
    assert quantization.is_quantized(module[3].weight)
    exact = quantization.double(module)(x.double())
    torch.testing.assert_close(
        exact.float(),
        module(x),
        rtol=0,
        atol=1e-5,
    )


def test_a_module_and_its_inputs_keep_their_state(inputs):
    class Counts(nn.Sequential):
        def forward(self, x):
            self.calls += 1
            return super().forward(x.mul_(2))

    counts, (x,) = Counts(nn.Linear(256, 4)), inputs[0]
    counts.register_buffer("calls", torch.zeros(()))
    # a result, as the weight of a layer with weight_norm
    counts.kept = counts[0](torch.zeros(256))
    before = x.clone()
    assert quantization.quantize(counts, "int8-weight-only", inputs) < 0.02
    assert counts.calls == 0
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("kind", "part", "reason"),
    [
        ("int8-weight-only", nn.Conv1d(1, 1, 1), "needs linear layers"),
        ("int4-weight-only", nn.Linear(256, 8), "needs a CUDA device of compute capability 8.0"),
        ("float8", nn.Linear(256, 8), "needs a CUDA device of compute capability 8.9"),
    ],
)
def test_what_cannot_be_quantized_is_unsupported(inputs, kind, part, reason):
    with pytest.raises(Ended, match=reason) as ended:
        quantization.quantize(part, kind, inputs)
    assert ended.value.status is Status.UNSUPPORTED
