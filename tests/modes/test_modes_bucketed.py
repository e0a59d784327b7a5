"""The runner of `bucketed-graph` over captures that simply run again: policy without CUDA. Graphs:
tests/gpu."""

import pytest
import torch
from again import Again, capture

from effbench.models.inputs import Batch, make_inputs
from effbench.models.spec import parse_inputs
from effbench.modes.base import Example, Prepared


class Net(torch.nn.Module):
    """Inputs with and without a batch dimension, one by name and one whose batch is not first;
    outputs with the batch in one dimension, in two, in a product and in none. As wide as the
    largest batch, so that sizes alone say nothing."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(9, 9)

    def forward(self, x, scale, *, late):
        # x [B, T, D], scale [D], late [D, B] -> [B, D], [B * T, D], [B, B], [D]
        hidden = self.layer(x) * scale
        summed = hidden.sum(1) + late.T
        flat = hidden.flatten(0, 1)
        return {"sum": summed, "flat": flat, "pairs": summed @ summed.T, "scale": scale * 2}


SPECS = parse_inputs(
    {
        "x": {"shape": [3, 9]},
        "scale": {"shape": [9], "batch_dim": None},
        "late": {"shape": [9], "batch_dim": 1, "keyword": True},
    }
)


def call(function, raw, seed):
    args, kwargs = make_inputs(
        SPECS,
        raw,
        torch.float32,
        "cpu",
        seed,
    )
    return function(*args, **kwargs)


def prepared(mode, module, sizes, specs=SPECS):
    args, kwargs = make_inputs(
        specs,
        max(sizes),
        torch.float32,
        "cpu",
        0,
    )
    return mode.prepare(module, Example(args, kwargs, Batch.of(specs, sizes)))


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("padding", ["keep", "zero"])
@pytest.mark.parametrize("outputs", ["clone", "short-lived"])
def test_every_raw_size_is_right_after_a_larger_batch(padding, outputs):
    """From the largest captured size down and beyond it, with other values in the rows that are
    left behind."""
    module, mode = Net(), Again([1, 2, 4, 9], padding=padding, outputs=outputs)
    runner = prepared(mode, module, range(1, 12)).step
    addresses = [static.buffer.data_ptr() for static in runner.inputs.each]
    for raw in (11, 10, *range(9, 0, -1), 9, 1, 5, 2):
        call(runner, 9, seed=100 + raw)
        torch.testing.assert_close(call(runner, raw, raw), call(module, raw, raw))
    assert addresses == [static.buffer.data_ptr() for static in runner.inputs.each], "graphs know"


@pytest.mark.parametrize(
    ("order", "sizes"), [("largest-first", [4, 2, 1]), ("smallest-first", [1, 2, 4])]
)
def test_sizes_are_captured_in_order_and_small_ones_from_the_compiled_module(
    monkeypatch, order, sizes
):
    module, compiled, captured = Net(), Net(), {}

    def noted(function, args, kwargs):
        captured[args[0].size(0)] = function
        return capture(function, args, kwargs)

    mode = Again([4, 1, 2], order=order, torch_compile_max_bs=2)
    monkeypatch.setattr(mode, "capturer", lambda: noted)
    monkeypatch.setattr(mode.compiled, "compile", lambda module: Prepared(compiled))
    facts = prepared(mode, module, [1, 4]).facts
    assert captured == {1: compiled, 2: compiled, 4: module}
    assert list(captured) == sizes
    assert (facts["buckets"], facts["compiled_buckets"]) == ([1, 2, 4], [1, 2])
    assert facts["capture_seconds"].keys() == {"1", "2", "4"}


@pytest.mark.parametrize(("padding", "expected"), [("keep", 7.0), ("zero", 0.0)])
def test_padding_is_what_it_says(padding, expected):
    specs = parse_inputs({"x": {"shape": [2]}})
    mode = Again([4], padding=padding)
    runner = prepared(mode, torch.nn.Identity(), [4], specs=specs).step
    runner(torch.full((4, 2), 7.0))
    runner(torch.ones(1, 2))
    (static,) = runner.inputs.each
    assert static.buffer.tolist() == [[1, 1], *[[expected, expected]] * 3]


def test_facts_count_padding_and_fallbacks():
    output = prepared(Again([2, 4]), Net(), [1, 3, 3, 6])
    assert output.facts["padding_waste"] == pytest.approx(3 / 10)
    assert (output.facts["fallbacks_per_pass"], output.facts["calls_per_pass"]) == (1, 4)


def test_a_list_that_holds_no_call_is_degraded():
    reason = prepared(Again([2]), Net(), [3]).degraded
    assert "larger than the largest captured size, 2" in reason
    assert prepared(Again([2]), Net(), [3, 1]).degraded is None
