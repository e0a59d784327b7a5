"""Speedup and bottleneck tables for `effbench show`, the site and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from effbench.environments import labelled
from effbench.errors import UsageError
from effbench.labels import ABSENT, LabelledRow, grouped, mode_order
from effbench.metrics import INTERVALS, METRICS, SPEEDUPS, Better
from effbench.printable import listed
from effbench.report import marks
from effbench.report.marks import is_marked, signed, why_marked
from effbench.stats.elimination import moderated
from effbench.stats.intervals import LogEstimate, is_less, stored_log_mean
from effbench.store.bottleneck import why
from effbench.store.summary import PAIRS, SEPARATE
from effbench.table import Column, Shown, Table, as_json

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
NOT_PROFILED = "not profiled"
#: Explains NOT_PROFILED once, below a table.
WHY_NOT_PROFILED = (
    "not profiled: no CUDA, stream=arrivals, protocol.profile=false, "
    "or profiling failed (profile_failed in trial.extra)"
)
#: Stands for the table of bottlenecks if all cells ran on a CPU.
NEEDS_GPU = "bottlenecks need a GPU"
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


def rows_of(store: Store, sweep: SweepInfo) -> list[dict[str, Any]]:
    """Return a sweep's rows of the view `results`, labelled by interpreter if it has several. The
    rows of a cell are in the order in which the interpreters were given."""
    rows = store.results(sweep.id)
    rank = {name: index for index, name in enumerate(sweep.host.get("environments") or ())}
    position = {
        key: index for index, key in enumerate(dict.fromkeys(row["cell_key"] for row in rows))
    }
    rows.sort(
        key=lambda row: (position[row["cell_key"]], rank.get(row["environment_id"], len(rank)))
    )
    return labelled(rows, store.environments(row["environment_id"] for row in rows))


@dataclass
class Entry:
    """One mode at one point. `value`, `low` and `high` are in the metric's unit, and None unless
    `status` is `ok`. `status` is None if the mode was not run. Only speedups with an interval and
    without a mark have `significant`. `best`: significantly better than every other mode of its
    row, and not marked. `marked`: measured on a disturbed machine, or compared with a baseline that
    was; `disturbance`: how. `time`: of a speedup, with a mark of its own. `source`: its row of the
    view `results`."""

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
    marked: bool = False
    disturbance: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether the figure has an interval over processes."""
        return self.low is not None and self.high is not None and self.trials != 1

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @property
    def tone(self) -> str:
        if self.status != "ok":
            return "status"
        if self.best:
            return "best"
        return "unsure" if self.marked or self.significant is False else ""

    @property
    def shown(self) -> Shown:
        return Shown(self.value, self.text, self.tone, self.details)

    @property
    def details(self) -> str:
        """The interval and, on a line of its own, the time that belongs to a speedup."""
        return "\n".join(filter(None, [self.interval, self.time]))


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
        known = any((entry.trials or 0) > 1 for entry in self.cells.values())
        return [self.leader, *self.tied] if self.compares and self.leader and known else []

    @property
    def winner(self) -> str | None:
        """The mode that is significantly better than every other mode, or None."""
        return self.best[0] if len(self.best) == 1 else None

    @property
    def quantity(self) -> str:
        """`latency` or `period` for a speedup, otherwise the metric's title."""
        return METRICS[SPEEDUPS.get(self.metric, self.metric)].title


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
        names = self.rows[0].labels if self.rows else ["model", "bs"]
        return [Column(name, numeric=name == "bs", filter=True) for name in names]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.cells.values()]

    @property
    def is_unclear(self) -> bool:
        """Whether an interval is too wide for a figure."""
        return any(entry.text == UNCLEAR for entry in self.entries)

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
    def is_over_hosts(self) -> bool:
        """Whether the intervals are over hosts, as those of a joined sweep."""
        return any(entry.source.get("hosts") for entry in self.entries)

    @property
    def is_measured(self) -> bool:
        """Whether a result is ok."""
        return any(entry.status == "ok" for entry in self.entries)

    @property
    def has_intervals(self) -> bool:
        """Whether a figure other than the baseline's has an interval, so that a mode may be
        significantly the best."""
        return any(
            entry.is_known and not entry.baseline and not entry.marked for entry in self.entries
        )

    def legend(self) -> list[str]:
        """Return explanations of the marks that occur in the table."""
        ties, texts = (
            sum(len(row.best) > 1 for row in self.rows),
            {entry.text for entry in self.entries},
        )
        explained = {
            "bold or ★: significantly the best of its row": any(
                entry.best for entry in self.entries
            ),
            f"{ties} of {len(self.rows)} rows have no ★: their best modes tie": ties,
            f"{NOT_SIGNIFICANT}: the interval includes 1": any(
                NOT_SIGNIFICANT in text for text in texts
            ),
            IS_UNCLEAR: self.is_unclear,
            f"low–high: 95 % interval across {'hosts' if self.is_over_hosts else 'processes'}": (
                self._has_interval(of_one_process=False)
            ),
            "low–high: 95 % interval within one process": self._has_interval(of_one_process=True),
        }
        return [*(text for text, applies in explained.items() if applies), *self.notes()]

    def _has_interval(self, of_one_process: bool) -> bool:
        """Whether an interval is shown that comes from a single process, or from several."""
        return any(
            entry.interval and (entry.trials == 1) == of_one_process for entry in self.entries
        )

    @property
    def origin(self) -> str | None:
        """How the speedups were measured; None if there are none."""
        compared = [
            entry for entry in self.entries if entry.value is not None and not entry.baseline
        ]
        origins = Counter(entry.source.get("speedup_from") for entry in compared)
        if self.metrics[0] not in SPEEDUPS or not origins[PAIRS]:
            return None
        if not origins[SEPARATE]:
            return FROM_PAIRS
        return f"{FROM_PAIRS}; {origins[SEPARATE]} of {len(compared)} from separate processes"

    def notes(self) -> list[str]:
        """Return how speedups were measured, and what the intervals lack."""
        lacking = [
            it
            for it in self.entries
            if it.value is not None and not it.is_known and not it.baseline
        ]
        used = {
            it.source.get("compilations")
            for it in self.entries
            if it.status == "ok" and it.is_known
        } - {None}
        # modes may be eliminated after one round
        rounds = SOME_INTERVALS if self._has_interval(of_one_process=False) else NO_INTERVAL
        notes = {rounds: lacking and self.metrics[0] in INTERVALS, ONE_COMPILATION: used == {1}}
        origin = [self.origin] if self.origin else []
        return [*origin, *(text for text, applies in notes.items() if applies)]

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, `csv` (one line per entry, exact numbers) or `json` (all
        fields)."""
        if fmt != "json":
            return replace(self.wide(), data=self.records()).render(fmt)
        names = (*FACTS, "text", "interval", "baseline")
        rows = [
            {"labels": row.labels, "metric": row.metric, "best": row.best}
            | {"cells": {mode: entry.facts(names) for mode, entry in row.cells.items()}}
            for row in self.rows
        ]
        head = {"modes": self.modes, "metrics": self.metrics, "baseline_mode": self.baseline_mode}
        return as_json({"rows": rows} | head)

    def wide(
        self,
        shown: Callable[[Entry, Row], Shown] = lambda entry, _: entry.shown,
        best: bool = True,
        caption: str = "",
    ) -> Table:
        """Return a table with one column per mode. `shown`: returns the content of a cell. `best`:
        add a column with the winner, or the modes that tie."""
        columns = [
            *self.labels,
            *[Column("its quantity", "speedup", filter=True)] * (len(self.metrics) > 1),
        ]
        columns += [Column(f"mode {mode}", mode, numeric=True, mode=mode) for mode in self.modes]
        columns += [Column("its best", "best")] * (best and any(row.best for row in self.rows))
        rows = [
            row.labels
            | {
                "its quantity": row.quantity,
                "its best": "tie: " * (len(row.best) > 1) + listed(row.best, MOST_TIES),
            }
            | {f"mode {mode}": shown(row.cells[mode], row) for mode in self.modes}
            for row in self.rows
        ]
        return Table(
            columns, rows, group="model", caption=caption, once=[it.key for it in self.labels]
        )

    def records(self) -> list[dict[str, Any]]:
        """Return one record per entry, for CSV."""
        return [
            row.labels | {"mode": mode, "metric": row.metric} | entry.facts(FACTS)
            for row in self.rows
            for mode, entry in row.cells.items()
        ]

    def long(self) -> Table:
        """Return a table with one row per point and mode, for narrow terminals."""
        points: dict[tuple, dict[str, Row]] = {}
        for row in self.rows:
            points.setdefault(tuple(row.labels.values()), {})[row.metric] = row
        rows = [
            (
                *point,
                mode,
                *(by[metric].cells[mode].shown if metric in by else "" for metric in self.metrics),
            )
            for point, by in points.items()
            for mode in self.modes
        ]
        titles = [
            Column(f"metric {metric}", METRICS[metric].title, numeric=True)
            for metric in self.metrics
        ]
        return Table.of([*self.labels, Column("a mode", "mode"), *titles], rows, group="model")


def speedup_table(
    rows: Sequence[LabelledRow], metric: str | None = "speedup", baseline_mode: str = "eager"
) -> SpeedupTable:
    """Pivot labelled rows of the view `results` into a table of `metric`. `speedup` gives two rows
    per point, for latency and period, if the point has periods to show; the baseline's column shows
    its times. None chooses the speedup, or the latency if no row has a speedup. Raises UsageError
    for an unknown metric."""
    metric = metric or (
        "speedup" if any(row.source["speedup"] is not None for row in rows) else "latency_ms"
    )
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    modes = mode_order((row.mode, row.base_mode) for row in rows)
    pivoted = []
    for point in grouped(rows, lambda row: tuple(row.labels.values())).values():
        ok = [row.source for row in point if row.source["status"] == "ok"]
        known = {
            name for source in ok for name in (*SPEEDUPS, *TIMES) if source.get(name) is not None
        }
        # times without a baseline
        has_period = ("period_speedup" if "speedup" in known else "period_ms") in known
        for name in SPEEDUPS if metric == "speedup" and has_period else [metric]:
            cells = dict.fromkeys(modes, Entry())
            for row in point:
                cells[row.mode] = _entry(row, name, baseline_mode)
            pivoted.append(_row(point[0], name, cells))
    return SpeedupTable(
        pivoted,
        modes,
        list(dict.fromkeys(row.metric for row in pivoted)) or [metric],
        baseline_mode,
    )


def is_baseline(row: LabelledRow, baseline_mode: str) -> bool:
    """Return whether other modes are compared with this result. Of several variants of the baseline
    mode, this is the one with a speedup of exactly 1, unless none has a speedup."""
    return row.base_mode == baseline_mode and row.source.get("speedup") in (None, 1.0)


def _row(first: LabelledRow, metric: str, cells: dict[str, Entry]) -> Row:
    """Return a row of entries, and mark its winner."""
    ok = {mode: entry for mode, entry in cells.items() if entry.status == "ok"}
    decisive = _decisive([entry.source for entry in ok.values()], metric)
    undisturbed = {
        mode: e.source for mode, e in ok.items() if marks.reason(e.source, decisive) is None
    }
    leaders = _leaders(undisturbed, metric, decisive)
    leader = leaders[0] if leaders else None
    tied = leaders[1:]
    if leader is not None:
        # no winner, whatever the comparison of the two times gives
        if ok[leader].significant is False:
            tied += [mode for mode, entry in ok.items() if entry.baseline and mode not in leaders]
        tied += _possibly_better(ok, leader, decisive, known=[leader, *tied])
    row = Row(first.labels, first.case, metric, cells, leader, tied, len(ok) > 1)
    # a speedup over a marked baseline is marked, even if the winner's time is not
    if row.winner is not None:
        cells[row.winner].best = not cells[row.winner].marked
    return row


def _possibly_better(
    ok: Mapping[str, Entry], leader: str, decisive: str, known: Sequence[str]
) -> list[str]:
    """Return the marked modes that may be better than the leader: not all of their interval is
    worse than its."""
    bounds = INTERVALS[decisive]
    best_bound, worst_bound = reversed(bounds) if is_higher_better(decisive) else bounds
    worst_of_leader = ok[leader].source.get(worst_bound) or ok[leader].source[decisive]
    found = []
    for mode, entry in ok.items():
        if (
            mode in known
            or marks.reason(entry.source, decisive) is None
            or not entry.source.get(decisive)
        ):
            continue
        best_of_marked = entry.source.get(best_bound) or entry.source[decisive]
        margin = best_of_marked - worst_of_leader
        may_be_better = margin >= 0 if is_higher_better(decisive) else margin <= 0
        if may_be_better:
            found.append(mode)
    return found


def is_higher_better(metric: str) -> bool:
    return METRICS[metric].better is Better.HIGHER


def _entry(row: LabelledRow, metric: str, baseline_mode: str) -> Entry:
    source = row.source
    status = str(source["status"])
    entry = Entry(
        status,
        status=status,
        reason=source.get("reason"),
        trials=source.get("trials"),
        source=source,
    )
    entry.baseline = is_baseline(row, baseline_mode)
    if status != "ok":
        # a count may explain the status, and what a degraded mode measured is worth knowing
        if metric not in SPEEDUPS and source.get(metric) is not None:
            entry.text = f"{METRICS[metric].format(source[metric])} ({status})"
        return entry
    entry.value = source.get(metric)
    bounds = INTERVALS.get(metric)
    if bounds is not None:
        entry.low = source.get(bounds[0])
        entry.high = source.get(bounds[1])
    shown = metric
    if metric in SPEEDUPS and (entry.baseline or entry.value is None):
        shown = SPEEDUPS[metric]  # the fastest mode is worth knowing without a baseline
    entry.disturbance = marks.reason(source, shown)
    entry.marked = entry.disturbance is not None
    if shown == metric:
        if metric in SPEEDUPS and not entry.marked and entry.is_known:
            entry.significant = not entry.low <= 1 <= entry.high
        entry.text, entry.interval = figure_texts(
            metric, entry.value, entry.low, entry.high, entry.marked
        )
        if metric in SPEEDUPS:
            entry.time = time_text(source, SPEEDUPS[metric])
    elif entry.baseline or source.get(shown) is not None:
        entry.text = time_text(source, shown)
        if entry.marked:
            entry.interval = figure_texts(shown, *_figure(source, shown), marked=True)[1]
    else:
        entry.text = NO_BASELINE
    if metric in SPEEDUPS and entry.value is None:
        entry.reason = entry.reason or f"{baseline_mode} has no ok result to compare with"
    return entry


def time_text(source: Mapping[str, Any], metric: str) -> str:
    """Return a time of a result, with `~` if it is marked; an em dash if it is unknown."""
    is_unsure = marks.reason(source, metric) is not None
    return signed(METRICS[metric].format(source.get(metric)), is_unsure)


def _figure(source: Mapping[str, Any], metric: str) -> tuple[Any, Any, Any]:
    """Return the figure of a metric with its bounds, which are None if it has none."""
    low, high = INTERVALS[metric]
    return source.get(metric), source.get(low), source.get(high)


def figure_texts(
    metric: str, value: float | None, low: float | None, high: float | None, marked: bool = False
) -> tuple[str, str]:
    """Return a figure and its interval: `1.30×` and `1.25–1.35`, `1.02× n.s.`, or `unclear` without
    an interval. A marked figure always has its value, as `~1.30×`, and is never called (not)
    significant."""
    form, unit = METRICS[metric].format, METRICS[metric].unit
    if low is None or high is None or not low <= high:  # unknown values are NaN in a frame
        return signed(form(value), marked and value is not None), ""
    interval = "–".join(form(bound).removesuffix(unit).rstrip() for bound in (low, high))
    if marked:
        return signed(form(value), marked), interval
    if high > UNKNOWN * low:  # two trials that differ widely give astronomical bounds
        return UNCLEAR, ""
    not_significant = metric in SPEEDUPS and low <= 1 <= high and low < high
    return form(value) + (f" {NOT_SIGNIFICANT}" if not_significant else ""), interval


def speedup_text(row: Mapping[str, Any], metric: str, marked: bool | None = None) -> str:
    """Return a speedup of a result without its interval: `1.30×`, `1.02× n.s.`, `unclear`; nothing
    without one. `marked`: whether it is marked; None: if its own result is."""
    if row.get(metric) is None:
        return ""
    if marked is None:
        marked = is_marked(row)
    return figure_texts(metric, *_figure(row, metric), marked)[0]


def log_of(row: Mapping[str, Any], metric: str, df_per_trial: float = 1.0) -> LogEstimate:
    """Return the logarithm of a result's `metric` (a key of INTERVALS), with the error that its
    interval implies."""
    return stored_log_mean(
        *map(row.get, (metric, *INTERVALS[metric], "trials", "compilations")),
        df_per_trial,
        row.get("hosts"),
    )


def least(rows: Sequence[Mapping[str, Any]], metric: str = "latency_ms") -> tuple[int, list[int]]:
    """Return the index of the row with the least `metric` (a key of INTERVALS; the largest
    speedup), and the indices of rows that tie with it: the difference is not significant, or the
    best one has no interval. All `rows` must have the metric."""
    means = {place: cost_of(row, metric) for place, row in enumerate(rows)}
    best = min(means, key=lambda place: means[place].value)
    for place, row in enumerate(rows):  # modes that were eliminated after one round
        if row.get("trials") == 1 and means[best].error is not None:
            value = 1 / row[metric] if is_higher_better(metric) else row[metric]
            means |= moderated({place: [value]}, {place: 0.0})
    return best, [
        place for place, mean in means.items() if place != best and not is_less(means[best], mean)
    ]


def cost_of(row: Mapping[str, Any], metric: str) -> LogEstimate:
    """Return the logarithm of a result's `metric`, with the opposite sign if a higher one is
    better."""
    estimate = log_of(row, metric)
    return replace(estimate, value=-estimate.value) if is_higher_better(metric) else estimate


def _decisive(sources: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return the metric that decides which mode has the best figure of `metric`: a time for rates
    and for speedups of separate processes. Speedups of pairs decide themselves: they are known
    better than times."""
    if metric in ("throughput_per_s", "tokens_per_s"):
        known = [source for source in sources if source.get(metric) is not None]
        return "period_ms" if all(source.get("period_ms") for source in known) else "latency_ms"
    if metric not in SPEEDUPS:
        return metric
    origins = {
        source.get("speedup_from") for source in sources if source.get(metric) not in (None, 1.0)
    }
    return metric if origins == {PAIRS} else SPEEDUPS[metric]


def _leaders(sources: Mapping[str, Mapping[str, Any]], metric: str, decisive: str) -> list[str]:
    """Return the ok mode with the best figure, followed by the modes whose difference from it is
    not significant. Empty for metrics without intervals. `decisive`: the metric that decides."""
    if metric in ("throughput_per_s", "tokens_per_s"):
        sources = {
            mode: source for mode, source in sources.items() if source.get(metric) is not None
        }
    modes = [mode for mode, source in sources.items() if (source.get(decisive) or 0) > 0]
    if decisive not in INTERVALS or not modes:
        return []
    best, tied = least([sources[mode] for mode in modes], decisive)
    return [modes[place] for place in (best, *tied)]


def time_columns(rows: Iterable[LabelledRow]) -> list[Column]:
    """Return columns for latency, period and GPU busy time, omitting those that no row has."""
    seen = {
        name for row in rows for name in (*TIMES, "gpu_busy_ms") if row.source.get(name) is not None
    }
    titles = {
        name: METRICS[name].title + " (speedup)" * (name in TIMES)
        for name in (*TIMES, "gpu_busy_ms")
    }
    return [Column(name, title, numeric=True) for name, title in titles.items() if name in seen]


def time_cells(row: LabelledRow) -> dict[str, Shown]:
    """Return the values of `time_columns`, with speedups as second lines. Failed results have
    none."""
    source = row.source
    is_measured = source["status"] in ("ok", "degraded")
    cells = {}
    for name in (*TIMES, "gpu_busy_ms"):
        value = source.get(name) if is_measured else None
        why = marks.reason(source, name) if value is not None else None
        ratio = ""
        if value is not None and name in TIMES:
            ratio = speedup_text(source, TIMES[name], marks.reason(source, TIMES[name]) is not None)
        tone = "unsure" if why else ""
        text = signed(METRICS[name].format(value), why is not None)
        cells[name] = Shown(None, text, tone, ratio, hint=why or "")
    return cells


def is_profiled(row: Mapping[str, Any]) -> bool:
    """Return whether the bottleneck of a result, or what keeps the GPU busy, is known."""
    return why(row) is not None


def no_bottlenecks(rows: Sequence[LabelledRow]) -> str | None:
    """Return the line that stands for a table of bottlenecks without any; None if a result has
    one."""
    if any(is_profiled(row.source) for row in rows):
        return None
    if all(row.source.get("device") == "cpu" for row in rows):
        return NEEDS_GPU
    return WHY_NOT_PROFILED


def bottleneck_table(
    rows: Sequence[LabelledRow], link: Callable[[LabelledRow], str] = lambda row: ""
) -> Table:
    """Return each cell's bottleneck and the figures behind it. `link`: returns the URL of a
    cell."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    facts = (
        "gpu_busy_ms",
        "enqueue_ms",
        "kernels",
        "gpu_idle_fraction",
        "roofline_fraction",
        "bound",
    )
    columns = [
        *(Column(name, numeric=name == "bs", filter=name == "model") for name in names),
        Column("mode", filter=True),
        *time_columns(rows),
        Column("bound", filter=True),
        Column("why", wide=True),
    ]
    shown, data = [], []
    for row in rows:
        source = row.source
        is_ok = source["status"] == "ok"
        if is_ok:
            reason = why(source) or (NEEDS_GPU if source.get("device") == "cpu" else NOT_PROFILED)
        else:
            reason = f"{source['status']}: {source['reason'] or NO_REASON}"
        record = {name: str(row.labels.get(name, "")) for name in names}
        record |= {"mode": row.mode, "status": source["status"]}
        record |= {name: source.get(name) for name in (*TIMES, *SPEEDUPS, *facts)} | {"why": reason}
        record |= {"marked": is_marked(source), "disturbance": why_marked(source)}
        bottleneck = source.get("bound") if is_ok else None
        shown.append(
            record | time_cells(row) | {"bound": Shown(None, bottleneck or ABSENT, link=link(row))}
        )
        data.append(record)
    return Table(columns, shown, data, caption="Bottleneck of each cell")
