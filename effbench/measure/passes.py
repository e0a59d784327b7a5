"""Warm-up and timing over a stream of batch sizes: whole passes, so that each size has the weight that it has there.

The functions stand in for those of `measure.timing` with the same arguments; `inputs` holds one entry for each call of
a pass, in order. A pass is what stop rules count: calls of different sizes spread for another reason than noise.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from effbench.measure import timing
from effbench.measure.timing import UNWATCHED, Inputs, Rules, Timing, WarmUp, Watch, is_steady, one_call, synchronizer

FEWEST_PASSES = 5  # of the latency, as far as the budget goes
WARM_PASSES = 3  # of the warm-up, at most, where one pass is more calls than the rules' most


def warm_up(step: Callable, inputs: Sequence[Inputs], device: torch.device, rules: Rules) -> WarmUp:
    """Passes until they are steady: at least one, the least calls and the least seconds. The first one is whole,
    whatever it costs: a size that was never called would be prepared while timing."""
    synchronize = synchronizer(device)
    samples: list[float] = []
    means: list[float] = []
    most = max(rules.max_warmup_calls, WARM_PASSES * len(inputs))
    began = time.perf_counter()
    while True:
        one_pass = [one_call(step, args, kwargs, synchronize) for args, kwargs in inputs]
        samples += one_pass
        means.append(statistics.fmean(one_pass))
        seconds = time.perf_counter() - began
        if (len(samples) >= rules.warmup_calls and seconds >= rules.warmup_s) or seconds >= rules.budget_s:
            steady = is_steady(means)
            if steady or len(samples) >= most or seconds >= rules.budget_s:
                return WarmUp(len(samples), seconds, steady, samples)


def time_latency(
    step: Callable,
    inputs: Sequence[Inputs],
    device: torch.device,
    rules: Rules,
    budget_s: float,
    watch: Watch = UNWATCHED,
) -> Timing:
    """Synchronised calls in whole passes until the median pass is known well enough or the budget is spent; at least
    one pass. `samples_ms` holds every call in order, from the first position of the stream."""
    synchronize = synchronizer(device)
    clock = time.perf_counter_ns
    samples: list[float] = []
    enqueued: list[float] = []
    means: list[float] = []
    seconds = 0.0
    stop = timing.Stop(rules_of_passes(rules, len(inputs)), budget_s)
    while not stop.reached(means, seconds):
        kept, kept_passes, began = len(samples), len(means), time.perf_counter()
        for _ in range(stop.next_batch):
            first = len(samples)
            for args, kwargs in inputs:
                synchronize()
                start = clock()
                step(*args, **kwargs)
                returned = clock()
                synchronize()
                samples.append((clock() - start) / 1e6)
                enqueued.append((returned - start) / 1e6)
            means.append(statistics.fmean(samples[first:]))
        elapsed = time.perf_counter() - began
        if watch.disturbed():
            del samples[kept:], enqueued[kept:], means[kept_passes:]
        else:
            seconds += elapsed
    return Timing(samples, len(samples), seconds, enqueue_ms=enqueued)


def time_period(
    step: Callable, inputs: Sequence[Inputs], rules: Rules, budget_s: float, watch: Watch = UNWATCHED
) -> Timing:
    """Blocks of back-to-back calls, each a whole number of passes; `samples_ms` is a call's share of its block."""
    return timing.time_period(step, inputs, rules, budget_s, watch, whole=len(inputs))


def rules_of_passes(rules: Rules, calls: int) -> Rules:
    """The rules for passes of `calls` calls each."""
    return dataclasses.replace(
        rules,
        min_samples=max(FEWEST_PASSES, math.ceil(rules.min_samples / calls)),
        max_samples=max(1, rules.max_samples // calls),
    )


def describe(samples_ms: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Of the latency: percentiles and mean over all calls, and for each size its calls a pass and their median.

    `samples_ms`: whole passes over `sizes`, in order.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for position, sample in enumerate(samples_ms):
        by_size[sizes[position % len(sizes)]].append(sample)
    passes = len(samples_ms) // len(sizes)
    p50, p95, p99 = (float(value) for value in np.quantile(samples_ms, (0.5, 0.95, 0.99)))
    return {
        "passes": passes,
        "calls_per_pass": len(sizes),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_p99_ms": p99,
        "latency_mean_ms": statistics.fmean(samples_ms),
        "by_size": {
            str(size): {"calls": len(found) // passes, "latency_ms": statistics.median(found)}
            for size, found in sorted(by_size.items())
        },
    }
