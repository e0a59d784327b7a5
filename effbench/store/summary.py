"""Summarise the trials of a cell in one sweep and one environment as a row of `result`.

Intervals are over trials. In a sweep that joins several hosts (see `joining`) they are over hosts:
each counts once, with the mean of its trials, because trials of one host share its speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import Any, Self, TypeVar

from effbench.cell import SEVERITY, Status, Trial
from effbench.metrics import (
    COLD,
    ESTIMATED,
    INTERVALS,
    RESULT_FIGURES,
    SPEEDUP_COLUMNS,
    SPEEDUPS,
    TRIAL_METRICS,
)
from effbench.stats.intervals import (
    Interval,
    LogEstimate,
    log_difference,
    log_mean,
    log_mean_of_compilations,
)
from effbench.store.bottleneck import Floors, bound, idle_fraction, roofline_fraction

#: marked trials do not count if at least this many unmarked ones remain
ENOUGH_UNMARKED = 3


@dataclass(frozen=True)
class Bounds:
    """Where a trial has the bounds of a figure. `value`: the figure that they belong to; `mark`:
    why it is marked."""

    value: str
    low: str
    high: str
    mark: str = "disturbance"


_OF_LATENCY = Bounds("latency_ms", "latency_median_low_ms", "latency_median_high_ms")
#: figure of a trial -> its bounds, which a marked trial's figure has; times of requests follow
#: their latency
BOUNDS = {
    "latency_ms": _OF_LATENCY,
    "ttft_ms": _OF_LATENCY,
    "tpot_ms": _OF_LATENCY,
    "period_ms": Bounds("period_ms", "period_median_low_ms", "period_median_high_ms"),
    **{
        columns.paired: Bounds(
            columns.paired, f"{columns.paired}_low", f"{columns.paired}_high", "pair_disturbance"
        )
        for columns in SPEEDUP_COLUMNS.values()
    },
}
#: values of `speedup_from`
PAIRS, SEPARATE = "pairs", "separate"
#: start of the reason of a speedup that is marked because of its baseline
OF_BASELINE = "the baseline's times: "

#: Host -> the mean logarithm of its trials; the host is None in a sweep that joins no hosts.
HostMeans = dict[str | None, LogEstimate]

T = TypeVar("T")
#: statuses of trials with measurements; those of rows are plain text
MEASURED = frozenset(status for status in Status if status.is_measured)
_RANK = {status: rank for rank, status in enumerate(SEVERITY)}


def last_attempts(trials: Iterable[Trial]) -> list[Trial]:
    """Return the last attempt of each round, in the order of the rounds."""
    by_attempt = sorted(trials, key=attrgetter("round", "attempt"))
    return list({trial.round: trial for trial in by_attempt}.values())


def by_host(trials: Iterable[Trial]) -> dict[str | None, list[Trial]]:
    """Return host -> its trials. The trials of a sweep that joins no hosts have the host None."""
    hosts: dict[str | None, list[Trial]] = {}
    for trial in trials:
        hosts.setdefault(trial.host, []).append(trial)
    return hosts


def counted(trials: Iterable[Trial], mark: str = "disturbance") -> list[Trial]:
    """Return the trials (or rows of `trial`) that count: last attempts, without marked ones if
    enough others are ok. In a joined sweep a host is marked if all its trials are, and marked hosts
    do not count if enough others are ok.

    `mark`: the field that says why a trial is marked.
    """
    kept = last_attempts(trials)
    hosts = by_host(kept)
    if len(hosts) <= 1:
        is_enough = _unmarked_ok(kept, mark) >= ENOUGH_UNMARKED
        return _without_marked(kept, mark) if is_enough else kept
    unmarked_hosts = 0
    of_hosts = []
    for of_host in hosts.values():
        has_unmarked = _unmarked_ok(of_host, mark) > 0
        unmarked_hosts += has_unmarked
        of_hosts += _without_marked(of_host, mark) if has_unmarked else of_host
    return _without_marked(of_hosts, mark) if unmarked_hosts >= ENOUGH_UNMARKED else of_hosts


def _unmarked_ok(trials: Iterable[Trial], mark: str) -> int:
    """Return how many of these trials are ok and not marked."""
    return sum(trial.status == Status.OK and getattr(trial, mark) is None for trial in trials)


def _without_marked(trials: Iterable[Trial], mark: str) -> list[Trial]:
    """Return the trials without marked ones. A failure always counts."""
    return [trial for trial in trials if getattr(trial, mark) is None or trial.status != Status.OK]


def marked(trials: Iterable[Trial], mark: str = "disturbance") -> list[str]:
    """Return why the times of these counted trials are marked: one reason for each marked trial."""
    reasons = [getattr(trial, mark) for trial in trials]
    return [reason for reason in reasons if reason is not None]


def first(values: Sequence[T]) -> T | None:
    return values[0] if values else None


def worst(trials: Sequence[Trial]) -> Trial:
    """Return the trial that decides the result's status and reason: among equals, the first one
    with a reason."""
    return min(trials, key=lambda trial: (_RANK[trial.status], trial.reason is None, trial.round))


@dataclass(frozen=True)
class Baseline:
    """What comparisons with the baseline cell need of it. `means`: time -> host -> mean logarithm.
    `disturbance`: why its times are marked, None if they are not."""

    status: Status
    peak_reserved_bytes: float | None
    means: Mapping[str, HostMeans]
    disturbance: str | None = None

    @property
    def is_marked(self) -> bool:
        return self.disturbance is not None

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> Self | None:
        """Return the baseline with these trials of one sweep and environment; None without
        trials."""
        kept = counted(trials)
        if not kept:
            return None
        reserved = _max(trial.peak_reserved_bytes for trial in warm_or_all(kept))
        means = {name: host_means(kept, name) for name in SPEEDUPS.values()}
        return cls(Status(worst(kept).status), reserved, means, first(marked(kept)))


def summarise(
    trials: Iterable[Trial],
    *,
    bs: float | None,
    is_baseline: bool = False,
    baseline: Baseline | None = None,
) -> dict[str, Any]:
    """Return the row of `result`, without its keys, for the trials of one cell in one sweep and
    environment.

    `bs`: the cell's batch size (mean of a stream), None if unknown. `baseline`: the cell that
    differs only in its mode; `is_baseline`: it is this cell. The row's `trials` is the number of
    rounds behind the figures. A failed cell only has the figures that explain the failure. Raises
    ValueError without trials.
    """
    trials = list(trials)
    kept = counted(trials)
    if not kept:
        raise ValueError("a summary needs at least one trial")
    decisive = worst(kept)
    status = Status(decisive.status)
    row: dict[str, Any] = dict.fromkeys(RESULT_FIGURES)
    row |= {"status": status, "reason": decisive.reason, "trials": len(kept)}
    # few trials compile cold, so they count even if they are marked
    measured = [trial for trial in trials if trial.status in MEASURED]
    _combine(row, kept, of_cache(measured, "cold") or kept, status.is_measured)
    if not status.is_measured:
        return row
    _count(row, kept)
    _prepare(row, measured)
    means = _estimate(row, kept)
    call_ms = row["period_ms"] or row["latency_ms"]
    if bs and call_ms:
        row["throughput_per_s"] = bs * 1000.0 / call_ms
    _explain(row, kept)
    if baseline is not None:
        _compare(row, means, baseline, is_baseline)
    if is_baseline:
        return row
    if status is Status.OK:
        _use_pairs(row, trials)
    if baseline is not None:
        row["break_even_calls"] = _break_even(row, kept, baseline)
    return row


def _estimate(row: dict[str, Any], kept: list[Trial]) -> dict[str, HostMeans]:
    """Add the means with their intervals; return them by host."""
    means = {name: host_means(kept, name) for name in ESTIMATED}
    for name, of_hosts in means.items():
        estimated = over_hosts(of_hosts)
        if estimated is not None:
            _set_interval(row, name, estimated.interval())
    return means


def _combine(row: dict[str, Any], kept: list[Trial], cold: list[Trial], is_measured: bool) -> None:
    """Add the figures of single trials. `cold`: those that compiled with an empty cache, if any."""
    warm = warm_or_all(kept)
    for metric in TRIAL_METRICS:
        if not (metric.explains or is_measured):
            continue
        name = metric.name
        if metric.combine == "mean":
            row[name] = _mean(kept, name)
        elif metric.combine == "min":
            row[name] = min(_positive(getattr(trial, name) for trial in kept), default=None)
        elif metric.combine is not None:
            trials = {"max": kept, "warm": warm, "cold": cold}[metric.combine]
            row[name] = _max(getattr(trial, name) for trial in trials)


def _count(row: dict[str, Any], kept: list[Trial]) -> None:
    """Add whether the times are marked, and how many compilations and hosts are behind them."""
    disturbances = marked(kept)
    row["marked"] = bool(disturbances)
    row["disturbance"] = first(disturbances)
    compilations = {trial.compilation for trial in kept}
    if None not in compilations:
        row["compilations"] = len(compilations)
    hosts = by_host(kept).keys()
    if None not in hosts:
        row["hosts"] = len(hosts)


def _prepare(row: dict[str, Any], measured: list[Trial]) -> None:
    """Add the figures of the preparation, by the compile cache of the trials."""
    cold = of_cache(measured, "cold")
    row["compile_cold_s"] = _mean(cold, "compile_s")
    row["compile_warm_s"] = _mean(of_cache(measured, "warm"), "compile_s")
    row["first_call_s"] = _max(trial.first_call_s for trial in measured)
    for name, cold_name in COLD.items():
        row[cold_name] = _max(getattr(trial, name) for trial in cold)


def _explain(row: dict[str, Any], kept: list[Trial]) -> None:
    """Add the figures that explain the time: from profiled trials, and the steadiness from all
    trials."""
    busy_ms, period_ms = row["gpu_busy_ms"], row["period_ms"]
    floors = Floors(*(_mean(kept, f"{kind}_floor_ms") for kind in Floors._fields))
    row["gpu_idle_fraction"] = idle_fraction(busy_ms, period_ms)
    row["bound"] = bound(busy_ms, period_ms, floors)
    row["roofline_fraction"] = roofline_fraction(period_ms, floors)
    warmed_up = [trial.steady for trial in kept if trial.steady is not None]
    row["unsteady_trials"] = sum(not steady for steady in warmed_up) if warmed_up else None


def _compare(
    row: dict[str, Any], means: Mapping[str, HostMeans], baseline: Baseline, is_baseline: bool
) -> None:
    """Add the figures that compare the cell, with these means, with the baseline, both in separate
    processes."""
    if not baseline.status.is_measured:
        return
    if baseline.peak_reserved_bytes and row["peak_reserved_bytes"]:
        row["relative_memory"] = row["peak_reserved_bytes"] / baseline.peak_reserved_bytes
    if row["status"] is not Status.OK or baseline.status is not Status.OK:
        return
    for name, metric in SPEEDUPS.items():
        speedup = speedup_over_hosts(baseline.means[metric], means[metric])
        if speedup is None:
            continue
        if is_baseline:  # 1 by definition: an interval would wrongly suggest doubt
            _set_interval(row, name, Interval(1.0, 1.0, 1.0))
            continue
        ratio = speedup.interval()
        _set_interval(row, name, ratio)
        _set_interval(row, SPEEDUP_COLUMNS[name].separate, ratio)
        row["speedup_from"] = SEPARATE
    if row["speedup_from"] is None:
        return
    row["speedup_disturbance"] = row["disturbance"]
    if row["disturbance"] is None and baseline.disturbance is not None:
        row["speedup_disturbance"] = f"{OF_BASELINE}{baseline.disturbance}"


def _use_pairs(row: dict[str, Any], trials: Sequence[Trial]) -> None:
    """Replace the speedups of separate processes by those of pairs, if every trial that counts has
    pairs.

    Marked pairs give way to unmarked separate times: where only one side waits for the host, pairs
    need its quiet moments, and long series find more of them.
    """
    kept = [trial for trial in counted(trials, "pair_disturbance") if trial.status in MEASURED]
    if any(trial.pair_speedup is None for trial in kept):
        return
    for columns in SPEEDUP_COLUMNS.values():
        row[columns.busy] = _mean(last_attempts(trials), f"{columns.paired}_disturbed")
    disturbance = first(marked(kept, "pair_disturbance"))
    has_separate = row["speedup_from"] == SEPARATE and row["speedup_disturbance"] is None
    if disturbance is not None and has_separate:
        return
    row["speedup_from"] = PAIRS
    row["speedup_disturbance"] = disturbance
    for name, columns in SPEEDUP_COLUMNS.items():
        paired = estimate(kept, columns.paired)
        if paired is not None:
            _set_interval(row, name, paired.interval())


def _set_interval(row: dict[str, Any], name: str, figure: Interval) -> None:
    low, high = INTERVALS[name]
    row[name] = figure.value
    row[low] = figure.low
    row[high] = figure.high


def _break_even(row: Mapping[str, Any], kept: Sequence[Trial], baseline: Baseline) -> int | None:
    """Return after how many calls the preparation of the cell pays for itself against the baseline;
    None if it never does, if that is not significant, or if it is unknown."""
    baseline_latency = over_hosts(baseline.means[SPEEDUPS["speedup"]])
    if baseline_latency is None or row["speedup"] is None:
        return None
    if row["marked"] or baseline.is_marked:
        return None
    is_significant = row["speedup_ci_low"] is None or row["speedup_ci_low"] > 1
    # arrivals, CPU streams: their median does not tell the time saved per call
    if not is_significant or row["throughput_per_s"] is None:
        return None
    preparation_s = row["compile_cold_s"]
    if preparation_s is None and any(trial.compile_s is not None for trial in kept):
        return None  # only seen compiling with a warm cache
    if preparation_s is None:
        preparation_s = _mean(kept, "prepare_s")
    baseline_ms = baseline_latency.interval().value
    return break_even_calls(preparation_s, baseline_ms, row["latency_ms"])


def estimate(trials: Sequence[Trial], name: str) -> LogEstimate | None:
    """Return the mean logarithm of a time over these trials and their compilations, or over their
    hosts in a joined sweep; None without values."""
    return over_hosts(host_means(trials, name))


def host_means(trials: Sequence[Trial], name: str) -> HostMeans:
    """Return the mean logarithm of a time over the trials of each host, without hosts that have no
    value."""
    means: HostMeans = {}
    for host, of_host in by_host(trials).items():
        mean = _mean_of_processes(of_host, name)
        if mean is not None:
            means[host] = mean
    return means


def over_hosts(means: HostMeans) -> LogEstimate | None:
    """Return the mean over hosts, each of which counts once; None without values. A single host of
    a joined sweep tells nothing about others, so its mean has no error."""
    if not means or None in means:  # of a sweep that joins no hosts
        return means.get(None)
    below = math.fsum(mean.below for mean in means.values()) / len(means)
    above = math.fsum(mean.above for mean in means.values()) / len(means)
    mean = log_mean(math.exp(mean.value) for mean in means.values())
    return replace(mean, below=below, above=above)


def speedup_over_hosts(old: HostMeans, new: HostMeans) -> LogEstimate | None:
    """Return the logarithm of `old` ÷ `new`; in a joined sweep the mean of the ratios on each host,
    whose speed affects both sides. None if no host has both."""
    shared = [host for host in old if host in new]
    return over_hosts({host: log_difference(old[host], new[host]) for host in shared})


def _mean_of_processes(trials: Sequence[Trial], name: str) -> LogEstimate | None:
    used = [trial for trial in trials if _positive([getattr(trial, name)])]
    if not used:
        return None
    compilations = [trial.compilation for trial in used]
    # a single compilation says nothing about others, even if its processes run different kernels
    kernels = {trial.kernel_fingerprint for trial in trials} if len(set(compilations)) > 1 else ()
    mean = log_mean_of_compilations([getattr(trial, name) for trial in used], compilations, kernels)
    below, above = offsets(used, name)
    return replace(mean, below=below, above=above)


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
    below, above = 0.0, 0.0
    for trial in trials:
        value = getattr(trial, bounds.value)
        is_marked = getattr(trial, bounds.mark) is not None
        if not value or not (is_marked or is_only):
            continue
        least = getattr(trial, bounds.low) or value
        most = getattr(trial, bounds.high) or value
        below += max(0.0, math.log(value / least))
        above += max(0.0, math.log(most / value))
    return below / len(trials), above / len(trials)


def of_cache(trials: Iterable[Trial], *caches: str | None) -> list[Trial]:
    """Return the trials with one of these compile caches: `cold`, `warm`, or None for trials that
    compile nothing."""
    return [trial for trial in trials if trial.compile_cache in caches]


def warm_or_all(kept: list[Trial]) -> list[Trial]:
    """Return the trials without those that compiled cold, as compiling leaves memory reserved; all
    if there are no others."""
    return of_cache(kept, "warm", None) or kept


def break_even_calls(
    preparation_s: float | None, baseline_ms: float, latency_ms: float
) -> int | None:
    """Return after how many calls the time saved per call exceeds `preparation_s`; None if it never
    does."""
    if preparation_s is None or not baseline_ms > latency_ms:
        return None
    calls = preparation_s * 1000.0 / (baseline_ms - latency_ms)
    # a larger number is meaningless, and does not fit into a database column
    return math.ceil(calls) if calls < 2**53 else None


def _positive(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and 0 < value < inf]


def _mean(trials: Iterable[Trial], name: str) -> float | None:
    """Return the geometric mean of a figure; in a joined sweep that of the means of its hosts."""
    means = []
    for of_host in by_host(trials).values():
        values = _positive(getattr(trial, name) for trial in of_host)
        if values:
            means.append(_geometric_mean(values))
    if len(means) > 1:
        return _geometric_mean(means)
    return first(means)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def _max(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and -inf < value < inf]
    return max(known, default=None)
