"""What is compared besides outputs: inputs that a module writes to, its state, and all of it again after timing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from effbench.cell import Cell, Status, Trial
from effbench.modes.eager import Eager
from effbench.worker.failures import Ended
from effbench.worker.workload import Inference


class Writes(nn.Module):
    """Writes to its first input."""

    def forward(self, x, y):
        return x.mul_(2) + y


class Counts(nn.Module):
    """Counts its calls in a buffer, a tensor, a number, a parameter and a list; the output depends on `which`."""

    def __init__(self, which=None):
        super().__init__()
        self.which, self.number, self.several, self.cache, self.late = which, 0, [0], torch.zeros(1), None
        self.register_buffer("count", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        self.late = x[:1] if self.late is None else self.late  # created in the first call
        self.count += 1
        self.cache = self.cache + 1  # another tensor each time
        self.number += 1
        self.several[0] += 1
        self.weight.add_(1)
        return (x + y) * {None: 1, "several": self.several[0]}.get(self.which, getattr(self, self.which or "number"))


def workload(module, mode=None):
    model = {"name": "m", "inputs": [{"name": "x"}, {"name": "y", "keyword": True}]}
    cell = Cell(model, 4, {"name": "eager"}, "float32", "inference", "cpu")
    return Inference(cell, mode or Eager(), module.eval(), Trial(cell.key, 0, Status.OK))


def inputs():
    generator = torch.Generator().manual_seed(1)
    return [((torch.rand(4, 8, generator=generator),), {"y": torch.rand(4, 8, generator=generator)}) for _ in range(3)]


def verdict(made, step):
    """Return the reason for `incorrect`, and that for `degraded`."""
    with made.context():
        references = made.reference(inputs())
        try:
            made.check(step, inputs(), references)
        except Ended as ended:
            assert ended.status == Status.INCORRECT
            return ended.reason, made.degraded
    return None, made.degraded


@pytest.mark.parametrize(
    ("step", "incorrect", "degraded"),
    [
        (lambda module, x, y: module(x, y), None, None),
        (lambda module, x, y: module(x.clone(), y), None, "the module writes to its input x, but this mode leaves"),
        (lambda module, x, y: (module(x.clone(), y), x.add_(9))[0], "input x differs from eager: relative error", None),
        (lambda module, x, y: (module(x, y), y.add_(1))[0], "input y differs from eager: relative error", None),
        # in another way, and within the tolerance
        (lambda module, x, y: x.copy_(x.double() * (2 + 1e-6)) + y, None, None),
    ],
)  # fmt: skip
def test_inputs_that_a_module_writes_to(step, incorrect, degraded):
    made = workload(Writes())
    found = verdict(made, lambda x, y: step(made.module, x, y))
    for reason, expected in zip(found, (incorrect, degraded), strict=True):
        assert (reason or "").startswith(expected or "") and bool(reason) == bool(expected), found
    assert ("input x" in made.written) == (degraded is None)


def test_written_inputs_are_renewed_for_every_timed_call():
    made, timed = workload(Writes()), inputs()
    assert verdict(made, made.module) == (None, None)
    made.renew(timed[1])
    made.module(*timed[1][0], **timed[1][1])
    assert not torch.equal(timed[1][0][0], inputs()[1][0][0])
    made.renew(timed[1])
    assert torch.equal(timed[1][0][0], inputs()[1][0][0])


@pytest.mark.parametrize("which", [None, "count", "cache", "number", "weight"])
def test_state_goes_back_before_each_comparison(which):
    made = workload(Counts(which))
    address = made.module.count.data_ptr()
    assert verdict(made, made.module) == (None, None)
    assert made.initial.keys() == {"buffer count", "attribute cache", "attribute number", "parameter weight"}
    assert made.module.count == made.module.cache == made.module.number == 1, "as after the first call"
    assert made.module.count.data_ptr() == address, "a CUDA graph knows it by its address"
    assert made.module.late is not None and made.trial.rel_error == 0


@pytest.mark.parametrize(
    ("which", "name", "reason"),
    [
        (None, "count", "buffer count differs from eager: relative error 0.25"),
        (None, "cache", "attribute cache differs from eager: relative error 0.25"),
        (None, "weight", "parameter weight differs from eager: relative error 0.2"),
        ("count", "count", "output differs from eager: relative error"),
    ],
)
def test_other_state_than_eagers_is_seen(which, name, reason):
    made = workload(Counts(which))

    def step(x, y):
        output = made.module(x, y)
        getattr(made.module, name).data.add_(1 if made.module.number == 2 else 0)
        return output

    assert verdict(made, step)[0].startswith(reason)
    made = workload(Counts(which))
    made.mode.writes_state = False  # a package with copies of the buffers
    assert (verdict(made, step)[0] is None) == (which is None)


def test_float64_decides_about_state_too():
    """float16 sums: the step computes them in float64, and is nearer to the truth than eager."""

    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(8, dtype=torch.float16))

        def forward(self, x, y):
            for row in x.to(self.total.dtype).repeat(200, 1):
                self.total += row
            return x + y

    made = workload(Sums())

    def step(x, y):
        made.module.total.copy_(made.module.total.double() + 200 * x.half().double().sum(0))
        return x + y

    assert verdict(made, step) == (None, None)
    assert made.trial.extra["judged_by_float64"]


@pytest.mark.parametrize("calls", [4, 10**6])
def test_results_that_become_wrong_are_found_after_timing(calls):
    made, done = workload(Counts("count")), []

    def step(x, y):
        done.append(0)
        return made.module(x, y) * (1.01 if len(done) > calls else 1)

    with made.context():
        references = made.reference(inputs())
        made.check(step, inputs(), references)
        for given in inputs() * 2:
            step(*given[0], **given[1])
        reason = made.after_timing(step, inputs(), references)
    expected = "outputs differ after timing: output differs from eager: relative error 0.01"
    assert reason is None if calls > 4 else reason.startswith(expected)


def test_a_list_is_not_restored():
    made = workload(Counts("several"))
    assert verdict(made, made.module)[0].startswith("output differs from eager")
