"""Time several variants in turn, so that drift and disturbances of the host affect all of them
equally."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from effbench.claims._tools import call_ms

from effbench.measure.host import LOW, piece
from effbench.measure.timing import no_garbage_collection, synchronizer
from effbench.stats.intervals import median_interval

#: A measurement counts if fixed work before and after it took at most this many times its usual
#: time.
TOLERANCE = 1.1
#: Undisturbed measurements that a variant needs; with fewer, all of them count.
FEWEST = 12


def in_turn(variants: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Measure each variant once per round, in a new random order. Return the measurements by
    variant and round, with NaN where the host was disturbed."""
    order, random_order = list(variants), random.Random(0)
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    with no_garbage_collection():
        for _ in range(rounds):
            random_order.shuffle(order)
            before = reading()
            for name in order:
                value = variants[name]()
                after = reading()
                measured[name].append((value, max(before, after)))
                before = after
    usual = float(np.quantile([host for pairs in measured.values() for _, host in pairs], LOW))
    return {name: undisturbed(pairs, TOLERANCE * usual) for name, pairs in measured.items()}


def reading() -> float:
    """Return the time of a fixed piece of host work in ms; the first of two warms the core's
    cache."""
    return min(piece(), piece())


def undisturbed(pairs: Sequence[tuple[float, float]], limit: float) -> list[float]:
    """Return the values; NaN for those with a host reading above the limit, unless too few others
    are left."""
    quiet = sum(host <= limit for _, host in pairs)
    return [value if host <= limit or quiet < FEWEST else math.nan for value, host in pairs]


def figure(samples: Sequence[float]) -> dict[str, float]:
    """Return the median and its 95 % interval between two order statistics, as a fact that claims
    read as a Figure. NaN does not count. Fewer than six samples have no interval: their bounds are
    the extremes."""
    known = [value for value in samples if not math.isnan(value)]
    interval = median_interval(known)
    low, high = (
        (interval.low, interval.high) if interval.low is not None else (min(known), max(known))
    )
    return {"value": interval.value, "low": low, "high": high}


def paired_ratio(samples: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median of the ratios within each round."""
    return figure([a / b for a, b in zip(samples, others, strict=True)])


def difference(samples: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return the median of the differences within each round."""
    return figure([a - b for a, b in zip(samples, others, strict=True)])


def disturbed_fraction(measured: Mapping[str, Sequence[float]]) -> float:
    values = [value for samples in measured.values() for value in samples]
    return sum(map(math.isnan, values)) / len(values)


def host_us(
    function: Callable[[], Any], device: torch.device, calls: int = 8
) -> Callable[[], float]:
    """Return a measurement of the host time per call in µs, from an idle device until the call
    returns. A few calls do not fill the queue of launches."""
    synchronize, clock = synchronizer(device), time.perf_counter_ns

    def measure() -> float:
        function()
        synchronize()
        start = clock()
        for _ in range(calls):
            function()
        elapsed = clock() - start
        synchronize()
        return elapsed / calls / 1e3

    return measure


def latency_ms(
    function: Callable[[], Any], device: torch.device, calls: int = 5
) -> Callable[[], float]:
    """Return a measurement of the mean time of a synchronised call in ms."""

    def measure() -> float:
        function()
        return sum(call_ms(function, device=device) for _ in range(calls)) / calls

    return measure


def period_ms(
    function: Callable[[], Any], device: torch.device, calls: int = 20
) -> Callable[[], float]:
    """Return a measurement of the time per back-to-back call in ms, by CUDA events; on the CPU by
    the host clock."""
    if device.type != "cuda":
        return lambda: call_ms(lambda: [function() for _ in range(calls)], device=device) / calls
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure() -> float:
        for _ in range(2):
            function()
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    return measure
