"""Speedup and bottleneck tables for `effbench show`, the site and Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from effbench.environments import labelled
from effbench.errors import UsageError
from effbench.labels import ABSENT, LabelledRow, mode_order
from effbench.metrics import INTERVALS, METRICS, Better
from effbench.stats.intervals import is_less, stored_log_mean
from effbench.store.bottleneck import why
from effbench.table import Column, Shown, Table, as_json

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo

FORMATS = ("markdown", "csv", "json")
#: Replaces a figure whose interval is too wide.
UNCLEAR = "unclear"
#: Follows the interval of an unclear mean.
TOO_WIDE = "too wide to state a mean"
NO_INTERVAL = "no interval: too few rounds"
#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
#: Ratio of the bounds above which a figure is unclear; for means over cells it is `intervals.CLEAR`.
UNKNOWN = 100
NO_BASELINE = "no baseline"
NO_REASON = "no reason recorded"
NOT_PROFILED = "not profiled"
#: Explains NOT_PROFILED once, below a table.
WHY_NOT_PROFILED = "not profiled: no CUDA, protocol.profile=false, or profiling failed (profile_failed in trial.extra)"
_INTERVAL = re.compile(r" \((.*)\)")
#: Fields of an entry in CSV.
FACTS = ("value", "low", "high", "status", "reason", "best", "significant", "trials")


def rows_of(store: Store, sweep: SweepInfo) -> list[dict[str, Any]]:
    """Return a sweep's rows of the view `results`, labelled by interpreter if it has several. The rows of a cell are
    in the order in which the interpreters were given."""
    rows = store.results(sweep.id)
    rank = {name: index for index, name in enumerate(sweep.host.get("environments") or ())}
    position = {key: index for index, key in enumerate(dict.fromkeys(row["cell_key"] for row in rows))}
    rows.sort(key=lambda row: (position[row["cell_key"]], rank.get(row["environment_id"], len(rank))))
    return labelled(rows, store.environments(row["environment_id"] for row in rows))


@dataclass
class Entry:
    """One mode at one point. `value`, `low` and `high` are in the metric's unit, and None unless `status` is `ok`.
    `status` is None if the mode was not run. Only speedups with an interval have `significant`. `best`: significantly
    better than every other mode of its row. `source`: its row of the view `results`."""

    text: str = "not run"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    reason: str | None = None
    best: bool = False
    trials: int | None = None
    significant: bool | None = None
    baseline: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    @property
    def tone(self) -> str:
        if self.status != "ok":
            return "status"
        return "best" if self.best else "unsure" if self.significant is False else ""

    @property
    def shown(self) -> Shown:
        return Shown(self.value, self.text, self.tone)

    @property
    def stacked(self) -> Shown:
        return Shown(self.value, self.short, self.tone, self.interval)

    @property
    def short(self) -> str:
        """The text without the interval."""
        return _INTERVAL.sub("", self.text)

    @property
    def interval(self) -> str:
        return "".join(_INTERVAL.findall(self.text))


@dataclass
class Row:
    """`labels`: model, other swept parameters, bs. `case`: all labels except bs, as text. `cells`: one entry per mode.
    `leader`: the ok mode with the best figure. `tied`: modes whose difference from the leader is not significant.
    `compares`: whether several modes are ok."""

    labels: dict[str, Any]
    case: str
    cells: dict[str, Entry]
    leader: str | None
    tied: Sequence[str]
    compares: bool

    @property
    def winner(self) -> str | None:
        """The mode that is significantly better than every other mode, or None."""
        return self.leader if self.compares and not self.tied else None


@dataclass
class SpeedupTable:
    """One metric of each mode at each point (model, other swept parameters, bs)."""

    rows: list[Row] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    metric: str = "speedup"
    baseline_mode: str = "eager"

    @property
    def labels(self) -> list[Column]:
        names = self.rows[0].labels if self.rows else ["model", "bs"]
        return [Column(name, numeric=name == "bs", filter=True) for name in names]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.cells.values()]

    def legend(self) -> list[str]:
        """Return explanations of the marks that occur in the table."""
        open_rows = sum(row.compares and row.winner is None for row in self.rows)
        entries = [entry for entry in self.entries if entry.value is not None]
        too_wide = f"{UNCLEAR}: the interval's upper bound is more than {UNKNOWN} times the lower one"
        marks = {
            "bold or ★: significantly the best of its row": any(entry.best for entry in entries),
            f"no significant winner in {open_rows} of {len(self.rows)} rows": open_rows,
            f"{NOT_SIGNIFICANT}: the interval includes 1": any(NOT_SIGNIFICANT in entry.text for entry in entries),
            too_wide: any(entry.text == UNCLEAR for entry in entries),
            NO_INTERVAL: any(entry.low is None and not entry.baseline for entry in entries),
            "(low–high): 95 % interval across processes": any(entry.interval for entry in entries),
        }
        return [text for text, applies in marks.items() if applies]

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, `csv` (one line per entry, exact numbers) or `json` (all fields)."""
        if fmt != "json":
            return self.wide().render(fmt)
        names = (*FACTS, "text", "baseline")
        cells = [{mode: entry.facts(names) for mode, entry in row.cells.items()} for row in self.rows]
        rows = [{"labels": row.labels, "cells": facts} for row, facts in zip(self.rows, cells, strict=True)]
        return as_json({"rows": rows, "modes": self.modes, "metric": self.metric, "baseline_mode": self.baseline_mode})

    def wide(self, stacked: bool = False) -> Table:
        """Return a table with one column per mode; CSV has one line per entry. `stacked`: intervals on second lines."""
        columns = [*self.labels, *(Column(f"mode {mode}", mode, numeric=True) for mode in self.modes)]
        rows = [
            row.labels | {f"mode {mode}": it.stacked if stacked else it.shown for mode, it in row.cells.items()}
            for row in self.rows
        ]
        data = [
            row.labels | {"mode": mode, "metric": self.metric} | entry.facts(FACTS)
            for row in self.rows
            for mode, entry in row.cells.items()
        ]
        return Table(columns, rows, data, group="model")

    def long(self) -> Table:
        """Return a table with one row per entry, for narrow terminals."""
        rows = [(*row.labels.values(), mode, entry.shown) for row in self.rows for mode, entry in row.cells.items()]
        columns = [*self.labels, Column("a mode", "mode"), Column("its figure", self.metric, numeric=True)]
        return Table.of(columns, rows, group="model")


def speedup_table(
    rows: Sequence[LabelledRow], metric: str | None = "speedup", baseline_mode: str = "eager"
) -> SpeedupTable:
    """Pivot labelled rows of the view `results` into a table of `metric`; None chooses the speedup, or the latency if
    no row has a speedup. With `speedup`, the baseline's column shows its latency. Raises UsageError for an unknown
    metric."""
    metric = metric or ("speedup" if any(row.source["speedup"] is not None for row in rows) else "latency_ms")
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    modes = mode_order((row.mode, row.base_mode) for row in rows)
    points: dict[tuple, list[LabelledRow]] = {}
    for row in rows:
        points.setdefault(tuple(row.labels.values()), []).append(row)
    pivoted = []
    for point in points.values():
        cells = dict.fromkeys(modes, Entry()) | {row.mode: _entry(row, metric, baseline_mode) for row in point}
        ok = {mode: entry.source for mode, entry in cells.items() if entry.status == "ok"}
        leader, *tied = _leaders(ok, metric) or (None,)
        row = Row(point[0].labels, point[0].case, cells, leader, tied, len(ok) > 1)
        if row.winner is not None:
            cells[row.winner].best = True
        pivoted.append(row)
    return SpeedupTable(pivoted, modes, metric, baseline_mode)


def _entry(row: LabelledRow, metric: str, baseline_mode: str) -> Entry:
    source, status = row.source, str(row.source["status"])
    entry = Entry(status, status=status, reason=source.get("reason"), trials=source.get("trials"), source=source)
    entry.baseline = row.base_mode == baseline_mode
    if status != "ok":
        return entry
    entry.value = source.get(metric)
    entry.low, entry.high = (source.get(name) for name in INTERVALS.get(metric, ("", "")))
    if metric == "speedup" and entry.baseline:
        entry.text = METRICS["latency_ms"].format(source.get("latency_ms"))
    elif metric == "speedup" and entry.value is None:
        entry.text = NO_BASELINE
        entry.reason = entry.reason or f"{baseline_mode} has no ok result to compare with"
    else:
        if metric == "speedup" and entry.low is not None and entry.high is not None:
            entry.significant = not entry.low <= 1 <= entry.high
        entry.text = figure_text(metric, entry.value, entry.low, entry.high)
    return entry


def figure_text(metric: str, value: float | None, low: float | None, high: float | None) -> str:
    """Return `1.30× (1.25–1.35)`, `1.02× (0.97–1.08) n.s.`, `1.30×` without an interval, or `unclear`."""
    form, unit = METRICS[metric].format, METRICS[metric].unit
    if low is None or high is None or not low <= high:  # unknown values are NaN in a frame
        return form(value)
    if high > UNKNOWN * low:  # two trials that differ widely give astronomical bounds
        return UNCLEAR
    ends = "–".join(form(bound).removesuffix(unit).rstrip() for bound in (low, high))
    mark = f" {NOT_SIGNIFICANT}" if metric == "speedup" and low <= 1 <= high and low < high else ""
    return f"{form(value)} ({ends}){mark}"


def speedup_text(value: float | None, low: float | None, high: float | None) -> str:
    """Return a speedup without its interval: `1.30×`, `1.02× n.s.`, `unclear`."""
    return _INTERVAL.sub("", figure_text("speedup", value, low, high))


def least(rows: Sequence[Mapping[str, Any]], metric: str = "latency_ms") -> tuple[int, list[int]]:
    """Return the index of the row with the least `metric` (a key of INTERVALS), and the indices of rows that tie with
    it: the difference is not significant, or one of the two has no interval. All `rows` must have the metric."""
    low, high = INTERVALS[metric]
    means = [stored_log_mean(row[metric], *(row.get(name) for name in (low, high, "trials"))) for row in rows]
    best = min(range(len(means)), key=lambda place: means[place].value)
    return best, [place for place, mean in enumerate(means) if place != best and not is_less(means[best], mean)]


def _leaders(sources: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """Return the ok mode with the best figure, followed by the modes whose difference from it is not significant. Empty
    if all figures are equal, or if neither high nor low values of the metric are better."""
    metric = METRICS[name]
    decisive = {"speedup": "latency_ms"}.get(name, name)
    if name == "throughput_per_s":
        decisive = "period_ms" if all(source.get("period_ms") for source in sources.values()) else "latency_ms"
    if decisive in INTERVALS:
        modes = [mode for mode, source in sources.items() if (source.get(decisive) or 0) > 0]
        place, tied = least([sources[mode] for mode in modes], decisive) if modes else (None, [])
        return [] if place is None else [modes[one] for one in (place, *tied)]
    values = {mode: source[name] for mode, source in sources.items() if source.get(name) is not None}
    if metric.better is Better.NEITHER or len(set(values.values())) < 2:
        return []
    return [(max if metric.better is Better.HIGHER else min)(values, key=lambda mode: values[mode])]


def bottleneck_table(rows: Sequence[LabelledRow], link: Callable[[LabelledRow], str] = lambda row: "") -> Table:
    """Return each cell's bottleneck and the figures behind it. `link`: returns the URL of a cell."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    figures = ("latency_ms", "period_ms")
    exact = (*figures, "gpu_busy_ms", "enqueue_ms", "kernels", "gpu_idle_fraction", "roofline_fraction", "bound")
    columns = [
        *(Column(name, numeric=name == "bs", filter=name == "model") for name in names),
        Column("mode", filter=True),
        *(Column(name, METRICS[name].title, numeric=True) for name in figures),
        Column("bound", filter=True),
        Column("why", wide=True),
    ]
    shown, data = [], []
    for row in rows:
        source, ok = row.source, row.source["status"] == "ok"
        reason = (why(source) or NOT_PROFILED) if ok else f"{source['status']}: {source['reason'] or NO_REASON}"
        record = {name: str(row.labels.get(name, "")) for name in names} | {
            "mode": row.mode,
            "status": source["status"],
        }
        record |= {name: source.get(name) for name in exact} | {"why": reason}
        texts = {name: METRICS[name].format(source.get(name)) if ok else ABSENT for name in figures}
        bound = Shown(None, (ok and source.get("bound")) or ABSENT, link=link(row))
        shown.append(record | texts | {"bound": bound})
        data.append(record)
    return Table(columns, shown, data, caption="Bottleneck of each cell")
