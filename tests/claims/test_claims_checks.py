"""Parts of the shipped behaviour checks, with the opposite of what they find;
test_claims_command.py runs them whole."""

import math
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from effbench.claims import (
    _processes,
    _timing,
    _tools,
    dynamo,
    graph_limits,
    graph_weights,
    shapes,
    storage,
)
from effbench.core.python_files import module_of
from effbench.worker.check import unmet

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CPU = torch.device("cpu")


def raising(error):
    def function():
        raise error

    return function


def test_what_a_call_raises_is_an_observation():
    tried = _tools.attempt(raising(ValueError("first\nsecond")))
    assert tried.facts() == {"succeeded": False, "error_type": "ValueError", "error": "first"}
    with pytest.raises(KeyboardInterrupt):
        _tools.attempt(raising(KeyboardInterrupt()))


def test_needs():
    reasons = [unmet(need, CPU) for need in graph_weights.weights.needs]
    assert "it needs CUDA, but this runs on cpu" in reasons


@pytest.mark.slow
def test_what_the_shipped_checks_find_can_be_otherwise():
    wrong = storage.gradients(lambda x: (x.detach() * 2 + x).sum(), lambda x: (x * 3).sum(), CPU)
    assert wrong["backward_works"]
    assert not wrong["gradient_equals_out_of_place"]
    assert not dynamo.observe_reset(CPU, lambda: None)["compiled_again_after_reset"]
    assert not shapes.limit(CPU, limit=8)["limit_sends_later_shapes_to_eager"]


# CUDA graphs, with stand-ins for a graph, so that each fact is seen both ways


def by_address(module, x):
    """As a CUDA graph: the tensors of the capture, wherever the module's names point later."""
    weight, bias = module.weight, module.bias
    return lambda: F.linear(x, weight, bias)


def by_name(module, x):
    """As a call: whatever the module has."""
    return lambda: module(x.to(module.weight.dtype))


@pytest.mark.parametrize(("capture", "is_by_name"), [(by_address, False), (by_name, True)])
def test_weights(capture, is_by_name):
    module = nn.Linear(4, 4).requires_grad_(False)
    facts = graph_weights.observe(module, torch.randn(2, 4), capture)
    assert facts["replay_follows_in_place_update"]
    assert facts["capturing_again_follows_rebinding"]
    for change in ("rebinding", "dtype_change"):
        assert facts[f"replay_follows_{change}"] is is_by_name
        assert facts[f"replay_is_stale_after_{change}"] is not is_by_name


def replays(function, x):
    """A graph writes to one buffer."""
    output = torch.empty_like(function(x))
    return lambda: output.copy_(function(x))


def never_again(function, x):
    """A buffer that stays stale."""
    output = function(x).clone()
    return lambda: output


@pytest.mark.parametrize(
    ("module", "capture", "wrong_sizes"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), replays, []),
        (graph_limits.MixesRows(), replays, [3, 5, 6, 7]),  # those that are captured need none
        (nn.Linear(8, 8), never_again, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_padding(module, capture, wrong_sizes):
    facts = graph_limits.observe(
        module,
        8,
        (1, 2, 4, 8),
        CPU,
        capture,
        poison=math.nan,
    )
    assert facts["wrong_sizes"] == wrong_sizes


def test_measurements_next_to_slow_host_work_do_not_count(monkeypatch):
    speeds = iter([1.0] * 40 + [3.0] * 2 + [1.0] * 100)
    monkeypatch.setattr(_timing, "reading", lambda: next(speeds))
    measured = _timing.in_turn({"a": lambda: 10.0, "b": lambda: 1.0}, rounds=20)
    assert 0 < _timing.disturbed_fraction(measured) < 0.2
    few = _timing.undisturbed([(5.0, 9.0)] * 3, limit=1.0)
    assert few == [5.0] * 3, "too few others are left"


def test_a_fork_answers():
    assert _processes.in_fork(lambda: {"pid": os.getpid() != os.getppid()}) == {"pid": True}
    with pytest.raises(RuntimeError, match="ValueError in a forked process: wrong"):
        _processes.in_fork(raising(ValueError("wrong")))
    with pytest.raises(RuntimeError, match="ended with status 3"):
        _processes.in_fork(lambda: os._exit(3))


FUNCTIONS = """
import os, sys, time

def adds(device, one, two):
    print("not part of the answer")
    return {"sum": one + two, "pandas_is_found": sys.modules.get("pandas", True) is not None}

def dies(device):
    os.abort()

def hangs(device):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    path = tmp_path_factory.mktemp("functions") / "functions_here.py"
    path.write_text(FUNCTIONS)
    return module_of(path)


@pytest.mark.slow
def test_a_fresh_process(functions):
    hidden = ("pandas",)
    facts = _processes.in_fresh_process(
        functions.adds,
        CPU,
        hide=hidden,
        one=1,
        two=2,
    )
    assert facts["succeeded"]
    assert facts["sum"] == 3
    assert not facts["pandas_is_found"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "timeout_s", "error_type"),
    [("dies", 60, "killed by SIGABRT"), ("hangs", 3, "timeout")],
)
def test_a_fresh_process_that_fails(functions, name, timeout_s, error_type):
    facts = _processes.in_fresh_process(getattr(functions, name), CPU, timeout_s=timeout_s)
    assert facts["succeeded"] is False
    assert facts["error_type"] == error_type
