"""Warm-up and timing of a step. Raw samples in order; summaries are made elsewhere.

latency: synchronise, host clock, call, synchronise: what one request sees.
period: CUDA events around N back-to-back calls, divided by N: what a saturated stream sees.
Inputs rotate over the sets, so that no call finds its own input warm in a cache by accident.

A stream of batch sizes is timed in whole passes (`whole` calls each), so that each size has the weight that it has
there. Passes are what the stopping rules count: calls of different sizes spread for another reason than noise.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from effbench.stats.intervals import median_interval

Inputs = tuple[tuple, dict[str, Any]]
MOST_BLOCKS = 1000  # in one run, each with an event of its own
STEADY = 0.05  # the second half of the warm-up window is at most this much slower or faster than the first
DRIFT = 0.01  # the same for timing: medians of its halves that differ by more are no steady state
FEWEST_PASSES = 5  # of the latency of a stream, within the budget
WARM_PASSES = 3  # of the warm-up of a stream, at most, if one pass is more calls than the rules' most


@dataclass(frozen=True)
class Rules:
    """When warm-up and timing stop; the fields are those of the protocol's configuration."""

    budget_s: float
    min_time_s: float
    min_samples: int
    target_interval: float
    max_samples: int
    warmup_calls: int
    warmup_s: float
    max_warmup_calls: int
    min_block_ms: float
    load_s: float = 0.0


@dataclass
class WarmUp:
    calls: int
    seconds: float
    steady: bool
    samples_ms: list[float] = field(default_factory=list)


@dataclass
class Timing:
    """`samples_ms`: one value a call (latency) or a block's mean (period); `calls` counts all calls that were kept;
    `enqueue_ms`: of each call, until it returned (latency only)."""

    samples_ms: list[float]
    calls: int
    seconds: float
    calls_per_block: int = 1
    enqueue_ms: list[float] = field(default_factory=list)


class Watch:
    """Watches the machine while a step is timed; this one never objects, unlike `measure.watch.GpuWatch`."""

    def begin(self) -> None:
        """Before each timer."""

    def poll(self, calls: int) -> None:
        """Between blocks of back-to-back calls, with the calls so far. Must be quick."""

    def disturbed(self) -> bool:
        """After each run of samples: must it be thrown away?"""
        return False


UNWATCHED = Watch()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection costs milliseconds and would land in some sample."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def warm_up(step: Callable, inputs: Sequence[Inputs], device: torch.device, rules: Rules, whole: int = 1) -> WarmUp:
    """Call until steady: at least `warmup_calls` calls and `warmup_s` seconds, at most `max_warmup_calls` calls.

    Steady: the medians of the two halves of the newest ten or more calls (passes) agree within 5 %. The first pass of a
    stream is whole, whatever it costs: a size that was never called would be prepared while timing.
    """
    synchronize = synchronizer(device)
    rotation = itertools.cycle(inputs)
    samples: list[float] = []
    most = rules.max_warmup_calls if whole == 1 else max(rules.max_warmup_calls, WARM_PASSES * whole)
    # a call of seconds needs no ten of them: twice the time is enough
    patience_s = 10 * rules.warmup_s if whole == 1 else rules.budget_s
    began = time.perf_counter()
    while True:
        for args, kwargs in itertools.islice(rotation, whole):
            samples.append(one_call(step, args, kwargs, synchronize))
        seconds = time.perf_counter() - began
        enough = len(samples) >= rules.warmup_calls or (len(samples) >= 3 and seconds > patience_s)
        if enough and seconds >= rules.warmup_s:
            steady = is_steady(pass_means(samples, whole))
            if steady or len(samples) >= most or seconds >= rules.budget_s:
                return WarmUp(len(samples), seconds, steady, samples)


def pass_means(samples: list[float], whole: int) -> list[float]:
    """Return the mean of each pass; the samples themselves for passes of one call."""
    if whole == 1:
        return samples
    return [statistics.fmean(samples[first : first + whole]) for first in range(0, len(samples), whole)]


def is_steady(samples: Sequence[float]) -> bool:
    """Compare the two halves of the newest half of the samples (at least ten, if there are so many)."""
    window = samples[-max(10, len(samples) // 2) :]
    half = len(window) // 2
    if half == 0:
        return False
    first, second = statistics.median(window[:half]), statistics.median(window[half:])
    return abs(second - first) <= STEADY * first


def one_call(step: Callable, args: tuple, kwargs: dict[str, Any], synchronize: Callable[[], None]) -> float:
    """Return the milliseconds of one synchronised call."""
    synchronize()
    start = time.perf_counter_ns()
    step(*args, **kwargs)
    synchronize()
    return (time.perf_counter_ns() - start) / 1e6


def time_latency(
    step: Callable,
    inputs: Sequence[Inputs],
    device: torch.device,
    rules: Rules,
    budget_s: float,
    watch: Watch = UNWATCHED,
    whole: int = 1,
) -> Timing:
    """Time synchronised calls until the median (of passes) is known well enough or the budget is spent.

    `samples_ms` holds every call in order, from the first position of a stream.
    """
    synchronize = synchronizer(device)
    clock = time.perf_counter_ns
    rotation = itertools.cycle(inputs)
    samples: list[float] = []
    enqueued: list[float] = []
    seconds = 0.0
    stop = Stop(rules if whole == 1 else rules_of_passes(rules, whole), budget_s)
    while not stop.reached(pass_means(samples, whole), seconds):
        kept, began = len(samples), time.perf_counter()
        for _ in range(stop.next_batch * whole):
            args, kwargs = next(rotation)
            synchronize()
            start = clock()
            step(*args, **kwargs)
            returned = clock()
            synchronize()
            samples.append((clock() - start) / 1e6)
            enqueued.append((returned - start) / 1e6)
        elapsed = time.perf_counter() - began
        if watch.disturbed():
            del samples[kept:], enqueued[kept:]
        else:
            seconds += elapsed
    return Timing(samples, len(samples), seconds, enqueue_ms=enqueued)


def rules_of_passes(rules: Rules, calls: int) -> Rules:
    """Return the rules for passes of `calls` calls each."""
    return dataclasses.replace(
        rules,
        min_samples=max(FEWEST_PASSES, math.ceil(rules.min_samples / calls)),
        max_samples=max(1, rules.max_samples // calls),
    )


def time_period(
    step: Callable,
    inputs: Sequence[Inputs],
    rules: Rules,
    budget_s: float,
    watch: Watch = UNWATCHED,
    whole: int = 1,
) -> Timing:
    """Time blocks of back-to-back calls between CUDA events until their median is known or the budget is spent.

    The stream never runs dry between the blocks of a run: the host stays a block ahead. So neither the first launch
    after an idle moment nor the clocks' answer to a sudden load is in a sample; `load_s` seconds of calls go before.
    A block has a multiple of `whole` calls.
    """
    calls_per_block = math.ceil(choose_block(step, inputs, rules.min_block_ms, budget_s) / whole) * whole
    rotation = itertools.cycle(inputs)
    samples: list[float] = []
    done = 0
    seconds = 0.0

    def play() -> None:
        for args, kwargs in itertools.islice(rotation, calls_per_block):
            step(*args, **kwargs)

    load(play, rules.load_s)
    stop = Stop(rules, budget_s)
    while not stop.reached(samples, seconds):
        blocks = min(stop.next_batch, MOST_BLOCKS)
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
        began = time.perf_counter()
        play()
        done += calls_per_block
        ends[0].record()
        for number in range(1, blocks + 1):
            play()
            ends[number].record()
            ends[number - 1].synchronize()
            done += calls_per_block
            watch.poll(done)
        ends[-1].synchronize()
        elapsed = time.perf_counter() - began
        if not watch.disturbed():
            samples += [ends[i].elapsed_time(ends[i + 1]) / calls_per_block for i in range(blocks)]
            seconds += elapsed
    return Timing(samples, len(samples) * calls_per_block, seconds, calls_per_block)


def load(play: Callable[[], None], seconds: float) -> None:
    """Keep the GPU under the load to come until its power control has answered to it."""
    end = torch.cuda.Event()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        play()
        end.record()
        end.synchronize()


def choose_block(step: Callable, inputs: Sequence[Inputs], min_block_ms: float, budget_s: float) -> int:
    """Return the calls a block: it lasts at least `min_block_ms` and, if one call allows it, at most a tenth of the
    budget."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls = 1
    while True:
        torch.cuda.synchronize()
        start.record()
        for args, kwargs in itertools.islice(itertools.cycle(inputs), calls):
            step(*args, **kwargs)
        end.record()
        end.synchronize()
        elapsed = start.elapsed_time(end)
        if elapsed >= min_block_ms or calls >= 1 << 16:
            break
        calls *= 2
    longest = max(1, int(budget_s * 100 / (elapsed / calls)))
    return min(max(1, math.ceil(min_block_ms * 1.2 / (elapsed / calls))), longest)


class Stop:
    """Adaptive stopping: least samples and time reached and the median known, or the budget spent."""

    def __init__(self, rules: Rules, budget_s: float) -> None:
        self.rules = rules
        self.budget_s = budget_s
        self.next_batch = 1

    def reached(self, samples: list[float], seconds: float) -> bool:
        """Also plans `next_batch`, so that the interval is looked at a few dozen times in a run, not at each call."""
        if not samples:
            return False
        rules = self.rules
        if seconds >= self.budget_s or len(samples) >= rules.max_samples:
            return True
        a_call = seconds / len(samples)
        if len(samples) >= rules.min_samples and seconds >= rules.min_time_s:
            if self.is_known(samples):
                return True
            wanted = len(samples) // 5
        else:
            # what is missing to the least samples and the least time, but no more than a tenth of the budget at once
            wanted = int(max(rules.min_samples - len(samples), (rules.min_time_s - seconds) / a_call))
        most = min(self.budget_s / 10, self.budget_s - seconds) / a_call
        self.next_batch = max(1, min(wanted, int(most), rules.max_samples - len(samples)))
        return False

    def is_known(self, samples: list[float]) -> bool:
        """Return whether the median's 95 % interval is narrow, and its halves agree: an interval ignores drift."""
        interval = median_interval(samples)
        if interval.low is None or interval.high - interval.low > 2 * self.rules.target_interval * interval.value:
            return False
        half = len(samples) // 2
        return abs(statistics.median(samples[:half]) - statistics.median(samples[half:])) <= DRIFT * interval.value
