"""Which mode of a point is the best, and each mode over all points: geometric mean of its speedups, and pass rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from effbench.analysis.swept import plain
from effbench.metrics import INTERVALS
from effbench.stats.intervals import ModeScore, Outcome, is_less, mode_score, stored_log_mean

#: In place of a mean whose interval is too wide to quote it (stats.intervals.CLEAR).
UNCLEAR = "unclear"


def least(rows: Sequence[Mapping[str, Any]], metric: str = "latency_ms") -> tuple[int, list[int]]:
    """Return the place of the row with the least `metric` (a key of INTERVALS), and the places of those that tie with
    it: the difference is not significant, or one of the two has no interval.

    `rows` are rows of the view `results` that have the metric. Only a row that nothing ties with may be called best.
    """
    low, high = INTERVALS[metric]
    means = [stored_log_mean(row[metric], *(plain(row.get(name)) for name in (low, high, "trials"))) for row in rows]
    best = min(range(len(means)), key=lambda place: means[place].value)
    return best, [place for place, mean in enumerate(means) if place != best and not is_less(means[best], mean)]


def score(rows: Iterable[Mapping[str, Any]]) -> ModeScore:
    """Of the rows of the view `results` of one mode; NaN counts as NULL."""
    names = ("status", "speedup", "speedup_ci_low", "speedup_ci_high", "trials")
    outcomes = (Outcome(*(plain(row.get(name)) for name in names)) for row in rows)
    return mode_score(outcome._replace(status=str(outcome.status)) for outcome in outcomes)


def describe(found: ModeScore) -> str:
    """`1.93× (1.88–1.98), 14 of 15 ok`, or `unclear (0.60–29,540), 3 of 3 ok`; without speedup only how many are ok."""
    passed = f"{found.passed} of {found.total} ok"
    if found.value is None:
        return passed
    known = found.low is not None and found.low < found.high
    interval = f" ({interval_text(found.low, found.high)})" if known else ""
    return f"{f'{found.value:.2f}×' if found.clear else UNCLEAR}{interval}, {passed}"


def interval_text(low: float, high: float) -> str:
    """`1.88–1.98`; of bounds from 100 on without decimals: `0.60–29,540`."""
    return "–".join(f"{value:.2f}" if value < 100 else f"{value:,.0f}" for value in (low, high))
