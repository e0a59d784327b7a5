"""What is compared besides outputs: inputs that a module writes to, its state, and all of it again
after timing."""

import re
from functools import partial

import pytest
import torch
from own_cells import cpu_cell, own_workload
from torch import nn

from effbench.core.cell import Status
from effbench.models.spec import parse_inputs
from effbench.modes import graphs
from effbench.modes.base import Example, Prepared
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import CompiledCudaGraph
from effbench.workloads import state
from effbench.workloads.endings import Ended
from effbench.workloads.inference import Inference

SPECS = parse_inputs({"x": {"shape": [8]}, "y": {"shape": [8], "keyword": True}})


class Does(nn.Module):
    """What `forward` does with the inputs."""

    def __init__(self, forward):
        super().__init__()
        self.does = forward

    def forward(self, x, y):
        return self.does(x, y)


def doubles_x(x, y):
    return x.mul_(2) + y


class Counts(nn.Module):
    """Counts its calls in a buffer, a tensor, a number and a parameter; the output depends on
    `which`."""

    def __init__(self, which):
        super().__init__()
        self.which, self.number = which, 0
        self.cache, self.late = torch.zeros(1), None
        self.register_buffer("count", torch.zeros(()))
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, y):
        if self.late is None:  # created in the first call
            self.late = x[:1]
        self.cache = self.cache + 1  # another tensor each time
        self.number += 1
        self.weight.add_(1)
        self.count += 1
        if self.which is None:
            return x + y
        return (x + y) * getattr(self, self.which)


def workload(module):
    return own_workload(Inference, cpu_cell(4), module.eval(), SPECS, inputs())


def inputs():
    generator = torch.Generator().manual_seed(1)
    return [
        ((torch.rand(4, 8, generator=generator),), {"y": torch.rand(4, 8, generator=generator)})
        for _ in range(3)
    ]


def verdict(made, step, timed=0):
    """Return why the step is incorrect, or became so in some timed calls."""
    made.step = step
    made.take_reference()
    with made.context():
        try:
            made.check()
        except Ended as ended:
            return ended.reason
        for args, kwargs in inputs() * timed:
            step(*args, **kwargs)
        return made.wrong_after_timing() if timed else None


@pytest.mark.parametrize(
    ("step", "incorrect"),
    [
        (lambda module, x, y: module(x, y), None),
        # within the tolerance
        (lambda module, x, y: x.copy_(x.double() * (2 + 1e-6)) + y, None),
        (lambda module, x, y: (module(x.clone(), y), x.add_(9))[0], "input x differs from eager"),
        (lambda module, x, y: (module(x, y), y.add_(1))[0], "input y differs from eager"),
    ],
)
def test_inputs_that_a_module_writes_to(step, incorrect):
    made = workload(Does(doubles_x))
    reason = verdict(made, lambda x, y: step(made.module, x, y))
    assert reason == incorrect or reason.startswith(f"{incorrect} in 32 of 32 values: relative")
    assert made.degraded is None
    assert "input x" in made.written


def test_inputs_that_a_module_writes_to_are_restored():
    made = workload(Does(doubles_x))
    made.written = {"input x"}
    given = made.inputs.timed[1]
    args, kwargs = given
    before = args[0].clone()
    made.keep_inputs()
    for _ in range(2):
        made.module(*args, **kwargs)
        assert not torch.equal(args[0], before)
        made.kept.restore(given)
        assert torch.equal(args[0], before)


def test_a_mode_that_does_not_write_to_the_callers_tensor_is_degraded():
    made = workload(Does(doubles_x))
    assert verdict(made, lambda x, y: made.module(x.clone(), y)) is None
    assert made.degraded.startswith("the module writes to its input x, but this mode leaves")
    assert "input x" not in made.written


CHANGED = {"buffer count", "attribute cache", "attribute number", "parameter weight"}


@pytest.mark.parametrize("which", [None, "count", "cache", "number", "weight"])
def test_state_is_restored_before_each_comparison(which):
    made = workload(Counts(which))
    address = made.module.count.data_ptr()
    assert verdict(made, made.module, timed=2) is None
    assert made.trial.rel_error == 0
    assert set(map(str, made.initial)) == CHANGED
    assert made.module.count.data_ptr() == address, "a CUDA graph knows it by its address"
    assert made.module.late is not None


@pytest.mark.parametrize(
    ("which", "expected"),
    [("count", "this mode has a copy of the parameter weight, which each call"), (None, "None")],
)
def test_a_copy_of_state_that_outputs_depend_on_is_unsupported(which, expected):
    """In a package, whose buffers are copies."""
    made = workload(Counts(which))
    made.mode.writes_state = False

    def step(x, y):
        output = made.module(x, y)
        if made.module.number == 2:
            made.module.count.add_(1)
        return output

    assert str(verdict(made, step)).startswith(expected)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TypeError("no float64"), Status.INCORRECT),
        # it says nothing about the output
        (torch.OutOfMemoryError("CUDA out of memory"), Status.OOM),
    ],
)
def test_no_float64_reference(error, status):
    def forward(x, y):
        if x.dtype == torch.float64:
            raise error
        return x + y

    made = workload(Does(forward))
    made.take_reference()
    made.step = lambda x, y: made.module(x, y) * 1.01
    with pytest.raises(Ended, match=r"differs from eager in .+; no float64") as ended:
        made.check()
    assert ended.value.status is status
    assert str(error) in ended.value.reason


def test_results_that_become_wrong_are_found_after_timing():
    made, calls = workload(Counts("count")), []

    def step(x, y):
        calls.append(x)
        output = made.module(x, y)
        return output * 1.01 if len(calls) > 4 else output

    reason = verdict(made, step, timed=2)
    assert reason.startswith("outputs differ after timing: output differs from eager in ")
    assert "values: relative error 0.01" in reason


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda net: net[0].weight.mul_(1.001), "parameter inner.0.weight"),
        (lambda net: net.train(), "attribute"),
    ],
)
def test_state_that_a_mode_changes_does_not_excuse_its_results(change, name):
    made = workload(Keeps())

    def step(x, y):
        change(made.module.inner)
        return made.module(x, y)

    assert re.search(rf"ValueError: {name}.* has changed since eager's calls", verdict(made, step))


class Keeps(nn.Module):
    """Keeps its output as an attribute, and adds the previous one."""

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(4, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.BatchNorm1d(8))

    def forward(self, x, y):
        self.last = self.inner(x) + y + self.last
        return self.last * 2


@pytest.mark.parametrize(
    ("mode", "is_compiled"),
    [
        (Compiled(regional=True), False),
        (CompiledCudaGraph(inner="default", regional=True), False),
        (Compiled(), True),
    ],
)
def test_modes_that_run_a_copy_of_the_module_or_one_that_is_compiled_already(
    monkeypatch, fresh_dynamo, mode, is_compiled
):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(graphs, "capture", lambda function, *rest: Prepared(function))
    made = workload(torch.compile(Keeps()) if is_compiled else Keeps())
    made.mode = mode
    made.take_reference()
    with made.context():
        made.prepare(Example(*inputs()[0]))
        made.check()
        assert made.wrong_after_timing() is None


def test_the_digest_of_a_module_is_that_of_its_weights():
    module, other = Counts(None), Counts(None)
    assert state.digest(module) == state.digest(other)
    other.weight.data.mul_(-1)
    assert state.digest(module) != state.digest(other)
