"""Timing over a stream: whole passes, every size with its weight, disturbed passes thrown away whole."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import torch

from effbench.measure import passes, timing

CPU = torch.device("cpu")
SIZES = [3, 1, 3, 2]
INPUTS = [((size,), {}) for size in SIZES]


def rules(**changed):
    values = {"budget_s": 1.0, "min_time_s": 0.01, "min_samples": 8, "target_interval": 0.5, "max_samples": 4000,
              "warmup_calls": 6, "warmup_s": 0.0, "max_warmup_calls": 40, "min_block_ms": 1.0}  # fmt: skip
    return timing.Rules(**(values | changed))


class Steps:
    """Sleeps as long as its size says."""

    def __init__(self, ms=0.2):
        self.ms, self.seen = ms, []

    def __call__(self, size):
        self.seen.append(size)
        time.sleep(size * self.ms / 1000)


def test_warm_up_is_whole_passes():
    step = Steps()
    found = passes.warm_up(step, INPUTS, CPU, rules())
    assert found.calls == len(step.seen) == len(found.samples_ms) >= 8
    assert found.calls % len(SIZES) == 0
    assert step.seen[:4] == SIZES


def test_warm_up_that_never_settles_ends():
    step = Steps(0.01)
    step.ms = 0.01

    def slower(size):
        step.ms *= 1.2
        step(size)

    found = passes.warm_up(slower, INPUTS, CPU, rules(max_warmup_calls=12))
    assert (found.calls, found.steady) == (12, False)


def test_latency_is_whole_passes_in_order():
    step = Steps()
    found = passes.time_latency(step, INPUTS, CPU, rules(), 1.0)
    assert found.calls == len(found.samples_ms) == len(found.enqueue_ms) == len(step.seen)
    assert found.calls >= 4 * passes.FEWEST_PASSES
    assert step.seen == SIZES * (found.calls // 4)
    told = passes.describe(found.samples_ms, SIZES)
    assert {size: entry["calls"] for size, entry in told["by_size"].items()} == {"1": 1, "2": 1, "3": 2}
    medians = [told["by_size"][size]["latency_ms"] for size in "123"]
    assert medians == sorted(medians) and medians[0] >= 0.2
    assert told["latency_p50_ms"] <= told["latency_p95_ms"] <= told["latency_p99_ms"]


def test_a_budget_that_is_too_short_still_gives_a_pass():
    assert passes.time_latency(Steps(), INPUTS, CPU, rules(), 0.0).calls == 4


def test_disturbed_passes_are_thrown_away_whole():
    class Once(timing.Watch):
        def __init__(self):
            self.left = 2

        def disturbed(self):
            self.left -= 1
            return self.left >= 0

    step = Steps()
    found = passes.time_latency(step, INPUTS, CPU, rules(), 1.0, Once())
    assert found.calls % 4 == 0
    assert len(step.seen) > found.calls == len(found.enqueue_ms)


def test_percentiles_and_medians():
    samples = [1.0, 10.0, 1.0, 10.0, 3.0, 20.0]
    told = passes.describe(samples, [1, 8])
    assert told["passes"] == 3
    assert told["by_size"] == {"1": {"calls": 1, "latency_ms": 1.0}, "8": {"calls": 1, "latency_ms": 10.0}}
    assert told["latency_mean_ms"] == pytest.approx(7.5)
    assert told["latency_p50_ms"] == pytest.approx(6.5)


def test_most_samples_are_counted_in_calls():
    found = passes.rules_of_passes(rules(max_samples=10), 4)
    assert found.max_samples == 2
    assert Counter([found.min_samples])[passes.FEWEST_PASSES] == 1
