"""Which mode of a point is best, and what each mode achieves over all cells of a sweep.

The speedup's interval says how well these very cells were measured; those of `over_cells` and `share_bounds` how much a
figure depends on which cells were swept. Cells of one model are not independent, so the latter are too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from effbench.cell import SEVERITY, Status
from effbench.labels import LabelledRow, mode_order
from effbench.metrics import INTERVALS, METRICS
from effbench.stats.intervals import (
    CONFIDENCE,
    Interval,
    ModeScore,
    Outcome,
    geometric_mean,
    is_clear,
    is_less,
    median_interval,
    mode_score,
    stored_log_mean,
)

#: Shown instead of a mean whose interval is too wide to quote it (`stats.intervals.CLEAR`).
UNCLEAR = "unclear"
NO_INTERVAL = "no interval: too few rounds"
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


def severity(status: str) -> int:
    """Return the place of a status among all, the worst first; an unknown one comes before all."""
    return SEVERITY.index(status) if status in SEVERITY else -1


# --- each mode over all points ---


def over_cells(
    values: Iterable[float | None], middle: Callable[[Sequence[float]], Interval], form: Callable[[float], str]
) -> tuple[float | None, str]:
    """Return the middle of figures, one a cell, and its 95 % interval as text, or what is known instead.

    `middle`: `geometric_mean` with Student's t interval over the logarithms, or `median_interval`, which needs six for
    one. Values that are missing, infinite or not positive are skipped.
    """
    known = sorted(float(value) for value in values if value is not None and 0 < value < math.inf)
    if not known:
        return None, ""
    if math.isclose(known[0], known[-1], rel_tol=ALIKE):
        return known[0], "one cell" if len(known) == 1 else f"the same in all {len(known)}"
    found = middle(known)
    if found.low is None or (middle is geometric_mean and not is_clear(found.low, found.high)):
        return found.value, f"{form(known[0])} to {form(known[-1])}, least and largest"
    return found.value, f"{form(found.low)}–{form(found.high)}"


def share_bounds(passed: int, total: int) -> tuple[float, float]:
    """Return Wilson's 95 % score interval of `passed` ÷ `total` (0 to 1, of at least one)."""
    seen = passed / total
    z2 = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) ** 2
    scale = 1 + z2 / total
    centre = (seen + z2 / (2 * total)) / scale
    half = math.sqrt(z2 * (seen * (1 - seen) / total + z2 / (4 * total**2))) / scale
    # exact at the ends, where rounding would leave a little
    return 0.0 if passed == 0 else centre - half, 1.0 if passed == total else centre + half


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results (model × bs and whatever else was swept), in one phase and environment: a training
    step is not averaged with a call. `group` names phase and environment if there are several; `memory` (ratio) and
    `compiled` (seconds) are what `over_cells` returns."""

    mode: str
    group: str
    score: ModeScore
    memory: tuple[float | None, str]
    compiled: tuple[float | None, str]
    not_ok: str

    @property
    def speedup_text(self) -> str:
        return METRICS["speedup"].format(self.score.value) if self.score.clear else UNCLEAR

    @property
    def interval(self) -> str:
        """Return `1.88–1.98`, empty if there is none; bounds from 100 on have no decimals: `0.60–29,540`."""
        low, high = self.score.low, self.score.high
        if low is None or not low < high:
            return ""
        return "–".join(f"{bound:.2f}" if bound < 100 else f"{bound:,.0f}" for bound in (low, high))

    @property
    def text(self) -> str:
        """Return `1.93× (1.88–1.98), 14 of 15 ok`; without speedup the last part."""
        passed = f"{self.score.passed} of {self.score.total} ok"
        if self.score.value is None:
            return passed
        return f"{self.speedup_text}{f' ({self.interval})' if self.interval else ''}, {passed}"


def by_mode(rows: Sequence[LabelledRow]) -> list[ModeSummary]:
    """Return a summary for each mode, in canonical order, phase and environment."""
    several = len({row.source["phase"] for row in rows}) > 1
    order = mode_order((row.mode, row.base_mode) for row in rows)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: order.index(row.mode)):
        group = f"{row.source['phase'] if several else ''} {row.where}".strip()
        groups.setdefault((row.mode, group), []).append(row.source)
    found = []
    for (mode, group), own in groups.items():
        ok = [row for row in own if row["status"] == Status.OK]
        names = ("status", "speedup", "speedup_ci_low", "speedup_ci_high", "trials")
        score = mode_score(Outcome(*(row.get(name) for name in names)) for row in own)
        memory = over_cells((row.get("memory_ratio") for row in ok), geometric_mean, "{:.2f}".format)
        seconds = METRICS["compile_cold_s"].format
        compiled = over_cells((row.get("compile_cold_s") for row in ok), median_interval, seconds)
        bad = Counter(str(row["status"]) for row in own if row["status"] != Status.OK)
        not_ok = ", ".join(f"{bad[status]} {status}" for status in sorted(bad, key=severity))
        found.append(ModeSummary(mode, group, score, memory, compiled, not_ok))
    return found
