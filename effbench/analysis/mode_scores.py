"""Which mode of a point is best, and what each mode achieves over all cells of a sweep.

The speedup's interval says how well these very cells were measured. The intervals of `CellFigure` say how much a figure
depends on which cells were swept: the cells stand for more like them. Cells of one model are not independent, so these
intervals are too narrow rather than too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Any

from effbench.metrics import INTERVALS
from effbench.stats.intervals import (
    CONFIDENCE,
    ModeScore,
    Outcome,
    geometric_mean,
    is_clear,
    is_less,
    median_interval,
    mode_score,
    stored_log_mean,
)

#: Shown instead of a mean whose interval is too wide to quote it (statistics.CLEAR).
UNCLEAR = "unclear"
#: Values that differ by less than this share are equal: rounded bytes, not scatter.
ALIKE = 1e-6


def least(rows: Sequence[Mapping[str, Any]], metric: str = "latency_ms") -> tuple[int, list[int]]:
    """Return the place of the row with the least `metric` (a key of INTERVALS), and the places of those that tie with
    it: the difference is not significant, or one of the two has no interval.

    `rows` are rows of the view `results` that have the metric. Only a row that nothing ties with may be called best.
    """
    low, high = INTERVALS[metric]
    means = [stored_log_mean(row[metric], *(row.get(name) for name in (low, high, "trials"))) for row in rows]
    best = min(range(len(means)), key=lambda place: means[place].value)
    return best, [place for place, mean in enumerate(means) if place != best and not is_less(means[best], mean)]


def score(rows: Iterable[Mapping[str, Any]]) -> ModeScore:
    """Return the score of the rows of the view `results` of one mode."""
    names = ("speedup", "speedup_ci_low", "speedup_ci_high", "trials")
    return mode_score(Outcome(str(row.get("status")), *(row.get(name) for name in names)) for row in rows)


def describe(found: ModeScore) -> str:
    """Return `1.93× (1.88–1.98), 14 of 15 ok`, `unclear (0.60–29,540), 3 of 3 ok`, or without speedup the last part."""
    passed = f"{found.passed} of {found.total} ok"
    if found.value is None:
        return passed
    known = found.low is not None and found.low < found.high
    interval = f" ({interval_text(found.low, found.high)})" if known else ""
    return f"{f'{found.value:.2f}×' if found.clear else UNCLEAR}{interval}, {passed}"


def interval_text(low: float, high: float) -> str:
    """Return `1.88–1.98`; bounds from 100 on have no decimals: `0.60–29,540`."""
    return "–".join(f"{value:.2f}" if value < 100 else f"{value:,.0f}" for value in (low, high))


class Spread(StrEnum):
    """What the bounds of a `CellFigure` are."""

    INTERVAL = "interval"  # a 95 % interval
    RANGE = "range"  # the least and the largest: too few cells, or too far apart, for a useful interval
    EQUAL = "equal"  # all cells give the same: there is no scatter to estimate
    ALONE = "alone"  # one cell
    NONE = "none"  # no cell has it


@dataclass(frozen=True)
class CellFigure:
    """A figure over `n` cells; `value` is None over none, `low` and `high` exist for INTERVAL and RANGE only."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    spread: Spread

    def note(self, form: Callable[[float], str]) -> str:
        """Return what stands next to the value: `1.31–1.56`, `1.10 to 2.60, least and largest`, `one cell`."""
        if self.spread is Spread.INTERVAL:
            return f"{form(self.low)}–{form(self.high)}"
        if self.spread is Spread.RANGE:
            return f"{form(self.low)} to {form(self.high)}, least and largest"
        return {Spread.ALONE: "one cell", Spread.EQUAL: f"the same in all {self.n}"}.get(self.spread, "")


def mean_ratio(values: Iterable[float | None]) -> CellFigure:
    """Return the geometric mean of ratios, one a cell, with Student's t interval over their logarithms.

    Missing, infinite and non-positive values are skipped.
    """
    return _over_cells(values, positive=True)


def median(values: Iterable[float | None]) -> CellFigure:
    """Return the median of figures, one a cell, with the order-statistic interval, which needs six; else the range.

    Missing and infinite values are skipped.
    """
    return _over_cells(values, positive=False)


def _over_cells(values: Iterable[float | None], positive: bool) -> CellFigure:
    known = sorted(float(value) for value in values if value is not None and math.isfinite(value))
    known = [value for value in known if value > 0 or not positive]
    if not known:
        return CellFigure(None, None, None, 0, Spread.NONE)
    if math.isclose(known[0], known[-1], rel_tol=ALIKE):
        return CellFigure(known[0], None, None, len(known), Spread.ALONE if len(known) == 1 else Spread.EQUAL)
    found = geometric_mean(known) if positive else median_interval(known)
    if found.low is None or (positive and not is_clear(found.low, found.high)):
        return CellFigure(found.value, known[0], known[-1], found.n, Spread.RANGE)
    return CellFigure(found.value, found.low, found.high, found.n, Spread.INTERVAL)


def share(passed: int, total: int, confidence: float = CONFIDENCE) -> CellFigure:
    """Return `passed` ÷ `total` (0 to 1) with Wilson's score interval. Raises ValueError for impossible counts."""
    if not 0 <= passed <= total:
        raise ValueError(f"{passed} of {total} cannot have passed")
    if not total:
        return CellFigure(None, None, None, 0, Spread.NONE)
    seen = passed / total
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    scale = 1 + z2 / total
    centre = (seen + z2 / (2 * total)) / scale
    half = math.sqrt(z2 * (seen * (1 - seen) / total + z2 / (4 * total**2))) / scale
    # exact at the ends, where rounding would leave a little
    low, high = (0.0 if passed == 0 else centre - half), (1.0 if passed == total else centre + half)
    return CellFigure(seen, low, high, total, Spread.INTERVAL)
