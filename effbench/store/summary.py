"""Summarise the trials of a cell in one sweep and one environment as a row of `result`.

The interval of a speedup: `_speedups` chooses `estimate` over the trials' pairs, or else
`speedup_over_hosts` over separate processes; `LogEstimate.interval` (stats/intervals.py) is its
arithmetic. The rule for figures of cold and warm compile caches is `CountedTrials.giving`.

`counted` chooses the trials that count: without marked ones, and on GPUs without those whose host
was slower than in others, if enough remain.

Intervals are over trials. In a sweep that joins several hosts (see `joining`) they are over hosts:
each counts once, with the mean of its trials, because trials of one host share its speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from operator import attrgetter
from statistics import fmean, geometric_mean
from typing import Any, Self

from effbench.core.cell import (
    SEVERITY,
    Status,
    Summary,
    Trial,
)
from effbench.core.disturbances import reason_of_baseline
from effbench.core.labels import grouped
from effbench.core.metrics import (
    ESTIMATED,
    INTERVALS,
    METRICS,
    SPEEDUP_COLUMNS,
    SPEEDUPS,
    Metric,
)
from effbench.stats.intervals import (
    LogEstimate,
    log_difference,
    log_mean,
    log_mean_of_compilations,
)
from effbench.store.bottleneck import bound, idle_fraction

#: marked trials do not count if at least this many unmarked ones remain
ENOUGH_UNMARKED = 3
#: trials on a GPU whose fixed work on the host took this many times longer than in the cell's
#: fastest trial do not count either, as far as enough others remain
SLOWER_HOST = 1.1
#: columns of a trial that decide what it counts for, besides its figures
FACTS = (
    "host",
    "status",
    "disturbance",
    "pair_disturbance",
    "gpu_uuid",
    "host_ms",
    "compile_cache",
    "compilation",
    "kernel_fingerprint",
)
#: values of `speedup_from`
PAIRS, SEPARATE = "pairs", "separate"

#: Host -> the mean logarithm of its trials; the host is None in a sweep that joins no hosts.
HostMeans = dict[str | None, LogEstimate]

_RANK = {status: rank for rank, status in enumerate(SEVERITY)}


# --- the trials that count ---


def last_attempts(trials: Iterable[Trial]) -> list[Trial]:
    """Return the last attempt of each round, in the order of the rounds."""
    by_attempt = sorted(trials, key=attrgetter("round", "attempt"))
    return list({trial.round: trial for trial in by_attempt}.values())


def counted(trials: Iterable[Trial], mark: str = "disturbance") -> list[Trial]:
    """Return the trials that count: last attempts, without marked ones if enough others are ok. In
    a joined sweep a host is marked if all its trials are, and marked hosts do not count if enough
    others are ok.

    `mark`: the field that says why a trial is marked.
    """
    kept = last_attempts(trials)
    hosts = grouped(kept, attrgetter("host"))
    if len(hosts) <= 1:
        unmarked = _without_marked(kept, mark, least=ENOUGH_UNMARKED)
        return _without_slower_hosts(unmarked, mark)
    of_hosts = []
    for of_host in hosts.values():
        of_hosts += _without_marked(of_host, mark, least=1)
    unmarked_hosts = {trial.host for trial in of_hosts if _is_unmarked(trial, mark)}
    if len(unmarked_hosts) < ENOUGH_UNMARKED:
        return of_hosts
    return _without_marked(of_hosts, mark, least=0)


def _without_marked(trials: Sequence[Trial], mark: str, least: int) -> list[Trial]:
    """Return the trials without marked ones if at least this many unmarked ones are ok. A failure
    always counts."""
    if sum(_is_unmarked(trial, mark) for trial in trials) < least:
        return list(trials)
    return [
        trial for trial in trials if getattr(trial, mark) is None or trial.status is not Status.OK
    ]


def _without_slower_hosts(trials: list[Trial], mark: str) -> list[Trial]:
    """Return the trials without those during which the host was slower, even in its quiet moments.

    A shared host changes its speed for minutes. While it is slow, no trial knows that it was, or
    will be, faster.
    """
    of_gpus = [trial for trial in trials if trial.gpu_uuid is not None]
    # on the CPU, the fixed work has levels of its own
    times = [trial.host_ms for trial in of_gpus if trial.host_ms is not None]
    limit_ms = SLOWER_HOST * min(times, default=inf)
    kept = [
        trial
        for trial in trials
        if trial.status is not Status.OK or (trial.host_ms or 0.0) <= limit_ms
    ]
    if sum(_is_unmarked(trial, mark) for trial in kept) < ENOUGH_UNMARKED:
        return trials
    return kept


def _is_unmarked(trial: Trial, mark: str) -> bool:
    return trial.status is Status.OK and getattr(trial, mark) is None


def disturbance_of(trials: Iterable[Trial], mark: str = "disturbance") -> str | None:
    """Return why these counted trials are marked: the reason of the first marked one, or None."""
    reasons = [getattr(trial, mark) for trial in trials]
    return next(filter(None, reasons), None)


def of_cache(trials: Iterable[Trial], *caches: str | None) -> list[Trial]:
    """Return the trials with one of these compile caches: `cold`, `warm`, or None for trials that
    compile nothing."""
    return [trial for trial in trials if trial.compile_cache in caches]


@dataclass(frozen=True)
class Preparing:
    """A figure of preparing a mode: the column of a trial, and the compile caches of the trials
    that have it."""

    column: str
    caches: tuple[str | None, ...]


#: Metric of results -> what gives it, if not trials of all kinds.
PREPARING = {
    "compile_cold_s": Preparing("compile_s", ("cold",)),
    "compile_warm_s": Preparing("compile_s", ("warm",)),
    "first_call_s": Preparing("first_call_s", ("cold", None)),
    "peak_reserved_cold_bytes": Preparing("peak_reserved_bytes", ("cold",)),
}


@dataclass(frozen=True)
class CountedTrials:
    """The trials of a cell that count. `measured`: all with measurements; marked ones and earlier
    attempts also tell how long preparing takes, because few trials compile cold."""

    kept: list[Trial]
    measured: list[Trial]

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Self:
        trials = list(trials)
        measured = [trial for trial in trials if trial.status.is_measured]
        return cls(counted(trials), measured)

    @property
    def decisive(self) -> Trial:
        """The trial that decides the result's status and reason: among equals, the first one with a
        reason."""
        return min(
            self.kept, key=lambda trial: (_RANK[trial.status], trial.reason is None, trial.round)
        )

    @property
    def disturbance(self) -> str | None:
        """Why the times are marked, None if they are not."""
        return disturbance_of(self.kept)

    @cached_property
    def means(self) -> dict[str, HostMeans]:
        """Time -> the mean logarithms of its hosts."""
        return {name: host_means(self.kept, name) for name in ESTIMATED}

    def giving(self, metric: Metric) -> list[Trial]:
        """Return the trials that give a metric of results.

        Compiling leaves memory reserved, so sizes are those of processes with a warm cache, if
        there are any.
        """
        if metric.name in PREPARING:
            return of_cache(self.measured, *PREPARING[metric.name].caches)
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
        if metric.name in PREPARING:
            # without one: it was prepared while another one ran
            return [trial for trial in trials if figure_of(trial, metric) is not None]
        if metric.name in (preparing.column for preparing in PREPARING.values()):
            return of_cache(trials, "warm", None)
        return trials

    def combined(self, metric: Metric) -> float | None:
        """Return the value of a metric over all trials that give it."""
        trials = self.giving(metric)
        if metric.combine == "mean":
            return mean_of(trials, column_of(metric))
        values = [figure_of(trial, metric) for trial in trials]
        if metric.combine == "min":
            return min(_positive(values), default=None)
        return largest(values)


def column_of(metric: Metric) -> str:
    """Return the field of a trial that gives a metric of results."""
    if metric.name in PREPARING:
        return PREPARING[metric.name].column
    return metric.name


def figure_of(trial: Trial, metric: Metric) -> float | None:
    """Return a trial's figure of a metric of results."""
    figure: float | None = getattr(trial, column_of(metric))
    return figure


def largest(figures: Iterable[float | None]) -> float | None:
    """Return the largest known figure; None if all are unknown."""
    return max((figure for figure in figures if figure is not None), default=None)


# --- the summary ---


def summarise(
    trials: Sequence[Trial],
    *,
    bs: float | None,
    is_baseline: bool = False,
    baseline: CountedTrials | None = None,
) -> Summary:
    """Return the summary of the trials of one cell in one sweep and environment.

    `bs`: the cell's batch size (mean of a stream), None if unknown. `baseline`: the cell that
    differs only in its mode; `is_baseline`: it is this cell. The summary's `trials` is the number
    of rounds behind the figures. A failed cell only has the figures that explain the failure.
    Raises ValueError without trials.
    """
    of_cell = CountedTrials.of(trials)
    status = of_cell.decisive.status
    figures: dict[str, Any] = {}
    for metric in METRICS.values():
        if metric.combine is not None and (metric.explains or status.is_measured):
            figures[metric.name] = of_cell.combined(metric)
    if status.is_measured:
        for name, means in of_cell.means.items():
            figures |= _interval_columns(name, over_hosts(means))
    summary = Summary(
        status=status,
        reason=of_cell.decisive.reason,
        trials=len(of_cell.kept),
        is_baseline=is_baseline,
        **figures,
    )
    if not status.is_measured:
        return summary
    derived = _derived(
        summary,
        of_cell,
        bs,
        baseline,
    )
    summary = replace(summary, **derived)
    if status is not Status.OK:
        return summary
    if is_baseline:
        return replace(summary, **_speedups_of_baseline(of_cell))
    summary = replace(summary, **_speedups(trials, of_cell, baseline))
    if baseline is None:
        return summary
    return replace(summary, break_even_calls=_break_even(summary, of_cell, baseline))


def _derived(
    summary: Summary,
    of_cell: CountedTrials,
    bs: float | None,
    baseline: CountedTrials | None,
) -> dict[str, Any]:
    """Return what is behind the figures of a summary, and what follows from them."""
    kept = of_cell.kept
    period_ms = summary.period_ms
    idle = idle_fraction(summary.gpu_busy_ms, period_ms)
    steady = [trial.steady for trial in kept if trial.steady is not None]
    unsteady_trials = steady.count(False) if steady else None
    return {
        "marked": of_cell.disturbance is not None,
        "disturbance": of_cell.disturbance,
        "compilations": _distinct(trial.compilation for trial in kept),
        "hosts": _distinct(trial.host for trial in kept),
        "unsteady_trials": unsteady_trials,
        "throughput_per_s": _throughput(bs, period_ms or summary.latency_ms),
        "gpu_idle_fraction": idle,
        "bound": bound(idle),
        "relative_memory": _relative_memory(summary, baseline),
    }


def _distinct(values: Iterable[object]) -> int | None:
    """Return the number of distinct values; None if one of them is."""
    distinct = set(values)
    if None in distinct:
        return None
    return len(distinct)


def _throughput(bs: float | None, call_ms: float | None) -> float | None:
    if not bs or not call_ms:
        return None
    return bs * 1000.0 / call_ms


def _interval_columns(name: str, mean: LogEstimate | None) -> dict[str, Any]:
    """Return a mean and the bounds of its interval by column; none without a mean."""
    if mean is None:
        return {}
    figure = mean.interval()
    low, high = INTERVALS[name]
    return {
        name: figure.value,
        low: figure.low,
        high: figure.high,
    }


def _relative_memory(summary: Summary, baseline: CountedTrials | None) -> float | None:
    if baseline is None or not baseline.decisive.status.is_measured:
        return None
    reserved = baseline.combined(METRICS["peak_reserved_bytes"])
    if not reserved or not summary.peak_reserved_bytes:
        return None
    return summary.peak_reserved_bytes / reserved


def _speedups_of_baseline(of_cell: CountedTrials) -> dict[str, Any]:
    """Return 1 by definition: an interval would wrongly suggest doubt."""
    columns: dict[str, Any] = {}
    for name, time in SPEEDUPS.items():
        if of_cell.means[time]:
            columns |= dict.fromkeys((name, *INTERVALS[name]), 1.0)
    return columns


def _speedups(
    trials: Sequence[Trial], of_cell: CountedTrials, baseline: CountedTrials | None
) -> dict[str, Any]:
    """Return the columns with the speedups of pairs, if every trial that counts has pairs,
    otherwise with those of separate processes.

    On a GPU, marked pairs give way to unmarked separate times: where only one side waits for the
    host, pairs need its quiet moments, and long series find more of them. On the CPU, both sides
    wait for it, and separate processes may meet different speeds without a trace.
    """
    separate = _separate_speedups(of_cell, baseline)
    decisive = counted(trials, "pair_disturbance")
    kept = [trial for trial in decisive if trial.status.is_measured]
    if any(trial.pair_speedup is None for trial in kept):
        return separate
    disturbance = disturbance_of(kept, "pair_disturbance")
    paired: dict[str, Any] = {
        "speedup_from": PAIRS,
        "speedup_disturbance": disturbance,
    }
    busy: dict[str, float | None] = {}
    for name, columns in SPEEDUP_COLUMNS.items():
        busy[columns.busy] = mean_of(last_attempts(trials), f"{columns.paired}_disturbed")
        paired |= _interval_columns(name, estimate(kept, columns.paired))
    has_unmarked_times = bool(separate) and separate["speedup_disturbance"] is None
    is_on_gpu = all(trial.gpu_uuid is not None for trial in kept)
    if disturbance is not None and has_unmarked_times and is_on_gpu:
        return separate | busy
    return separate | busy | paired


def _separate_speedups(of_cell: CountedTrials, baseline: CountedTrials | None) -> dict[str, Any]:
    """Return the columns with the speedups of separate processes, none without an ok baseline."""
    columns: dict[str, Any] = {}
    if baseline is None or baseline.decisive.status is not Status.OK:
        return columns
    for name, time in SPEEDUPS.items():
        ratio = speedup_over_hosts(baseline.means[time], of_cell.means[time])
        columns |= _interval_columns(name, ratio)
        columns |= _interval_columns(SPEEDUP_COLUMNS[name].separate, ratio)
    if not columns:
        return columns
    disturbance = of_cell.disturbance
    if disturbance is None and baseline.disturbance is not None:
        disturbance = reason_of_baseline(baseline.disturbance)
    return {
        **columns,
        "speedup_from": SEPARATE,
        "speedup_disturbance": disturbance,
    }


def _break_even(summary: Summary, of_cell: CountedTrials, baseline: CountedTrials) -> int | None:
    """Return after how many calls the preparation of the cell pays for itself against the baseline;
    None if it never does, if that is not significant, or if it is unknown."""
    baseline_latency = over_hosts(baseline.means[SPEEDUPS["speedup"]])
    if baseline_latency is None:
        return None
    if summary.latency_ms is None or summary.speedup is None:
        return None
    if summary.marked or baseline.disturbance is not None:
        return None
    is_significant = summary.speedup_ci_low is None or summary.speedup_ci_low > 1
    # arrivals, CPU streams: their median does not tell the time saved per call
    if not is_significant or summary.throughput_per_s is None:
        return None
    preparation_s = _preparation_s(summary, of_cell.kept)
    baseline_ms = baseline_latency.interval().value
    return break_even_calls(preparation_s, baseline_ms, summary.latency_ms)


def _preparation_s(summary: Summary, kept: Sequence[Trial]) -> float | None:
    """Return how long the cell takes to prepare with a cold cache; None if it is unknown."""
    if summary.compile_cold_s is not None:
        return summary.compile_cold_s
    if any(trial.compile_s is not None for trial in kept):
        return None  # only seen compiling with a warm cache
    return mean_of(kept, "prepare_s")


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


# --- means over trials ---


def estimate(trials: Sequence[Trial], name: str) -> LogEstimate | None:
    """Return the mean logarithm of a time over these trials and their compilations, or over their
    hosts in a joined sweep; None without values."""
    return over_hosts(host_means(trials, name))


def host_means(trials: Sequence[Trial], name: str) -> HostMeans:
    """Return the mean logarithm of a time over the trials of each host, without hosts that have no
    value."""
    means: HostMeans = {}
    for host, of_host in grouped(trials, attrgetter("host")).items():
        mean = _mean_of_processes(of_host, name)
        if mean is not None:
            means[host] = mean
    return means


def over_hosts(means: HostMeans) -> LogEstimate | None:
    """Return the mean over hosts, each of which counts once; None without values. A single host of
    a joined sweep tells nothing about others, so its mean has no error."""
    if not means or None in means:  # of a sweep that joins no hosts
        return means.get(None)
    hosts = means.values()
    mean = log_mean(math.exp(host.value) for host in hosts)
    below = fmean(host.below for host in hosts)
    above = fmean(host.above for host in hosts)
    return replace(mean, below=below, above=above)


def speedup_over_hosts(old: HostMeans, new: HostMeans) -> LogEstimate | None:
    """Return the logarithm of `old` ÷ `new`; in a joined sweep the mean of the ratios on each host,
    whose speed affects both sides. None if no host has both."""
    ratios: HostMeans = {}
    for host in old:
        if host in new:
            ratios[host] = log_difference(old[host], new[host])
    return over_hosts(ratios)


def _mean_of_processes(trials: Sequence[Trial], name: str) -> LogEstimate | None:
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
}
for _paired in (columns.paired for columns in SPEEDUP_COLUMNS.values()):
    BOUNDS[_paired] = Bounds(
        _paired,
        f"{_paired}_low",
        f"{_paired}_high",
        "pair_disturbance",
    )


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
        if not value:
            continue
        if not (is_marked or is_only):
            continue
        least = getattr(trial, bounds.low) or value
        most = getattr(trial, bounds.high) or value
        below += max(0.0, math.log(value / least))
        above += max(0.0, math.log(most / value))
    return below / len(trials), above / len(trials)


def _positive(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and 0 < value < inf]


def mean_of(trials: Iterable[Trial], name: str) -> float | None:
    """Return the geometric mean of a figure; in a joined sweep that of the means of its hosts."""
    means = []
    for of_host in grouped(trials, attrgetter("host")).values():
        values = _positive(getattr(trial, name) for trial in of_host)
        if values:
            means.append(geometric_mean(values))
    if len(means) > 1:
        return geometric_mean(means)
    return means[0] if means else None
