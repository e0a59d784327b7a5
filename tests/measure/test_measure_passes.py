"""Timing over a stream: whole passes, every size with its weight, disturbed passes thrown away whole."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from turned_clock import TurnedClock

from effbench.measure import timing
from effbench.worker.stream import latency_facts

CPU = torch.device("cpu")
SIZES = [3, 1, 3, 2]
INPUTS = [((size,), {}) for size in SIZES]


def rules(**changed):
    values = {"budget_s": 1.0, "min_time_s": 0.01, "min_samples": 8, "target_interval": 0.5, "max_samples": 4000,
              "warmup_calls": 6, "warmup_s": 0.0, "max_warmup_calls": 40, "min_block_ms": 1.0}  # fmt: skip
    return timing.Rules(**(values | changed))


@pytest.fixture
def clock(monkeypatch):
    """With `step`, a call of 0.2 ms for each of its size."""
    clock = TurnedClock(monkeypatch)
    clock.step = clock.taking(lambda size: size * 2e-4)
    return clock


def sizes_of(clock):
    return [args[0] for args, _ in clock.calls]


def test_warm_up_is_whole_passes(clock):
    found = timing.warm_up(clock.step, INPUTS, CPU, rules(), 4)
    assert (found.calls, found.steady) == (8, True)
    assert found.samples_ms == pytest.approx([0.6, 0.2, 0.6, 0.4] * 2)
    assert sizes_of(clock) == SIZES * 2


def test_warm_up_that_never_settles_ends(clock):
    growing = clock.taking(lambda size: size * 2e-4 * 1.2 ** len(clock.calls))
    found = timing.warm_up(growing, INPUTS, CPU, rules(max_warmup_calls=12), 4)
    assert (found.calls, found.steady) == (12, False)


def test_warm_up_goes_on_until_passes_are_steady(clock):
    falling = clock.taking(lambda size: size * 2e-4 * (4 if len(clock.calls) <= 4 else 1))
    found = timing.warm_up(falling, INPUTS, CPU, rules(), 4)
    assert found.steady
    assert 8 < found.calls < 40


def test_latency_is_whole_passes_in_order(clock):
    found = timing.time_latency(clock.step, INPUTS, CPU, rules(), 1.0, whole=4)
    assert found.calls == len(found.samples_ms) == len(found.enqueue_ms) == len(clock.calls)
    assert found.calls >= 4 * timing.FEWEST_PASSES
    assert sizes_of(clock) == SIZES * (found.calls // 4)
    told = latency_facts(found.samples_ms, SIZES)
    assert {size: entry["calls"] for size, entry in told["by_size"].items()} == {"1": 1, "2": 1, "3": 2}
    assert [told["by_size"][size]["latency_ms"] for size in "123"] == pytest.approx([0.2, 0.4, 0.6])
    assert told["latency_p50_ms"] <= told["latency_p95_ms"] <= told["latency_p99_ms"]


def test_a_budget_that_is_too_short_still_gives_a_pass(clock):
    assert timing.time_latency(clock.step, INPUTS, CPU, rules(), 0.0, whole=4).calls == 4


def test_disturbed_passes_are_thrown_away_whole(clock):
    class Twice(timing.Watch):
        left = 2

        def disturbed(self):
            self.left -= 1
            return self.left >= 0

    found = timing.time_latency(clock.step, INPUTS, CPU, rules(), 1.0, Twice(), 4)
    assert found.calls % 4 == 0
    assert len(clock.calls) > found.calls == len(found.enqueue_ms)


def test_percentiles_and_medians():
    samples = [1.0, 10.0, 1.0, 10.0, 3.0, 20.0]
    told = latency_facts(samples, [1, 8])
    assert told["passes"] == 3
    assert told["by_size"] == {"1": {"calls": 1, "latency_ms": 1.0}, "8": {"calls": 1, "latency_ms": 10.0}}
    assert told["latency_mean_ms"] == pytest.approx(7.5)
    assert told["latency_p50_ms"] == pytest.approx(6.5)


def test_most_samples_are_counted_in_calls():
    found = timing.rules_of_passes(rules(max_samples=10), 4)
    assert found.max_samples == 2
    assert Counter([found.min_samples])[timing.FEWEST_PASSES] == 1
