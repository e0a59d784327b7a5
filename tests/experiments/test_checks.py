"""The shipped behaviour checks on the CPU: what they find, and the opposite where it can be made."""

from __future__ import annotations

import functools
import shutil
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters

from effbench.errors import UnsupportedError
from effbench.experiments import (
    checks,
    control_flow,
    dynamo,
    fresh,
    graph_limits,
    graph_weights,
    inductor,
    operators,
    sglang,
    shapes,
    storage,
    torchscript,
    warmup_calls,
)
from effbench.experiments.definition import execute
from effbench.modes.base import needs_compiler

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    counters.clear()


# what they share


def test_what_a_call_raises_is_an_observation():
    def fails():
        raise ValueError("first\nsecond")

    assert checks.attempt(fails).facts() == {"succeeded": False, "error_type": "ValueError", "error": "first"}
    done = checks.attempt(lambda: 3)
    assert (done.value, done.facts()) == (3, {"succeeded": True, "error_type": None, "error": None})
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C is none
        checks.attempt(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_tensors_as_facts():
    assert checks.listed(torch.arange(6).view(2, 3)) == [0, 1, 2]
    assert checks.listed(torch.tensor([1.5, float("nan"), float("inf")])) == [1.5, "nan", "inf"]
    assert len(checks.listed(torch.zeros(100), most=5)) == 5
    x, nan = torch.randn(3), torch.tensor([float("nan")])
    assert checks.close(x, x + 1e-7)
    assert not checks.close(x, x + 0.01) and not checks.close(x, x[:1]) and not checks.close(nan, nan)


def test_needs(monkeypatch):
    for check in (graph_weights.weights, graph_limits.limits, inductor.memory):
        with pytest.raises(UnsupportedError, match="needs CUDA, and this runs on cpu"):
            check(CPU)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert needs_compiler(CPU)
    with pytest.raises(UnsupportedError, match=r"C\+\+ compiler"):
        inductor.triton(CPU)


@pytest.mark.slow
@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_torchscript():
    facts = torchscript.warnings(CPU)
    assert facts["script_and_trace_are_deprecated"] and not torchscript.is_deprecated(["script"])
    assert all(one["error"] is None for one in facts["functions"].values())
    for kind, message in ((UserWarning, "slow"), (FutureWarning, "f is deprecated")):
        found = torchscript.warned_by(lambda kind=kind, message=message: warnings.warn(message, kind, stacklevel=1))
        assert found["is_deprecated"] is (kind is FutureWarning)
    for facts in torchscript.saved(CPU, width=8).values():
        assert facts["outputs_equal_bit_for_bit"] is True and facts["largest_difference"] == 0
        assert min(facts["before_saving_ms"], facts["after_loading_ms"], facts["file_bytes"]) > 0


def test_operators_are_counted():
    with torch.library._scoped_library("counted_here", "DEF") as library:
        library.define("add(Tensor x) -> Tensor")
        library.define("add.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.define("add_(Tensor(a!) x) -> Tensor(a!)")
        library.define("_private(Tensor x) -> Tensor", tags=(torch.Tag.core,))
        names = torch._C._dispatch_get_all_op_names()
        assert operators.count("counted_here", names) == {"overloads": 4, "names": 3, "public_functional_names": 1}
        assert [str(op) for op in operators.core_overloads("counted_here", names)] == ["counted_here._private.default"]


def test_storage():
    views = {"view", "reshape", "transpose", "row", "element", "slice", "none_and_ellipsis", "expand",
             "contiguous_of_contiguous"}  # fmt: skip
    facts = storage.storage(CPU)
    derived = facts["derived"]
    for fact in ("shares_storage", "writes_reach_the_source"):
        assert {name for name, one in derived.items() if one[fact]} == views
    assert derived["row"]["offset_bytes"] == 4 * 4 and derived["index_list"]["offset_bytes"] is None
    assert {name: one["values_changed"] for name, one in facts["assigned"].items()} == {
        "row": 4, "slice": 4, "index_list": 8, "chained_after_slice": 4, "chained_after_index_list": 0
    }  # fmt: skip


def test_in_place_breaks_backward_where_the_value_was_saved():
    facts = storage.backward(CPU)
    assert {name for name, one in facts.items() if not one["backward_works"]} == {
        "multiply_what_sigmoid_saved", "add_to_what_exp_saved", "change_a_leaf"
    }  # fmt: skip
    assert facts["relu_of_a_product"]["gradient_equals_out_of_place"] is True
    wrong = storage.gradients(lambda x: (x.detach() * 2 + x).sum(), lambda x: (x * 3).sum(), CPU)
    assert wrong["backward_works"] and not wrong["gradient_equals_out_of_place"]


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
        return graph_weights.observe(nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4), capture)

    follows = ("replay_follows_in_place_update", "replay_follows_rebinding", "replay_follows_dtype_change")
    stale = ("replay_is_stale_after_rebinding", "replay_is_stale_after_dtype_change")
    for capture, expected in ((by_address, (1, 0, 0, 1, 1)), (by_name, (1, 1, 1, 0, 0))):
        facts = observe(capture)
        assert facts["replay_equals_eager_at_first"]
        assert tuple(facts[name] for name in (*follows, *stale)) == expected, capture
    facts = observe(by_address)
    assert facts["in_place"]["replay"] == facts["in_place"]["eager_now"] != facts["in_place"]["eager_before"]
    assert facts["capturing_again_follows_rebinding"] and facts["capturing_again_follows_dtype_change"]


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
        assert facts["rows_equal_eager"] and facts["wrong_sizes"] == [] and facts["sizes_tried"] == 8
        facts = pad(graph_limits.MixesRows(), poison)
        assert facts["wrong_sizes"] == [3, 5, 6, 7], "those that are captured need none"
        assert facts["first_wrong"]["raw_size"] == 3
        assert facts["first_wrong"]["padded"] != facts["first_wrong"]["eager"]
    assert pad(nn.Linear(8, 8), capture=never_again)["wrong_sizes"] == list(range(1, 9)), "a stale buffer"


def test_judging_peaks_and_first_calls():
    peaks = {"as_shipped": 10, "memory_planning": 8, "no_locality": 10, "locality_alone": 12, "no_reordering": 14}
    names = ("memory_planning", "reorder_for_locality", "reorder_for_locality_alone")
    for given, expected in ((peaks, [True, False, True]), ({"as_shipped": 10, "no_locality": 11}, [None, True, None])):
        found = inductor.judge(given)
        assert [found[f"{name}_lowers_the_peak"] for name in names] == expected
    facts = warmup_calls.judge([100.0, 30.0, 1.2, 1.05, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert (facts["first_steady_call"], facts["steady_after_three_calls"], facts["steady_ms"]) == (4, True, 1.0)
    slow = warmup_calls.judge([100.0, 30.0, 20.0, 10.0, 9.0, 8.0, 7.0], [1.0, 1.0, 1.0])
    assert (slow["first_steady_call"], slow["steady_after_three_calls"]) == (None, False)


# torch.compile


@pytest.mark.slow
def test_capture_methods():
    methods = control_flow.methods(CPU)
    assert {name for name, one in methods["jit_trace"].items() if one["baked_in"]} == set(control_flow.MODULES)
    for method in ("jit_script", "dynamo", "lazy_tensors"):
        for name in control_flow.MODULES:
            one = methods[method][name]
            assert one["follows_its_input"] and not one["baked_in"], (method, name)
    for method in ("fx_symbolic_trace", "make_fx", "make_fx_symbolic"):
        refused = methods[method]["branch"]
        assert refused["captured"] is False and refused["error_type"] and "follows_its_input" not in refused
    assert methods["dynamo"]["branch"]["graph_breaks"] == 1 and methods["dynamo"]["loop"]["graph_breaks"] == 0


CUSTOM, NATIVE = ({"activation": path, "experts": path} for path in ("custom", "native"))
#: Of each check, facts by their dotted names.
OBSERVED = {
    "branch": (control_flow.branch, {
        "if.graphs_for_one_input": 2, "if.graph_breaks": 1, "if.fullgraph_succeeded": False,
        "where.graphs_for_one_input": 1, "where.graph_breaks": 0, "where.fullgraph_succeeded": True,
        "if.outputs_equal_eager": True, "where.outputs_equal_eager": True,
    }),
    "sizes": (shapes.sizes, {
        "dynamic.none.compilations": 2, "dynamic.true.compilations": 1, "dynamic.marked.compilations": 1,
        "dynamic.false.compilations_after_each_size": [1, 2, 3, 4, 5, 6],
        "mark_dynamic_takes_index": True, "mark_dynamic_takes_dim": False,
    }),
    "limit": (shapes.limit, {
        "compiled_sizes": [2, 3, 4], "eager_sizes": [5, 6, 7], "limit_sends_later_shapes_to_eager": True,
        "nothing_is_evicted": True,
    }),
    "no limit": (lambda device: shapes.limit(device, limit=8), {"limit_sends_later_shapes_to_eager": False}),
    "reset": (dynamo.reset, {"reset_clears_the_counters": False, "clear_clears_the_counters": True}),
    "no reset": (lambda device: dynamo.observe_reset(device, lambda: None), {"compiled_again_after_reset": False}),
    "log level": (dynamo.level, {"log_level_exists": False, "log_level_can_be_set": False}),
    "inductor": (inductor.triton, {
        "cuda.unsupported": "Inductor for a GPU needs CUDA, and this runs on cpu", "cpu.compiles": True,
        "cpu.output_equals_eager": True, "cpu.kernels_in_cpp": True, "cpu.kernels_in_triton": False,
    }),
    "swap": (sglang.swap, {
        "eager_before": CUSTOM, "compiled_without_a_swap": CUSTOM, "eager_after_failure": CUSTOM,
        "compiled_for_one_token": NATIVE, "compiled_for_two_tokens": {"activation": "native", "experts": "custom"},
        "output_for_one_token_equals_eager": True, "output_for_two_tokens_equals_eager": True,
        "compiling_failed": True, "restored_after_failure": True, "restored_after_compiling": True,
    }),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OBSERVED)
def test_what_checks_observe(name):
    check, expected = OBSERVED[name]
    facts = check(CPU)
    for path, value in expected.items():
        assert functools.reduce(dict.__getitem__, path.split("."), facts) == value, path


# a process of its own

FUNCTIONS = """
import os, sys, time

def adds(device, one, two):
    print("not part of the answer")
    return {"sum": one + two, "device": str(device), "pandas_is_found": sys.modules.get("pandas", True) is not None}

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
        "succeeded": True, "error_type": None, "error": None, "sum": 3, "device": "cpu", "pandas_is_found": False
    }  # fmt: skip
    failures = {"raises": ("ValueError", "wrong"), "dies": ("killed by SIGABRT", ""), "hangs": ("timeout", "not done")}
    for name, (error_type, error) in failures.items():
        found = fresh.in_fresh_process(getattr(module, name), CPU, timeout_s=3 if name == "hangs" else 60)
        assert (found["succeeded"], found["error_type"]) == (False, error_type)
        assert error in found["error"]
