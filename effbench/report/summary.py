"""Summary of a sweep: its conclusion, figures of each mode over all models, and the machine.

The speedup's interval covers measurement noise. The intervals of `over_cells` cover the choice of
cells; cells of one model are not independent, so these intervals are too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from effbench.cell import SEVERITY, Status
from effbench.environments import SOFTWARE
from effbench.labels import LabelledRow, grouped, mode_order
from effbench.metrics import INTERVALS, METRICS, change_text
from effbench.report import marks
from effbench.report.colors import glyph_of
from effbench.report.marks import is_marked, signed
from effbench.report.reasons import undecided
from effbench.report.tables import SPEEDUPS, UNCLEAR, SpeedupTable, log_of
from effbench.stats.intervals import (
    CLEAR,
    Interval,
    LogEstimate,
    geometric_mean,
    is_clear,
    is_number,
    mean_of_estimates,
    mean_of_related_estimates,
    median_interval,
)
from effbench.store.summary import PAIRS
from effbench.table import Column, Shown, Table

if TYPE_CHECKING:
    from effbench.report.data import Changes, DeviceSweep

#: Most changes shown in a summary.
MOST_CHANGES = 10
#: Assumed degrees of freedom ÷ (n - 1) of a speedup's interval with n trials per side, of separate
#: processes; the true ratio is 1 to 2.
SPEEDUP_DF = 1.25
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
    """Return the conclusion for each metric of the table: the mode that wins most of the points
    (model × batch size) with several ok modes, and its mean speedup."""
    if not any(mode.scores["speedup"].passed for mode in modes):
        return "No result of this sweep is ok."
    if len({mode.mode for mode in modes}) < 2:
        return f"Only the mode {modes[0].mode} was run: there is nothing to compare it with."
    if not any(row.best for row in table.rows):
        return undecided(table.rows).capitalize()
    means = {mode.mode: mode for mode in modes}
    sentences, points = [], "points (model × batch size)"
    for metric in dict.fromkeys(row.metric for row in table.rows if row.best):
        rows = [row for row in table.rows if row.best and row.metric == metric]
        scores = {name: mode.scores[metric] for name, mode in means.items()}
        wins = Counter(row.winner for row in rows)
        ties = wins.pop(None, 0)
        text = f"no mode wins any of {len(rows)} {points}"
        if wins:
            best = max(wins, key=lambda mode: (wins[mode], scores[mode].value or 0))
            also = f", {ties} {'is a tie' if ties == 1 else 'are ties'}" if ties else ""
            text = f"{best} wins {wins[best]} of {len(rows)} {points}"
            if equal := [mode for mode in wins if wins[mode] == wins[best] and mode != best]:
                text += f", as many as {' and '.join(equal)}"
            text += also
            if not means[best].group and scores[best].value and scores[best].clear:
                text += f"; its mean speedup is {score_text(scores[best])}"
        sentences.append(f"{rows[0].quantity.capitalize()}: {text}.")
        points = "points"
    return " ".join(sentences)


# --- each mode over all points ---


def over_cells(
    values: Iterable[float | None],
    middle: Callable[[Sequence[float]], Interval],
    form: Callable[[float], str],
) -> tuple[float | None, str]:
    """Return the mean or median of one value per cell, and its 95 % interval as text, or the range
    without one. `middle`: `geometric_mean`, or `median_interval`, which needs six values. Missing,
    infinite and non-positive values are skipped."""
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
class ModeScore:
    """The geometric mean of a mode's speedups over its cells, with confidence bounds. `averaged`:
    number of ok cells with a speedup; `passed`: number of ok cells. `marked`: whether a speedup is
    marked."""

    value: float | None
    averaged: int
    passed: int
    total: int
    low: float | None = None
    high: float | None = None
    marked: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval is narrow enough to quote the value."""
        return is_clear(self.low, self.high)


def mode_score(rows: Sequence[Mapping[str, Any]], metric: str) -> ModeScore:
    """Return the mean of a speedup over the ok results of a mode, with a 95 % interval for these
    cells. It requires an interval and at least two trials of each cell. With at least three trials
    it covers 93 to 98.2 %."""
    passed = 0
    marked = False
    estimates = []
    for row in rows:
        if row["status"] != Status.OK:
            continue
        passed += 1
        if 0 < (row.get(metric) or 0) < math.inf:
            is_unsure = marks.reason(row, metric) is not None
            estimates.append(estimate_of(row, metric, is_unsure))
            marked = marked or is_unsure
    if not estimates:
        return ModeScore(None, 0, passed, len(rows))
    # hosts that were joined are the same in all cells
    mean_of = (
        mean_of_related_estimates if any(row.get("hosts") for row in rows) else mean_of_estimates
    )
    mean = mean_of(estimates).interval()
    return ModeScore(mean.value, len(estimates), passed, len(rows), mean.low, mean.high, marked)


def estimate_of(row: Mapping[str, Any], metric: str, marked: bool) -> LogEstimate:
    """Return the logarithm of a result's speedup. Averaging does not reduce what a disturbance may
    change, so the whole interval of a marked speedup counts as such."""
    low, high = (row.get(bound) for bound in INTERVALS[metric])
    if not marked or not (is_number(low) and is_number(high) and 0 < low <= row[metric] <= high):
        return log_of(row, metric, 1.0 if row.get("speedup_from") == PAIRS else SPEEDUP_DF)
    below = math.log(row[metric] / low)
    above = math.log(high / row[metric])
    return LogEstimate(math.log(row[metric]), 0.0, 1.0, below, above)


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results in one phase and environment: training steps are not averaged
    with inference calls. `group` names phase and environment if there are several. `scores`: one
    per speedup. `memory` (ratio) and `compiled` (seconds) are results of `over_cells`;
    `compiled_marked`: whether a compile time is marked."""

    mode: str
    group: str
    scores: dict[str, ModeScore]
    memory: tuple[float | None, str]
    compiled: tuple[float | None, str]
    not_ok: str
    compiled_marked: bool = False


def score_text(score: ModeScore) -> str:
    if not score.clear and not score.marked:
        return UNCLEAR
    return signed(METRICS["speedup"].format(score.value), score.marked)


def score_interval(score: ModeScore) -> str:
    """Return `1.88–1.98`, and the number of cells unless all ok cells count."""
    low, high, form = score.low, score.high, METRICS["speedup"].format
    words = []
    if low is not None and low < high:
        words = [
            "–".join(
                form(bound).removesuffix("×") if bound < 100 else f"{bound:,.0f}"
                for bound in (low, high)
            )
        ]
    return ", ".join(words + [f"of {score.averaged}"] * (0 < score.averaged < score.passed))


def by_mode(rows: Sequence[LabelledRow]) -> list[ModeSummary]:
    """Return one summary per mode, phase and environment, modes in canonical order."""
    several = len({row.source["phase"] for row in rows}) > 1
    order = mode_order((row.mode, row.base_mode) for row in rows)
    groups: dict[tuple[str, str], list[LabelledRow]] = {}
    for row in sorted(rows, key=lambda row: order.index(row.mode)):
        group = f"{row.source['phase'] if several else ''} {row.where}".strip()
        groups.setdefault((row.mode, group), []).append(row)
    summaries = []
    for (mode, group), of_mode in groups.items():
        ok = [row.source for row in of_mode if row.source["status"] == Status.OK]
        scores = {}
        for metric in SPEEDUPS:
            scores[metric] = mode_score([row.source for row in of_mode], metric)
        memory = over_cells((row.get("relative_memory") for row in ok), geometric_mean, change_text)
        seconds = METRICS["compile_cold_s"].format
        compiled = over_cells((row.get("compile_cold_s") for row in ok), median_interval, seconds)
        slow = any(is_marked(row) and row.get("compile_cold_s") is not None for row in ok)
        bad = Counter(
            str(row.source["status"]) for row in of_mode if row.source["status"] != Status.OK
        )
        not_ok = ", ".join(f"{bad[status]} {status}" for status in sorted(bad, key=severity))
        summaries.append(ModeSummary(mode, group, scores, memory, compiled, not_ok, slow))
    return summaries


def notes_on_means(modes: Sequence[ModeSummary]) -> list[str]:
    """Return what an unclear mean is, if one is, and which modes were run at fewer points than
    others."""
    is_clear_in_all = all(
        score.clear or score.marked for mode in modes for score in mode.scores.values()
    )
    notes = (
        []
        if is_clear_in_all
        else [f"{UNCLEAR} mean: upper bound over {CLEAR:g} times the lower one"]
    )
    fewer = []
    for of_group in grouped(modes, attrgetter("group")).values():
        # the mean of the baseline is 1 at any points
        totals = {
            it.mode: it.scores["speedup"].total
            for it in of_group
            if it.scores["speedup"].value not in (None, 1)
        }
        most = max(totals.values(), default=0)
        fewer += [f"{mode} ({total} of {most})" for mode, total in totals.items() if total < most]
    where = ", ".join(dict.fromkeys(fewer))
    return notes + [
        f"do not compare the mean of a mode that was not run at every point: {where}"
    ] * bool(fewer)


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Return a table of each mode's figures over all cells, with intervals or ranges as second
    lines. Columns without a figure are omitted."""
    metrics = [metric for metric in SPEEDUPS if any(mode.scores[metric].averaged for mode in modes)]
    columns = [Column("mode")]
    for metric in metrics:
        columns.append(Column(metric, f"{METRICS[metric].title}, geometric mean", numeric=True))
    columns += [
        Column("pass_rate", "pass rate", numeric=True),
        Column("not_ok", "not ok", optional=True),
    ]
    if any(mode.memory[0] is not None for mode in modes):
        columns.append(Column("relative_memory", "memory against baseline", numeric=True))
    if any(mode.compiled[0] is not None for mode in modes):
        columns.append(Column("compile_cold_s", "compile, cold (s, median)", numeric=True))
    rows = []
    for mode in modes:
        score = mode.scores["speedup"]
        passed = score.passed / score.total
        rate = 100 if passed == 1 else min(round(100 * passed), 99)
        ratio, ratios = mode.memory
        seconds, interval = mode.compiled
        text = signed(METRICS["compile_cold_s"].format(seconds), mode.compiled_marked)
        row = {
            "mode": Shown(mode.mode, mode.mode, "mode", mode.group, glyph=glyph_of(mode.mode)),
            "pass_rate": Shown(passed, f"{rate} %", sub=f"{score.passed} of {score.total}"),
            "not_ok": Shown(mode.not_ok, mode.not_ok, "status"),
            "relative_memory": Shown(ratio, METRICS["relative_memory"].format(ratio), sub=ratios),
            "compile_cold_s": Shown(
                seconds, text, "unsure" if mode.compiled_marked else "", interval
            ),
        }
        for metric in metrics:
            mean = mode.scores[metric]
            tone = "unsure" if mean.marked else "strong"
            row[metric] = Shown(mean.value, score_text(mean), tone, score_interval(mean))
        rows.append(row)
    return Table(columns, rows, caption="Each mode over all models and batch sizes")


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return the machine and its software versions on one line."""
    parts = [device_sweep.hardware]
    for key in ("driver_version", "cuda_version", "torch_version", "triton_version", "python"):
        if versions := {
            str(environment[key])
            for environment in device_sweep.environments
            if environment.get(key)
        }:
            parts.append(f"{SOFTWARE[key]} {' and '.join(sorted(versions))}")
    return " · ".join(parts)


def sure_changes(changes: Changes) -> list[Any]:
    """Return the significant changes since the earlier sweep. Ambiguous rows are only counted, as
    are missing cells, unless it is a baseline: a sweep of a few cells after one of many is no
    fault."""
    counted = ("same", "ambiguous") if changes.is_baseline else ("same", "ambiguous", "missing")
    return [change for change in changes.compared.changes if change.verdict not in counted]
