"""The pieces about CUDA graphs: their observation with stand-ins for a graph, so that each fact is seen both ways."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from effbench.evidence import inductor, padding, warmup, weights

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def by_address(module, x):
    """As a CUDA graph: the tensors of the capture, wherever the module's names point later."""
    weight, bias = module.weight, module.bias
    return lambda: F.linear(x, weight, bias)


def by_name(module, x):
    """As a call: whatever the module has."""
    return lambda: module(x.to(module.weight.dtype))


def by_value(module, x):
    """As an export with its weights: a copy."""
    frozen = copy.deepcopy(module)
    return lambda: frozen(x)


def observe(capture):
    torch.manual_seed(0)
    return weights.observe(nn.Linear(4, 4).requires_grad_(False), torch.randn(2, 4), capture)


def test_a_graph_follows_values_and_not_addresses():
    facts = observe(by_address)
    assert facts["replay_equals_eager_at_first"]
    assert facts["replay_follows_in_place_update"]
    assert facts["in_place"]["replay"] == facts["in_place"]["eager_now"] != facts["in_place"]["eager_before"]
    assert facts["address_changed_by_rebinding"]
    assert not facts["replay_follows_rebinding"]
    assert facts["replay_is_stale_after_rebinding"]
    assert facts["rebinding"]["replay"] == facts["rebinding"]["eager_before"] != facts["rebinding"]["eager_now"]
    assert facts["capturing_again_follows_rebinding"]
    assert not facts["replay_follows_dtype_change"]
    assert facts["replay_is_stale_after_dtype_change"]
    assert facts["replay_dtype_after_dtype_change"] == "torch.float32"
    assert facts["eager_dtype_after_dtype_change"] == "torch.bfloat16"
    assert facts["capturing_again_follows_dtype_change"]


def test_one_that_reads_the_module_follows_everything():
    facts = observe(by_name)
    assert facts["replay_follows_in_place_update"]
    assert facts["replay_follows_rebinding"]
    assert facts["replay_follows_dtype_change"]
    assert not facts["replay_is_stale_after_rebinding"]
    assert not facts["replay_is_stale_after_dtype_change"]


def test_one_with_copies_follows_nothing():
    facts = observe(by_value)
    assert facts["replay_equals_eager_at_first"]
    assert not facts["replay_follows_in_place_update"]
    assert not facts["replay_follows_rebinding"]
    assert not facts["replay_is_stale_after_rebinding"], "it is older than that"


def replays(function, x):
    """A graph writes to one buffer."""
    output = torch.empty_like(function(x))
    return lambda: output.copy_(function(x))


def pad(module, poison=1e4, capture=replays):
    return padding.observe(module, 8, (1, 2, 4, 8), CPU, capture, poison)


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_padding_is_right_where_rows_do_not_mix(poison):
    torch.manual_seed(0)
    facts = pad(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), poison)
    assert facts["rows_equal_eager"]
    assert facts["wrong_sizes"] == []
    assert facts["sizes_tried"] == 8


@pytest.mark.parametrize("poison", [1e4, float("nan")])
def test_padding_is_wrong_where_they_do(poison):
    facts = pad(padding.MixesRows(), poison)
    assert not facts["rows_equal_eager"]
    assert facts["wrong_sizes"] == [3, 5, 6, 7], "those that are captured need none"
    assert facts["first_wrong"]["raw_size"] == 3
    assert facts["first_wrong"]["padded"] != facts["first_wrong"]["eager"]


def test_a_stale_buffer_is_found():
    def never_again(function, x):
        output = function(x).clone()
        return lambda: output

    facts = pad(nn.Linear(8, 8), capture=never_again)
    assert facts["wrong_sizes"] == list(range(1, 9))


def test_peaks_decide_what_an_option_does():
    peaks = {"as_shipped": 10, "memory_planning": 8, "no_locality": 10, "locality_alone": 12, "no_reordering": 14}
    assert inductor.judge(peaks) == {
        "memory_planning_lowers_the_peak": True,
        "reorder_for_locality_lowers_the_peak": False,
        "reorder_for_locality_alone_lowers_the_peak": True,
    }
    assert inductor.judge({"as_shipped": 10, "no_locality": 11}) == {
        "memory_planning_lowers_the_peak": None,
        "reorder_for_locality_lowers_the_peak": True,
        "reorder_for_locality_alone_lowers_the_peak": None,
    }


def test_the_first_steady_call():
    facts = warmup.judge([100.0, 30.0, 1.2, 1.05, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert (facts["first_steady_call"], facts["steady_after_three_calls"]) == (4, True)
    assert facts["steady_ms"] == 1.0
    slow = warmup.judge([100.0, 30.0, 20.0, 10.0, 9.0, 8.0, 7.0], [1.0, 1.0, 1.0])
    assert (slow["first_steady_call"], slow["steady_after_three_calls"]) == (None, False)
    assert warmup.judge([1.0] * 4, [1.0])["first_steady_call"] == 1


def test_first_calls_on_the_cpu():
    facts = warmup.first_calls(CPU, calls=5, width=8, depth=1, modes=("eager", "default", "reduce-overhead"))["modes"]
    for name in ("eager", "default"):
        assert len(facts[name]["calls_ms"]) == 5
        assert all(ms > 0 for ms in facts[name]["calls_ms"])
    assert facts["default"]["calls_ms"][0] > 20 * facts["default"]["steady_ms"], "compiled in the first call"
    assert facts["reduce-overhead"]["ran"] is False
    assert "needs CUDA" in facts["reduce-overhead"]["reason"]
