"""Warm up and time a step. The raw samples are recorded in order and summarised elsewhere.

latency: synchronise, host clock, call, synchronise: what one request sees.
period: CUDA events around N back-to-back calls, divided by N: what a saturated stream sees.
Inputs rotate over the sets, so that a call does not reuse the previous call's input from a cache.

A stream of batch sizes is timed in whole passes of `whole` calls. The stopping rules count passes,
because calls of different sizes do not vary only by noise.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from effbench.core.disturbances import Disturbance, unsteady
from effbench.core.metrics import significant
from effbench.measure.host import FEWEST_SAMPLES, SAME, HostWatch, Reading
from effbench.measure.watch import HOST_BOUND, GpuWatch
from effbench.models.inputs import Inputs as Inputs
from effbench.models.inputs import Step
from effbench.stats.intervals import Interval, median_interval

#: Names of the two timers.
LATENCY, PERIOD = "latency", "period"
MOST_BLOCKS = 1000  # maximum blocks per series, each with its own event
STEADY = 0.05  # maximum relative difference between the halves of the warm-up window
DRIFT = 0.01  # maximum relative difference between the medians of the halves of timing
FEWEST_PASSES = 5  # minimum passes to time the latency of a stream, if the budget allows them
HOST_PART = 0.05  # fraction of the latency outside the GPU from which the host's speed shows in it
# turns of single calls and blocks that tell whether the host's speed shows in a step, and the
# seconds after which no other turn begins
TURNS, TURNS_S = 3, 0.1
SPREAD = 1.5  # ratio of the bounds of a median from which its calls have several speeds
# in place of a protocol's tolerance of None
HOST_TOLERANCE = 0.1
# fewer samples have no interval of their median
FEWEST_OF_ONE = 6
FEWEST_PART = 0.1  # minimum undisturbed samples to compare medians, as a part of the disturbed ones
BATCH_MS = 3.0  # calls between two readings of the host's speed, unless one call takes longer
# calls (or pairs) that a timer makes even beyond its budget, but for at most so many seconds: of
# nine samples, a single odd one is no bound of the median's interval
FEWEST_CALLS, LONGEST_S = 9, 10.0


@dataclass(frozen=True)
class Rules:
    """The settings of the protocol that a trial follows; `settings.Protocol` documents them.

    `host_tolerance`: None if disturbed samples count, too; they are still told apart.
    """

    rounds: int = 1
    budget_s: float = 5.0
    min_time_s: float = 0.5
    min_samples: int = 30
    target_interval: float = 0.005
    max_samples: int = 100_000
    warmup_calls: int = 10
    warmup_s: float = 0.2
    max_warmup_s: float = 2.0
    min_block_ms: float = 5.0
    load_s: float = 0.3
    input_sets: int = 3
    check_steps: int = 5
    host_tolerance: float | None = 0.1
    patience: float = 1.0
    profile: bool = False

    @classmethod
    def of(cls, protocol: Mapping[str, Any]) -> Rules:
        names = [rule.name for rule in dataclasses.fields(cls)]
        rules = cls(**{name: protocol[name] for name in names if name in protocol})
        if rules.discards:
            return rules
        return dataclasses.replace(rules, patience=1.0)

    def of_passes(self, calls: int) -> Rules:
        """Return these rules with limits for passes of `calls` calls instead of single calls."""
        if calls == 1:
            return self
        fewest = max(FEWEST_PASSES, math.ceil(self.min_samples / calls))
        most = max(1, self.max_samples // calls)
        return dataclasses.replace(self, min_samples=fewest, max_samples=most)

    @property
    def discards(self) -> bool:
        """Whether disturbed samples do not count if there are enough others."""
        return self.host_tolerance is not None

    @property
    def tolerance(self) -> float:
        """How many times longer than usual fixed work may take on an undisturbed host."""
        return 1 + (self.host_tolerance or HOST_TOLERANCE)

    def is_too_few(self, samples: int) -> bool:
        """Return whether so few samples give a figure that no other trial of the cell supports."""
        return self.rounds == 1 and samples < min(FEWEST_OF_ONE, self.max_samples)


@dataclass
class Timing:
    """Samples of a timer. `samples_ms`: time per call (warm-up, latency), or mean per block
    (period). `enqueue_ms`: host time per call until it returned (latency). `disturbed_ms`: samples
    that do not count, because the host or the GPU was disturbed. `steady`: whether the warm-up
    ended in a steady state."""

    samples_ms: list[float] = field(default_factory=list)
    enqueue_ms: list[float] = field(default_factory=list)
    disturbed_ms: list[float] = field(default_factory=list)
    disturbed_enqueue_ms: list[float] = field(default_factory=list)
    calls_per_block: int = 1
    steady: bool = False

    @property
    def count(self) -> int:
        return len(self.samples_ms) + len(self.disturbed_ms)

    def drop(self, first: int) -> None:
        """Move the samples from `first` on to those that do not count."""
        self.disturbed_ms += self.samples_ms[first:]
        self.disturbed_enqueue_ms += self.enqueue_ms[first:]
        del self.samples_ms[first:], self.enqueue_ms[first:]

    def all_samples(self) -> Timing:
        """Return a timing in which the disturbed samples count, too."""
        return Timing(
            self.samples_ms + self.disturbed_ms,
            self.enqueue_ms + self.disturbed_enqueue_ms,
            calls_per_block=self.calls_per_block,
        )

    def is_disturbed(self, least: int) -> bool:
        """Return whether disturbed samples cast doubt on the median: fewer than `least` samples are
        undisturbed, and fewer than the disturbed ones, unless the medians of both are the same."""
        kept, lost = self.samples_ms, self.disturbed_ms
        if not kept:
            return True
        if len(kept) >= min(least, len(lost)):
            return False
        # a few samples may be disturbed ones that look undisturbed, and then the medians are the
        # same anyway
        if len(kept) < max(FEWEST_SAMPLES, FEWEST_PART * len(lost)):
            return True
        return not have_one_median(kept, lost)

    def figure(self, rules: Rules, slowdown: float = 1.0) -> TimingFigure:
        """Return the median of the undisturbed samples if there are enough of them, else of all
        samples, marked. `slowdown`: how many times slower the host was in disturbed moments.

        The interval of a marked figure also contains the intervals of the medians of both kinds of
        samples. If hardly any sample is undisturbed, it also reaches down to the fastest sample,
        and to the median of a host without this slowdown.
        """
        is_marked = self.is_disturbed(rules.min_samples)
        used = self
        if is_marked or not rules.discards:
            used = self.all_samples()
        median = median_interval(used.samples_ms)
        bounds = bounds_of_median(used.samples_ms)
        if is_marked:
            bounds += bounds_of_median(self.samples_ms) + bounds_of_median(self.disturbed_ms)
            if len(self.samples_ms) < FEWEST_SAMPLES:
                bounds += [min(used.samples_ms), median.value / slowdown]
        low, high = min(bounds), max(bounds)
        varies = not is_marked and high > max(SPREAD, rules.tolerance) * low
        if is_marked or varies:
            median = Interval(median.value, low, high)
        return TimingFigure(
            median,
            used,
            self.disturbed_ms,
            is_marked,
            varies,
        )


@dataclass(frozen=True)
class TimingFigure:
    """What a timer found. `median`: in ms, with its interval within the trial; `timing`: the
    samples that gave it; `disturbed_ms`: those of disturbed moments; `is_marked`: whether too few
    samples are undisturbed; `varies`: whether undisturbed samples have several speeds."""

    median: Interval
    timing: Timing
    disturbed_ms: list[float] = field(default_factory=list)
    is_marked: bool = False
    varies: bool = False

    def variation(self, what: str, unit: str = "") -> Disturbance | None:
        """Return that the median, which is `what`, has several speeds, or None."""
        if not self.varies:
            return None
        low = significant(self.median.low, 3)
        high = significant(self.median.high, 3)
        return unsteady(f"{what} is anywhere from {low} to {high}{unit}")

    def down_to_fastest(self) -> TimingFigure:
        """Return this figure with an interval that reaches down to the fastest sample, and up to
        the slowest of a few."""
        samples_ms = self.timing.samples_ms
        high = self.median.high
        if high is None:
            high = max(samples_ms)
        median = Interval(self.median.value, min(samples_ms), high)
        return dataclasses.replace(self, median=median)


def have_one_median(kept: Sequence[float], lost: Sequence[float]) -> bool:
    """Return whether undisturbed and disturbed samples have the same median."""
    ratio = statistics.median(lost) / statistics.median(kept)
    return abs(ratio - 1) <= SAME


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable garbage collection in this context, because a collection takes milliseconds.

    What exists now stays exempt from it, because this process inherits a million objects from its
    server: a collection of them all takes 0.6 s.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        synchronize: Callable[[], None] = torch.cuda.synchronize
        return synchronize
    return lambda: None


def shorten_gaps() -> int:
    """Create and destroy a second CUDA context, and return the driver's error code, or 0.

    Once a process uses a second stream, as every capture does, its kernels follow each other 0.1 to
    0.2 µs later. This ends when any context begins or ends on the GPU, also another process's
    (`benchmarks/kernel_gaps.py`). A context of its own gives each trial the short gaps, whatever
    else runs.
    """
    if torch.version.hip:
        return 0
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    error: int = driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device())
    if not error:
        error = driver.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    if not error:  # makes the former context current again
        error = driver.cuCtxDestroy_v2(context)
    return error


def play(step: Step, rotation: Iterator[Inputs], calls: int) -> None:
    """Make `calls` calls back to back."""
    for args, kwargs in itertools.islice(rotation, calls):
        step(*args, **kwargs)


def load(
    step: Step,
    rotation: Iterator[Inputs],
    calls: int,
    seconds: float,
) -> None:
    """Call the step for `seconds`, so that the GPU's power control adapts to the load."""
    end = torch.cuda.Event()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        play(step, rotation, calls)
        end.record()
        end.synchronize()


@dataclass
class Timer:
    """Times a step. `whole`: calls per pass of a stream, else 1. `host`: None if its speed does not
    matter. `renew`: restores inputs outside the measured time; None if the step does not write to
    them. `sample`: makes the sample of a call from its ms, which may carry more facts about the
    call."""

    step: Step
    inputs: Sequence[Inputs]
    device: torch.device
    rules: Rules
    watch: GpuWatch | None = None
    whole: int = 1
    host: HostWatch | None = None
    renew: Callable[[Inputs], None] | None = None
    sample: Callable[[float], float] = float

    def warm_up(self) -> Timing:
        """Call the step until it is steady, and return the samples.

        This takes at least `warmup_calls` calls and `warmup_s` seconds, and at most `max_warmup_s`
        seconds, or the budget for a stream. Steady means that the medians of the two halves of the
        newest ten or more calls (passes) agree within 5 %. A stream's passes are completed, because
        otherwise a size could be prepared during timing.
        """
        rules = self.rules
        longest_s = rules.budget_s
        if self.whole == 1:
            longest_s = min(longest_s, rules.max_warmup_s)
        rotation = itertools.cycle(self.inputs)
        result = Timing()
        passes = 1
        began = time.perf_counter()
        while True:
            self.call(rotation, passes * self.whole, result)
            calls = len(result.samples_ms)
            seconds = time.perf_counter() - began
            # a few calls are enough if they take seconds
            fewest = 3 if seconds >= longest_s else rules.warmup_calls
            if calls < fewest or seconds < rules.warmup_s:
                continue
            result.steady = is_steady(pass_means(result.samples_ms, self.whole))
            if result.steady or seconds >= longest_s:
                return result
            # because each decision sorts the samples
            passes = max(1, calls // (10 * self.whole))

    def latency(self, budget_s: float) -> Timing:
        """Time synchronised calls until the median (of passes) is precise enough or the budget is
        spent. Return the samples, which begin at the first position of a stream."""
        rotation = itertools.cycle(self.inputs)
        result = Timing()
        seconds = 0.0
        began = time.perf_counter()
        until = began + self.rules.patience * budget_s
        while True:
            deadline = self.deadline(result, began, until)
            is_late = time.perf_counter() >= deadline
            if self.host and result.count and is_late:
                return result
            passes = self.next_passes(result, seconds, budget_s)
            if not passes and (is_late or deadline == until):
                return result
            kept, lost = len(result.samples_ms), len(result.disturbed_ms)
            elapsed = self.call_watched(
                rotation,
                max(1, passes) * self.whole,
                result,
                deadline,
            )
            if self.counts(result, kept, lost):
                seconds += elapsed

    def counts(self, result: Timing, kept: int, lost: int) -> bool:
        """Return whether the GPU was undisturbed while the newest samples were taken: those from
        `kept` on, and the disturbed ones from `lost` on. If it was not, they do not count. Without
        discarding, only samples of a disturbed host do, so they are removed."""
        # to ask the driver takes longer than some series
        if not self.watch or len(result.samples_ms) == kept or not self.watch.disturbed():
            return True
        result.drop(kept)
        if not self.rules.discards:
            del result.disturbed_ms[lost:], result.disturbed_enqueue_ms[lost:]
        return False

    def next_passes(self, result: Timing, seconds: float, budget_s: float) -> int:
        """Return how many passes to make before the next decision, 0 if there are enough."""
        counted = pass_means(self.counted(result), self.whole)
        if self.host and not counted and result.disturbed_ms:
            # a tenth of the budget, as later
            calls = budget_s * 100 / result.disturbed_ms[-1]
            return math.ceil(calls / self.whole)
        return next_batch(
            counted,
            seconds,
            self.rules.of_passes(self.whole),
            budget_s,
        )

    def deadline(self, result: Timing, began: float, until: float) -> float:
        """Return when the latency timer ends: `until`, or later while a few calls are missing."""
        if self.whole > 1 or result.count >= min(FEWEST_CALLS, self.rules.max_samples):
            return until
        return max(until, began + LONGEST_S)

    def counted(self, result: Timing) -> list[float]:
        """Return the samples that the stopping rules look at."""
        if self.rules.discards:
            return result.samples_ms
        return result.samples_ms + result.disturbed_ms

    def call_watched(
        self, rotation: Iterator[Inputs], calls: int, result: Timing, until: float
    ) -> float:
        """Make `calls` synchronised calls in batches, and read the host's speed between them.
        Samples of disturbed batches go to `disturbed_ms`. Return the seconds of the batches that
        count."""
        host = self.host
        if host is None:
            began = time.perf_counter()
            self.call(rotation, calls, result)
            return time.perf_counter() - began
        seconds = 0.0
        host.begin()
        while calls > 0:
            newest_ms = result.samples_ms[-1:] or result.disturbed_ms[-1:]
            if newest_ms and time.perf_counter() >= until:
                break
            batch = 1
            if newest_ms:
                batch = min(calls, math.ceil(BATCH_MS / newest_ms[0]))
            batch = math.ceil(batch / self.whole) * self.whole
            kept = len(result.samples_ms)
            began = time.perf_counter()
            self.call(rotation, batch, result)
            elapsed = time.perf_counter() - began
            is_undisturbed = host.was_undisturbed(elapsed)
            if is_undisturbed or not self.rules.discards:
                seconds += elapsed
            if not is_undisturbed:
                result.drop(kept)
                host.calm()
                host.begin()
            calls -= batch
        return seconds

    def period(self, budget_s: float) -> Timing:
        """Time blocks of back-to-back calls until their median is precise enough or the budget is
        spent.

        The host stays one block ahead, so that the GPU is never idle between the blocks of a
        series, and `load_s` seconds of calls precede them. Thus no sample contains a launch on an
        idle GPU or the clocks' reaction to a new load. The number of calls per block is a multiple
        of `whole`.
        """
        block = self.choose_block(budget_s)
        calls = math.ceil(block.calls / self.whole) * self.whole
        host = self.host
        if not block.depends_on_host:
            host = None
        blocks = Blocks(self, calls, host)
        result = Timing(calls_per_block=calls)
        seconds = 0.0
        load(
            self.step,
            blocks.rotation,
            calls,
            self.rules.load_s,
        )
        until = time.perf_counter() + self.rules.patience * budget_s
        tenth = int(budget_s * 100 / (calls * block.period_ms))
        while True:
            count = next_batch(
                self.counted(result),
                seconds,
                self.rules,
                budget_s,
            )
            if not count:
                return result
            if host:  # a series costs time besides its blocks, so short ones waste quiet moments
                count = max(count, tenth)
            kept, lost = len(result.samples_ms), len(result.disturbed_ms)
            elapsed = blocks.time(min(count, MOST_BLOCKS), result)
            if self.counts(result, kept, lost):
                seconds += elapsed
            if host and result.count:
                if time.perf_counter() >= until:
                    return result
                host.calm()

    def waits_for_host(self) -> bool:
        """Return whether the host's speed shows in the step's times.

        Single calls and a block of as many take turns, and the fastest turns are compared, because
        the clocks of a GPU change: its first calls after a pause take up to a tenth less.
        """
        if self.device.type != "cuda":
            return True
        calls = self.choose_block(self.rules.budget_s).calls
        latencies_ms: list[float] = []
        blocks: list[CallBlock] = []
        until = time.perf_counter() + TURNS_S
        for _ in range(TURNS):
            single = Timing()
            self.call(itertools.cycle(self.inputs), calls, single)
            latencies_ms.append(statistics.fmean(single.samples_ms))
            blocks.append(self.time_block(calls))
            if time.perf_counter() >= until:
                break
        fastest = min(blocks, key=lambda block: block.period_ms)
        enqueue_ms = max(block.enqueue_ms for block in blocks)
        return shows_host(min(latencies_ms), enqueue_ms, fastest.period_ms)

    def call(self, rotation: Iterator[Inputs], calls: int, result: Timing) -> None:
        """Make `calls` synchronised calls and add their times to `result`."""
        step, clock = self.step, time.perf_counter_ns
        synchronize = synchronizer(self.device)
        for args, kwargs in itertools.islice(rotation, calls):
            if self.renew:
                self.renew((args, kwargs))
            synchronize()
            start = clock()
            step(*args, **kwargs)
            returned = clock()
            synchronize()
            result.samples_ms.append(self.sample((clock() - start) / 1e6))
            result.enqueue_ms.append((returned - start) / 1e6)

    def choose_block(self, budget_s: float) -> CallBlock:
        """Return the block to time. It lasts at least `min_block_ms`, and at most a tenth of the
        budget unless a single call takes longer."""
        least_ms = self.rules.min_block_ms
        calls = 1
        while True:
            block = self.time_block(calls)
            if block.period_ms * calls >= least_ms or calls >= 1 << 16:
                longest = max(1, int(budget_s * 100 / block.period_ms))
                wanted = max(1, math.ceil(least_ms * 1.2 / block.period_ms))
                return dataclasses.replace(block, calls=min(wanted, longest))
            calls *= 2

    def time_block(self, calls: int) -> CallBlock:
        """Time calls back to back, on an idle GPU at first."""
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        began = time.perf_counter()
        play(self.step, itertools.cycle(self.inputs), calls)
        enqueued_s = time.perf_counter() - began
        end.record()
        end.synchronize()
        return CallBlock(calls, enqueued_s * 1e3 / calls, start.elapsed_time(end) / calls)


@dataclass(frozen=True)
class CallBlock:
    """Back-to-back calls: their number, and the times per call of the host (`enqueue_ms`) and of
    the GPU (`period_ms`)."""

    calls: int
    enqueue_ms: float
    period_ms: float

    @property
    def depends_on_host(self) -> bool:
        """Whether the host's speed shows in the period: the GPU is not the bottleneck."""
        return self.enqueue_ms > HOST_BOUND * self.period_ms


@dataclass
class Blocks:
    """Runs series of blocks of `calls` back-to-back calls on the GPU. `host`: None if its speed
    does not matter."""

    timer: Timer
    calls: int
    host: HostWatch | None

    def __post_init__(self) -> None:
        self.rotation = itertools.cycle(self.timer.inputs)
        self.made = 0  # calls in series so far

    def time(self, blocks: int, result: Timing) -> float:
        """Run a block that does not count, and then these blocks, whose times are added to
        `result`. Return the seconds of those that count."""
        timer, host = self.timer, self.host
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(blocks)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(blocks)]
        readings = [host.read()] if host else []
        began = time.perf_counter()
        self.play()
        for number in range(blocks):
            if timer.renew:
                for inputs in timer.inputs:
                    timer.renew(inputs)
            starts[number].record()
            self.play()
            ends[number].record()
            if number:
                ends[number - 1].synchronize()
            if timer.watch:
                timer.watch.poll(self.made)
            if host:
                readings.append(host.read())
        ends[-1].synchronize()
        block_s = (time.perf_counter() - began) / blocks
        pairs = zip(starts, ends, strict=True)
        blocks_ms = [start.elapsed_time(end) / self.calls for start, end in pairs]
        return block_s * self.add(
            blocks_ms,
            readings,
            block_s,
            result,
        )

    def add(
        self, blocks_ms: list[float], readings: list[Reading], block_s: float, result: Timing
    ) -> int:
        """Add the times of blocks to the undisturbed or the disturbed samples. Return how many
        blocks count. `readings`: before the first block, and after each."""
        counted = 0
        for number, block_ms in enumerate(blocks_ms):
            is_undisturbed = True
            if self.host:
                before, after = readings[number], readings[number + 1]
                is_undisturbed = self.host.is_undisturbed(before, after, block_s)
            kept = result.samples_ms if is_undisturbed else result.disturbed_ms
            kept.append(block_ms)
            counted += is_undisturbed or not self.timer.rules.discards
        return counted

    def play(self) -> None:
        play(self.timer.step, self.rotation, self.calls)
        self.made += self.calls


def shows_host(latency_ms: float, enqueue_ms: float, period_ms: float) -> bool:
    """Return whether the host's speed shows in these times of a step. It does not if the GPU is the
    bottleneck of back-to-back calls and fills nearly all of a single one."""
    outside_gpu_ms = latency_ms - period_ms
    return enqueue_ms > HOST_BOUND * period_ms or outside_gpu_ms > HOST_PART * latency_ms


def bounds_of_median(samples: Sequence[float]) -> list[float]:
    """Return the bounds of the median's interval; the smallest and the largest of too few samples
    for one, and none of no samples."""
    if not samples:
        return []
    median = median_interval(samples)
    if median.low is None or median.high is None:
        return [min(samples), max(samples)]
    return [median.low, median.high]


def pass_means(samples: list[float], whole: int) -> list[float]:
    """Return the mean of each pass of `whole` calls."""
    if whole == 1:
        return samples
    starts = range(0, len(samples), whole)
    return [statistics.fmean(samples[start : start + whole]) for start in starts]


def is_steady(samples: Sequence[float]) -> bool:
    """Return whether the medians of the two halves of the newest half of the samples (at least ten)
    agree."""
    window = samples[-max(10, len(samples) // 2) :]
    half = len(window) // 2
    if half == 0:
        return False
    first = statistics.median(window[:half])
    second = statistics.median(window[half:])
    return abs(second - first) <= STEADY * first


def next_batch(
    samples: list[float],
    seconds: float,
    rules: Rules,
    budget_s: float,
) -> int:
    """Return how many samples to take before the next decision. Return 0 if the minimum samples and
    time are reached and the median is precise enough, or if the budget is spent."""
    if not samples:
        return 1
    count = len(samples)
    if seconds >= budget_s or count >= rules.max_samples:
        return 0
    per_call = seconds / count
    if count >= rules.min_samples and seconds >= rules.min_time_s:
        if is_known(samples, rules.target_interval):
            return 0
        wanted = count // 5
    else:
        # samples that are missing to the minimum samples and time
        missing_s = rules.min_time_s - seconds
        wanted = int(max(rules.min_samples - count, missing_s / per_call))
    most = min(budget_s / 10, budget_s - seconds) / per_call
    return max(1, min(wanted, int(most), rules.max_samples - count))


def is_known(samples: list[float], target: float) -> bool:
    """Return whether the median's 95 % interval is narrow, and the medians of both halves agree (no
    drift)."""
    interval = median_interval(samples)
    if not is_narrow(interval, target):
        return False
    half = len(samples) // 2
    first = statistics.median(samples[:half])
    second = statistics.median(samples[half:])
    return abs(first - second) <= DRIFT * interval.value


def is_narrow(interval: Interval, target: float) -> bool:
    """Return whether an interval exists, and reaches no farther than `target` times its value to
    both sides."""
    if interval.low is None or interval.high is None:
        return False
    return interval.high - interval.low <= 2 * target * interval.value
