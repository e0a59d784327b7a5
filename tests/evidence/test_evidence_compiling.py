"""Dynamo's pieces: what they find in torch, and the opposite where it can be made."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from effbench.evidence import control_flow, custom_ops, dynamo, fresh, inductor, recompiling, shapes

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    counters.clear()


# P8


@pytest.mark.timeout(900)  # its compilations take minutes on two busy cores
def test_seconds_of_recompiling():
    small = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "ffn": 32, "vocab": 64}
    facts = recompiling.recompilation(CPU, batches=(2, 3, 4), seq=8, dtype="float32", **small)
    assert (facts["layers"], facts["batches"]) == (1, [2, 3, 4])
    dynamic, static = facts["dynamic"], facts["static"]
    assert min(dynamic["first_s"], dynamic["second_s"], static["first_s"], static["second_s"]) > 0.05
    assert static["later_s"] == []
    assert dynamic["later_s"][0] < 0.5 * dynamic["second_s"], "one graph for every size from the second on"


# S5


def test_where_needs_no_break():
    facts = control_flow.where_instead_of_if(CPU)
    branch, where = facts["if"], facts["where"]
    assert (branch["graphs_for_one_input"], branch["graph_breaks"]) == (2, 1)
    assert len(branch["reasons"]) == 1
    assert branch["fullgraph_succeeded"] is False
    assert branch["fullgraph_error_type"] in ("Unsupported", "UserError")
    assert (where["graphs_for_one_input"], where["graph_breaks"], where["reasons"]) == (1, 0, [])
    assert where["fullgraph_succeeded"] is True
    assert branch["outputs_equal_eager"] and where["outputs_equal_eager"]


def test_branch_and_where_mean_the_same_and_have_two_sides():
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        assert torch.equal(control_flow.Branch()(x), control_flow.Where()(x))
        assert not torch.equal(x * 2, x - 3)


# S7


@pytest.fixture(scope="module")
def methods():
    return control_flow.capture_methods(CPU)


def test_trace_bakes_branches_in(methods):
    found = methods["jit_trace"]
    assert {name: one["baked_in"] for name, one in found.items()} == dict.fromkeys(control_flow.MODULES, True)
    assert found["branch"]["outputs"] == [[2.0, 2.0], [-2.0, -2.0]]
    assert found["branch"]["eager_outputs"] == [[2.0, 2.0], [-4.0, -4.0]]
    assert "Python boolean" in found["branch"]["warnings"][0]


@pytest.mark.parametrize("method", ["jit_script", "dynamo", "lazy_tensors"])
def test_these_follow_their_input(methods, method):
    for name in control_flow.MODULES:
        assert methods[method][name]["follows_its_input"], name
        assert not methods[method][name]["baked_in"], name


def test_fx_and_make_fx_refuse_a_branch(methods):
    for method in ("fx_symbolic_trace", "make_fx", "make_fx_symbolic"):
        assert methods[method]["branch"]["captured"] is False
        assert methods[method]["branch"]["error_type"]
        assert "follows_its_input" not in methods[method]["branch"]
    assert methods["fx_symbolic_trace"]["loop"]["captured"] is False
    assert methods["make_fx"]["loop"]["baked_in"], "a loop over rows is unrolled without a word"


def test_dynamo_breaks_at_the_branch(methods):
    found = methods["dynamo"]
    assert found["branch"]["graph_breaks"] == 1
    assert found["branch"]["graphs_of_both"] > found["branch"]["graphs_of_the_first"] >= 2
    assert found["loop"]["graph_breaks"] == 0


def test_lazy_traces_are_found_again(methods):
    branch = methods["lazy_tensors"]["branch"]
    first, second = branch["traces_compiled_in_each_pass"]
    assert first > 0
    assert second == 0
    assert branch["traces_reused_in_each_pass"][1] > 0


# S6


def test_recompilations_by_dynamic():
    facts = shapes.recompilations(CPU)
    found = {name: one["compilations"] for name, one in facts["dynamic"].items()}
    assert found == {"none": 2, "true": 1, "false": 6, "marked": 1}
    assert facts["dynamic"]["false"]["compilations_after_each_size"] == [1, 2, 3, 4, 5, 6]
    assert len(facts["dynamic"]["false"]["recompile_reasons"]) == 5
    assert "size mismatch" in facts["dynamic"]["none"]["recompile_reasons"][0]
    assert facts["mark_dynamic_takes_index"] and not facts["mark_dynamic_takes_dim"]
    assert "index" in facts["mark_dynamic_arguments"]


class OnesRows(nn.Module):
    """Its result depends on the number of rows: Dynamo has to know it."""

    def forward(self, x):
        return x * 2 if x.shape[0] == 3 else x + 1


def test_a_module_that_asks_for_its_size_is_compiled_more_often():
    facts = shapes.compilations(CPU, (2, 3, 4, 5), 4, dynamic=True, module=OnesRows())
    assert facts["compilations"] == 2
    assert facts["outputs_equal_eager"]


def test_one_size_compiles_once():
    assert shapes.compilations(CPU, (3, 3, 3), 4, dynamic=False)["compilations"] == 1


def test_a_mark_that_does_not_hold_is_told():
    facts = shapes.compilations(
        CPU, (2, 4), 4, mark=lambda x: torch._dynamo.mark_dynamic(x, 0), module=AlwaysTwoOrFour()
    )
    assert set(facts["failed_sizes"]) == {"2", "4"}
    assert "ConstraintViolation" in facts["failed_sizes"]["2"]["error_type"]


class AlwaysTwoOrFour(nn.Module):
    def forward(self, x):
        return x * 1 if x.shape[0] == 2 else x + x.shape[0] if x.shape[0] == 4 else x


# S12


def test_the_limit_sends_later_shapes_to_eager():
    facts = shapes.recompile_limit(CPU)
    assert facts["compiled_sizes"] == [2, 3, 4]
    assert facts["eager_sizes"] == [5, 6, 7]
    assert facts["limit_sends_later_shapes_to_eager"] and facts["nothing_is_evicted"]
    assert facts["cache_size_limit_is_the_same_setting"]
    assert "recompile_limit" in facts["log"][0]
    assert facts["fullgraph_error_type"] == "FailOnRecompileLimitHit"


def test_under_the_limit_nothing_goes_to_eager():
    facts = shapes.recompile_limit(CPU, limit=8)
    assert facts["eager_sizes"] == []
    assert not facts["limit_sends_later_shapes_to_eager"]
    assert facts["fullgraph_succeeded"]
    assert facts["log"] == []


# S9, S10


def test_reset_leaves_the_counters():
    facts = dynamo.reset_and_counters(CPU)
    assert facts["reset_clears_the_counters"] is False
    assert facts["counters_before"] == facts["counters_after_reset"]
    assert facts["counters_before"]["stats"]["unique_graphs"] == 2
    assert facts["compiled_again_after_reset"] and facts["clear_clears_the_counters"]


def test_a_reset_that_clears_them_would_be_seen():
    def thorough():
        torch._dynamo.reset()
        counters.clear()

    assert dynamo.observe_reset(CPU, thorough)["reset_clears_the_counters"] is True
    assert dynamo.observe_reset(CPU, lambda: None)["compiled_again_after_reset"] is False


def test_there_is_no_log_level():
    facts = dynamo.log_level(CPU)
    assert facts["log_level_exists"] is False
    assert facts["read_error_type"] == "AttributeError"
    assert facts["log_level_can_be_set"] is False
    assert facts["set_logs_changes_the_level"] is True
    assert "dynamo" in facts["set_logs_arguments"]
    assert "verbose" in facts["settings_about_logging"]


def test_a_log_level_would_be_seen():
    facts = dynamo.observe_log_level(SimpleNamespace(log_level=20, log_file=None, other=1))
    assert facts["log_level_exists"] and facts["log_level_can_be_set"]
    assert facts["settings_about_logging"] == ["log_file", "log_level"]


# S16


def test_inductor_compiles_for_the_cpu_without_triton():
    facts = inductor.without_triton(CPU)
    assert set(facts) == {"cpu", "cuda"}
    assert facts["cuda"] == {"unsupported": "Inductor for a GPU needs CUDA, and this runs on cpu"}
    found = facts["cpu"]
    assert found["succeeded"] and found["compiles"] and found["output_equals_eager"]
    assert found["triton_is_found"] is False
    assert found["kernels_in_cpp"] is True
    assert found["kernels_in_triton"] is False


# S18

CUSTOM, NATIVE = {"activation": "custom", "experts": "custom"}, {"activation": "native", "experts": "native"}


def test_native_code_stands_in_while_compiling():
    facts = custom_ops.native_path_while_compiling(CPU)
    assert facts["eager_before"] == facts["compiled_without_a_swap"] == CUSTOM
    assert facts["compiled_for_one_token"] == NATIVE
    assert facts["compiled_for_two_tokens"] == {"activation": "native", "experts": "custom"}
    assert facts["eager_after_one_token"] == facts["eager_after_failure"] == CUSTOM
    assert facts["output_for_one_token_equals_eager"] and facts["output_for_two_tokens_equals_eager"]
    assert facts["compiling_failed"]
    assert facts["restored_after_failure"] and facts["restored_after_compiling"]


@contextmanager
def careless(module, tokens):
    """Restores only where all went well."""
    layers = [layer for layer in module.modules() if isinstance(layer, custom_ops.TwoPaths)]
    for layer in layers:
        layer.native = True
    yield []
    for layer in layers:
        layer.native = False


def test_a_swap_that_does_not_restore_is_found_out():
    facts = custom_ops.observe(CPU, 8, 2, careless)
    assert facts["compiled_for_two_tokens"] == NATIVE
    assert facts["restored_after_compiling"] is True
    assert facts["restored_after_failure"] is False
    assert facts["eager_after_failure"] == NATIVE


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


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Functions of a module that the new interpreter finds."""
    (tmp_path / "functions_here.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda name: SimpleNamespace(__module__="functions_here", __name__=name)


def test_a_fresh_process_gives_its_facts(elsewhere):
    assert fresh.in_fresh_process(elsewhere("adds"), CPU, hide=("pandas",), one=1, two=2) == {
        "succeeded": True, "error_type": None, "error": None, "sum": 3, "device": "cpu", "pandas_is_found": False
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "error_type", "error"),
    [("raises", "ValueError", "what was wrong"), ("dies", "killed by SIGABRT", ""), ("hangs", "timeout", "not done")],
)
def test_a_fresh_process_that_fails_says_how(elsewhere, name, error_type, error):
    found = fresh.in_fresh_process(elsewhere(name), CPU, timeout_s=3 if name == "hangs" else 60)
    assert (found["succeeded"], found["error_type"]) == (False, error_type)
    assert error in found["error"]
