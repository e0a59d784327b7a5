"""The samples of a timer, and the figure that they give: the median, with the bounds of its
interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from effbench.measure.rules import Rules
from effbench.stats.intervals import Interval, median_interval

#: Fewest undisturbed samples that may be compared with disturbed ones, and the other way round.
FEWEST_SAMPLES = 10
#: The same, as a part of the disturbed ones.
FEWEST_PART = 0.1
#: Maximum relative difference between medians of disturbed and undisturbed samples that agree.
SAME = 0.02
#: Ratio of the bounds of a median from which its calls have several speeds.
SPREAD = 1.5


@dataclass
class Timing:
    """Samples of a timer.

    `samples_ms`: time per call (warm-up, latency), or mean per block (period). `enqueue_ms`: host
    time per call until it returned (latency). `disturbed_ms`: samples that do not count, because
    the host or the GPU was disturbed. `counted_s`: how long the calls took whose samples the
    stopping rules count.
    """

    samples_ms: list[float] = field(default_factory=list)
    enqueue_ms: list[float] = field(default_factory=list)
    disturbed_ms: list[float] = field(default_factory=list)
    disturbed_enqueue_ms: list[float] = field(default_factory=list)
    calls_per_block: int = 1
    counted_s: float = 0.0

    @property
    def count(self) -> int:
        return len(self.samples_ms) + len(self.disturbed_ms)

    def add(self, later: Timing) -> None:
        """Add samples that were taken later."""
        self.samples_ms += later.samples_ms
        self.enqueue_ms += later.enqueue_ms
        self.disturbed_ms += later.disturbed_ms
        self.disturbed_enqueue_ms += later.disturbed_enqueue_ms
        self.counted_s += later.counted_s

    def as_disturbed(self, rules: Rules) -> Timing:
        """Return these samples as disturbed ones. Without discarding, their time still counts."""
        counted_s = self.counted_s
        if rules.discards:
            counted_s = 0.0
        return Timing(
            disturbed_ms=self.disturbed_ms + self.samples_ms,
            disturbed_enqueue_ms=self.disturbed_enqueue_ms + self.enqueue_ms,
            counted_s=counted_s,
        )

    def all_samples(self) -> Timing:
        """Return a timing in which the disturbed samples count, too."""
        return Timing(
            self.samples_ms + self.disturbed_ms,
            self.enqueue_ms + self.disturbed_enqueue_ms,
            calls_per_block=self.calls_per_block,
        )

    def decisive_ms(self, rules: Rules) -> list[float]:
        """Return the samples that the stopping rules look at."""
        if rules.discards:
            return self.samples_ms
        return self.samples_ms + self.disturbed_ms

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
        return TimingFigure(median, used, self.disturbed_ms, is_marked, varies)


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

    def down_to_fastest(self) -> TimingFigure:
        """Return this figure with an interval that reaches down to the fastest sample, and up to
        the slowest of a few."""
        samples_ms = self.timing.samples_ms
        median = Interval(self.median.value, min(samples_ms), max(bounds_of_median(samples_ms)))
        return replace(self, median=median)


def have_one_median(kept: Sequence[float], lost: Sequence[float]) -> bool:
    """Return whether undisturbed and disturbed samples have the same median."""
    ratio = statistics.median(lost) / statistics.median(kept)
    return abs(ratio - 1) <= SAME


def bounds_of_median(samples: Sequence[float]) -> list[float]:
    """Return the bounds of the median's interval; the smallest and the largest of too few samples
    for one, and none of no samples."""
    if not samples:
        return []
    median = median_interval(samples)
    if median.low is None or median.high is None:
        return [min(samples), max(samples)]
    return [median.low, median.high]
