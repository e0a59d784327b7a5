"""Warm-up and timing of a step. Raw samples in order; summaries are made elsewhere.

latency: synchronise, host clock, call, synchronise: what one request sees.
period: CUDA events around N back-to-back calls, divided by N: what a saturated stream sees.
Inputs rotate over the sets, so that no call finds its own input warm in a cache by accident.

A stream of batch sizes is timed in whole passes (`whole` calls each), and the stopping rules count passes: calls of
different sizes spread for another reason than noise.
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

from effbench.measure.watch import GpuWatch
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

    @classmethod
    def of(cls, protocol: dict[str, Any]) -> Rules:
        return cls(**{one.name: protocol[one.name] for one in dataclasses.fields(cls) if one.name in protocol})

    def of_passes(self, calls: int) -> Rules:
        """Return the rules for passes of `calls` calls each."""
        if calls == 1:
            return self
        fewest = max(FEWEST_PASSES, math.ceil(self.min_samples / calls))
        return dataclasses.replace(self, min_samples=fewest, max_samples=max(1, self.max_samples // calls))


@dataclass
class Timing:
    """`samples_ms`: one value a call (warm-up, latency) or a block's mean (period). `enqueue_ms`: of each call, until
    it returned (latency). `steady`: how the warm-up ended."""

    samples_ms: list[float] = field(default_factory=list)
    enqueue_ms: list[float] = field(default_factory=list)
    calls_per_block: int = 1
    steady: bool = False


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection costs milliseconds and would land in some sample."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def play(step: Callable, rotation: Iterator[Inputs], calls: int) -> None:
    """Make so many calls, back to back."""
    for args, kwargs in itertools.islice(rotation, calls):
        step(*args, **kwargs)


def load(step: Callable, rotation: Iterator[Inputs], calls: int, seconds: float) -> None:
    """Keep the GPU under the load to come until its power control has answered to it."""
    end = torch.cuda.Event()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        play(step, rotation, calls)
        end.record()
        end.synchronize()


@dataclass
class Timer:
    """Times a step. `whole`: calls of one pass of a stream, else 1."""

    step: Callable[..., Any]
    inputs: Sequence[Inputs]
    device: torch.device
    rules: Rules
    watch: GpuWatch | None = None
    whole: int = 1

    def warm_up(self) -> Timing:
        """Call until steady: at least `warmup_calls` calls and `warmup_s` seconds, at most `max_warmup_calls` calls.

        Steady: the medians of the two halves of the newest ten or more calls (passes) agree within 5 %. The first pass
        of a stream is whole, whatever it costs: a size that was never called would be prepared while timing.
        """
        rules, rotation, found = self.rules, itertools.cycle(self.inputs), Timing()
        most, patience_s = rules.max_warmup_calls, 10 * rules.warmup_s
        if self.whole > 1:
            most, patience_s = max(most, WARM_PASSES * self.whole), rules.budget_s
        began = time.perf_counter()
        while True:
            self.call(rotation, self.whole, found)
            calls, seconds = len(found.samples_ms), time.perf_counter() - began
            # a call of seconds needs no ten of them: twice the time is enough
            enough = calls >= rules.warmup_calls or (calls >= 3 and seconds > patience_s)
            if enough and seconds >= rules.warmup_s:
                found.steady = is_steady(pass_means(found.samples_ms, self.whole))
                if found.steady or calls >= most or seconds >= rules.budget_s:
                    return found

    def latency(self, budget_s: float) -> Timing:
        """Time synchronised calls until the median (of passes) is known well enough or the budget is spent; the samples
        begin at the first position of a stream."""
        rotation, found, seconds = itertools.cycle(self.inputs), Timing(), 0.0
        rules = self.rules.of_passes(self.whole)
        while passes := next_batch(pass_means(found.samples_ms, self.whole), seconds, rules, budget_s):
            kept, began = len(found.samples_ms), time.perf_counter()
            self.call(rotation, passes * self.whole, found)
            elapsed = time.perf_counter() - began
            if self.watch and self.watch.disturbed():
                del found.samples_ms[kept:], found.enqueue_ms[kept:]
            else:
                seconds += elapsed
        return found

    def period(self, budget_s: float) -> Timing:
        """Time blocks of back-to-back calls between CUDA events until their median is known or the budget is spent.

        The stream never runs dry between the blocks of a run: the host stays a block ahead. So neither the first launch
        after an idle moment nor the clocks' answer to a sudden load is in a sample; `load_s` seconds of calls go
        before. A block has a multiple of `whole` calls.
        """
        calls = math.ceil(self.choose_block(budget_s) / self.whole) * self.whole
        rotation, found, done, seconds = itertools.cycle(self.inputs), Timing(calls_per_block=calls), 0, 0.0
        load(self.step, rotation, calls, self.rules.load_s)
        while batch := next_batch(found.samples_ms, seconds, self.rules, budget_s):
            blocks = min(batch, MOST_BLOCKS)
            ends = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
            began = time.perf_counter()
            play(self.step, rotation, calls)
            done += calls
            ends[0].record()
            for number in range(1, blocks + 1):
                play(self.step, rotation, calls)
                ends[number].record()
                ends[number - 1].synchronize()
                done += calls
                if self.watch:
                    self.watch.poll(done)
            ends[-1].synchronize()
            elapsed = time.perf_counter() - began
            if not (self.watch and self.watch.disturbed()):
                found.samples_ms += [start.elapsed_time(end) / calls for start, end in itertools.pairwise(ends)]
                seconds += elapsed
        return found

    def call(self, rotation: Iterator[Inputs], calls: int, found: Timing) -> None:
        """Make so many synchronised calls and add them to `found`."""
        step, synchronize, clock = self.step, synchronizer(self.device), time.perf_counter_ns
        for args, kwargs in itertools.islice(rotation, calls):
            synchronize()
            start = clock()
            step(*args, **kwargs)
            returned = clock()
            synchronize()
            found.samples_ms.append((clock() - start) / 1e6)
            found.enqueue_ms.append((returned - start) / 1e6)

    def choose_block(self, budget_s: float) -> int:
        """Return the calls a block: it lasts at least `min_block_ms` and, if one call allows it, at most a tenth of the
        budget."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        calls = 1
        while True:
            torch.cuda.synchronize()
            start.record()
            play(self.step, itertools.cycle(self.inputs), calls)
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end)
            if elapsed >= self.rules.min_block_ms or calls >= 1 << 16:
                longest = max(1, int(budget_s * 100 / (elapsed / calls)))
                return min(max(1, math.ceil(self.rules.min_block_ms * 1.2 / (elapsed / calls))), longest)
            calls *= 2


def pass_means(samples: list[float], whole: int) -> list[float]:
    """Return the mean of each pass of `whole` calls."""
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


def next_batch(samples: list[float], seconds: float, rules: Rules, budget_s: float) -> int:
    """Return how many samples to take before the next look, a few dozen looks in a run; 0 when least samples and time
    are reached and the median is known, or the budget is spent."""
    if not samples:
        return 1
    count = len(samples)
    if seconds >= budget_s or count >= rules.max_samples:
        return 0
    a_call = seconds / count
    if count >= rules.min_samples and seconds >= rules.min_time_s:
        if is_known(samples, rules.target_interval):
            return 0
        wanted = count // 5
    else:
        # what is missing to the least samples and the least time, but no more than a tenth of the budget at once
        wanted = int(max(rules.min_samples - count, (rules.min_time_s - seconds) / a_call))
    most = min(budget_s / 10, budget_s - seconds) / a_call
    return max(1, min(wanted, int(most), rules.max_samples - count))


def is_known(samples: list[float], target: float) -> bool:
    """Return whether the median's 95 % interval is narrow, and its halves agree: an interval ignores drift."""
    interval, half = median_interval(samples), len(samples) // 2
    if interval.low is None or interval.high - interval.low > 2 * target * interval.value:
        return False
    return abs(statistics.median(samples[:half]) - statistics.median(samples[half:])) <= DRIFT * interval.value
