"""Streams of batch sizes on CUDA: every raw size right over captured graphs, memory by pool, and a
whole sweep."""

from __future__ import annotations

import gc

import pytest
import torch

from effbench.measure.memory import graph_pool_bytes
from effbench.models.inputs import Batch, make_inputs
from effbench.models.spec import parse_inputs
from effbench.modes.base import Example
from effbench.modes.bucketed import BucketedGraph

MLP_SPECS = parse_inputs({"x": {"shape": [64]}})


def mlp():
    with torch.inference_mode(False):  # as a trial builds them
        layers = [
            torch.nn.Linear(64, 64),
            torch.nn.GELU(),
            torch.nn.LayerNorm(64),
            torch.nn.Linear(64, 64),
        ]
        return torch.nn.Sequential(*layers).cuda().eval()


def inputs(specs, bs, seed):
    with torch.inference_mode(False):
        return make_inputs(specs, bs, torch.float32, "cuda", seed)


def prepare(mode, module, specs, sizes):
    args, kwargs = inputs(specs, max(sizes), 0)
    return mode.prepare(module, Example(args, kwargs, Batch.of(specs, sizes)))


def check_every_size(runner, module, specs, most, poison_size, tolerance=1e-4):
    """Against eager, from beyond the largest graph down and up again, each after a full batch of
    other values."""
    for raw in (*range(most, 0, -1), *range(1, most + 1)):
        poison = inputs(specs, poison_size, 1000 + raw)
        runner(*poison[0], **poison[1])
        args, kwargs = inputs(specs, raw, raw)
        found = runner(*args, **kwargs).clone()
        torch.testing.assert_close(found, module(*args, **kwargs), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(
    ("padding", "pool", "order"),
    [
        ("keep", "shared", "largest-first"),
        ("zero", "private", "smallest-first"),
    ],
)
def test_every_raw_size_after_a_poisoned_tail(padding, pool, order):
    module = mlp()
    mode = BucketedGraph([1, 2, 4, 8], padding=padding, pool=pool, order=order)
    prepared = prepare(mode, module, MLP_SPECS, range(1, 11))
    check_every_size(prepared.step, module, MLP_SPECS, 10, 8)
    facts = prepared.facts
    assert (facts["fallbacks_per_pass"], facts["calls_per_pass"]) == (2, 10), "9 and 10"


def test_a_shared_pool_is_smaller_than_private_ones():
    sizes = {}
    for pool in ("private", "shared"):
        gc.collect()
        torch.cuda.empty_cache()  # pools of graphs that are gone
        before = graph_pool_bytes(torch.device("cuda")) or 0
        prepared = prepare(BucketedGraph([8, 16, 32, 64], pool=pool), mlp(), MLP_SPECS, [64])
        grown = (graph_pool_bytes(torch.device("cuda")) or 0) - before
        assert grown > 0
        sizes[pool] = grown
        del prepared
    assert sizes["shared"] < sizes["private"]


@pytest.mark.filterwarnings("default")  # Inductor's advice on TF32
def test_small_sizes_are_compiled_and_the_rest_is_not():
    module = mlp()
    mode = BucketedGraph([*range(1, 11), 16], torch_compile_max_bs=9, inner="default")
    prepared = prepare(mode, module, MLP_SPECS, range(1, 17))
    assert prepared.facts["compiled_buckets"] == list(range(1, 10)), "more than Dynamo's limit of 8"
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 9
    check_every_size(prepared.step, module, MLP_SPECS, 16, 16, tolerance=1e-3)


@pytest.fixture(scope="module")
def streamed(swept):
    """Trials by mode of a stream of 24 sizes up to 12."""
    trials = swept(
        "model=mlp",
        "model.module.width=64",
        "stream=uniform",
        "stream.high=12",
        "stream.length=24",
        "mode=eager,default,bucketed-graph",
        "protocol.budget_s=0.6",
    )
    return {trial["mode"]: trial for trial in trials}


@pytest.fixture(scope="module")
def sizes(streamed):
    return streamed["eager"]["cell"].stream["sizes"]


@pytest.mark.parametrize("mode", ["eager", "default", "bucketed-graph"])
def test_a_stream_is_timed_in_whole_passes(streamed, mode):
    trial = streamed[mode]
    assert (trial["status"], trial["reason"], trial["flops"]) == ("ok", None, None)
    assert trial["calls_per_block"] % 24 == trial["latency_samples"] % 24 == 0


def test_graphs_of_buckets_serve_a_stream(streamed, sizes):
    bucketed = streamed["bucketed-graph"]
    facts = bucketed["extra"]["facts"]
    padded = [min(bucket for bucket in facts["buckets"] if bucket >= size) for size in sizes]
    assert facts["padding_waste"] == pytest.approx(1 - sum(sizes) / sum(padded))
    assert facts["fallbacks_per_pass"] == 0
    assert bucketed["graph_pool_bytes"] > 0
    assert bucketed["input_copy_ms"] > 0
    assert streamed["eager"]["period_ms"] > bucketed["period_ms"]
