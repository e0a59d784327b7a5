"""Summary of a sweep: its conclusion, figures of each mode over all models, and the machine.

The speedup's interval covers measurement noise. The intervals of `over_cells` cover the choice of cells;
cells of one model are not independent, so these intervals are too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from effbench.cell import SEVERITY, Status
from effbench.environments import SOFTWARE
from effbench.labels import ABSENT, LabelledRow, mode_order
from effbench.metrics import METRICS, change_text
from effbench.report.colors import glyph_of
from effbench.report.tables import NO_INTERVAL, TOO_WIDE, UNCLEAR, SpeedupTable
from effbench.stats.intervals import (
    Interval,
    ModeScore,
    Outcome,
    geometric_mean,
    is_clear,
    median_interval,
    mode_score,
)
from effbench.table import Column, Shown, Table

if TYPE_CHECKING:
    from effbench.report.data import Changes, DeviceSweep

#: Most changes shown in a summary.
MOST_CHANGES = 10
#: Relative difference below which values are equal: rounding of bytes, not scatter.
ALIKE = 1e-6


def severity(status: str) -> int:
    """Return the rank of a status, the worst first; an unknown status comes before all others."""
    return SEVERITY.index(status) if status in SEVERITY else -1


def count_statuses(rows: Iterable[LabelledRow]) -> dict[str, int]:
    """Return status -> number of results, the worst status first."""
    counts = Counter(str(row.source["status"]) for row in rows)
    return {status: counts[status] for status in sorted(counts, key=severity)}


def worst_first(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    """Return the results that are not ok, the worst status first."""
    bad = (row for row in rows if row.source["status"] != Status.OK)
    return sorted(bad, key=lambda row: severity(row.source["status"]))


def headline(table: SpeedupTable, modes: Sequence[ModeSummary]) -> str:
    """Return the conclusion: the mode that wins most of the points (model × batch size) with several ok modes."""
    if not any(mode.score.passed for mode in modes):
        return "No result of this sweep is ok."
    if len({mode.mode for mode in modes}) < 2:
        return f"Only the mode {modes[0].mode} was run: there is nothing to compare it with."
    rows = [row for row in table.rows if row.compares]
    wins = Counter(row.winner for row in rows)
    ties = wins.pop(None, 0)
    points = f"{len(rows)} point{'s' * (len(rows) != 1)} (model × batch size) where several modes are ok"
    if not wins:
        return f"No significant winner in {ties} of {points}."
    means = {mode.mode: mode for mode in modes}
    best = max(wins, key=lambda mode: (wins[mode], means[mode].score.value or 0))
    open_points = f"; no significant winner in {ties}" if ties else ""
    sentence = f"{best} is the fastest mode in {wins[best]} of {points}{open_points}."
    if means[best].group or not means[best].score.clear:
        return sentence
    return f"{sentence} Its geometric-mean speedup is {means[best].speedup_text}."


# --- each mode over all points ---


def over_cells(
    values: Iterable[float | None], middle: Callable[[Sequence[float]], Interval], form: Callable[[float], str]
) -> tuple[float | None, str]:
    """Return the mean or median of one value per cell, and its 95 % interval as text, or the range without one.
    `middle`: `geometric_mean`, or `median_interval`, which needs six values. Missing, infinite and non-positive values
    are skipped."""
    known = sorted(float(value) for value in values if value is not None and 0 < value < math.inf)
    if not known:
        return None, ""
    if math.isclose(known[0], known[-1], rel_tol=ALIKE):
        return known[0], "one cell" if len(known) == 1 else f"the same in all {len(known)}"
    mean = middle(known)
    if mean.low is None or (middle is geometric_mean and not is_clear(mean.low, mean.high)):
        return mean.value, f"range {form(known[0])} to {form(known[-1])}"
    return mean.value, f"{form(mean.low)} to {form(mean.high)}"


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results in one phase and environment: training steps are not averaged with inference calls.
    `group` names phase and environment if there are several. `memory` (ratio) and `compiled` (seconds) are results of
    `over_cells`."""

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
        """Return `1.88–1.98`, or nothing without an interval; bounds from 100 have no decimals: `0.60–29,540`."""
        low, high = self.score.low, self.score.high
        if low is None or not low < high:
            return ""
        return "–".join(f"{bound:.2f}" if bound < 100 else f"{bound:,.0f}" for bound in (low, high))

    @property
    def text(self) -> str:
        """Return `1.93× (1.88–1.98), 14 of 15 ok`, or without a speedup only the last part."""
        passed = f"{self.score.passed} of {self.score.total} ok"
        if self.score.value is None:
            return passed
        why = "" if self.score.clear else f", {TOO_WIDE}"
        return f"{self.speedup_text}{f' ({self.interval}{why})' if self.interval else ''}, {passed}"


def by_mode(rows: Sequence[LabelledRow]) -> list[ModeSummary]:
    """Return one summary per mode, phase and environment, modes in canonical order."""
    several = len({row.source["phase"] for row in rows}) > 1
    order = mode_order((row.mode, row.base_mode) for row in rows)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: order.index(row.mode)):
        group = f"{row.source['phase'] if several else ''} {row.where}".strip()
        groups.setdefault((row.mode, group), []).append(row.source)
    summaries = []
    for (mode, group), of_mode in groups.items():
        ok = [row for row in of_mode if row["status"] == Status.OK]
        names = ("status", "speedup", "speedup_ci_low", "speedup_ci_high", "trials")
        score = mode_score(Outcome(*(row.get(name) for name in names)) for row in of_mode)
        memory = over_cells((row.get("relative_memory") for row in ok), geometric_mean, change_text)
        seconds = METRICS["compile_cold_s"].format
        compiled = over_cells((row.get("compile_cold_s") for row in ok), median_interval, seconds)
        bad = Counter(str(row["status"]) for row in of_mode if row["status"] != Status.OK)
        not_ok = ", ".join(f"{bad[status]} {status}" for status in sorted(bad, key=severity))
        summaries.append(ModeSummary(mode, group, score, memory, compiled, not_ok))
    return summaries


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Return a table of each mode's figures over all cells, with intervals or ranges as second lines."""
    columns = [
        Column("mode"),
        Column("speedup", "geometric-mean speedup (×)", numeric=True),
        Column("pass_rate", "pass rate", numeric=True),
        Column("not_ok", "not ok"),
        Column("relative_memory", "memory against baseline", numeric=True),
        Column("compile_cold_s", "compile, cold (s, median)", numeric=True),
    ]
    rows = []
    for mode in modes:
        score = mode.score
        words = [mode.interval or (NO_INTERVAL if score.averaged and score.low is None else "")]
        words += [f"of {score.averaged}"] if score.averaged < score.passed else []
        hint = "" if score.clear else f"measured {METRICS['speedup'].format(score.value)}"
        passed, (ratio, ratios), (seconds, interval) = score.passed / score.total, mode.memory, mode.compiled
        row = [
            Shown(mode.mode, mode.mode, "mode", mode.group, glyph=glyph_of(mode.mode)),
            Shown(score.value, mode.speedup_text, "strong", ", ".join(filter(None, words)), hint=hint),
            Shown(
                passed,
                f"{100 * passed:.0f} %",
                sub=f"{score.passed} of {score.total}",
            ),
            Shown(mode.not_ok, mode.not_ok or ABSENT, "status" if mode.not_ok else "absent"),
            Shown(ratio, METRICS["relative_memory"].format(ratio), sub=ratios),
            Shown(seconds, METRICS["compile_cold_s"].format(seconds), sub=interval),
        ]
        rows.append(row)
    return Table.of(columns, rows, "Each mode over all models and batch sizes")


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return the machine and its software versions on one line."""
    parts = [device_sweep.hardware]
    for key in ("driver_version", "cuda_version", "torch_version", "triton_version", "python"):
        if versions := {str(environment[key]) for environment in device_sweep.environments if environment.get(key)}:
            parts.append(f"{SOFTWARE[key]} {' and '.join(sorted(versions))}")
    return " · ".join(parts)


def sure_changes(changes: Changes) -> list[Any]:
    """Return the significant changes since the previous sweep; ambiguous rows are only counted."""
    return [change for change in changes.compared.changes if change.verdict not in ("same", "ambiguous")]
