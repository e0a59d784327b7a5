"""TorchScript, the registry, storages and in-place operations: what is found, and the opposite."""

from __future__ import annotations

import warnings

import pytest
import torch

from effbench.evidence import registry, scripting, storage

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


# S8, S17


def test_torchscript_is_deprecated():
    facts = scripting.torchscript_warnings(CPU)
    assert facts["script_and_trace_are_deprecated"]
    assert "torch.compile" in facts["functions"]["script"]["warnings"][0]
    assert all(one["error"] is None for one in facts["functions"].values())


def test_deprecation_is_what_is_warned_of():
    assert scripting.warned_by(lambda: None) == {
        "is_deprecated": False, "warnings": [], "error_type": None, "error": None
    }  # fmt: skip
    other = scripting.warned_by(lambda: warnings.warn("slow\nvery", UserWarning, stacklevel=1))
    assert (other["is_deprecated"], other["warnings"]) == (False, ["UserWarning: slow"])
    gone = scripting.warned_by(lambda: warnings.warn("f is deprecated", FutureWarning, stacklevel=1))
    assert gone["is_deprecated"]
    assert not scripting.is_deprecated(["script"])


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_saved_and_loaded_is_the_same():
    for facts in scripting.save_and_load(CPU, width=8).values():
        assert facts["outputs_equal_bit_for_bit"] is True
        assert facts["largest_difference"] == 0
        assert min(facts["before_saving_ms"], facts["after_loading_ms"], facts["file_bytes"]) > 0


@pytest.mark.filterwarnings("default::DeprecationWarning")
def test_a_difference_after_loading_is_seen():
    module = scripting.Net(8).requires_grad_(False)
    scripted = torch.jit.script(module)

    def load(path, map_location):
        loaded = torch.jit.load(path, map_location=map_location)
        next(loaded.parameters()).add_(0.5)
        return loaded

    facts = scripting.round_trip(scripted, module, torch.randn(2, 8), CPU, load=load)
    assert facts["outputs_equal_bit_for_bit"] is False
    assert facts["largest_difference"] > 0
    assert facts["largest_difference_from_eager"] == 0


# S14


def test_operators_are_counted():
    facts = registry.operators(CPU)
    assert 100 < facts["prims"] <= facts["prims_with_those_of_inductor"] < 300
    assert facts["core_aten_names"] < facts["aten_public_functional_names"] < facts["aten_names"]
    assert facts["aten_names"] < facts["aten_overloads"]
    assert facts["jit_prim_names"] != facts["prims"]


def test_a_new_operator_counts():
    with torch.library._scoped_library("counted_here", "DEF") as library:
        library.define("add(Tensor x) -> Tensor")
        library.define("add.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.define("add_(Tensor(a!) x) -> Tensor(a!)")
        library.define("_private(Tensor x) -> Tensor", tags=(torch.Tag.core,))
        names = torch._C._dispatch_get_all_op_names()
        assert registry.count("counted_here", names) == {"overloads": 4, "names": 3, "public_functional_names": 1}
        assert [str(op) for op in registry.core_overloads("counted_here", names)] == ["counted_here._private.default"]
    assert registry.count("counted_here", torch._C._dispatch_get_all_op_names())["overloads"] == 0


# O9, O10

VIEWS = {"view", "reshape", "transpose", "row", "element", "slice", "none_and_ellipsis", "expand",
         "contiguous_of_contiguous"}  # fmt: skip


def test_what_shares_storage_writes_through():
    derived = storage.shared_storage(CPU)["derived"]
    assert {name for name, facts in derived.items() if facts["shares_storage"]} == VIEWS
    assert {name for name, facts in derived.items() if facts["writes_reach_the_source"]} == VIEWS
    assert derived["row"]["offset_bytes"] == 4 * 4
    assert derived["slice"]["strides"] == [4, 2]
    assert derived["index_list"]["offset_bytes"] is None


def test_assignment_writes_through_either_index_but_not_through_a_copy():
    assigned = storage.shared_storage(CPU)["assigned"]
    assert {name: facts["values_changed"] for name, facts in assigned.items()} == {
        "row": 4, "slice": 4, "index_list": 8, "chained_after_slice": 4, "chained_after_index_list": 0
    }  # fmt: skip


def test_in_place_breaks_backward_where_the_value_was_saved():
    facts = storage.in_place_and_backward(CPU)
    assert {name for name, one in facts.items() if not one["backward_works"]} == {
        "multiply_what_sigmoid_saved", "add_to_what_exp_saved", "change_a_leaf"
    }  # fmt: skip
    saved = facts["multiply_what_sigmoid_saved"]
    assert saved["error_type"] == "RuntimeError"
    assert "modified by an inplace operation" in saved["error"]
    for name in ("multiply_a_sum", "relu_of_a_product"):
        assert facts[name]["gradient_equals_out_of_place"] is True


def test_a_wrong_gradient_would_be_seen():
    facts = storage.gradients(lambda x: (x.detach() * 2 + x).sum(), lambda x: (x * 3).sum(), CPU)
    assert facts["backward_works"] and not facts["gradient_equals_out_of_place"]
