"""Warm up and time a step. The raw samples are recorded in order and summarised elsewhere.

latency: synchronise, host clock, call, synchronise: what one request sees.
period: CUDA events around N back-to-back calls, divided by N: what a saturated stream sees.
Inputs rotate over the sets, so that a call does not reuse the previous call's input from a cache.

A stream of batch sizes is timed in whole passes of `whole` calls. The stopping rules count passes,
because calls of different sizes do not vary only by noise.
"""

from __future__ import annotations

import ctypes
import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil
from statistics import fmean, median

import torch

from effbench.measure.host import HostWatch, Reading
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing
from effbench.measure.watch import GpuWatch
from effbench.models.inputs import Inputs, KeptInputs, Step
from effbench.stats.intervals import Interval, median_interval

#: Names of the two timers.
LATENCY, PERIOD = "latency", "period"
MOST_BLOCKS = 1000  # maximum blocks per series, each with its own event
STEADY = 0.05  # maximum relative difference between the halves of the warm-up window
DRIFT = 0.01  # maximum relative difference between the medians of the halves of timing
HOST_PART = 0.05  # fraction of the latency outside the GPU from which the host's speed shows in it
HOST_BOUND = 0.7  # enqueue time ÷ period or latency from which the host is the bottleneck
# turns of single calls and blocks that tell whether the host's speed shows in a step, and the
# seconds after which no other turn begins
TURNS, TURNS_S = 3, 0.1
BATCH_MS = 3.0  # calls between two readings of the host's speed, unless one call takes longer
# calls (or pairs) that a timer makes even beyond its budget, but for at most so many seconds: of
# nine samples, a single odd one is no bound of the median's interval
FEWEST_CALLS, LONGEST_S = 9, 10.0


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


class SampledStep(ABC):
    """A step that knows more about its newest call than the time that it took here."""

    @abstractmethod
    def sample(self, ms: float) -> float:
        """Return the newest call as a sample, after synchronising. `ms`: its time here."""


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
    error: int = (
        driver.cuDeviceGet(ctypes.byref(device), torch.cuda.current_device())
        or driver.cuCtxCreate_v2(ctypes.byref(context), 0, device)
        or driver.cuCtxDestroy_v2(context)  # makes the former context current again
    )
    return error


def play(step: Step, rotation: Iterator[Inputs], calls: int) -> None:
    """Make `calls` calls back to back."""
    for args, kwargs in islice(rotation, calls):
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
class WarmUp(Timing):
    """The samples of a warm-up. `steady`: whether it ended in a steady state."""

    steady: bool = False


@dataclass(frozen=True)
class Timer:
    """Times a step. `whole`: calls per pass of a stream, else 1. `host`: None if its speed does not
    matter. `kept`: the inputs that the step writes to, to be restored outside the measured time;
    None if there are none."""

    step: Step
    inputs: Sequence[Inputs]
    device: torch.device
    rules: Rules
    watch: GpuWatch | None = None
    whole: int = 1
    host: HostWatch | None = None
    kept: KeptInputs | None = None

    # --- single calls

    def warm_up(self) -> WarmUp:
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
        rotation = cycle(self.inputs)
        result = WarmUp()
        passes = 1
        began = time.perf_counter()
        while True:
            result.add(self.call(rotation, passes * self.whole))
            calls = result.count
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
        """Time synchronised calls until the median (of passes) is precise enough or the time is up.
        Return the samples, which begin at the first position of a stream.

        Three limits of time hold. The budget is for the calls that count (`Timing.counted_s`). A
        disturbed host, whose calls do not count, is timed until `patience_ends`. While there are
        fewer than nine calls, the timer goes on beyond both, until `deadline`.
        """
        rotation = cycle(self.inputs)
        result = Timing()
        began = time.perf_counter()
        patience_ends = began + self.rules.patience * budget_s
        while True:
            deadline = patience_ends
            if self.has_few(result):
                deadline = max(patience_ends, began + LONGEST_S)
            is_late = time.perf_counter() >= deadline
            passes = self.next_passes(result, budget_s)
            is_done = passes == 0 and (is_late or deadline == patience_ends)
            # with a host, calls that do not count would never spend the budget
            is_out_of_patience = is_late and self.host is not None and result.count > 0
            if is_done or is_out_of_patience:
                return result
            calls = max(1, passes) * self.whole
            self.accept(self.call_watched(rotation, calls, result, deadline), result)

    def has_few(self, result: Timing) -> bool:
        """Return whether the timer may exceed its budget, because it has made so few calls."""
        fewest = min(FEWEST_CALLS, self.rules.max_samples)
        return self.whole == 1 and result.count < fewest

    def next_passes(self, result: Timing, budget_s: float) -> int:
        """Return how many passes to make before the next decision, 0 if there are enough."""
        decisive_ms = pass_means(result.decisive_ms(self.rules), self.whole)
        if self.host and not decisive_ms and result.disturbed_ms:
            # a tenth of the budget, as later
            calls = budget_s * 100 / result.disturbed_ms[-1]
            return ceil(calls / self.whole)
        return next_batch(decisive_ms, result.counted_s, self.rules.of_passes(self.whole), budget_s)

    def accept(self, newest: Timing, result: Timing) -> None:
        """Add the newest samples to the result. If the GPU was disturbed while they were taken,
        they do not count. Without discarding, disturbed samples would, so they are left out."""
        # to ask the driver takes longer than some series
        if not self.watch or not newest.samples_ms or not self.watch.discard_if_disturbed():
            result.add(newest)
        elif self.rules.discards:
            result.add(newest.as_disturbed(self.rules))

    def call_watched(
        self, rotation: Iterator[Inputs], calls: int, earlier: Timing, deadline: float
    ) -> Timing:
        """Make `calls` synchronised calls, in batches between which the host's speed is read, and
        return the samples. This ends at the deadline, but not before the first call of all.
        `earlier`: the samples so far."""
        host = self.host
        if host is None:
            return self.call(rotation, calls)
        result = Timing()
        host.begin()
        while calls > 0:
            # the speed of undisturbed calls, where known
            undisturbed_ms = result.samples_ms or earlier.samples_ms
            known = undisturbed_ms or result.disturbed_ms or earlier.disturbed_ms
            if known and time.perf_counter() >= deadline:
                break
            batch = 1
            if known:
                batch = min(calls, ceil(BATCH_MS / known[-1]))
            batch = ceil(batch / self.whole) * self.whole
            taken = self.call(rotation, batch)
            if not host.was_undisturbed(taken.counted_s):
                taken = taken.as_disturbed(self.rules)
                host.calm()
                host.begin()
            result.add(taken)
            calls -= batch
        return result

    def call(self, rotation: Iterator[Inputs], calls: int) -> Timing:
        """Make `calls` synchronised calls and return their times."""
        result = Timing()
        step, clock = self.step, time.perf_counter_ns
        synchronize = synchronizer(self.device)
        began = time.perf_counter()
        for args, kwargs in islice(rotation, calls):
            if self.kept:
                self.kept.restore((args, kwargs))
            synchronize()
            start = clock()
            step(*args, **kwargs)
            returned = clock()
            synchronize()
            ms = (clock() - start) / 1e6
            if isinstance(step, SampledStep):
                ms = step.sample(ms)
            result.samples_ms.append(ms)
            result.enqueue_ms.append((returned - start) / 1e6)
        result.counted_s = time.perf_counter() - began
        return result

    # --- back-to-back calls on a GPU

    def period(self, budget_s: float) -> Timing:
        """Time blocks of back-to-back calls until their median is precise enough or the budget is
        spent.

        The host stays one block ahead, so that the GPU is never idle between the blocks of a
        series, and `load_s` seconds of calls precede them. Thus no sample contains a launch on an
        idle GPU or the clocks' reaction to a new load. The number of calls per block is a multiple
        of `whole`.
        """
        rules = self.rules
        block = self.choose_block(budget_s)
        calls = ceil(block.calls / self.whole) * self.whole
        host = self.host
        if not block.depends_on_host:
            host = None
        series = BlockSeries(cycle(self.inputs), calls, host)
        result = Timing(calls_per_block=calls)
        load(self.step, series.rotation, calls, rules.load_s)
        patience_ends = time.perf_counter() + rules.patience * budget_s
        tenth = int(budget_s * 100 / (calls * block.period_ms))
        while True:
            number = next_batch(result.decisive_ms(rules), result.counted_s, rules, budget_s)
            if not number:
                return result
            if host:  # a series costs time besides its blocks, so short ones waste quiet moments
                number = max(number, tenth)
            self.accept(self.time_blocks(series, min(number, MOST_BLOCKS)), result)
            if host and result.count:
                if time.perf_counter() >= patience_ends:
                    return result
                host.calm()

    def time_blocks(self, series: BlockSeries, blocks: int) -> Timing:
        """Run a block that does not count, and then these blocks, and return the times of the
        latter."""
        host = series.host
        starts = [torch.cuda.Event(enable_timing=True) for _ in range(blocks)]
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(blocks)]
        readings: list[Reading] = []
        if host:
            readings.append(host.read())
        began = time.perf_counter()
        self.play_block(series)
        for number in range(blocks):
            self.restore_all()
            starts[number].record()
            self.play_block(series)
            ends[number].record()
            if number:
                ends[number - 1].synchronize()
            if self.watch:
                self.watch.poll(series.made)
            if host:
                readings.append(host.read())
        ends[-1].synchronize()
        block_s = (time.perf_counter() - began) / blocks
        events = zip(starts, ends, strict=True)
        result = Timing()
        for number, (start, end) in enumerate(events):
            block = Timing([start.elapsed_time(end) / series.calls], counted_s=block_s)
            if host and not host.is_undisturbed(readings[number], readings[number + 1], block_s):
                block = block.as_disturbed(self.rules)
            result.add(block)
        return result

    def play_block(self, series: BlockSeries) -> None:
        play(self.step, series.rotation, series.calls)
        series.made += series.calls

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
            single = self.call(cycle(self.inputs), calls)
            latencies_ms.append(fmean(single.samples_ms))
            blocks.append(self.time_block(calls))
            if time.perf_counter() >= until:
                break
        fastest = min(blocks, key=lambda block: block.period_ms)
        enqueue_ms = max(block.enqueue_ms for block in blocks)
        return shows_host(min(latencies_ms), enqueue_ms, fastest.period_ms)

    def choose_block(self, budget_s: float) -> CallBlock:
        """Return the block to time. It lasts at least `min_block_ms`, and at most a tenth of the
        budget unless a single call takes longer."""
        least_ms = self.rules.min_block_ms
        calls = 1
        while True:
            block = self.time_block(calls)
            if block.period_ms * calls >= least_ms or calls >= 1 << 16:
                longest = max(1, int(budget_s * 100 / block.period_ms))
                wanted = max(1, ceil(least_ms * 1.2 / block.period_ms))
                return replace(block, calls=min(wanted, longest))
            calls *= 2

    def time_block(self, calls: int) -> CallBlock:
        """Time calls back to back, on an idle GPU at first."""
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        began = time.perf_counter()
        play(self.step, cycle(self.inputs), calls)
        enqueued_s = time.perf_counter() - began
        end.record()
        end.synchronize()
        return CallBlock(calls, enqueued_s * 1e3 / calls, start.elapsed_time(end) / calls)

    def restore_all(self) -> None:
        """Restore all inputs, if the step writes to them."""
        if self.kept:
            for inputs in self.inputs:
                self.kept.restore(inputs)


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
class BlockSeries:
    """Series of blocks of `calls` back-to-back calls. `host`: None if its speed does not matter.
    `made`: calls so far, for the energy of one."""

    rotation: Iterator[Inputs]
    calls: int
    host: HostWatch | None = None
    made: int = 0


def shows_host(latency_ms: float, enqueue_ms: float, period_ms: float) -> bool:
    """Return whether the host's speed shows in these times of a step. It does not if the GPU is the
    bottleneck of back-to-back calls and fills nearly all of a single one."""
    outside_gpu_ms = latency_ms - period_ms
    return enqueue_ms > HOST_BOUND * period_ms or outside_gpu_ms > HOST_PART * latency_ms


def pass_means(samples: list[float], whole: int) -> list[float]:
    """Return the mean of each pass of `whole` calls."""
    if whole == 1:
        return samples
    starts = range(0, len(samples), whole)
    return [fmean(samples[start : start + whole]) for start in starts]


def is_steady(samples: Sequence[float]) -> bool:
    """Return whether the medians of the two halves of the newest half of the samples (at least ten)
    agree."""
    window = samples[-max(10, len(samples) // 2) :]
    half = len(window) // 2
    if half == 0:
        return False
    first = median(window[:half])
    second = median(window[half:])
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
    first = median(samples[:half])
    second = median(samples[half:])
    return abs(first - second) <= DRIFT * interval.value


def is_narrow(interval: Interval, target: float) -> bool:
    """Return whether an interval exists, and reaches no farther than `target` times its value to
    both sides."""
    if interval.low is None or interval.high is None:
        return False
    return interval.high - interval.low <= 2 * target * interval.value
