"""Summary of a sweep: its conclusion, figures of each mode over all models, and the machine.

The interval of a mean speedup covers measurement noise. The choice of cells has no interval,
because cells of one model are not independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import geometric_mean, median
from typing import TYPE_CHECKING

from effbench.analysis.winners import log_of
from effbench.core.cell import Result, Status
from effbench.core.environments import SOFTWARE
from effbench.core.labels import LabelledResult, LabelledResults, grouped, modes_of
from effbench.core.metrics import METRICS, SPEEDUPS, bounds_of, why_marked
from effbench.core.printable import count, tally
from effbench.core.table import Column, Shown, Table
from effbench.render.colors import glyph_of
from effbench.render.marks import Estimate
from effbench.render.tables import SpeedupRow, SpeedupTable
from effbench.stats.intervals import (
    LogEstimate,
    is_clear,
    mean_of_estimates,
    mean_of_related_estimates,
)
from effbench.store.summary import PAIRS

if TYPE_CHECKING:
    from effbench.render.data import DeviceSweep

#: Assumed degrees of freedom ÷ (n - 1) of a speedup's interval with n trials per side, of separate
#: processes; the true ratio is 1 to 2.
SPEEDUP_DF = 1.25


def count_statuses(rows: Iterable[LabelledResult]) -> dict[Status, int]:
    """Return status -> number of results, the worst status first."""
    counts = Counter(row.status for row in rows)
    return {status: counts[status] for status in Status if status in counts}


# --- the conclusion ---


def headline(table: SpeedupTable, modes: Sequence[ModeSummary]) -> str:
    """Return the conclusion for each metric of the table: the mode that wins most of the points
    (model × batch size) with several ok modes, and its mean speedup."""
    decided = [row for row in table.rows if row.winners]
    if not decided:
        return (
            "No mode wins: at each point fewer than two modes are ok, figures are marked (~), or"
            " there is one trial of each."
        )
    by_metric = grouped(decided, attrgetter("metric"))
    return " ".join(conclusion(rows, modes) for rows in by_metric.values())


def conclusion(rows: Sequence[SpeedupRow], modes: Sequence[ModeSummary]) -> str:
    """Return which mode wins most of the decided rows of a metric, with its mean speedup unless
    the interval is too wide to quote it."""
    wins = Counter(row.winners[0] for row in rows if len(row.winners) == 1)
    ties = len(rows) - wins.total()
    text = f"{rows[0].quantity.capitalize()} at {count(len(rows), 'point')} (model × batch size): "
    if not wins:
        return f"{text}no mode wins."
    ((first, number),) = wins.most_common(1)
    text += f"{first} wins {number}"
    if ties:
        text += f", with {ties} tied"
    (mean, *_) = [mode.speedups[rows[0].metric] for mode in modes if mode.mode == first]
    if is_clear(mean.low, mean.high):
        text += f"; its mean speedup is {mean.text}"
    return f"{text}."


# --- each mode over all points ---


def over_cells(
    results: Iterable[Result], metric: str, middle: Callable[[Sequence[float]], float]
) -> Estimate:
    """Return the mean or median of a metric. Unknown values and those of 0 are skipped."""
    known = [result for result in results if result.value(metric)]
    values = [result.value(metric) or 0.0 for result in known]
    if not values:
        return Estimate(metric, None)
    return Estimate(metric, middle(values), disturbance=mark_of(known, metric))


def mean_speedup(results: Sequence[Result], metric: str) -> Estimate:
    """Return the geometric mean of a speedup over ok results of a mode, with a 95 % interval for
    these cells. It requires an interval and at least two trials of each cell. With at least three
    trials it covers 93 to 98.2 %."""
    known = [result for result in results if result.value(metric) is not None]
    if not known:
        return Estimate(metric, None)
    mean_of = mean_of_estimates
    if any(result.hosts for result in results):
        # hosts that were joined are the same in all cells
        mean_of = mean_of_related_estimates
    mean = mean_of([estimate_of(result, metric) for result in known]).interval()
    return Estimate(metric, mean.value, mean.low, mean.high, mark_of(known, metric))


def mark_of(results: Iterable[Result], metric: str) -> str | None:
    """Return why the first of the marked results is marked; None if none is."""
    return next(filter(None, (why_marked(result, metric) for result in results)), None)


def estimate_of(result: Result, metric: str) -> LogEstimate:
    """Return the logarithm of a result's speedup. Averaging does not reduce what a disturbance may
    change, so the whole interval of a marked speedup counts as such."""
    df_per_trial = 1.0 if result.speedup_from == PAIRS else SPEEDUP_DF
    estimate = log_of(result, metric, df_per_trial)
    low, high = bounds_of(result, metric)
    if why_marked(result, metric) is None or not low or not high:
        return estimate
    below = estimate.value - math.log(low)
    above = math.log(high) - estimate.value
    return LogEstimate(estimate.value, error=0.0, df=1.0, below=below, above=above)


@dataclass(frozen=True)
class ModeSummary:
    """A mode over all its results in one phase and environment: training steps are not averaged
    with inference calls. `group` names phase and environment if there are several. `ok`: number of
    ok results out of `total`. `memory`: a ratio; `compiled`: in seconds."""

    mode: str
    group: str
    ok: int
    total: int
    speedups: dict[str, Estimate]
    memory: Estimate
    compiled: Estimate
    not_ok: str


def by_mode(rows: LabelledResults) -> list[ModeSummary]:
    """Return one summary per mode, phase and environment, modes in canonical order."""
    has_phases = len({row.phase for row in rows}) > 1
    order = modes_of(rows)

    def group(row: LabelledResult) -> tuple[str, str]:
        phase = row.phase if has_phases else ""
        return row.mode_label, f"{phase} {row.where}".strip()

    summaries = []
    for (mode, name), of_mode in grouped(rows, group).items():
        ok = [row for row in of_mode if row.is_ok]
        failed = [row for row in of_mode if not row.is_ok]
        summary = ModeSummary(
            mode,
            name,
            ok=len(ok),
            total=len(of_mode),
            speedups={metric: mean_speedup(ok, metric) for metric in SPEEDUPS},
            memory=over_cells(ok, "relative_memory", geometric_mean),
            compiled=over_cells(ok, "compile_cold_s", median),
            not_ok=tally(count_statuses(failed).items()),
        )
        summaries.append(summary)
    return sorted(summaries, key=lambda summary: order.index(summary.mode))


def modes_table(modes: Sequence[ModeSummary]) -> Table:
    """Return a table of each mode's figures over all cells."""
    columns = [Column("mode")]
    for metric in SPEEDUPS:
        title = f"{METRICS[metric].title}, geometric mean"
        columns.append(Column(metric, title, numeric=True, optional=True))
    columns += [
        Column("pass_rate", "pass rate", numeric=True),
        Column("not_ok", "not ok", optional=True),
        Column("memory", "memory against baseline", numeric=True, optional=True),
        Column("compiled", "compile, cold (median)", numeric=True, optional=True),
    ]
    rows = []
    for mode in modes:
        rate, of_total = f"{100 * mode.ok // mode.total} %", f"{mode.ok} of {mode.total}"
        rows.append(
            {
                "mode": Shown(mode.mode, mode.mode, "mode", mode.group, glyph=glyph_of(mode.mode)),
                **{metric: speedup.shown for metric, speedup in mode.speedups.items()},
                "pass_rate": Shown(mode.ok / mode.total, rate, details=of_total),
                "not_ok": mode.not_ok,
                "memory": mode.memory.shown,
                "compiled": mode.compiled.shown,
            }
        )
    return Table(columns, rows, caption="Each mode over all models and batch sizes")


# --- the machine ---


def environment_line(device_sweep: DeviceSweep) -> str:
    """Return the machine and its software versions on one line."""
    parts = [device_sweep.hardware]
    for key in ("driver_version", "cuda_version", "torch_version", "triton_version", "python"):
        versions = {getattr(known, key) for known in device_sweep.environments} - {None, ""}
        if versions:
            parts.append(f"{SOFTWARE[key]} {' and '.join(sorted(map(str, versions)))}")
    return " · ".join(parts)
