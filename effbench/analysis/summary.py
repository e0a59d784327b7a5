"""The summary of a cell: what its trials in one sweep and one environment say together.

Pure: trials in, `Summary` out. The store writes it as a row of `result` and can rebuild it at any time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from effbench.analysis.bottleneck import Floors, bound, idle_fraction, roofline_fraction
from effbench.analysis.statistics import geometric_mean, speedup
from effbench.cell import SEVERITY, Status, Trial

#: noisy rounds are set aside while so many ok ones remain
ENOUGH_OK = 3

_RANK = {status: rank for rank, status in enumerate(SEVERITY)}


@dataclass(frozen=True)
class Summary:
    """One row of `result` without its keys. Units are in the names; None is "does not apply", never 0."""

    status: Status
    reason: str | None
    trials: int  # rounds that the figures rest on: noisy ones that were set aside are not counted
    latency_ms: float | None = None
    latency_ci_low_ms: float | None = None
    latency_ci_high_ms: float | None = None
    latency_min_ms: float | None = None
    latency_p95_ms: float | None = None
    period_ms: float | None = None
    period_ci_low_ms: float | None = None
    period_ci_high_ms: float | None = None
    throughput_per_s: float | None = None
    speedup: float | None = None
    speedup_ci_low: float | None = None
    speedup_ci_high: float | None = None
    gpu_busy_ms: float | None = None
    kernels: int | None = None
    gpu_idle_fraction: float | None = None
    enqueue_ms: float | None = None
    bound: str | None = None
    compile_cold_s: float | None = None
    compile_warm_s: float | None = None
    first_call_s: float | None = None
    break_even_calls: int | None = None
    build_peak_allocated_bytes: int | None = None
    prepare_peak_allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    graph_pool_bytes: int | None = None
    process_gpu_bytes: int | None = None
    memory_ratio: float | None = None
    energy_mj: float | None = None
    rel_error: float | None = None
    graph_breaks: int | None = None
    recompiles: int | None = None
    cudagraph_skips: int | None = None
    flops: float | None = None
    min_bytes: float | None = None
    roofline_fraction: float | None = None
    unsteady_trials: int | None = None


def last_attempts(trials: Iterable[Trial]) -> list[Trial]:
    """The last attempt of each round, in the order of the rounds."""
    last: dict[int, Trial] = {}
    for trial in trials:
        known = last.get(trial.round)
        if known is None or trial.attempt >= known.attempt:
            last[trial.round] = trial
    return [last[number] for number in sorted(last)]


def counted(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that count: last attempts, without the noisy ones where enough ok ones remain. Rows of `trial` do."""
    kept = last_attempts(trials)
    if sum(trial.status == Status.OK for trial in kept) >= ENOUGH_OK:
        kept = [trial for trial in kept if trial.status != Status.NOISY]
    return kept


def worst(trials: Sequence[Trial]) -> Trial:
    """The trial that gives the result its status and reason; of equals the first that states a reason."""
    return min(trials, key=lambda trial: (_RANK[trial.status], trial.reason is None, trial.round))


def summarise(
    trials: Iterable[Trial], *, bs: float, is_baseline: bool = False, baseline: Iterable[Trial] = ()
) -> Summary:
    """Summarise the trials of one cell in one sweep and environment.

    `bs` is the cell's batch size, of a stream the mean one. `baseline` holds the trials of the cell that differs in
    nothing but its mode, in the same sweep and environment; none where the sweep has no baseline. With `is_baseline`
    the cell is its own. A failed cell has no figures but those that explain it (`rel_error` and Dynamo's counters).
    Raises ValueError without trials.
    """
    trials = list(trials)
    kept = counted(trials)
    if not kept:
        raise ValueError("a summary needs at least one trial")
    decisive = worst(kept)
    summary = Summary(decisive.status, decisive.reason, len(kept), **_explaining(kept))
    if not decisive.status.is_measured:
        return summary
    # a cold compile is seen once: also in a trial whose timing was disturbed
    seen = [trial for trial in trials if trial.status.is_measured]
    summary = dataclasses.replace(summary, **_figures(kept, bs), **_preparation(seen))
    reference = kept if is_baseline else counted(baseline)
    if not reference or not worst(reference).status.is_measured:
        return summary
    return dataclasses.replace(summary, **_compared(summary, kept, reference, is_baseline))


def _explaining(kept: list[Trial]) -> dict:
    return {
        "rel_error": _max(trial.rel_error for trial in kept),
        "graph_breaks": _max(trial.graph_breaks for trial in kept),
        "recompiles": _max(trial.recompiles for trial in kept),
        "cudagraph_skips": _max(trial.cudagraph_skips for trial in kept),
    }


def _figures(kept: list[Trial], bs: float) -> dict:
    medians = _positive(trial.latency_ms for trial in kept)
    latency = geometric_mean(medians) if medians else None
    periods = _positive(trial.period_ms for trial in kept)
    period = geometric_mean(periods) if periods else None
    call_ms = period.value if period else latency and latency.value
    return {
        **_reasons(kept, period and period.value),
        "latency_ms": latency and latency.value,
        "latency_ci_low_ms": latency and latency.low,
        "latency_ci_high_ms": latency and latency.high,
        "latency_min_ms": min(_positive(trial.latency_min_ms for trial in kept), default=None),
        "latency_p95_ms": _mean(trial.latency_p95_ms for trial in kept),
        "period_ms": period and period.value,
        "period_ci_low_ms": period and period.low,
        "period_ci_high_ms": period and period.high,
        "throughput_per_s": bs * 1000.0 / call_ms if call_ms else None,
        "build_peak_allocated_bytes": _max(trial.build_peak_allocated_bytes for trial in kept),
        "prepare_peak_allocated_bytes": _max(trial.prepare_peak_allocated_bytes for trial in kept),
        "peak_allocated_bytes": _max(trial.peak_allocated_bytes for trial in kept),
        "peak_reserved_bytes": _max(trial.peak_reserved_bytes for trial in kept),
        "graph_pool_bytes": _max(trial.graph_pool_bytes for trial in kept),
        "process_gpu_bytes": _max(trial.process_gpu_bytes for trial in kept),
        "energy_mj": _mean(trial.energy_mj for trial in kept),
    }


def _preparation(seen: list[Trial]) -> dict:
    return {
        "compile_cold_s": _mean(trial.compile_s for trial in seen if trial.compile_cache == "cold"),
        "compile_warm_s": _mean(trial.compile_s for trial in seen if trial.compile_cache == "warm"),
        "first_call_s": _max(trial.first_call_s for trial in seen),
    }


def _reasons(kept: list[Trial], period_ms: float | None) -> dict:
    """What explains the time: of the profiled trials, and of all for what costs nothing to know."""
    busy_ms = _mean(trial.gpu_busy_ms for trial in kept)
    compute_ms, memory_ms = (_mean(getattr(trial, f"{kind}_floor_ms") for trial in kept) for kind in Floors._fields)
    floors = Floors(compute_ms, memory_ms)
    warmed_up = [trial.steady for trial in kept if trial.steady is not None]
    return {
        "gpu_busy_ms": busy_ms,
        "kernels": _max(trial.kernels for trial in kept),
        "gpu_idle_fraction": idle_fraction(busy_ms, period_ms),
        "enqueue_ms": _mean(trial.enqueue_ms for trial in kept),
        "bound": bound(busy_ms, period_ms, floors),
        "flops": _max(trial.flops for trial in kept),
        "min_bytes": _max(trial.min_bytes for trial in kept),
        "roofline_fraction": roofline_fraction(period_ms, floors),
        "unsteady_trials": sum(not steady for steady in warmed_up) if warmed_up else None,
    }


def _compared(summary: Summary, kept: list[Trial], reference: list[Trial], is_baseline: bool) -> dict:
    compared: dict = {}
    reserved = _max(trial.peak_reserved_bytes for trial in reference)
    if reserved and summary.peak_reserved_bytes:
        compared["memory_ratio"] = reserved / summary.peak_reserved_bytes
    if summary.status is not Status.OK or worst(reference).status is not Status.OK:
        return compared
    own, other = _positive(trial.latency_ms for trial in kept), _positive(trial.latency_ms for trial in reference)
    if not own or not other:
        return compared
    if is_baseline:
        # by definition, not by measurement: an interval would suggest doubt where there is none
        return compared | {"speedup": 1.0, "speedup_ci_low": 1.0, "speedup_ci_high": 1.0}
    ratio = speedup(other, own)
    compared |= {"speedup": ratio.value, "speedup_ci_low": ratio.low, "speedup_ci_high": ratio.high}
    preparation_s = summary.compile_cold_s
    # a mode that compiles but was only seen warm has no cold cost to pay back; it is unknown, not its warm one
    if preparation_s is None and all(trial.compile_s is None for trial in kept):
        preparation_s = _mean(trial.prepare_s for trial in kept)
    if ratio.low is not None and ratio.low <= 1:  # a gain that cannot be told from none pays nothing back
        return compared
    compared["break_even_calls"] = break_even_calls(preparation_s, geometric_mean(other).value, summary.latency_ms)
    return compared


def break_even_calls(preparation_s: float | None, baseline_ms: float, latency_ms: float | None) -> int | None:
    """Calls until `preparation_s` is paid back by the time saved on each call; None where it never is."""
    if preparation_s is None or latency_ms is None or not baseline_ms > latency_ms:
        return None
    calls = preparation_s * 1000.0 / (baseline_ms - latency_ms)
    # beyond that no one lives to see it, and no database column holds it
    return math.ceil(calls) if calls < 2**53 else None


def _positive(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and value > 0 and math.isfinite(value)]


def _mean(values: Iterable[float | None]) -> float | None:
    usable = _positive(values)
    return geometric_mean(usable).value if usable else None


def _max(values: Iterable[float | None]):
    return max((value for value in values if value is not None and math.isfinite(value)), default=None)
