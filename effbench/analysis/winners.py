"""Decide which mode wins at a point (model, other swept parameters, batch size) by a metric:
`winners` holds the rule.

A mode wins if it is significantly better than every other one; several that are not significantly
different win together, which is a tie. A table gives its star to the only winner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from effbench.core.cell import Result
from effbench.core.labels import LabelledResult
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS, bounds_of, why_marked
from effbench.core.quantities import Better
from effbench.stats.intervals import LogEstimate, is_less, stored_log_mean
from effbench.store.summary import PAIRS

#: Figures that differ by this factor do not tie, however wide their intervals are: such intervals,
#: of two trials for example, say nothing.
FAR_APART = 2.0


def winners(point: Sequence[LabelledResult], metric: str) -> list[LabelledResult]:
    """Return the rows of a point that win by a metric: the one with the best figure, then those
    that tie with it.

    These are the rows whose difference from the best one is not significant, and marked ones that
    may be better; the reference mode, too, if the best speedup's interval includes 1. There is no
    winner among fewer than two ok rows, if the best row has a single trial, if a mode that would
    tie has twice or half the best figure, if all figures are marked, if the best row's speedup is
    marked although its time is not (by its pairs, or by its reference mode), and for metrics
    without intervals.
    """
    ok = [row for row in point if row.is_ok]
    decisive = _decisive_metric(ok, metric)
    unmarked = _candidates(ok, decisive)
    if not unmarked:
        return []
    winning = _best_and_ties(unmarked, decisive)
    best = winning[0]
    if best.trials == 1 or why_marked(best, metric) is not None:
        return []
    for row in ok:
        may_win = _is_tied_reference(row, best, metric) or _may_be_better(row, best, decisive)
        if may_win and row not in winning:
            winning.append(row)
    costs = [_cost(row, decisive).value for row in winning]
    if max(costs) - costs[0] > math.log(FAR_APART):
        return []
    return winning


def _decisive_metric(rows: Sequence[LabelledResult], metric: str) -> str:
    """Return the metric that decides which row has the best figure of `metric`: a time for speedups
    of separate processes. Speedups of pairs decide themselves: they are known better than times."""
    if metric not in SPEEDUPS:
        return metric
    compared = [row for row in rows if not row.is_baseline]
    origins = {result.speedup_from for result in compared if result.value(metric) is not None}
    if origins == {PAIRS}:
        return metric
    return SPEEDUPS[metric]


def _candidates(rows: Sequence[LabelledResult], metric: str) -> list[LabelledResult]:
    """Return the rows whose figure is not marked; none of a single row, for metrics without
    intervals, and if that is only the reference mode's speedup, whose ratio of 1 was not
    measured."""
    if metric not in INTERVALS or len(rows) < 2:
        return []
    unmarked = [
        row for row in rows if (row.value(metric) or 0) > 0 and why_marked(row, metric) is None
    ]
    if metric in SPEEDUPS and all(row.is_baseline for row in unmarked):
        return []
    return unmarked


def _best_and_ties(rows: Sequence[LabelledResult], metric: str) -> list[LabelledResult]:
    """Return the row with the best figure, then those whose difference from it is not
    significant."""
    best = min(rows, key=lambda row: _cost(row, metric).value)
    least = _cost(best, metric)
    winning = [best]
    for row in rows:
        if row is not best and not is_less(least, _cost(row, metric)):
            winning.append(row)
    return winning


def _cost(result: Result, metric: str) -> LogEstimate:
    """Return the logarithm of a metric, with the opposite sign if a higher one is better."""
    estimate = log_of(result, metric)
    if METRICS[metric].better is Better.HIGHER:
        return replace(estimate, value=-estimate.value)
    return estimate


def _is_tied_reference(result: Result, best: Result, metric: str) -> bool:
    """Return whether a result is of the reference mode, and the best one's speedup `metric` has an
    interval that includes 1."""
    if not result.is_baseline or best.is_baseline or metric not in SPEEDUPS:
        return False
    low, high = bounds_of(best, metric)
    if low is None or high is None or best.trials == 1:
        return False
    return low <= 1 <= high


def _may_be_better(result: Result, best: Result, metric: str) -> bool:
    """Return whether a result is marked, and not all of its interval is worse than that of the best
    one."""
    value = result.value(metric)
    if not value or why_marked(result, metric) is None:
        return False
    low, high = bounds_of(result, metric)
    low_of_best, high_of_best = bounds_of(best, metric)
    best_value = best.value(metric) or 0.0
    if METRICS[metric].better is Better.HIGHER:
        return (high or value) >= (low_of_best or best_value)
    return (low or value) <= (high_of_best or best_value)


def log_of(result: Result, metric: str, df_per_trial: float = 1.0) -> LogEstimate:
    """Return the logarithm of a result's `metric` (a key of INTERVALS), with the error that its
    interval implies. The result must have the metric."""
    value = result.value(metric)
    assert value is not None
    low, high = bounds_of(result, metric)
    return stored_log_mean(
        value,
        low,
        high,
        result.trials,
        result.compilations,
        df_per_trial,
        result.hosts,
    )
