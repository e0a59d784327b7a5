"""Quantized linear layers: which, their error, and how they are checked."""

import copy

import pytest
import torch
from torch import nn

from effbench.core.cell import Status
from effbench.measure import work
from effbench.workloads import quantization
from effbench.workloads.endings import Ended
from effbench.workloads.quantization import Quantized


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
def test_error_layers_and_bytes(
    module,
    inputs,
    kind,
    least,
    most,
):
    (x,), _ = inputs
    plain = copy.deepcopy(module)
    quantized = quantization.quantize(module, kind, inputs)
    assert least < quantized.error < most
    assert quantized == Quantized(kind, quantized.error, layers=2, of=2)
    error = (quantization.double(module)(x.double()) - plain(x)).norm() / plain(x).norm()
    assert least < error < most, "the float64 reference has the quantized weights"
    assert torch.allclose(quantization.double(module)(x.double()).float(), module(x), atol=1e-5)
    assert 0.2 < work.count(module, *inputs).min_bytes / work.count(plain, *inputs).min_bytes < 0.35


def test_a_module_and_its_inputs_keep_their_state(inputs):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(256, 4)
            self.register_buffer("calls", torch.zeros(()))
            # a result, as the weight of a layer with weight_norm
            self.kept = self.layer(torch.zeros(256))

        def forward(self, x):
            self.calls += 1
            return self.layer(x.mul_(2))

    counts, (x,) = Counts(), inputs[0]
    before = x.clone()
    assert quantization.quantize(counts, "int8-weight-only", inputs).error < 0.02
    assert counts.calls == 0
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("kind", "part", "reason"),
    [
        ("int8-weight-only", nn.Conv1d(1, 1, 1), "needs linear layers"),
        ("int8-weight-only", nn.Linear(256, 8).double(), "does not support dtype=float64"),
        ("int4-weight-only", nn.Linear(256, 8), "needs a CUDA device of compute capability 8.0"),
        ("float8", nn.Linear(256, 8), "needs a CUDA device of compute capability 8.9"),
    ],
)
def test_what_cannot_be_quantized_is_unsupported(
    inputs,
    kind,
    part,
    reason,
):
    with pytest.raises(Ended, match=reason) as ended:
        quantization.quantize(part, kind, inputs)
    assert ended.value.status is Status.UNSUPPORTED
