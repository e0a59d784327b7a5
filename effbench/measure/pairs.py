"""Time two steps in turn, in batches of a few milliseconds, and compare neighbouring batches.

The speed of a shared host changes by tens of per cent within seconds. Two series that follow each
other meet different speeds; two neighbouring batches meet the same one, so their ratio hardly
depends on it. The order of the batches changes with each pair (A B, B A, A B …), so that drift
favours neither side.

A batch begins with calls that do not count, because the other side's calls have left their data in
the caches.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import cycle
from math import ceil, sqrt
from statistics import median
from typing import Protocol

import torch

from effbench.measure.host import HostWatch
from effbench.measure.rules import Rules
from effbench.measure.samples import (
    FEWEST_PART,
    FEWEST_SAMPLES,
    Timing,
    TimingFigure,
    have_one_median,
)
from effbench.measure.timing import (
    BATCH_MS,
    FEWEST_CALLS,
    LONGEST_S,
    Timer,
    is_narrow,
    load,
    play,
)
from effbench.stats.intervals import median_interval

#: Calls at the start of a batch on a GPU that do not count: they find the other side's data in the
#: caches.
WARM_CALLS = 2
#: The same in ms on the CPU, where threads of the other side also have to go to sleep. One call at
#: least. How both were found: `benchmarks/pairs.py --bias`.
CPU_WARM_MS = 5.0
#: The same for back-to-back calls, as a part of the batch: until the queue of launches is as long
#: as usual.
WARM_PART = 0.2
#: Part of the time under load before the period is timed alone that is spent before it is timed in
#: turn.
LOAD_PART = 1 / 3
#: Pairs between two looks at whether the ratio is known.
EVERY = 10


class TimedSide(Protocol):
    """One of the two steps that are timed in turn. `depends_on_host`: whether the host's speed
    shows in its times."""

    depends_on_host: bool

    def batch(self) -> TimedBatch:
        """Time a batch of calls."""


@dataclass(frozen=True)
class TimedBatch:
    """A batch of calls.

    `ms`: time per call. `waited_ms`: how long threads of another process, a partner, waited for a
    core. `seconds`: of the calls alone; None if they filled the whole batch. `is_disturbed`:
    whether the host was disturbed meanwhile.
    """

    ms: float
    waited_ms: float = 0.0
    seconds: float | None = None
    is_disturbed: bool = False


@dataclass(frozen=True)
class BatchPair:
    """The ms per call of two neighbouring batches, one of each side. `is_disturbed`: whether the
    host was disturbed meanwhile."""

    other_ms: float
    own_ms: float
    is_disturbed: bool = False

    @property
    def ratio(self) -> float:
        """How many times longer the other side takes."""
        return self.other_ms / self.own_ms

    @property
    def mean_ms(self) -> float:
        """The geometric mean of both sides."""
        return sqrt(self.other_ms * self.own_ms)

    def ms_of(self, own: bool) -> float:
        return self.own_ms if own else self.other_ms


@dataclass
class Pairs:
    """All pairs of a series, in order."""

    in_order: list[BatchPair] = field(default_factory=list)

    @property
    def undisturbed(self) -> list[BatchPair]:
        return [pair for pair in self.in_order if not pair.is_disturbed]

    @property
    def disturbed(self) -> list[BatchPair]:
        """The pairs during which the host was disturbed."""
        return [pair for pair in self.in_order if pair.is_disturbed]

    def figure(self, rules: Rules, host: HostWatch | None = None) -> TimingFigure:
        """Return the median ratio of the undisturbed pairs if there are enough of them, else of all
        pairs, marked. It is not marked if the `host` shows that the others do not follow its speed.

        Ten are enough, because a pair is a figure of two batches. Less than a tenth of all may be
        disturbed pairs that look undisturbed; they are enough if the others have the same ratio.
        """
        kept, lost = ratios(self.undisturbed), ratios(self.disturbed)
        enough = FEWEST_SAMPLES
        if kept and lost and not have_one_median(kept, lost):
            enough = max(enough, ceil(FEWEST_PART * len(lost)))
        rules = replace(rules, min_samples=min(rules.min_samples, enough))
        figure = Timing(kept, disturbed_ms=lost).figure(rules)
        if figure.is_marked and host is not None and host.is_ignored_by(lost):
            return Timing(kept + lost).figure(rules)
        return figure

    def samples(self, prefix: str) -> dict[str, list[float]]:
        """Return the raw times as series of samples. The series of both sides have the same order
        and length."""
        series: dict[str, list[float]] = {}
        for pair in self.in_order:
            kind = "_disturbed" if pair.is_disturbed else ""
            series.setdefault(f"{prefix}_baseline{kind}_ms", []).append(pair.other_ms)
            series.setdefault(f"{prefix}_own{kind}_ms", []).append(pair.own_ms)
        return series


def ratios(pairs: Iterable[BatchPair]) -> list[float]:
    return [pair.ratio for pair in pairs]


class LatencySide:
    """Synchronised calls of a step. `latency_ms`: about how long one takes; `warm_calls`: calls
    that do not count. `batches`: all calls that count, by batch."""

    def __init__(self, timer: Timer, latency_ms: float, warm_calls: int | None = None) -> None:
        self.timer = timer
        self.depends_on_host = timer.waits_for_host()
        self.rotation = cycle(timer.inputs)
        self.calls = ceil(BATCH_MS / latency_ms)
        self.batches: list[Timing] = []
        if warm_calls is not None:
            self.warm_calls = warm_calls
        elif timer.device.type == "cuda":
            self.warm_calls = WARM_CALLS
        else:
            self.warm_calls = ceil(CPU_WARM_MS / latency_ms)

    def batch(self) -> TimedBatch:
        """Time a batch; its figure is the median of its calls."""
        self.timer.call(self.rotation, self.warm_calls)
        calls = self.timer.call(self.rotation, self.calls)
        self.batches.append(calls)
        return TimedBatch(median(calls.samples_ms))

    def calls_of(self, pairs: Pairs, is_all: bool) -> Timing:
        """Return the calls in the batches of these pairs: of all, or of the undisturbed ones."""
        calls = Timing()
        for pair, batch in zip(pairs.in_order, self.batches, strict=True):
            if is_all or not pair.is_disturbed:
                calls.add(batch)
        return calls


class PeriodSide:
    """Back-to-back calls of a step on the GPU. `calls`: number per batch."""

    def __init__(self, timer: Timer, budget_s: float) -> None:
        block = timer.choose_block(budget_s)
        self.timer = timer
        self.depends_on_host = block.depends_on_host
        self.rotation = cycle(timer.inputs)
        self.calls = block.calls
        self.warm_calls = max(WARM_CALLS, round(WARM_PART * self.calls))
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)

    def load(self) -> None:
        """Load the GPU before the first batch."""
        rules = self.timer.rules
        load(self.timer.step, self.rotation, self.calls, LOAD_PART * rules.load_s)

    def batch(self) -> TimedBatch:
        """Time a batch by events around it."""
        step = self.timer.step
        self.timer.restore_all()
        play(step, self.rotation, self.warm_calls)
        self.start.record()
        play(step, self.rotation, self.calls)
        self.end.record()
        self.end.synchronize()
        return TimedBatch(self.start.elapsed_time(self.end) / self.calls)


def take_pairs(
    other: TimedSide, own: TimedSide, rules: Rules, budget_s: float, host: HostWatch | None
) -> Pairs:
    """Time batches of both sides in turn until the ratio is precise enough or the budget is spent;
    at least one pair.

    On a disturbed host this goes on for `rules.patience` times the budget, until enough pairs are
    undisturbed. `host`: None if its speed shows in neither side.
    """
    pairs = Pairs()
    began = time.perf_counter()
    while True:
        if len(pairs.in_order) % 2 == 0:
            mine, theirs = time_batch(own, host), time_batch(other, host)
        else:
            theirs, mine = time_batch(other, host), time_batch(own, host)
        is_disturbed = mine.is_disturbed or theirs.is_disturbed
        pairs.in_order.append(BatchPair(theirs.ms, mine.ms, is_disturbed))
        if is_done(pairs, rules, budget_s, time.perf_counter() - began):
            return pairs
        if is_disturbed and host:
            host.calm()


def time_batch(side: TimedSide, host: HostWatch | None) -> TimedBatch:
    """Time a batch, and read the host's speed before and after it if it matters."""
    if host is None or not side.depends_on_host:
        return side.batch()
    host.begin()
    began = time.perf_counter()
    batch = side.batch()
    seconds = batch.seconds or time.perf_counter() - began
    return replace(batch, is_disturbed=not host.was_undisturbed(seconds, batch.waited_ms))


def is_done(pairs: Pairs, rules: Rules, budget_s: float, seconds: float) -> bool:
    """Return whether the ratio is precise enough, or the time is up. `seconds`: since the first
    pair began."""
    number, undisturbed = len(pairs.in_order), pairs.undisturbed
    longest_s = budget_s
    if pairs.disturbed and len(undisturbed) < rules.min_samples:
        longest_s *= rules.patience
    if number < FEWEST_CALLS:
        longest_s = max(longest_s, LONGEST_S)
    if seconds >= longest_s or number >= rules.max_samples:
        return True
    # enough undisturbed pairs give the ratio within the protocol's target
    if number % EVERY or len(undisturbed) < rules.min_samples or seconds < rules.min_time_s / 2:
        return False
    return is_narrow(median_interval(ratios(undisturbed)), rules.target_interval)
