"""Summary of a sweep: its conclusion, figures of each mode over all models, and the machine.

The interval of a mean speedup covers measurement noise. The choice of cells has no interval,
because cells of one model are not independent; memory and compile time have their range.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from operator import attrgetter
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from effbench.cell import SEVERITY, Result, Status
from effbench.environments import SOFTWARE
from effbench.labels import (
    LabelledRow,
    LabelledRows,
    flatten,
    grouped,
    mode_order,
)
from effbench.metrics import (
    METRICS,
    SPEEDUPS,
    bounds_of,
    change_text,
)
from effbench.report import marks
from effbench.report.colors import glyph_of
from effbench.report.columns import value_text
from effbench.report.marks import signed
from effbench.report.reasons import undecided
from effbench.report.tables import (
    UNCLEAR,
    Row,
    SpeedupTable,
    log_of,
)
from effbench.stats.intervals import (
    CLEAR,
    LogEstimate,
    is_clear,
    mean_of_estimates,
    mean_of_related_estimates,
)
from effbench.store.summary import PAIRS
from effbench.table import Column, Shown, Table

if TYPE_CHECKING:
    from effbench.comparison.verdicts import Change
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
    if status in SEVERITY:
        return SEVERITY.index(status)
    return -1


def count_statuses(rows: Iterable[LabelledRow]) -> dict[str, int]:
    """Return status -> number of results, the worst status first."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in sorted(counts, key=severity)}


def worst_first(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    """Return the results that are not ok, the worst status first."""
    bad = [row for row in rows if not row.is_ok]
    return sorted(bad, key=lambda row: severity(row.status))


def headline(table: SpeedupTable, modes: Sequence[ModeSummary]) -> str:
    """Return the conclusion for each metric of the table: the mode that wins most of the points
    (model × batch size) with several ok modes, and its mean speedup."""
    if not any(mode.scores["speedup"].passed for mode in modes):
        return "No result of this sweep is ok."
    means = {mode.mode: mode for mode in modes}
    if len(means) < 2:
        return f"Only the mode {modes[0].mode} was run: there is nothing to compare it with."
    decided = [row for row in table.rows if row.best]
    if not decided:
        return undecided(table.rows).capitalize()
    sentences, points = [], "points (model × batch size)"
    for metric, rows in grouped(decided, attrgetter("metric")).items():
        conclusion = _conclusion(rows, metric, means, points)
        sentences.append(f"{rows[0].quantity.capitalize()}: {conclusion}.")
        points = "points"
    return " ".join(sentences)


def _conclusion(
    rows: Sequence[Row], metric: str, means: Mapping[str, ModeSummary], points: str
) -> str:
    """Return which mode wins most of the decided rows of a metric: `default wins 5 of 9 points, 2
    are ties; its mean speedup is 1.30×`."""
    winners = [row.winner for row in rows if row.winner is not None]
    wins = Counter(winners)
    if not wins:
        return f"no mode wins any of {len(rows)} {points}"
    most = max(wins.values())
    first = [mode for mode, number in wins.items() if number == most]
    best = max(first, key=lambda mode: means[mode].scores[metric].value or 0)
    text = f"{best} wins {most} of {len(rows)} {points}"
    if len(first) > 1:
        first.remove(best)
        text += f", as many as {' and '.join(first)}"
    text += _ties_text(len(rows) - len(winners))
    score = means[best].scores[metric]
    if score.value and score.clear and not means[best].group:
        text += f"; its mean speedup is {score_text(score)}"
    return text


def _ties_text(ties: int) -> str:
    if ties == 1:
        return ", 1 is a tie"
    return f", {ties} are ties" if ties else ""


# --- each mode over all points ---


@dataclass(frozen=True)
class OverCells:
    """The middle of one value per cell (None without any), and its range as text. `marked`: whether
    a value is marked."""

    value: float | None
    range: str
    marked: bool = False

    def shown(self, metric: str) -> Shown:
        text = signed(METRICS[metric].format(self.value), self.marked)
        return Shown(self.value, text, "unsure" if self.marked else "", self.range)


def over_cells(
    values: Iterable[float | None],
    middle: Callable[[Sequence[float]], float],
    form: Callable[[float], str],
) -> OverCells:
    """Return the mean or median of one value per cell. Missing, infinite and non-positive values
    are skipped."""
    known = [float(value) for value in values if value is not None and 0 < value < math.inf]
    if not known:
        return OverCells(None, "")
    low, high = min(known), max(known)
    if not math.isclose(low, high, rel_tol=ALIKE):
        return OverCells(middle(known), f"range {form(low)} to {form(high)}")
    return OverCells(low, "one cell" if len(known) == 1 else f"the same in all {len(known)}")


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


def mode_score(results: Sequence[Result], metric: str) -> ModeScore:
    """Return the mean of a speedup over the ok results of a mode, with a 95 % interval for these
    cells. It requires an interval and at least two trials of each cell. With at least three trials
    it covers 93 to 98.2 %."""
    ok = [result for result in results if result.status is Status.OK]
    counted = [result for result in ok if result.value(metric) is not None]
    if not counted:
        return ModeScore(None, averaged=0, passed=len(ok), total=len(results))
    have_mark = [marks.reason(result, metric) is not None for result in counted]
    estimates = []
    for result, marked in zip(counted, have_mark, strict=True):
        estimates.append(estimate_of(result, metric, marked))
    mean_of = mean_of_estimates
    if any(result.hosts for result in results):
        # hosts that were joined are the same in all cells
        mean_of = mean_of_related_estimates
    mean = mean_of(estimates).interval()
    return ModeScore(
        mean.value,
        averaged=len(counted),
        passed=len(ok),
        total=len(results),
        low=mean.low,
        high=mean.high,
        marked=any(have_mark),
    )


def estimate_of(result: Result, metric: str, marked: bool) -> LogEstimate:
    """Return the logarithm of a result's speedup. Averaging does not reduce what a disturbance may
    change, so the whole interval of a marked speedup counts as such."""
    df_per_trial = SPEEDUP_DF
    if result.speedup_from == PAIRS:
        df_per_trial = 1.0
    estimate = log_of(result, metric, df_per_trial)
    low, high = bounds_of(result, metric)
    if not marked or low is None or high is None or low <= 0:
        return estimate
    below = estimate.value - math.log(low)
    above = math.log(high) - estimate.value
    return LogEstimate(estimate.value, error=0.0, df=1.0, below=below, above=above)


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results in one phase and environment: training steps are not averaged
    with inference calls. `group` names phase and environment if there are several. `scores`: one
    per speedup. `memory`: a ratio; `compiled`: in seconds."""

    mode: str
    group: str
    scores: dict[str, ModeScore]
    memory: OverCells
    compiled: OverCells
    not_ok: str


def score_text(score: ModeScore) -> str:
    if not score.clear and not score.marked:
        return UNCLEAR
    return signed(METRICS["speedup"].format(score.value), score.marked)


def score_interval(score: ModeScore) -> str:
    """Return `1.88–1.98`, and the number of cells unless all ok cells count."""
    words = []
    if score.low is not None and score.high is not None and score.low < score.high:
        words.append(f"{_bound_text(score.low)}–{_bound_text(score.high)}")
    if 0 < score.averaged < score.passed:
        words.append(f"of {score.averaged}")
    return ", ".join(words)


def _bound_text(bound: float) -> str:
    if bound >= 100:
        return f"{bound:,.0f}"
    return METRICS["speedup"].format(bound).removesuffix("×")


def by_mode(rows: LabelledRows) -> list[ModeSummary]:
    """Return one summary per mode, phase and environment, modes in canonical order."""
    has_phases = len({row.result.phase for row in rows}) > 1
    order = mode_order((row.mode, row.base_mode) for row in rows)

    def group(row: LabelledRow) -> tuple[str, str]:
        phase = ""
        if has_phases:
            phase = row.result.phase
        return row.mode, f"{phase} {row.where}".strip()

    in_order = sorted(rows, key=lambda row: order.index(row.mode))
    return [summarise(*key, of_mode) for key, of_mode in grouped(in_order, group).items()]


def summarise(mode: str, group: str, rows: LabelledRows) -> ModeSummary:
    """Return the summary of a mode's results in one group."""
    results = [row.result for row in rows]
    ok = [row.result for row in rows if row.is_ok]
    statuses = count_statuses(row for row in rows if not row.is_ok)
    compiled = [result for result in ok if result.compile_cold_s is not None]
    seconds = over_cells(
        (result.compile_cold_s for result in compiled), median, METRICS["compile_cold_s"].format
    )
    return ModeSummary(
        mode,
        group,
        scores={metric: mode_score(results, metric) for metric in SPEEDUPS},
        memory=over_cells((result.relative_memory for result in ok), geometric_mean, change_text),
        compiled=replace(seconds, marked=any(result.marked for result in compiled)),
        not_ok=", ".join(f"{number} {status}" for status, number in statuses.items()),
    )


def notes_on_means(modes: Sequence[ModeSummary]) -> list[str]:
    """Return what an unclear mean is, if one is, and which modes were run at fewer points than
    others."""
    notes = []
    scores = [score for mode in modes for score in mode.scores.values()]
    if not all(score.clear or score.marked for score in scores):
        notes.append(f"{UNCLEAR} mean: upper bound over {CLEAR:g} times the lower one")
    fewer: list[str] = []
    for of_group in grouped(modes, attrgetter("group")).values():
        fewer += _run_less(of_group)
    if fewer:
        where = ", ".join(dict.fromkeys(fewer))
        notes.append(f"do not compare the mean of a mode that was not run at every point: {where}")
    return notes


def _run_less(modes: Sequence[ModeSummary]) -> list[str]:
    """Return the modes that were run at fewer points than others."""
    # the mean of the baseline is 1 at any points
    others = [mode for mode in modes if mode.scores["speedup"].value not in (None, 1)]
    totals = {mode.mode: mode.scores["speedup"].total for mode in others}
    most = max(totals.values(), default=0)
    return [f"{name} ({total} of {most})" for name, total in totals.items() if total < most]


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Return a table of each mode's figures over all cells, with intervals or ranges as second
    lines. Columns without a figure are omitted."""
    columns = [Column("mode")]
    for metric in SPEEDUPS:
        if any(mode.scores[metric].averaged for mode in modes):
            title = f"{METRICS[metric].title}, geometric mean"
            columns.append(Column(metric, title, numeric=True))
    columns.append(Column("pass_rate", "pass rate", numeric=True))
    columns.append(Column("not_ok", "not ok", optional=True))
    if any(mode.memory.value is not None for mode in modes):
        columns.append(Column("relative_memory", "memory against baseline", numeric=True))
    if any(mode.compiled.value is not None for mode in modes):
        columns.append(Column("compile_cold_s", "compile, cold (s, median)", numeric=True))
    rows = [_mode_row(mode) for mode in modes]
    return Table(columns, rows, caption="Each mode over all models and batch sizes")


def _mode_row(mode: ModeSummary) -> dict[str, Any]:
    """Return the row of a mode in `modes_table`."""
    score = mode.scores["speedup"]
    passed = score.passed / score.total
    rate = 100 if passed == 1 else min(round(100 * passed), 99)
    row = {
        "mode": Shown(mode.mode, mode.mode, "mode", mode.group, glyph=glyph_of(mode.mode)),
        "pass_rate": Shown(passed, f"{rate} %", sub=f"{score.passed} of {score.total}"),
        "not_ok": Shown(mode.not_ok, mode.not_ok, "status"),
        "relative_memory": mode.memory.shown("relative_memory"),
        "compile_cold_s": mode.compiled.shown("compile_cold_s"),
    }
    for metric, mean in mode.scores.items():
        tone = "strong"
        if mean.marked:
            tone = "unsure"
        row[metric] = Shown(mean.value, score_text(mean), tone, score_interval(mean))
    return row


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return the machine and its software versions on one line."""
    parts = [device_sweep.hardware]
    for key in ("driver_version", "cuda_version", "torch_version", "triton_version", "python"):
        versions = {row.get(key) for row in device_sweep.environments} - {None, ""}
        if versions:
            parts.append(f"{SOFTWARE[key]} {' and '.join(sorted(map(str, versions)))}")
    return " · ".join(parts)


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return every recorded fact about a machine and its software as text."""
    facts = flatten(environment)
    return {name: value_text(name, value) for name, value in facts.items() if value is not None}


def sure_changes(changes: Changes) -> list[Change]:
    """Return the significant changes since the earlier sweep. Ambiguous rows are only counted, as
    are missing cells, unless it is a baseline: a sweep of a few cells after one of many is no
    fault."""
    if changes.compared is None:
        return []
    counted = {"same", "ambiguous"}
    if not changes.is_baseline:
        counted.add("missing")
    return [change for change in changes.compared.changes if change.verdict not in counted]
