"""Speedup tables for `effbench show`, the site and Markdown: entries, the winner of each row, and
what explains them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from effbench.cell import Result
from effbench.environments import labelled
from effbench.errors import UsageError
from effbench.labels import (
    LabelledRow,
    LabelledRows,
    grouped,
    mode_order,
)
from effbench.metrics import (
    INTERVALS,
    METRICS,
    SPEEDUPS,
    Better,
    bounds_of,
)
from effbench.printable import listed
from effbench.report import marks
from effbench.report.marks import signed
from effbench.stats.elimination import moderated
from effbench.stats.intervals import LogEstimate, is_less, stored_log_mean
from effbench.store.summary import PAIRS, SEPARATE
from effbench.table import (
    Column,
    Shown,
    Table,
    as_json,
)

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo

FORMATS = ("markdown", "csv", "json")
TIMES = {time: speedup for speedup, time in SPEEDUPS.items()}
#: Replaces a figure whose interval is too wide.
UNCLEAR = "unclear"
#: Follows the interval of an unclear mean.
TOO_WIDE = "too wide to state a mean"
NO_INTERVAL = "one trial: no interval over processes"
SOME_INTERVALS = "without an interval over processes: the mode or its baseline has one trial"
ONE_COMPILATION = "one compilation: intervals do not include the variation between compilations"
#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
#: Ratio of the bounds above which a figure is unclear; for means over cells it is
#: `intervals.CLEAR`.
UNKNOWN = 100
IS_UNCLEAR = f"{UNCLEAR}: upper bound over {UNKNOWN} times the lower one"
#: How speedups were measured.
FROM_PAIRS = "speedups from pairs: both sides in turn in one process"
NO_BASELINE = "no baseline"
NO_REASON = "no reason recorded"
#: Tied modes that a row names: more would make it taller than a screen.
MOST_TIES = 6
#: Fields of an entry in CSV.
FACTS = (
    "value",
    "low",
    "high",
    "status",
    "reason",
    "best",
    "significant",
    "trials",
    "marked",
    "disturbance",
)
#: Rates, whose best mode a time decides.
RATES = ("throughput_per_s", "tokens_per_s")


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


# --- an entry: one mode at one point ---


@dataclass
class Entry:
    """One mode at one point. `value`, `low` and `high` are in the metric's unit, and None unless
    `status` is `ok`. `status` is None if the mode was not run. Only speedups with an interval and
    without a mark have `significant`. `best`: significantly better than every other mode of its
    row, and not marked. `disturbance`: why it is marked: measured on a disturbed machine, or
    compared with a baseline that was. `time`: of a speedup, with a mark of its own."""

    text: str = "not run"
    interval: str = ""
    time: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    reason: str | None = None
    best: bool = False
    trials: int | None = None
    significant: bool | None = None
    baseline: bool = False
    disturbance: str | None = None
    result: Result | None = None

    @property
    def marked(self) -> bool:
        return self.disturbance is not None

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"

    @property
    def is_unclear(self) -> bool:
        return self.text == UNCLEAR

    @property
    def is_compared(self) -> bool:
        """Whether it has a figure that is not the baseline's."""
        return self.value is not None and not self.baseline

    @property
    def is_known(self) -> bool:
        """Whether the figure has an interval over processes."""
        return self.low is not None and self.high is not None and self.trials != 1

    @property
    def tone(self) -> str:
        if not self.is_ok:
            return "status"
        if self.best:
            return "best"
        if self.marked or self.significant is False:
            return "unsure"
        return ""

    @property
    def shown(self) -> Shown:
        return Shown(self.value, self.text, self.tone, self.details)

    @property
    def details(self) -> str:
        """The interval and, on a line of its own, the time that belongs to a speedup."""
        return "\n".join(filter(None, [self.interval, self.time]))

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


def is_baseline(row: LabelledRow, baseline_mode: str) -> bool:
    """Return whether other modes are compared with this result. Of several variants of the baseline
    mode, this is the one with a speedup of exactly 1, unless none has a speedup."""
    return row.base_mode == baseline_mode and row.result.speedup in (None, 1.0)


def entry_of(row: LabelledRow, metric: str, baseline_mode: str) -> Entry:
    """Return the entry of a result."""
    entry = Entry(
        text=row.status,
        status=row.status,
        reason=row.reason,
        trials=row.result.trials,
        baseline=is_baseline(row, baseline_mode),
        result=row.result,
    )
    value, low, high = figure_of(row.result, metric)
    if not row.is_ok:
        # a count may explain the status, and what a degraded mode measured is worth knowing
        if metric not in SPEEDUPS and value is not None:
            entry.text = f"{METRICS[metric].format(value)} ({row.status})"
        return entry
    entry.value, entry.low, entry.high = value, low, high
    if metric in SPEEDUPS and (entry.baseline or value is None):
        _show_time(entry, row.result, SPEEDUPS[metric], baseline_mode)
        return entry
    entry.disturbance = marks.reason(row.result, metric)
    entry.text, entry.interval = figure_texts(metric, value, low, high, entry.marked)
    if metric in SPEEDUPS:
        entry.time = time_text(row.result, SPEEDUPS[metric])
        if low is not None and high is not None and entry.is_known and not entry.marked:
            entry.significant = not low <= 1 <= high
    return entry


def _show_time(entry: Entry, result: Result, time: str, baseline_mode: str) -> None:
    """Show the time instead of the speedup: of the baseline, and of a mode without a baseline, as
    the fastest mode is worth knowing without one."""
    entry.disturbance = marks.reason(result, time)
    if entry.value is None:
        entry.reason = entry.reason or f"{baseline_mode} has no ok result to compare with"
    if not entry.baseline and result.value(time) is None:
        entry.text = NO_BASELINE
        return
    entry.text = time_text(result, time)
    if entry.marked:
        _, entry.interval = figure_texts(time, *figure_of(result, time), marked=True)


def time_text(result: Result, metric: str) -> str:
    """Return a time of a result, with `~` if it is marked; an em dash if it is unknown."""
    is_unsure = marks.reason(result, metric) is not None
    return signed(METRICS[metric].format(result.value(metric)), is_unsure)


def figure_of(result: Result, metric: str) -> tuple[float | None, float | None, float | None]:
    """Return the figure of a metric with its bounds, which are None if it has none."""
    return result.value(metric), *bounds_of(result, metric)


def figure_texts(
    metric: str, value: float | None, low: float | None, high: float | None, marked: bool = False
) -> tuple[str, str]:
    """Return a figure and its interval: `1.30×` and `1.25–1.35`, `1.02× n.s.`, or `unclear` without
    an interval. A marked figure always has its value, as `~1.30×`, and is never called (not)
    significant."""
    form = METRICS[metric].format
    if low is None or high is None:
        return signed(form(value), marked and value is not None), ""
    interval = f"{_without_unit(metric, low)}–{_without_unit(metric, high)}"
    if marked:
        return signed(form(value), marked), interval
    if high > UNKNOWN * low:  # two trials that differ widely give astronomical bounds
        return UNCLEAR, ""
    if metric in SPEEDUPS and low <= 1 <= high and low < high:
        return f"{form(value)} {NOT_SIGNIFICANT}", interval
    return form(value), interval


def _without_unit(metric: str, value: float) -> str:
    return METRICS[metric].format(value).removesuffix(METRICS[metric].unit).rstrip()


# --- a row: one metric of all modes at one point ---


@dataclass
class Row:
    """One metric at one point. `labels`: model, other swept parameters, bs. `case`: all labels
    except bs, as text. `cells`: one entry per mode. `leader`: the ok mode without a mark that has
    the best figure. `tied`: modes whose difference from the leader is not significant, and marked
    modes that may be better. `compares`: whether several modes are ok."""

    labels: dict[str, Any]
    case: str
    metric: str
    cells: dict[str, Entry]
    leader: str | None
    tied: Sequence[str]
    compares: bool

    @property
    def best(self) -> list[str]:
        """The winner, or the modes that tie; empty without several ok modes and rounds to
        compare."""
        has_rounds = any((entry.trials or 0) > 1 for entry in self.cells.values())
        if self.leader is None or not self.compares or not has_rounds:
            return []
        return [self.leader, *self.tied]

    @property
    def winner(self) -> str | None:
        """The mode that is significantly better than every other mode, or None."""
        if len(self.best) == 1:
            return self.best[0]
        return None

    @property
    def best_entry(self) -> Entry:
        """The entry of the leader. Raises IndexError without one."""
        return self.cells[self.best[0]]

    @property
    def ties_with_baseline(self) -> bool:
        """Whether the baseline is among the best modes."""
        return any(self.cells[mode].baseline for mode in self.best)

    @property
    def size(self) -> str:
        return str(self.labels["bs"])

    @property
    def best_text(self) -> str:
        """The winner, or `tie: ` and the modes that tie."""
        tie = ""
        if len(self.best) > 1:
            tie = "tie: "
        return tie + listed(self.best, MOST_TIES)

    @property
    def quantity(self) -> str:
        """`latency` or `period` for a speedup, otherwise the metric's title."""
        return METRICS[SPEEDUPS.get(self.metric, self.metric)].title


def row_of(point: LabelledRows, metric: str, modes: Sequence[str], baseline_mode: str) -> Row:
    """Return the row of the results at one point, with its winner."""
    cells = {mode: Entry() for mode in modes}
    for row in point:
        cells[row.mode] = entry_of(row, metric, baseline_mode)
    ok = {mode: entry for mode, entry in cells.items() if entry.is_ok}
    best = _best_modes(ok, metric)
    leader = None
    if best:
        leader = best[0]
    made = Row(point[0].labels, point[0].case, metric, cells, leader, best[1:], len(ok) > 1)
    if made.winner is not None:
        # a speedup over a marked baseline is marked, even if the winner's time is not
        winner = cells[made.winner]
        winner.best = not winner.marked
    return made


def _best_modes(ok: Mapping[str, Entry], metric: str) -> list[str]:
    """Return the ok mode without a mark that has the best figure, followed by the modes that may be
    as good. Empty for metrics without intervals."""
    results = {mode: entry.result for mode, entry in ok.items() if entry.result is not None}
    decisive = _decisive(results.values(), metric)
    unmarked = [mode for mode in results if _can_lead(results[mode], metric, decisive)]
    if decisive not in INTERVALS or not unmarked:
        return []
    best, tied = least([results[mode] for mode in unmarked], decisive)
    modes = [unmarked[place] for place in (best, *tied)]
    if ok[modes[0]].significant is False:
        # no winner, whatever the comparison of the two times gives
        modes += [mode for mode, entry in ok.items() if entry.baseline and mode not in modes]
    return modes + _possibly_better(results, modes, decisive)


def _can_lead(result: Result, metric: str, decisive: str) -> bool:
    if metric in RATES and result.value(metric) is None:
        return False
    is_unmarked = marks.reason(result, decisive) is None
    return is_unmarked and (result.value(decisive) or 0) > 0


def _possibly_better(
    results: Mapping[str, Result], modes: Sequence[str], decisive: str
) -> list[str]:
    """Return the marked modes, except `modes`, that may be better than the leader: not all of their
    interval is worse than its."""
    best_bound, worst_bound = INTERVALS[decisive]
    if is_higher_better(decisive):
        best_bound, worst_bound = worst_bound, best_bound
    leader = results[modes[0]]
    worst_of_leader = leader.value(worst_bound) or leader.value(decisive) or 0.0
    better = []
    for mode, result in results.items():
        is_unsure = marks.reason(result, decisive) is not None
        best_of_mode = result.value(best_bound) or result.value(decisive)
        if mode in modes or not is_unsure or not best_of_mode:
            continue
        margin = best_of_mode - worst_of_leader
        if margin == 0 or (margin > 0) == is_higher_better(decisive):
            better.append(mode)
    return better


def is_higher_better(metric: str) -> bool:
    return METRICS[metric].better is Better.HIGHER


def _decisive(results: Iterable[Result], metric: str) -> str:
    """Return the metric that decides which mode has the best figure of `metric`: a time for rates
    and for speedups of separate processes. Speedups of pairs decide themselves: they are known
    better than times."""
    with_figure = [result for result in results if result.value(metric) is not None]
    if metric in RATES:
        if all(result.period_ms for result in with_figure):
            return "period_ms"
        return "latency_ms"
    if metric not in SPEEDUPS:
        return metric
    origins = {result.speedup_from for result in with_figure if result.value(metric) != 1.0}
    if origins == {PAIRS}:
        return metric
    return SPEEDUPS[metric]


def log_of(result: Result, metric: str, df_per_trial: float = 1.0) -> LogEstimate:
    """Return the logarithm of a result's `metric` (a key of INTERVALS), with the error that its
    interval implies. The result must have the metric."""
    value = result.value(metric)
    assert value is not None
    low, high = bounds_of(result, metric)
    return stored_log_mean(
        value, low, high, result.trials, result.compilations, df_per_trial, result.hosts
    )


def least(results: Sequence[Result], metric: str = "latency_ms") -> tuple[int, list[int]]:
    """Return the index of the result with the least `metric` (a key of INTERVALS; the largest
    speedup), and the indices of results that tie with it: the difference is not significant, or the
    best one has no interval. All must have the metric."""
    means = {place: cost_of(result, metric) for place, result in enumerate(results)}
    best = min(means, key=lambda place: means[place].value)
    for place, result in enumerate(results):  # modes that were eliminated after one round
        if result.trials == 1 and means[best].error is not None:
            cost = math.exp(means[place].value)
            means[place] = moderated({place: [cost]}, {place: 0.0})[place]
    tied = []
    for place, mean in means.items():
        if place != best and not is_less(means[best], mean):
            tied.append(place)
    return best, tied


def cost_of(result: Result, metric: str) -> LogEstimate:
    """Return the logarithm of a result's `metric`, with the opposite sign if a higher one is
    better."""
    estimate = log_of(result, metric)
    if is_higher_better(metric):
        return replace(estimate, value=-estimate.value)
    return estimate


# --- the table ---


def _show_entry(entry: Entry, row: Row) -> Shown:
    return entry.shown


def _origin_of(origins: Sequence[str | None]) -> list[str]:
    """Return a note on how these speedups were measured, if some come from pairs."""
    counts = Counter(origins)
    if not counts[PAIRS]:
        return []
    if not counts[SEPARATE]:
        return [FROM_PAIRS]
    return [f"{FROM_PAIRS}; {counts[SEPARATE]} of {len(origins)} from separate processes"]


@dataclass
class SpeedupTable:
    """Metrics of each mode at each point (model, other swept parameters, bs): a row per point and
    metric."""

    rows: list[Row]
    modes: list[str]
    metrics: list[str]
    baseline_mode: str = "eager"

    @property
    def labels(self) -> list[Column]:
        names = [*self.rows[0].labels] if self.rows else ["model", "bs"]
        return [
            Column(
                name,
                numeric=name == "bs",
                filter=True,
            )
            for name in names
        ]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.cells.values()]

    @property
    def results(self) -> list[Result]:
        return [entry.result for entry in self.entries if entry.result is not None]

    @property
    def is_unclear(self) -> bool:
        """Whether an interval is too wide for a figure."""
        return any(entry.is_unclear for entry in self.entries)

    @property
    def has_figures(self) -> bool:
        """Whether a cell has a figure of a metric of this table."""
        return any(entry.value is not None for entry in self.entries)

    @property
    def is_shown(self) -> bool:
        """Whether a cell has a figure, or a status that explains why it has none."""
        return self.has_figures or any(entry.status not in ("ok", None) for entry in self.entries)

    @property
    def is_marked(self) -> bool:
        """Whether a figure is marked."""
        return any(entry.marked for entry in self.entries)

    @property
    def units(self) -> str:
        """What the intervals are over."""
        is_joined = any(result.hosts for result in self.results)
        return "hosts" if is_joined else "processes"

    @property
    def _has_interval_over_processes(self) -> bool:
        return any(entry.interval and entry.trials != 1 for entry in self.entries)

    def legend(self, above: str = "") -> list[str]:
        """Return explanations of the marks that occur in the table, and the notes, except those
        that stand `above` it."""
        texts = [*self._meanings_of_marks(), *self.notes()]
        return [text for text in texts if text.lower() not in above.lower()]

    def _meanings_of_marks(self) -> Iterator[str]:
        entries = self.entries
        if any(entry.best for entry in entries):
            yield "bold or ★: significantly the best of its row"
        ties = sum(len(row.best) > 1 for row in self.rows)
        if ties:
            yield f"{ties} of {len(self.rows)} rows have no ★: their best modes tie"
        if any(NOT_SIGNIFICANT in entry.text for entry in entries):
            yield f"{NOT_SIGNIFICANT}: the interval includes 1"
        if self.is_unclear:
            yield IS_UNCLEAR
        if self._has_interval_over_processes:
            yield f"low–high: 95 % interval across {self.units}"
        if any(entry.interval and entry.trials == 1 for entry in entries):
            yield "low–high: 95 % interval within one process"

    def notes(self) -> list[str]:
        """Return how speedups were measured, and what the intervals lack."""
        compared = [entry for entry in self.entries if entry.is_compared]
        notes = []
        if self.metrics[0] in SPEEDUPS:
            notes += _origin_of([entry.result.speedup_from for entry in compared if entry.result])
        if self.metrics[0] in INTERVALS and not all(entry.is_known for entry in compared):
            # modes may be eliminated after one round
            has_interval = self._has_interval_over_processes
            notes.append(SOME_INTERVALS if has_interval else NO_INTERVAL)
        if self._compilations == {1}:
            notes.append(ONE_COMPILATION)
        return notes

    @property
    def _compilations(self) -> set[Any]:
        """How many compilations are behind the intervals."""
        known = [entry.result for entry in self.entries if entry.is_ok and entry.is_known]
        return {result.compilations for result in known if result} - {None}

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, `csv` (one line per entry, exact numbers) or `json` (all
        fields)."""
        if fmt != "json":
            return replace(self.wide(), data=self.records()).render(fmt)
        names = (*FACTS, "text", "interval", "baseline")
        rows = []
        for row in self.rows:
            cells = {mode: entry.facts(names) for mode, entry in row.cells.items()}
            rows.append(
                {
                    "labels": row.labels,
                    "metric": row.metric,
                    "best": row.best,
                    "cells": cells,
                }
            )
        return as_json(
            {
                "rows": rows,
                "modes": self.modes,
                "metrics": self.metrics,
                "baseline_mode": self.baseline_mode,
            }
        )

    def records(self) -> list[dict[str, Any]]:
        """Return one record per entry, for CSV."""
        records = []
        for row in self.rows:
            for mode, entry in row.cells.items():
                named = {
                    **row.labels,
                    "mode": mode,
                    "metric": row.metric,
                }
                records.append(named | entry.facts(FACTS))
        return records

    def wide(
        self,
        shown: Callable[[Entry, Row], Shown] = _show_entry,
        best: bool = True,
        caption: str = "",
    ) -> Table:
        """Return a table with one column per mode. `shown`: returns the content of a cell. `best`:
        add a column with the winner, or the modes that tie."""
        columns = self.labels
        names = [column.key for column in columns]
        if len(self.metrics) > 1:
            columns.append(Column("its quantity", "speedup", filter=True))
        for mode in self.modes:
            columns.append(
                Column(
                    f"mode {mode}",
                    mode,
                    numeric=True,
                    mode=mode,
                )
            )
        if best and any(row.best for row in self.rows):
            columns.append(Column("its best", "best"))
        rows = []
        for row in self.rows:
            cells = {f"mode {mode}": shown(row.cells[mode], row) for mode in self.modes}
            facts = {"its quantity": row.quantity, "its best": row.best_text}
            rows.append(
                {
                    **row.labels,
                    **facts,
                    **cells,
                }
            )
        return Table(
            columns,
            rows,
            group="model",
            caption=caption,
            once=names,
        )

    def long(self) -> Table:
        """Return a table with one row per point and mode, for narrow terminals."""
        columns = [*self.labels, Column("a mode", "mode")]
        for metric in self.metrics:
            columns.append(Column(metric, METRICS[metric].title, numeric=True))
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.rows:
            for mode in self.modes:
                values = rows.setdefault(
                    (*row.labels.values(), mode), {**row.labels, "a mode": mode}
                )
                values[row.metric] = row.cells[mode].shown
        return Table(columns, [*rows.values()], group="model")


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
