"""Parts of the shipped behaviour checks, with the opposite of what they find; test_command.py runs
them whole."""

import os
import shutil
import subprocess
import time
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from effbench.errors import UnsupportedError
from effbench.experiments import (
    _processes,
    _timing,
    _tools,
    checks,
    compiled_call,
    dynamo,
    fresh,
    graph_limits,
    graph_weights,
    inductor,
    operators,
    shapes,
    storage,
    torchscript,
    warmup_calls,
)
from effbench.experiments.definition import execute
from effbench.modes.base import needs_compiler

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
CPU = torch.device("cpu")


def test_what_a_call_raises_is_an_observation():
    def fails():
        raise ValueError("first\nsecond")

    assert checks.attempt(fails).facts() == {
        "succeeded": False,
        "error_type": "ValueError",
        "error": "first",
    }
    done = checks.attempt(lambda: 3)
    assert (done.value, done.facts()) == (3, {"succeeded": True, "error_type": None, "error": None})
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C is none
        checks.attempt(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_tensors_as_facts():
    assert _tools.listed(torch.arange(6).view(2, 3)) == [0, 1, 2]
    assert _tools.listed(torch.tensor([1.5, float("nan"), float("inf")])) == [1.5, "nan", "inf"]
    assert len(_tools.listed(torch.zeros(100), most=5)) == 5
    x, nan = torch.randn(3), torch.tensor([float("nan")])
    assert _tools.close(x, x + 1e-7)
    assert (
        not _tools.close(x, x + 0.01) and not _tools.close(x, x[:1]) and not _tools.close(nan, nan)
    )


def test_needs(monkeypatch):
    for check in (graph_weights.weights, graph_limits.limits, inductor.memory):
        with pytest.raises(UnsupportedError, match="needs CUDA, but this runs on cpu"):
            check(CPU)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert needs_compiler(CPU)
    with pytest.raises(UnsupportedError, match=r"C\+\+ compiler"):
        inductor.triton(CPU)


def test_warnings_of_deprecation():
    assert not torchscript.is_deprecated(["script"])
    for kind, message in ((UserWarning, "slow"), (FutureWarning, "f is deprecated")):
        found = torchscript.warned_by(
            lambda kind=kind, message=message: warnings.warn(message, kind, stacklevel=1)
        )
        assert found["is_deprecated"] is (kind is FutureWarning)


def test_operators_are_counted():
    with torch.library._scoped_library("counted_here", "DEF") as library:
        library.define("add(Tensor x) -> Tensor")
        library.define("add.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.define("add_(Tensor(a!) x) -> Tensor(a!)")
        library.define("_private(Tensor x) -> Tensor", tags=(torch.Tag.core,))
        names = torch._C._dispatch_get_all_op_names()
        assert operators.count("counted_here", names) == {
            "overloads": 4,
            "names": 3,
            "public_functional_names": 1,
        }
        assert [str(op) for op in operators.core_overloads("counted_here", names)] == [
            "counted_here._private.default"
        ]


def test_what_the_shipped_checks_find_can_be_otherwise():
    wrong = storage.gradients(lambda x: (x.detach() * 2 + x).sum(), lambda x: (x * 3).sum(), CPU)
    assert wrong["backward_works"] and not wrong["gradient_equals_out_of_place"]
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


def test_weights():
    def observe(capture):
        return graph_weights.observe(
            nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4), capture
        )

    follows = (
        "replay_follows_in_place_update",
        "replay_follows_rebinding",
        "replay_follows_dtype_change",
    )
    stale = ("replay_is_stale_after_rebinding", "replay_is_stale_after_dtype_change")
    for capture, expected in ((by_address, (1, 0, 0, 1, 1)), (by_name, (1, 1, 1, 0, 0))):
        facts = observe(capture)
        assert facts["replay_equals_eager_at_first"]
        assert tuple(facts[name] for name in (*follows, *stale)) == expected, capture
        assert (
            facts["capturing_again_follows_rebinding"]
            and facts["capturing_again_follows_dtype_change"]
        )


def test_padding():
    def replays(function, x):
        """A graph writes to one buffer."""
        output = torch.empty_like(function(x))
        return lambda: output.copy_(function(x))

    def never_again(function, x):
        output = function(x).clone()
        return lambda: output

    def pad(module, poison=1e4, capture=replays):
        return graph_limits.observe(module, 8, (1, 2, 4, 8), CPU, capture, poison)

    for poison in (1e4, float("nan")):
        facts = pad(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), poison)
        assert (
            facts["rows_equal_eager"] and facts["wrong_sizes"] == [] and facts["sizes_tried"] == 8
        )
        facts = pad(graph_limits.MixesRows(), poison)
        assert facts["wrong_sizes"] == [3, 5, 6, 7], "those that are captured need none"
        assert facts["first_wrong"]["raw_size"] == 3
        assert facts["first_wrong"]["padded"] != facts["first_wrong"]["eager"]
    assert pad(nn.Linear(8, 8), capture=never_again)["wrong_sizes"] == list(range(1, 9)), (
        "a stale buffer"
    )


def test_judging_peaks_and_first_calls():
    peaks = {
        "as_shipped": 10,
        "memory_planning": 8,
        "no_locality": 10,
        "locality_alone": 12,
        "no_reordering": 14,
    }
    names = ("memory_planning", "reorder_for_locality", "reorder_for_locality_alone")
    for given, expected in (
        (peaks, [True, False, True]),
        ({"as_shipped": 10, "no_locality": 11}, [None, True, None]),
    ):
        found = inductor.judge(given)
        assert [found[f"{name}_lowers_the_peak"] for name in names] == expected
    answers = [{"ran": True, "first_ms": [100.0, 2.4, 2.1, 2.06, 2.0], "steady_ms": 2.0}] * 6
    late = {"ran": True, "first_ms": [100.0, 2.4, 2.1, 2.06, 2.5], "steady_ms": 2.0}
    facts = warmup_calls.judge(answers)
    assert (facts["first_steady_call"], facts["processes"]) == (3, 6)
    assert facts["equivalent_within_fraction"] == pytest.approx(0.03)
    assert warmup_calls.judge([*answers[1:], late])["first_steady_call"] is None, (
        "the whole interval counts"
    )


def test_variants_in_turn(monkeypatch):
    """Measurements next to slow host work do not count, and parts come from differences within a
    round."""
    speeds = iter([1.0] * 40 + [3.0] * 2 + [1.0] * 100)
    monkeypatch.setattr(_timing, "reading", lambda: next(speeds))
    clock = iter(range(1000))
    measured = _timing.in_turn(
        {"a": lambda: 10.0 + next(clock), "b": lambda: float(next(clock))}, rounds=20
    )
    assert 0 < _timing.disturbed_fraction(measured) < 0.2
    assert _timing.paired_ratio([2.0, float("nan"), 6.0], [1.0, 1.0, 2.0]) == {
        "value": 2.5,
        "low": 2.0,
        "high": 3.0,
    }
    assert _timing.undisturbed([(5.0, 9.0)] * 3, limit=1.0) == [5.0] * 3, "too few others are left"
    whole = {
        "default": 30.0,
        f"default, {compiled_call.SKIP_GUARDS}": 26.0,
        "default: AOT wrapper": 17.0,
        "default: Inductor's code": 15.0,
        "one operator": 1.0,
        "one operator, force_eager": 4.0,
    }
    facts = compiled_call.taken_apart(
        "default", {name: [value] * 7 for name, value in whole.items()}
    )
    parts = {name: part["value"] for name, part in facts["parts_us"].items()}
    assert (
        list(parts.values()) == [3.0, 4.0, 6.0, 2.0, 15.0]
        and sum(parts.values()) == whole["default"]
    )
    assert (
        facts["largest_part"].startswith("Inductor")
        and facts["saves_most"] == compiled_call.SKIP_GUARDS
    )


def test_a_fork_answers_and_its_tree_is_measured():
    assert _processes.in_fork(lambda: {"pid": os.getpid() != os.getppid()}) == {"pid": True}
    with pytest.raises(RuntimeError, match="ValueError in a forked process: wrong"):
        _processes.in_fork(lambda: (_ for _ in ()).throw(ValueError("wrong")))
    with pytest.raises(RuntimeError, match="ended with status 3"):
        _processes.in_fork(lambda: os._exit(3))
    with subprocess.Popen(["sleep", "30"]) as child, _processes.tree_memory() as memory:
        time.sleep(0.3)
        child.kill()
    assert memory["processes"] >= 2 and memory["peak_bytes"] > 10 * 2**20


@pytest.mark.slow
def test_the_parts_of_a_compiled_call_run_alone():
    calls = compiled_call.Calls(CPU, 8, 2, 2)
    with _tools.fresh_compile_cache():
        calls.add_parts("default")
    assert not calls.missing and len(calls.measures) == 2
    assert all(measure() > 0 for measure in calls.measures.values())


FUNCTIONS = """
import os, sys, time

def adds(device, one, two):
    print("not part of the answer")
    pandas_is_found = sys.modules.get("pandas", True) is not None
    return {"sum": one + two, "device": str(device), "pandas_is_found": pandas_is_found}

def raises(device):
    raise ValueError("what was wrong")

def dies(device):
    os.abort()

def hangs(device):
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_fresh_process(tmp_path):
    path = tmp_path / "functions_here.py"
    path.write_text(FUNCTIONS)
    module = execute(path)
    assert fresh.in_fresh_process(module.adds, CPU, hide=("pandas",), one=1, two=2) == {
        "succeeded": True,
        "error_type": None,
        "error": None,
        "sum": 3,
        "device": "cpu",
        "pandas_is_found": False,
    }
    failures = {
        "raises": ("ValueError", "wrong"),
        "dies": ("killed by SIGABRT", ""),
        "hangs": ("timeout", "not done"),
    }
    for name, (error_type, error) in failures.items():
        found = fresh.in_fresh_process(
            getattr(module, name), CPU, timeout_s=3 if name == "hangs" else 60
        )
        assert (found["succeeded"], found["error_type"]) == (False, error_type)
        assert error in found["error"]
