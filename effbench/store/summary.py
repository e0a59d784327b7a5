"""Summarise the trials of a cell in one sweep and one environment as a row of `result`.

The columns `speedup`, `speedup_ci_low` and `speedup_ci_high` are made in five steps, as are those
of `period_speedup`:

| step | where |
|---|---|
| choose the trials that count | `CountedTrials.of` |
| choose pairs, or separate processes | `speedup_columns` |
| mean logarithm over trials and compilations, with its error | `estimate`, `log_difference` |
| how much lower and higher marked trials, or the pairs of a single one, may be | `offsets` |
| the 95 % interval of this mean | `LogEstimate.interval` in `stats/intervals.py` |

The interval goes from exp(mean - t·error - below) to exp(mean + t·error + above): t is the 97.5 %
quantile of Student's distribution with the degrees of freedom of the mean, `below` and `above` are
the offsets. One trial has no error, so that its interval consists of the offsets.

Times take the same steps, except the second. The rule for figures of cold and warm compile caches
is `CountedTrials.giving`. A result has the worst status of its trials: `CountedTrials.decisive`.

Intervals are over trials. A sweep that joins several hosts (see `joining`) has one trial for each,
so that they are over hosts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import attrgetter
from statistics import geometric_mean, median
from typing import Self

from effbench.core.cell import (
    SEVERITY,
    Status,
    Summary,
    Trial,
)
from effbench.core.disturbances import reason_of_baseline
from effbench.core.metrics import ESTIMATED, INTERVALS, METRICS, SPEEDUPS
from effbench.core.parallel import Parallel
from effbench.core.quantities import Metric
from effbench.stats.intervals import (
    LogEstimate,
    log_difference,
    log_mean_of_compilations,
)
from effbench.store.bottleneck import bound, idle_fraction
from effbench.store.values import Columns

#: marked trials do not count if at least this many unmarked ones remain
ENOUGH_UNMARKED = 3
#: trials on a GPU whose fixed work on the host took this many times longer than in the cell's
#: fastest trial do not count either, as far as enough others remain
SLOWER_HOST = 1.1
#: values of `speedup_from`
PAIRS, SEPARATE = "pairs", "separate"
#: values of `cache_reuse`, the least first
REUSES = ("none", "part", "whole")

# --- the trials that count ---


def last_attempts(trials: Iterable[Trial]) -> list[Trial]:
    """Return the last attempt of each round, in the order of the rounds."""
    by_attempt = sorted(trials, key=attrgetter("round", "attempt"))
    return list({trial.round: trial for trial in by_attempt}.values())


def on_fast_hosts(trials: Iterable[Trial], others: Iterable[Trial]) -> list[Trial]:
    """Return the trials whose fixed work on the host is unknown, or took hardly longer than in the
    fastest of `others`; all of them on the CPU, where that work has levels of its own."""
    on_gpu = [trial.host_ms for trial in others if trial.gpu_uuid is not None]
    limit_ms = SLOWER_HOST * min(filter(None, on_gpu), default=inf)
    return [trial for trial in trials if (trial.host_ms or 0.0) <= limit_ms]


def of_cache(trials: Iterable[Trial], *caches: str | None) -> list[Trial]:
    """Return the trials with one of these compile caches: `cold`, `warm`, or None for trials that
    compile nothing."""
    return [trial for trial in trials if trial.compile_cache in caches]


@dataclass(frozen=True)
class CountedTrials:
    """The trials of a cell (`every`), and those that count (`kept`). `mark`: the field that says
    why a trial is marked."""

    every: Sequence[Trial]
    kept: list[Trial]
    mark: str

    @classmethod
    def of(cls, trials: Sequence[Trial], mark: str = "disturbance") -> Self:
        """Choose the last attempts, without marked ones if enough others are ok, and without those
        during which the host was slower, even in its quiet moments. A failure always counts.

        A shared host changes its speed for minutes. While it is slow, no trial knows that it was,
        or will be, faster.
        """
        attempts = last_attempts(trials)
        failed = [trial for trial in attempts if trial.status is not Status.OK]
        ok = [trial for trial in attempts if trial.status is Status.OK]
        unmarked = [trial for trial in ok if getattr(trial, mark) is None]
        if len(unmarked) >= ENOUGH_UNMARKED:
            ok = unmarked
        fast = on_fast_hosts(ok, [*failed, *ok])
        if sum(getattr(trial, mark) is None for trial in fast) >= ENOUGH_UNMARKED:
            ok = fast
        kept = sorted((*failed, *ok), key=attrgetter("round"))
        return cls(trials, kept, mark)

    @property
    def measured(self) -> list[Trial]:
        """All with measurements: marked ones and earlier attempts also tell how long preparing
        takes, because few trials compile cold."""
        return [trial for trial in self.every if trial.status.is_measured]

    @property
    def decisive(self) -> Trial:
        """The trial that decides the result's status and reason: among equals, the first one with a
        reason."""
        return min(
            self.kept,
            key=lambda trial: (SEVERITY.index(trial.status), trial.reason is None, trial.round),
        )

    @property
    def disturbance(self) -> str | None:
        """Why the times are marked: the reason of the first marked trial; None if they are not."""
        return next(filter(None, (getattr(trial, self.mark) for trial in self.kept)), None)

    @cached_property
    def means(self) -> dict[str, LogEstimate]:
        """Time -> its mean logarithm, if it has one."""
        return estimates(self.kept, {name: name for name in ESTIMATED})

    @cached_property
    def columns(self) -> Columns:
        """The columns of a result that its trials give; a failed cell only has those that explain
        the failure."""
        is_measured = self.decisive.status.is_measured
        columns: Columns = {}
        for metric in METRICS.values():
            if metric.combine is not None and (metric.explains or is_measured):
                columns[metric.name] = self.combined(metric)
        if is_measured:
            for name, mean in self.means.items():
                columns |= interval_columns(name, mean)
        return columns

    def giving(self, metric: Metric) -> list[Trial]:
        """Return the trials that give a metric of results.

        Compiling leaves memory reserved, so sizes are those of processes with a warm cache, if
        there are any.
        """
        if metric.caches:
            return of_cache(self.measured, *metric.caches)
        if metric.combine == "cold":
            return of_cache(self.measured, "cold") or self.kept
        if metric.combine == "warm":
            return of_cache(self.kept, "warm", None) or self.kept
        return self.kept

    def comparable(self, metric: Metric) -> list[Trial]:
        """Return the measured trials that give a metric and can be compared with those of another
        sweep: sizes with an empty cache that have a metric of their own never stand for those with
        a warm one, and every trial that prepared the mode has a figure."""
        trials = [trial for trial in self.giving(metric) if trial.status.is_measured]
        if metric.caches:
            # without one: it was prepared while another one ran
            return [trial for trial in trials if figure_of(trial, metric) is not None]
        if metric.name == "peak_reserved_bytes":
            return of_cache(trials, "warm", None)
        return trials

    def combined(self, metric: Metric) -> float | None:
        """Return the value of a metric over all trials that give it."""
        figures = [figure_of(trial, metric) for trial in self.giving(metric)]
        if metric.combine == "mean":
            return mean_of(figures)
        if metric.combine == "min":
            return min(_positive(figures), default=None)
        known = [figure for figure in figures if figure is not None]
        if metric.combine == "median" and known:
            return median(known)
        return max(known, default=None)


def figure_of(trial: Trial, metric: Metric) -> float | None:
    """Return a trial's figure of a metric of results."""
    figure: float | None = getattr(trial, metric.of or metric.name)
    return figure


# --- the summary ---


def summarise(
    of_cell: CountedTrials,
    *,
    bs: float | None,
    of_baseline: CountedTrials | None,
    of_single: CountedTrials | None = None,
    parallel: Parallel | None = None,
) -> Summary:
    """Return the summary of the trials of one cell in one sweep and environment.

    `bs`: the cell's batch size (mean of a stream), None if unknown. `of_baseline`: the trials of
    the cell that differs only in its mode; `of_cell` itself if it is the baseline. `parallel`: how
    the cell uses several devices, and `of_single`: the trials of the same cell on one device; both
    None for a cell that uses one. The summary's `trials` is the number of rounds behind the times;
    speedups from pairs may have others. A failed cell only has the figures that explain the
    failure. Raises ValueError without trials.
    """
    is_baseline = of_cell is of_baseline
    kept = of_cell.kept
    status = of_cell.decisive.status
    summary = Summary(
        status=status,
        reason=of_cell.decisive.reason,
        trials=len(kept),
        is_baseline=is_baseline,
        **of_cell.columns,
    )
    if not status.is_measured:
        return summary
    idle = idle_fraction(summary.gpu_busy_ms, summary.period_ms)
    summary = replace(
        summary,
        marked=of_cell.disturbance is not None,
        disturbance=of_cell.disturbance,
        compilations=_distinct(trial.compilation for trial in kept),
        hosts=_distinct(trial.host for trial in kept),
        unsteady_trials=_unsteady(kept),
        cache_reuse=_least_reuse(kept),
        throughput_per_s=_throughput(bs, summary.period_ms or summary.latency_ms),
        gpu_idle_fraction=idle,
        bound=bound(idle),
        relative_memory=_relative_memory(summary, of_baseline),
    )
    if status is not Status.OK:
        return summary
    if of_single is not None and parallel is not None:
        summary = replace(summary, **_scaling_columns(of_cell, of_single, parallel))
    if is_baseline:
        return replace(summary, **_speedups_of_baseline(of_cell))
    summary = replace(summary, **speedup_columns(of_cell, of_baseline))
    if of_baseline is None:
        return summary
    return replace(summary, break_even_calls=_break_even(summary, of_cell, of_baseline))


def _unsteady(trials: Sequence[Trial]) -> int | None:
    """Return how many trials were not steady; None if no trial tells."""
    steady = [trial.steady for trial in trials if trial.steady is not None]
    if not steady:
        return None
    return steady.count(False)


def _distinct(values: Iterable[object]) -> int | None:
    """Return the number of distinct values; None if one of them is."""
    distinct = set(values)
    return None if None in distinct else len(distinct)


def _least_reuse(trials: Sequence[Trial]) -> str | None:
    """Return the least reuse of a cache in these trials; None if they had none."""
    reuses = {trial.cache_reuse for trial in trials}
    return next((reuse for reuse in REUSES if reuse in reuses), None)


def _throughput(bs: float | None, call_ms: float | None) -> float | None:
    if not bs or not call_ms:
        return None
    return bs * 1000.0 / call_ms


def _relative_memory(summary: Summary, of_baseline: CountedTrials | None) -> float | None:
    if of_baseline is None:
        return None
    reserved = of_baseline.columns.get("peak_reserved_bytes")
    if not reserved or not summary.peak_reserved_bytes:
        return None
    return float(summary.peak_reserved_bytes / reserved)


def interval_columns(name: str, mean: LogEstimate) -> Columns:
    """Return a mean and the bounds of its 95 % interval by column."""
    figure = mean.interval()
    low, high = INTERVALS[name]
    return {name: figure.value, low: figure.low, high: figure.high}


# --- speedups ---


@dataclass(frozen=True)
class Speedups:
    """Mean logarithms of speedups by name, from `PAIRS` or `SEPARATE` processes, and why they are
    marked."""

    origin: str
    means: dict[str, LogEstimate]
    disturbance: str | None


def _speedups_of_baseline(of_cell: CountedTrials) -> Columns:
    """Return 1 by definition: an interval would wrongly suggest doubt."""
    columns: Columns = {}
    for name, time in SPEEDUPS.items():
        if time in of_cell.means:
            columns |= dict.fromkeys((name, *INTERVALS[name]), 1.0)
    return columns


def speedup_columns(of_cell: CountedTrials, of_baseline: CountedTrials | None) -> Columns:
    """Return the columns with the speedups.

    The headline comes from pairs, if every trial that counts has pairs; a speedup that these do not
    give, and all speedups without pairs, come from separate processes. On a GPU, marked pairs give
    way to unmarked separate times: where only one side waits for the host, pairs need its quiet
    moments, and long series find more of them. On the CPU, both sides wait for it, and separate
    processes may meet different speeds without a trace.
    """
    separate = _separate_speedups(of_cell, of_baseline)
    paired = _paired_speedups(of_cell)
    headline = paired or separate
    if headline is None:
        return {}
    is_on_gpu = all(trial.gpu_uuid is not None for trial in of_cell.kept)
    if headline.disturbance and separate and not separate.disturbance and is_on_gpu:
        headline = separate
    columns: Columns = {
        "speedup_from": headline.origin,
        "speedup_disturbance": headline.disturbance,
    }
    if separate is not None:
        for name, mean in separate.means.items():
            columns |= interval_columns(name, mean)
            columns |= interval_columns(f"separate_{name}", mean)
    for name, mean in headline.means.items():
        columns |= interval_columns(name, mean)
    if paired is not None:
        columns |= _busy_speedups(of_cell)
    return columns


def _busy_speedups(of_cell: CountedTrials) -> Columns:
    """Return the columns with the speedups of pairs during which the host was disturbed."""
    attempts = last_attempts(of_cell.every)
    columns: Columns = {}
    for name in SPEEDUPS:
        columns[f"busy_{name}"] = mean_of(
            getattr(trial, f"pair_{name}_disturbed") for trial in attempts
        )
    return columns


def _paired_speedups(of_cell: CountedTrials) -> Speedups | None:
    """Return the speedups of pairs; None unless every trial that counts has pairs."""
    pairs = CountedTrials.of(of_cell.every, "pair_disturbance")
    if any(trial.pair_speedup is None for trial in pairs.kept):
        return None
    means = estimates(pairs.kept, {name: f"pair_{name}" for name in SPEEDUPS})
    return Speedups(PAIRS, means, pairs.disturbance)


def _separate_speedups(
    of_cell: CountedTrials, of_baseline: CountedTrials | None
) -> Speedups | None:
    """Return the speedups of separate processes; None without an ok baseline, or without times."""
    if of_baseline is None or of_baseline.decisive.status is not Status.OK:
        return None
    ratios = {
        name: log_difference(of_baseline.means[time], of_cell.means[time])
        for name, time in SPEEDUPS.items()
        if time in of_baseline.means and time in of_cell.means
    }
    if not ratios:
        return None
    disturbance = of_cell.disturbance
    if disturbance is None and of_baseline.disturbance is not None:
        disturbance = reason_of_baseline(of_baseline.disturbance)
    return Speedups(SEPARATE, ratios, disturbance)


def _break_even(summary: Summary, of_cell: CountedTrials, of_baseline: CountedTrials) -> int | None:
    """Return after how many calls the preparation of the cell pays for itself against the baseline;
    None if it never does, if that is not significant, or if it is unknown."""
    baseline_ms = of_baseline.columns.get("latency_ms")
    if baseline_ms is None or summary.latency_ms is None or summary.speedup is None:
        return None
    is_marked = summary.marked or of_baseline.disturbance is not None
    is_significant = summary.speedup_ci_low is None or summary.speedup_ci_low > 1
    # arrivals, CPU streams: their median does not tell the time saved per call
    is_per_call = summary.throughput_per_s is not None
    if is_marked or not is_significant or not is_per_call:
        return None
    preparation_s = _preparation_s(summary, of_cell.kept)
    if summary.cold_s is not None:
        preparation_s = max(0.0, summary.cold_s - (of_baseline.columns.get("cold_s") or 0.0))
    return break_even_calls(preparation_s, baseline_ms, summary.latency_ms)


def _preparation_s(summary: Summary, kept: Sequence[Trial]) -> float | None:
    """Return how long the cell takes to prepare with a cold cache; None if it is unknown."""
    if summary.compile_cold_s is not None:
        return summary.compile_cold_s
    if any(trial.compile_s is not None for trial in kept):
        return None  # only seen compiling with a warm cache
    return mean_of(trial.prepare_s for trial in kept)


def break_even_calls(
    preparation_s: float | None, baseline_ms: float, latency_ms: float
) -> int | None:
    """Return after how many calls the time saved per call exceeds `preparation_s`; None if it never
    does."""
    if preparation_s is None or not baseline_ms > latency_ms:
        return None
    calls = preparation_s * 1000.0 / (baseline_ms - latency_ms)
    # a larger number is meaningless, and does not fit into a database column
    if calls >= 2**53:
        return None
    return math.ceil(calls)


# --- several devices ---


def _scaling_columns(
    of_cell: CountedTrials, of_single: CountedTrials, parallel: Parallel
) -> Columns:
    """Return the columns with the scaling efficiency, by the period if both cells have one; none
    unless the cell on one device is ok."""
    shared = of_cell.means.keys() & of_single.means.keys()
    if of_single.decisive.status is not Status.OK or not shared:
        return {}
    time = "latency_ms"
    if "period_ms" in shared:
        time = "period_ms"
    gain = log_difference(of_single.means[time], of_cell.means[time])
    efficiency = replace(gain, value=gain.value + math.log(parallel.ideal_ratio))
    columns = interval_columns("scaling_efficiency", efficiency)
    columns["scaling_disturbance"] = of_cell.disturbance or of_single.disturbance
    return columns


# --- means over trials ---


def estimate(trials: Sequence[Trial], name: str) -> LogEstimate | None:
    """Return the mean logarithm of a time over these trials and their compilations; None without
    values."""
    used = [trial for trial in trials if _positive([getattr(trial, name)])]
    if not used:
        return None
    compilations = [trial.compilation for trial in used]
    # a single compilation says nothing about others, even if its processes run different kernels
    kernels: set[str | None] = set()
    if len(set(compilations)) > 1:
        kernels = {trial.kernel_fingerprint for trial in trials}
    values = [getattr(trial, name) for trial in used]
    mean = log_mean_of_compilations(values, compilations, kernels)
    below, above = offsets(used, name)
    return replace(mean, below=below, above=above)


def estimates(trials: Sequence[Trial], columns: Mapping[str, str]) -> dict[str, LogEstimate]:
    """Return name -> estimate of its column, without names that have no values."""
    means = {}
    for name, column in columns.items():
        mean = estimate(trials, column)
        if mean is not None:
            means[name] = mean
    return means


@dataclass(frozen=True)
class Bounds:
    """Where a trial has the bounds of a figure. `value`: the figure that they belong to; `mark`:
    why it is marked."""

    value: str
    low: str
    high: str
    mark: str = "disturbance"


_OF_LATENCY = Bounds("latency_ms", "latency_median_low_ms", "latency_median_high_ms")
#: Figure of a trial -> its bounds, which a marked trial's figure has; times of requests follow
#: their latency.
BOUNDS = {
    "latency_ms": _OF_LATENCY,
    "ttft_ms": _OF_LATENCY,
    "tpot_ms": _OF_LATENCY,
    "period_ms": Bounds("period_ms", "period_median_low_ms", "period_median_high_ms"),
    "pair_speedup": Bounds(
        "pair_speedup",
        "pair_speedup_low",
        "pair_speedup_high",
        mark="pair_disturbance",
    ),
    "pair_period_speedup": Bounds(
        "pair_period_speedup",
        "pair_period_speedup_low",
        "pair_period_speedup_high",
        mark="pair_disturbance",
    ),
}


def offsets(trials: Sequence[Trial], name: str) -> tuple[float, float]:
    """Return how much lower and higher the mean logarithm of a figure may be, because some trials
    are marked.

    The bounds of a marked trial contain the medians of its disturbed and of its undisturbed
    samples. Trials that are not marked add nothing, so this is the mean over all trials of what a
    marked one adds. A single trial with pairs always adds its bounds: they are all that is known of
    the speedup's error, unless other hosts show it.
    """
    if name not in BOUNDS:
        return 0.0, 0.0
    bounds = BOUNDS[name]
    is_only = len(trials) == 1 and trials[0].host is None and bounds.mark == "pair_disturbance"
    below = 0.0
    above = 0.0
    for trial in trials:
        value = getattr(trial, bounds.value)
        is_marked = getattr(trial, bounds.mark) is not None
        if value and (is_marked or is_only):
            least = getattr(trial, bounds.low) or value
            most = getattr(trial, bounds.high) or value
            below += max(0.0, math.log(value / least))
            above += max(0.0, math.log(most / value))
    return below / len(trials), above / len(trials)


def _positive(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and 0 < value < inf]


def mean_of(figures: Iterable[float | None]) -> float | None:
    """Return the geometric mean of figures, without unknown ones; None if all are unknown."""
    known = _positive(figures)
    return geometric_mean(known) if known else None
