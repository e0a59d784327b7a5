"""The headline figures of a mode over the cells of a sweep, each with the 95 % interval that its kind allows.

The cells stand for more like them: these intervals say how much the figure depends on which cells were swept, not how
well each cell was measured. Cells of one model are not independent, so that they are rather too narrow than too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist

from effbench.stats.intervals import CONFIDENCE, geometric_mean, is_clear, median_interval

#: Values that differ by less than this share are the same: bytes that were rounded, not a scatter.
ALIKE = 1e-6


class Spread(StrEnum):
    """What the bounds of a headline are."""

    INTERVAL = "interval"  # a 95 % interval
    RANGE = "range"  # the least and the largest: too few cells, or too far apart, for an interval that says anything
    EQUAL = "equal"  # all cells give the same: there is nothing to estimate the scatter from
    ALONE = "alone"  # one cell
    NONE = "none"  # no cell has it


@dataclass(frozen=True)
class Headline:
    """A figure over `n` cells; `value` is None over none, `low` and `high` with Spread.INTERVAL and RANGE only."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    spread: Spread

    def note(self, form: Callable[[float], str]) -> str:
        """What stands beside the value: `1.31–1.56`, `1.10 to 2.60, least and largest`, `one cell`."""
        if self.spread is Spread.INTERVAL:
            return f"{form(self.low)}–{form(self.high)}"
        if self.spread is Spread.RANGE:
            return f"{form(self.low)} to {form(self.high)}, least and largest"
        return {Spread.ALONE: "one cell", Spread.EQUAL: f"the same in all {self.n}"}.get(self.spread, "")


def mean_ratio(values: Iterable[float | None]) -> Headline:
    """Geometric mean of ratios, one a cell, with Student's t interval over their logarithms.

    What is missing, NaN, infinite or not positive is left out.
    """
    known = sorted(value for value in _known(values) if value > 0)
    if len(known) < 2 or _alike(known):
        return _plain(known)
    found = geometric_mean(known)
    if not is_clear(found.low, found.high):  # the least and the largest say more
        return Headline(found.value, known[0], known[-1], found.n, Spread.RANGE)
    return Headline(found.value, found.low, found.high, found.n, Spread.INTERVAL)


def median(values: Iterable[float | None]) -> Headline:
    """Median of figures, one a cell, with the order-statistic interval, which needs six; of fewer the range.

    What is missing, NaN or infinite is left out.
    """
    known = sorted(_known(values))
    if len(known) < 2 or _alike(known):
        return _plain(known)
    found = median_interval(known)
    if found.low is None:
        return Headline(found.value, known[0], known[-1], found.n, Spread.RANGE)
    return Headline(found.value, found.low, found.high, found.n, Spread.INTERVAL)


def share(passed: int, total: int, confidence: float = CONFIDENCE) -> Headline:
    """`passed` ÷ `total` (0 to 1) with Wilson's score interval: the shares p that lie within z standard errors, taken
    at p, of the one that was seen. Also of none or all passed it has a width. Raises ValueError for impossible counts.
    """
    if not 0 <= passed <= total:
        raise ValueError(f"{passed} of {total} cannot have passed")
    if not total:
        return Headline(None, None, None, 0, Spread.NONE)
    seen = passed / total
    z2 = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2
    scale = 1 + z2 / total
    centre = (seen + z2 / (2 * total)) / scale
    half = math.sqrt(z2 * (seen * (1 - seen) / total + z2 / (4 * total**2))) / scale
    # exact at the ends, where rounding would leave a little
    low, high = (0.0 if passed == 0 else centre - half), (1.0 if passed == total else centre + half)
    return Headline(seen, low, high, total, Spread.INTERVAL)


def _known(values: Iterable[float | None]) -> list[float]:
    return [float(value) for value in values if value is not None and math.isfinite(value)]


def _alike(known: list[float]) -> bool:
    return math.isclose(known[0], known[-1], rel_tol=ALIKE)


def _plain(known: list[float]) -> Headline:
    """Of values that do not differ."""
    if not known:
        return Headline(None, None, None, 0, Spread.NONE)
    return Headline(known[0], None, None, len(known), Spread.ALONE if len(known) == 1 else Spread.EQUAL)
