"""One context of gradients for all calls of a row: inference mode, unless the module needs
autograd."""

import pytest
import torch
from own_cells import cpu_cell, own_model, run_trial
from torch import nn

PROTOCOL = {
    "budget_s": 0.02,
    "min_time_s": 0.0,
    "min_samples": 2,
    "target_interval": 0.5,
    "max_samples": 20,
    "load_s": 0.0,
    "warmup_calls": 2,
    "warmup_s": 0.0,
    "max_warmup_s": 0.05,
    "min_block_ms": 0.1,
    "host_tolerance": None,
    "input_sets": 2,
}
#: (is in inference mode, records gradients) of each call of Sees.
SEEN: list[tuple[bool, bool]] = []


class Jac(nn.Module):
    """The derivatives of its outputs; in inference mode they are 0."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, x):
        return torch.autograd.functional.jacobian(lambda value: self.net(value).sum(0), x)


class Forces(Jac):
    """A force field that relies on the caller's gradients."""

    def forward(self, x):
        x.requires_grad_()
        energy = self.net(x).square().sum()
        (gradient,) = torch.autograd.grad(energy, x)
        return {"energy": energy, "forces": -gradient}


class OwnForces(Forces):
    """A force field that enables gradients itself."""

    def forward(self, x):
        with torch.enable_grad():
            return super().forward(x)


class Counts(Jac):
    """Counts its calls in a buffer, and replaces an attribute in each."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.last = torch.zeros(8)

    def forward(self, x):
        self.count += 1
        y = self.net(x) * self.count + self.last
        self.last = y[0].tanh()
        return y


class Sees(Jac):
    def forward(self, x):
        SEEN.append((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
        return self.net(x)


def cell_of(module, **numerics):
    return cpu_cell(4, own_model(module, 8), numerics=numerics)


@pytest.mark.parametrize(
    ("module", "grad_mode", "reason"),
    [
        (Counts, "inference", ""),
        (Jac, "no_grad", "inference mode: output differs from no_grad"),
        (OwnForces, "no_grad", "inference mode: RuntimeError"),
        (Forces, "grad", "no_grad: RuntimeError"),
    ],
)
def test_a_row_runs_in_inference_mode_only_if_the_module_allows_it(module, grad_mode, reason):
    result = run_trial(cell_of(module), PROTOCOL)
    assert (result.status, result.reason) == ("ok", None)
    assert result.extra["grad_mode"] == grad_mode
    assert result.extra.get("grad_mode_reason", "").startswith(reason)


@pytest.mark.parametrize(
    ("numerics", "first", "others"),
    [
        ({}, (False, False), (True, False)),
        ({"grad_mode": "no_grad"}, (False, False), (False, False)),
        ({"grad_mode": "grad"}, (False, True), (False, True)),
    ],
)
def test_all_calls_but_the_first_two_have_one_context(numerics, first, others):
    SEEN.clear()
    result = run_trial(cell_of(Sees, **numerics), PROTOCOL)
    assert result.status == "ok", result.reason
    assert set(SEEN[:2]) == {first}
    assert set(SEEN[2:]) == {others}
