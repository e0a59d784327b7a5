"""Which mode of a point is best, which one to run there, and what each achieves over all cells of a sweep.

The speedup's interval says how well these very cells were measured. The intervals of `CellFigure` say how much a figure
depends on which cells were swept: the cells stand for more like them. Cells of one model are not independent, so these
intervals are too narrow rather than too wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from statistics import NormalDist
from typing import Any

from effbench.errors import NothingFoundError
from effbench.labels import LabelledRow
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
from effbench.store.summary import break_even_calls

#: Shown instead of a mean whose interval is too wide to quote it (`stats.intervals.CLEAR`).
UNCLEAR = "unclear"
#: Values that differ by less than this share are equal: rounded bytes, not scatter.
ALIKE = 1e-6
#: Relative difference of figures without intervals that decides nothing; sessions drift by about as much.
TOO_CLOSE = 0.02


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


# --- which mode to run ---


@dataclass(frozen=True)
class ModeFigures:
    """A mode that may be chosen.

    `prepare_s`: time before it is ready, once in a process; `warm`: with a filled compile cache, the cold time is
    unknown. `break_even`: calls until that is paid back against the baseline; None: never, or it is the baseline.
    `score_ms`: a call, with its share of the preparation (`share_ms`) if the number of calls is known.
    """

    mode: str
    call_ms: float
    low_ms: float | None
    high_ms: float | None
    trials: int | None
    prepare_s: float
    warm: bool
    memory_bytes: float | None
    speedup: float | None
    break_even: int | None
    score_ms: float
    share_ms: float


@dataclass(frozen=True)
class ModeAdvice:
    """`ranked`: best first. `close`: modes that differ from the best by no significant amount. `excluded`: mode ->
    reason."""

    ranked: list[ModeFigures]
    close: list[str]
    excluded: dict[str, str]
    doubts: list[str] = field(default_factory=list)

    @property
    def best(self) -> ModeFigures:
        return self.ranked[0]


def advise_mode(
    rows: Sequence[LabelledRow],
    column: str = "latency_ms",
    calls: int | None = None,
    memory_bytes: int | None = None,
    baseline_mode: str = "eager",
) -> ModeAdvice:
    """Rank the modes of one case and batch size by `column`.

    `calls`: how many follow one preparation; None: preparation does not count. `memory_bytes`: most peak reserved
    memory. Raises NothingFoundError if no mode is left.
    """
    excluded: dict[str, str] = {}
    usable = []
    for row in rows:
        source, reserved = row.source, row.source.get("peak_reserved_bytes")
        if source["status"] != "ok":
            excluded[row.mode] = f"{source['status']}: {source['reason'] or 'no reason recorded'}"
        elif source.get(column) is None:
            excluded[row.mode] = f"no {column.removesuffix('_ms')} was measured"
        elif memory_bytes is not None and reserved is None:
            excluded[row.mode] = "its memory was not measured"
        elif memory_bytes is not None and reserved > memory_bytes:
            excluded[row.mode] = "needs more memory than allowed"
        else:
            usable.append(row)
    if not usable:
        reasons = "; ".join(f"{mode} {why}" for mode, why in excluded.items())
        raise NothingFoundError(f"no mode is left: {reasons or 'nothing was measured here'}")
    # the baseline's time counts also if its memory excludes it
    base = next((row.source for row in rows if row.base_mode == baseline_mode and row.source["status"] == "ok"), None)
    ranked = sorted((mode_figures(row, column, calls, base) for row in usable), key=attrgetter("score_ms"))
    close = [other.mode for other in ranked[1:] if too_close(ranked[0], other)]
    doubts = []
    if any(mode.low_ms is None for mode in ranked):
        doubts.append(
            f"some figures have no interval (one trial, or a period): {TOO_CLOSE:.0%} decides what is too close"
        )
    if calls is not None and (warm := [mode.mode for mode in ranked if mode.warm]):
        doubts.append(f"only seen with a filled compile cache, a cold start takes longer: {', '.join(warm)}")
    return ModeAdvice(ranked, close, excluded, doubts)


def mode_figures(row: LabelledRow, column: str, calls: int | None, base: dict[str, Any] | None) -> ModeFigures:
    source = row.source
    cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
    # modes that compile nothing still capture or trace: until the first output is there
    prepare_s = next((value for value in (cold, warm, source.get("first_call_s")) if value is not None), 0.0)
    low, high = (source.get(name) for name in INTERVALS[column])
    share = prepare_s * 1000 / calls if calls else 0.0
    baseline_ms = base and base.get(column)
    is_base = base is source
    return ModeFigures(
        mode=row.mode,
        call_ms=source[column],
        low_ms=low,
        high_ms=high,
        trials=source.get("trials"),
        prepare_s=prepare_s,
        warm=cold is None and warm is not None,
        memory_bytes=source.get("peak_reserved_bytes"),
        speedup=baseline_ms / source[column] if baseline_ms else None,
        break_even=None if is_base or not baseline_ms else break_even_calls(prepare_s, baseline_ms, source[column]),
        score_ms=source[column] + share,
        share_ms=share,
    )


def too_close(best: ModeFigures, other: ModeFigures) -> bool:
    """Return whether `best` is not significantly faster; without intervals, whether they are less than TOO_CLOSE
    apart."""
    if None in (best.low_ms, best.high_ms, other.low_ms, other.high_ms):
        return other.score_ms <= best.score_ms * (1 + TOO_CLOSE)
    a, b = (
        stored_log_mean(mode.score_ms, mode.low_ms + mode.share_ms, mode.high_ms + mode.share_ms, mode.trials)
        for mode in (best, other)
    )
    return not is_less(a, b)
