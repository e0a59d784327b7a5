"""Speedup tables for `effbench show`, the site and Markdown: the figure of each mode at each point,
the winner of each row, and the legend.

A `LabelledResult` becomes the `ModeFigure` of a `SpeedupRow`; the rows are a `SpeedupTable`, which
becomes a `core.table.Table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from effbench.analysis.winners import winners
from effbench.core.cell import COLDSTART, Result
from effbench.core.environments import labelled
from effbench.core.labels import LabelledResult, LabelledResults, grouped, modes_of
from effbench.core.metrics import METRICS, SPEEDUPS, bounds_of
from effbench.core.printable import listed
from effbench.core.table import Column, Shown, Table
from effbench.render.marks import NOT_SIGNIFICANT, Estimate
from effbench.store.summary import PAIRS

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo

FORMATS = ("markdown", "csv", "json")
ONE_COMPILATION = "one compilation: intervals do not include the variation between compilations"
NO_BASELINE = "no ok baseline to compare with"
NO_REASON = "no reason recorded"
#: Stands for the figure of a mode that was not run at a point.
NOT_RUN = Shown(None, "not run", "absent")
#: Tied modes that a row names: more would make it taller than a screen.
MOST_TIES = 6


def rows_of(store: Store, sweep: SweepInfo) -> list[Result]:
    """Return a sweep's results, labelled by interpreter if it has several. The rows of a cell are
    in the order in which the interpreters were given."""
    turns = {environment_id: turn for turn, environment_id in enumerate(sweep.interpreters)}
    rows = []
    for of_cell in grouped(store.results(sweep.id), attrgetter("cell_key")).values():
        rows += sorted(of_cell, key=lambda row: turns.get(row.environment_id, len(turns)))
    return labelled(rows, store.environments(row.environment_id for row in rows))


def unmeasured(store: Store, sweep: SweepInfo, rows: Sequence[Result]) -> list[str]:
    """Return the keys of the planned cells that have no result, for each interpreter of these rows.
    Environments of one interpreter share the cells: nodes of a cluster, or before and after an
    upgrade."""
    environments = store.environments({row.environment_id for row in rows})
    interpreters = {known.id: (known.interpreter, known.folder) for known in environments}
    measured = {(interpreters[row.environment_id], row.cell_key) for row in rows}
    planned = store.cell_overrides(sweep.id)
    missing = []
    for interpreter in dict.fromkeys(interpreters.values()) or [()]:
        missing += [key for key in planned if (interpreter, key) not in measured]
    return missing


# --- the figure of one mode at one point ---


@dataclass
class ModeFigure:
    """A metric of one mode at one point. `wins`: it is the only winner of its row."""

    result: LabelledResult
    metric: str
    wins: bool

    @property
    def value(self) -> float | None:
        """In the metric's unit; None unless the result is ok."""
        if not self.result.is_ok:
            return None
        return self.result.value(self.metric)

    @cached_property
    def estimate(self) -> Estimate:
        """What people see: the metric, or the time in the place of a speedup of the baseline, of a
        mode without a baseline, and of a mode that is not ok."""
        shown = self.metric
        if self.value is None or self.result.is_baseline:
            shown = SPEEDUPS.get(self.metric, self.metric)
        return Estimate.of(self.result, shown)

    @property
    def is_ratio(self) -> bool:
        """Whether people see a speedup."""
        return self.estimate.metric in SPEEDUPS

    @property
    def significant(self) -> bool | None:
        """Whether a speedup's interval over processes excludes 1; None without one."""
        if not self.result.is_ok or self.result.trials == 1:
            return None
        return self.estimate.is_significant

    @property
    def reason(self) -> str | None:
        """Why the result is not ok, or why an ok one has no speedup."""
        lacks_speedup = self.result.is_ok and self.metric in SPEEDUPS and self.value is None
        if lacks_speedup and self.result.reason is None:
            return NO_BASELINE
        return self.result.reason

    @property
    def text(self) -> str:
        """The figure, or the status with what a degraded mode measured, or with a count that may
        explain it."""
        if self.result.is_ok:
            return self.estimate.text
        if self.estimate.value is None:
            return str(self.result.status)
        return f"{self.estimate.text} ({self.result.status})"

    @property
    def interval(self) -> str:
        """The 95 % interval; times in the place of speedups have one only if they are marked."""
        is_in_place = self.estimate.metric != self.metric and not self.estimate.is_marked
        if not self.result.is_ok or is_in_place:
            return ""
        return self.estimate.interval

    @property
    def time(self) -> str:
        """The time that belongs to a speedup, with a mark of its own."""
        if not self.is_ratio:
            return ""
        return Estimate.of(self.result, SPEEDUPS[self.metric]).text

    def shown(self) -> Shown:
        """Return the figure with its interval and its time."""
        tone = self.estimate.tone
        if not self.result.is_ok:
            tone = "status"
        elif self.wins:
            tone = "best"
        details = ", ".join(filter(None, (self.interval, self.time)))
        return Shown(self.value, self.text, tone, details)

    @property
    def scope(self) -> str:
        """What the shown interval covers."""
        if self.result.trials == 1:
            return "within one process"
        if self.result.hosts:
            return "across hosts"
        return "across processes"

    def explanations(self) -> Iterator[str]:
        """Yield what a reader must know about this figure."""
        if self.wins:
            yield "bold or ★: significantly the best of its row"
        if self.result.is_ok and self.estimate.is_significant is False:
            yield f"{NOT_SIGNIFICANT}: the interval includes 1"
        if self.interval:
            yield f"low–high: 95 % interval {self.scope}"
        if self.is_ratio and self.result.speedup_from == PAIRS and not self.result.hosts:
            yield "speedups from pairs: both sides in turn in one process"
        if self.interval and self.result.trials > 1 and self.result.compilations == 1:
            yield ONE_COMPILATION

    def record(self) -> dict[str, Any]:
        """Return the exact numbers of CSV and JSON."""
        low, high = bounds_of(self.result, self.metric)
        if not self.result.is_ok:
            low, high = None, None
        return {
            "value": self.value,
            "low": low,
            "high": high,
            "status": self.result.status,
            "reason": self.reason,
            "best": self.wins,
            "significant": self.significant,
            "trials": self.result.trials,
            "marked": self.estimate.is_marked,
            "disturbance": self.estimate.disturbance,
        }


# --- a row: one metric of all modes at one point ---


@dataclass
class SpeedupRow:
    """One metric at one point. `labels`: model, other swept parameters, bs. `case`: all labels
    except bs, as text. `cells`: mode -> figure of the modes that were run. `winners`: the modes
    that win (see `analysis.winners`)."""

    labels: dict[str, Any]
    case: str
    metric: str
    cells: dict[str, ModeFigure]
    winners: Sequence[str]

    @property
    def best_text(self) -> str:
        """The winner, or `tie: ` and the modes that tie."""
        text = listed(self.winners, MOST_TIES)
        if len(self.winners) > 1:
            return f"tie: {text}"
        return text

    @property
    def quantity(self) -> str:
        """`latency` or `period` for a speedup, otherwise the metric's title."""
        return METRICS[SPEEDUPS.get(self.metric, self.metric)].title


def label_columns(labels: Iterable[str], once: bool = False) -> list[Column]:
    """Return a column for each label. `once`: see `Column`."""
    return [Column(name, numeric=name == "bs", filter=True, once=once) for name in labels]


def row_of(point: LabelledResults, metric: str, modes: Sequence[str]) -> SpeedupRow:
    """Return the row of the results at one point, with its winners."""
    in_order = sorted(point, key=lambda row: modes.index(row.mode_label))
    winning = winners(in_order, metric)
    cells = {row.mode_label: ModeFigure(row, metric, wins=winning == [row]) for row in in_order}
    return SpeedupRow(
        point[0].labels,
        point[0].case,
        metric,
        cells,
        winners=[row.mode_label for row in winning],
    )


# --- the table ---


@dataclass
class SpeedupTable:
    """Metrics of each mode at each point (model, other swept parameters, bs): a row per point and
    metric."""

    rows: list[SpeedupRow]
    modes: list[str]
    metrics: list[str]
    baseline_mode: str = "eager"

    @property
    def figures(self) -> list[ModeFigure]:
        return [figure for row in self.rows for figure in row.cells.values()]

    @property
    def has_figures(self) -> bool:
        """Whether a cell has a figure of a metric of this table."""
        return any(figure.value is not None for figure in self.figures)

    def has_figures_of(self, metric: str) -> bool:
        """Whether a cell has a figure of this metric."""
        return any(figure.value is not None for figure in self.figures if figure.metric == metric)

    @property
    def is_marked(self) -> bool:
        """Whether a figure is marked."""
        return any(figure.estimate.is_marked for figure in self.figures)

    def legend(self) -> list[str]:
        """Return explanations of the signs in the table, how speedups were measured, and what the
        intervals lack."""
        texts = chain.from_iterable(figure.explanations() for figure in self.figures)
        return list(dict.fromkeys(texts))

    def wide(self, best: bool = True) -> Table:
        """Return a table with one column per mode. `best`: add a column with the winner, or the
        modes that tie."""
        columns = label_columns(self.rows[0].labels, once=True)
        if len(self.metrics) > 1:
            title = "speedup" if set(self.metrics) <= set(SPEEDUPS) else "metric"
            columns.append(Column("its quantity", title, filter=True))
        for mode in self.modes:
            columns.append(Column(f"mode {mode}", mode, numeric=True, mode=mode))
        if best and any(row.winners for row in self.rows):
            columns.append(Column("its best", "best"))
        rows = []
        for row in self.rows:
            record = row.labels | {"its quantity": row.quantity, "its best": row.best_text}
            for mode in self.modes:
                figure = row.cells.get(mode)
                record[f"mode {mode}"] = figure.shown() if figure else NOT_RUN
            rows.append(record)
        return Table(columns, rows)

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, or its records as `csv` or `json`."""
        return replace(self.wide(), data=self.records()).render(fmt)

    def records(self) -> list[dict[str, Any]]:
        """Return one record per figure, with exact numbers."""
        records = []
        for row in self.rows:
            for mode, figure in row.cells.items():
                records.append(row.labels | {"mode": mode, "metric": row.metric} | figure.record())
        return records


def speedup_table(
    rows: LabelledResults,
    metric: str | None = "speedup",
    baseline_mode: str = "eager",
    others: Sequence[str] = (),
) -> SpeedupTable:
    """Pivot labelled rows of the view `results` into a table of `metric`, a key of METRICS.
    `speedup` gives two rows per point, for latency and period, if the point has periods to show;
    the baseline's column shows its times. None: see `default_metric`. `others`: metrics in further
    rows."""
    if metric is None:
        metric = default_metric(rows)
    modes = modes_of(rows)
    pivoted = []
    for point in grouped(rows, lambda row: tuple(row.labels.values())).values():
        for name in (*_metrics_at(point, metric), *others):
            pivoted.append(row_of(point, name, modes))
    metrics = list(dict.fromkeys(row.metric for row in pivoted))
    return SpeedupTable(pivoted, modes, metrics, baseline_mode)


def default_metric(rows: LabelledResults) -> str:
    """Return the cold start if all rows are of that phase, otherwise the speedup, or the latency if
    no row has a speedup."""
    if all(row.phase == COLDSTART for row in rows):
        return "cold_s"
    if any(row.speedup is not None for row in rows):
        return "speedup"
    return "latency_ms"


def _metrics_at(point: LabelledResults, metric: str) -> list[str]:
    """Return the metrics of the rows of a point."""
    if metric != "speedup":
        return [metric]
    ok = [row for row in point if row.is_ok]
    has_speedup = any(result.speedup is not None for result in ok)
    period = "period_speedup" if has_speedup else "period_ms"
    if any(result.value(period) is not None for result in ok):
        return [*SPEEDUPS]
    return [metric]
