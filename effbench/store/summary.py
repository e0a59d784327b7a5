"""The summary of a cell over its trials in one sweep and one environment.

Pure: trials in, a row of `result` out. The store writes it and can rebuild it at any time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from effbench.cell import SEVERITY, Status, Trial
from effbench.metrics import INTERVALS, RESULT_FIGURES, TRIAL_METRICS
from effbench.stats.intervals import geometric_mean, speedup
from effbench.store.bottleneck import Floors, bound, idle_fraction, roofline_fraction

#: noisy rounds are set aside while so many ok ones remain
ENOUGH_OK = 3

_RANK = {status: rank for rank, status in enumerate(SEVERITY)}


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
) -> dict[str, Any]:
    """Return the row of `result`, without its keys, for the trials of one cell in one sweep and environment.

    `bs` is the cell's batch size, of a stream the mean one. `baseline` holds the trials of the cell that differs only
    in its mode, in the same sweep and environment; it is empty if the sweep has no baseline. With `is_baseline` the
    cell is its own. `trials` in the row counts the rounds that the figures rest on. A failed cell has no figures but
    those that explain it (`rel_error` and Dynamo's counters). None means "does not apply". Raises ValueError without
    trials.
    """
    trials = list(trials)
    kept = counted(trials)
    if not kept:
        raise ValueError("a summary needs at least one trial")
    decisive = worst(kept)
    row = {"status": decisive.status, "reason": decisive.reason, "trials": len(kept)}
    row |= dict.fromkeys(RESULT_FIGURES) | _combined(kept, explaining=True)
    if not decisive.status.is_measured:
        return row
    # a cold compile is seen once: also in a trial whose timing was disturbed
    seen = [trial for trial in trials if trial.status.is_measured]
    row |= _combined(kept, explaining=False) | _times(kept, bs) | _preparation(seen)
    row |= _reasons(kept, row["gpu_busy_ms"], row["period_ms"])
    reference = kept if is_baseline else counted(baseline)
    if reference and worst(reference).status.is_measured:
        row |= _compared(row, kept, reference, is_baseline)
    return row


def _combined(kept: list[Trial], *, explaining: bool) -> dict[str, Any]:
    """Return the metrics that combine in one of the standard ways."""
    return {
        metric.name: _COMBINE[metric.combine](getattr(trial, metric.name) for trial in kept)
        for metric in TRIAL_METRICS
        if metric.combine and metric.explains == explaining
    }


def _times(kept: list[Trial], bs: float) -> dict[str, Any]:
    """Return latency and period with their intervals, and throughput."""
    row: dict[str, Any] = {}
    for name in ("latency_ms", "period_ms"):
        values = _positive(getattr(trial, name) for trial in kept)
        mean = geometric_mean(values) if values else None
        low, high = INTERVALS[name]
        row |= {name: mean and mean.value, low: mean and mean.low, high: mean and mean.high}
    call_ms = row["period_ms"] or row["latency_ms"]
    return row | {"throughput_per_s": bs * 1000.0 / call_ms if call_ms else None}


def _preparation(seen: list[Trial]) -> dict[str, Any]:
    return {
        "compile_cold_s": _mean(trial.compile_s for trial in seen if trial.compile_cache == "cold"),
        "compile_warm_s": _mean(trial.compile_s for trial in seen if trial.compile_cache == "warm"),
        "first_call_s": _max(trial.first_call_s for trial in seen),
    }


def _reasons(kept: list[Trial], busy_ms: float | None, period_ms: float | None) -> dict[str, Any]:
    """What explains the time: from the profiled trials, and from all trials for steadiness."""
    compute_ms, memory_ms = (_mean(getattr(trial, f"{kind}_floor_ms") for trial in kept) for kind in Floors._fields)
    floors = Floors(compute_ms, memory_ms)
    warmed_up = [trial.steady for trial in kept if trial.steady is not None]
    return {
        "gpu_idle_fraction": idle_fraction(busy_ms, period_ms),
        "bound": bound(busy_ms, period_ms, floors),
        "roofline_fraction": roofline_fraction(period_ms, floors),
        "unsteady_trials": sum(not steady for steady in warmed_up) if warmed_up else None,
    }


def _compared(row: dict[str, Any], kept: list[Trial], reference: list[Trial], is_baseline: bool) -> dict[str, Any]:
    compared: dict[str, Any] = {}
    reserved = _max(trial.peak_reserved_bytes for trial in reference)
    if reserved and row["peak_reserved_bytes"]:
        compared["memory_ratio"] = reserved / row["peak_reserved_bytes"]
    if row["status"] is not Status.OK or worst(reference).status is not Status.OK:
        return compared
    own, other = _positive(trial.latency_ms for trial in kept), _positive(trial.latency_ms for trial in reference)
    if not own or not other:
        return compared
    if is_baseline:
        # by definition, not by measurement: an interval would suggest doubt where there is none
        return compared | {"speedup": 1.0, "speedup_ci_low": 1.0, "speedup_ci_high": 1.0}
    ratio = speedup(other, own)
    compared |= {"speedup": ratio.value, "speedup_ci_low": ratio.low, "speedup_ci_high": ratio.high}
    preparation_s = row["compile_cold_s"]
    # a mode that compiles but was only seen warm has an unknown cold cost, not its warm one
    if preparation_s is None and all(trial.compile_s is None for trial in kept):
        preparation_s = _mean(trial.prepare_s for trial in kept)
    if ratio.low is not None and ratio.low <= 1:  # the interval includes 1: no gain that pays anything back
        return compared
    compared["break_even_calls"] = break_even_calls(preparation_s, geometric_mean(other).value, row["latency_ms"])
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


def _max(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None and math.isfinite(value)), default=None)


def _min(values: Iterable[float | None]) -> float | None:
    return min(_positive(values), default=None)


_COMBINE = {"mean": _mean, "max": _max, "min": _min}
