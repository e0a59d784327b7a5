"""Speedup tables for `effbench show`, the site and Markdown: the figure of each mode at each point,
the winner of each row, and the legend."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from effbench.analysis.winners import winners
from effbench.core.cell import Result, Status
from effbench.core.environments import interpreter_of, labelled
from effbench.core.errors import UsageError
from effbench.core.labels import (
    LabelledRow,
    LabelledRows,
    grouped,
    mode_order,
)
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS, bounds_of, why_marked
from effbench.core.printable import listed
from effbench.core.table import (
    Column,
    Shown,
    Table,
    as_json,
)
from effbench.render.marks import signed
from effbench.store.summary import PAIRS

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo

FORMATS = ("markdown", "csv", "json")
TIMES = {time: speedup for speedup, time in SPEEDUPS.items()}
NO_INTERVAL = "one trial: no interval over processes"
ONE_COMPILATION = "one compilation: intervals do not include the variation between compilations"
#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
#: How speedups were measured.
FROM_PAIRS = "speedups from pairs: both sides in turn in one process"
NOT_RUN = "not run"
NO_BASELINE = "no baseline"
NO_REASON = "no reason recorded"
#: Tied modes that a row names: more would make it taller than a screen.
MOST_TIES = 6


def rows_of(store: Store, sweep: SweepInfo) -> list[Result]:
    """Return a sweep's results, labelled by interpreter if it has several. The
    rows of a cell are in the order in which the interpreters were given."""
    rows = store.results(sweep.id)
    cells = dict.fromkeys(row.cell_key for row in rows)
    position = {key: index for index, key in enumerate(cells)}
    rank = {name: index for index, name in enumerate(sweep.host.get("environments") or ())}

    def place(row: Result) -> tuple[int, int]:
        return position[row.cell_key], rank.get(row.environment_id, len(rank))

    environments = store.environments(row.environment_id for row in rows)
    return labelled(sorted(rows, key=place), environments)


def unmeasured(store: Store, sweep: SweepInfo, rows: Sequence[Result]) -> list[str]:
    """Return the keys of the planned cells that have no result, for each interpreter of these rows.
    Environments of one interpreter share the cells: nodes of a cluster, shards, or before and after
    an upgrade."""
    environments = store.environments({row.environment_id for row in rows})
    interpreters = {facts["id"]: interpreter_of(facts) for facts in environments}
    planned = [str(cell["key"]) for cell in store.planned_cells(sweep.id)]
    missing = []
    for of_interpreter in grouped(rows, lambda row: interpreters[row.environment_id]).values():
        measured = {row.cell_key for row in of_interpreter}
        missing += [key for key in planned if key not in measured]
    return missing


# --- the figure of one mode at one point ---


@dataclass
class ModeFigure:
    """A metric of one mode at one point, as tables show it. `wins`: it is the only winner of its
    row, and not marked."""

    row: LabelledRow
    metric: str
    baseline_mode: str
    wins: bool = False

    @property
    def result(self) -> Result:
        return self.row.result

    @property
    def status(self) -> Status:
        return self.row.status

    @property
    def trials(self) -> int:
        return self.result.trials

    @property
    def baseline(self) -> bool:
        return bool(self.result.is_baseline)

    @property
    def value(self) -> float | None:
        """In the metric's unit; None unless the result is ok."""
        if not self.row.is_ok:
            return None
        return self.result.value(self.metric)

    @property
    def low(self) -> float | None:
        """The lower bound of the 95 % interval."""
        if not self.row.is_ok:
            return None
        return bounds_of(self.result, self.metric)[0]

    @property
    def high(self) -> float | None:
        if not self.row.is_ok:
            return None
        return bounds_of(self.result, self.metric)[1]

    @property
    def is_compared(self) -> bool:
        """Whether it has a figure that is not the baseline's."""
        return self.value is not None and not self.baseline

    @property
    def is_known(self) -> bool:
        """Whether the figure has an interval over processes."""
        return self.low is not None and self.trials != 1

    @property
    def shown_metric(self) -> str:
        """The time instead of the speedup for the baseline, and for a mode without a baseline, as
        the fastest mode is worth knowing without one."""
        if self.metric in SPEEDUPS and not self.is_compared:
            return SPEEDUPS[self.metric]
        return self.metric

    @cached_property
    def disturbance(self) -> str | None:
        """Why it is marked: measured on a disturbed machine, or compared with a baseline that
        was."""
        if not self.row.is_ok:
            # a degraded mode shows its time
            return why_marked(self.result, SPEEDUPS.get(self.metric, self.metric))
        return why_marked(self.result, self.shown_metric)

    @property
    def marked(self) -> bool:
        return self.disturbance is not None

    @property
    def significant(self) -> bool | None:
        """Whether a speedup's interval excludes 1; None without an interval or with a mark."""
        low, high = self.low, self.high
        is_speedup = self.shown_metric in SPEEDUPS
        if low is None or high is None or not is_speedup or not self.is_known or self.marked:
            return None
        return not low <= 1 <= high

    @property
    def reason(self) -> str | None:
        """Why the result is not ok, or why an ok one has no speedup."""
        lacks_speedup = self.row.is_ok and self.metric in SPEEDUPS and self.value is None
        if lacks_speedup and self.row.reason is None:
            return f"{self.baseline_mode} has no ok result to compare with"
        return self.row.reason

    @cached_property
    def text(self) -> str:
        if not self.row.is_ok:
            return self._text_of_failure
        if self.shown_metric == self.metric:
            return Estimate.of(self.result, self.metric, self.marked).text
        if not self.baseline and self.result.value(self.shown_metric) is None:
            return NO_BASELINE
        return time_text(self.result, self.shown_metric)

    @property
    def _text_of_failure(self) -> str:
        """The status, with a count that may explain it, and what a degraded mode measured: its time
        in the place of a speedup."""
        metric = SPEEDUPS.get(self.metric, self.metric)
        value = self.result.value(metric)
        if value is None:
            return str(self.status)
        if metric in SPEEDUPS.values():
            return f"{time_text(self.result, metric)} ({self.status})"
        return f"{METRICS[metric].format(value)} ({self.status})"

    @cached_property
    def interval(self) -> str:
        """The 95 % interval; times in the place of speedups have one only if they are marked."""
        if not self.row.is_ok or (self.shown_metric != self.metric and not self.marked):
            return ""
        return Estimate.of(self.result, self.shown_metric, self.marked).interval

    @property
    def time(self) -> str:
        """The time that belongs to a speedup, with a mark of its own."""
        if self.row.is_ok and self.shown_metric in SPEEDUPS:
            return time_text(self.result, SPEEDUPS[self.shown_metric])
        return ""

    @property
    def tone(self) -> str:
        if not self.row.is_ok:
            return "status"
        if self.wins:
            return "best"
        if self.marked or self.significant is False:
            return "unsure"
        return ""

    @property
    def shown(self) -> Shown:
        details = "\n".join(filter(None, [self.interval, self.time]))
        return Shown(self.value, self.text, self.tone, details)

    def explanations(self) -> Iterator[str]:
        """Yield what a reader must know about this figure."""
        if self.wins:
            yield "bold or ★: significantly the best of its row"
        if NOT_SIGNIFICANT in self.text:
            yield f"{NOT_SIGNIFICANT}: the interval includes 1"
        if self.interval:
            yield f"low–high: 95 % interval {self._over}"
        if self.is_compared and self.metric in INTERVALS and not self.is_known:
            yield NO_INTERVAL
        if self.is_compared and self.metric in SPEEDUPS and self.result.speedup_from == PAIRS:
            yield FROM_PAIRS
        if self.is_known and self.result.compilations == 1:
            yield ONE_COMPILATION

    @property
    def _over(self) -> str:
        """What the interval is over."""
        if self.trials == 1:
            return "within one process"
        if self.result.hosts:
            return "across hosts"
        return "across processes"

    def record(self) -> dict[str, Any]:
        """Return the exact numbers of CSV and JSON."""
        return {
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "status": self.status,
            "reason": self.reason,
            "best": self.wins,
            "significant": self.significant,
            "trials": self.trials,
            "marked": self.marked,
            "disturbance": self.disturbance,
        }

    def json_record(self) -> dict[str, Any]:
        """Return all fields."""
        texts = {"text": self.text, "interval": self.interval, "baseline": self.baseline}
        return self.record() | texts


def time_text(result: Result, metric: str) -> str:
    """Return a time of a result, with `~` if it is marked; an em dash if it is unknown."""
    is_unsure = why_marked(result, metric) is not None
    return signed(METRICS[metric].format(result.value(metric)), is_unsure)


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, if it has one. A marked one is shown as `~1.30×`, and is
    never called (not) significant."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    marked: bool

    @classmethod
    def of(cls, result: Result, metric: str, marked: bool) -> Estimate:
        low, high = bounds_of(result, metric)
        return cls(metric, result.value(metric), low, high, marked)

    @property
    def text(self) -> str:
        """Return `1.30×`, or `1.02× n.s.`."""
        text = METRICS[self.metric].format(self.value)
        if self.value is None or self.marked:
            return signed(text, self.value is not None)
        if self.low is None or self.high is None or self.metric not in SPEEDUPS:
            return text
        if self.low <= 1 <= self.high and self.low < self.high:
            return f"{text} {NOT_SIGNIFICANT}"
        return text

    @property
    def interval(self) -> str:
        """Return `1.25–1.35`."""
        if self.low is None or self.high is None:
            return ""
        return f"{_without_unit(self.metric, self.low)}–{_without_unit(self.metric, self.high)}"


def _without_unit(metric: str, value: float) -> str:
    return METRICS[metric].format(value).removesuffix(METRICS[metric].unit).rstrip()


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
    def compares(self) -> bool:
        """Whether several modes are ok."""
        return sum(figure.row.is_ok for figure in self.cells.values()) > 1

    @property
    def is_marked(self) -> bool:
        return any(figure.marked for figure in self.cells.values())

    @property
    def is_all_marked(self) -> bool:
        """Whether all ok figures but the baseline's are marked."""
        figures = [figure for figure in self.cells.values() if figure.row.is_ok]
        return all(figure.marked or figure.baseline for figure in figures)

    @property
    def winner(self) -> str | None:
        """The mode that is significantly better than every other mode, or None."""
        if len(self.winners) == 1:
            return self.winners[0]
        return None

    @property
    def best_text(self) -> str:
        """The winner, or `tie: ` and the modes that tie."""
        tie = ""
        if len(self.winners) > 1:
            tie = "tie: "
        return tie + listed(self.winners, MOST_TIES)

    @property
    def quantity(self) -> str:
        """`latency` or `period` for a speedup, otherwise the metric's title."""
        return METRICS[SPEEDUPS.get(self.metric, self.metric)].title


def row_of(
    point: LabelledRows, metric: str, modes: Sequence[str], baseline_mode: str
) -> SpeedupRow:
    """Return the row of the results at one point, with its winners."""
    figures = {row.mode: ModeFigure(row, metric, baseline_mode) for row in point}
    cells = {mode: figures[mode] for mode in modes if mode in figures}
    winning = [row.mode for row in winners([figure.row for figure in cells.values()], metric)]
    made = SpeedupRow(point[0].labels, point[0].case, metric, cells, winning)
    if made.winner is not None:
        # a speedup over a marked baseline is marked, even if the winner's time is not
        winner = cells[made.winner]
        winner.wins = not winner.marked
    return made


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

    @property
    def is_shown(self) -> bool:
        """Whether a cell has a figure, or a status that explains why it has none."""
        return self.has_figures or any(not figure.row.is_ok for figure in self.figures)

    @property
    def is_marked(self) -> bool:
        """Whether a figure is marked."""
        return any(row.is_marked for row in self.rows)

    def legend(self) -> list[str]:
        """Return explanations of the signs in the table, how speedups were measured, and what the
        intervals lack."""
        texts: dict[str, None] = {}
        for figure in self.figures:
            texts |= dict.fromkeys(figure.explanations())
        return [*texts]

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, `csv` (one line per figure, exact numbers) or `json` (all
        fields)."""
        if fmt != "json":
            return replace(self.wide(), data=self.records()).render(fmt)
        rows = []
        for row in self.rows:
            rows.append(
                {
                    "labels": row.labels,
                    "metric": row.metric,
                    "best": row.winners,
                    "cells": {mode: figure.json_record() for mode, figure in row.cells.items()},
                }
            )
        table = {"modes": self.modes, "metrics": self.metrics, "baseline_mode": self.baseline_mode}
        return as_json({"rows": rows, **table})

    def records(self) -> list[dict[str, Any]]:
        """Return one record per figure, for CSV."""
        records = []
        for row in self.rows:
            for mode, figure in row.cells.items():
                named = {"mode": mode, "metric": row.metric}
                records.append(row.labels | named | figure.record())
        return records

    def _label_columns(self) -> list[Column]:
        names = [*self.rows[0].labels] if self.rows else ["model", "bs"]
        columns = []
        for name in names:
            columns.append(
                Column(
                    name,
                    numeric=name == "bs",
                    filter=True,
                    once=True,
                    value=partial(label_of, name=name),
                )
            )
        return columns

    def wide(
        self,
        shown: Callable[[ModeFigure], Shown] = attrgetter("shown"),
        best: bool = True,
        caption: str = "",
    ) -> Table:
        """Return a table with one column per mode. `shown`: returns the content of a cell. `best`:
        add a column with the winner, or the modes that tie."""
        columns = self._label_columns()
        if len(self.metrics) > 1:
            quantity = attrgetter("quantity")
            columns.append(Column("its quantity", "speedup", filter=True, value=quantity))
        for mode in self.modes:
            figure = partial(_shown_figure, mode=mode, shown=shown)
            columns.append(Column(f"mode {mode}", mode, numeric=True, mode=mode, value=figure))
        if best and any(row.winners for row in self.rows):
            columns.append(Column("its best", "best", value=attrgetter("best_text")))
        return Table(columns, self.rows, group="model", caption=caption)


def label_of(row: SpeedupRow, name: str) -> Any:
    return row.labels[name]


def _shown_figure(row: SpeedupRow, mode: str, shown: Callable[[ModeFigure], Shown]) -> Shown:
    if mode not in row.cells:
        return Shown(None, NOT_RUN, "absent")
    return shown(row.cells[mode])


def speedup_table(
    rows: LabelledRows, metric: str | None = "speedup", baseline_mode: str = "eager"
) -> SpeedupTable:
    """Pivot labelled rows of the view `results` into a table of `metric`. `speedup` gives two rows
    per point, for latency and period, if the point has periods to show; the baseline's column shows
    its times. None chooses the speedup, or the latency if no row has a speedup. Raises UsageError
    for an unknown metric."""
    if metric is None:
        has_speedup = any(row.result.speedup is not None for row in rows)
        metric = "latency_ms"
        if has_speedup:
            metric = "speedup"
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    modes = mode_order((row.mode, row.base_mode) for row in rows)
    pivoted = []
    for point in grouped(rows, lambda row: tuple(row.labels.values())).values():
        for name in _metrics_at(point, metric):
            pivoted.append(row_of(point, name, modes, baseline_mode))
    metrics = list(dict.fromkeys(row.metric for row in pivoted))
    return SpeedupTable(pivoted, modes, metrics or [metric], baseline_mode)


def _metrics_at(point: LabelledRows, metric: str) -> list[str]:
    """Return the metrics of the rows of a point."""
    if metric != "speedup":
        return [metric]
    ok = [row.result for row in point if row.is_ok]
    # times without a baseline
    is_compared = any(result.speedup is not None for result in ok)
    period = "period_ms"
    if is_compared:
        period = "period_speedup"
    has_period = any(result.value(period) is not None for result in ok)
    if has_period:
        return [*SPEEDUPS]
    return [metric]
