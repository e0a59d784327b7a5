"""The two tables of `effbench show`, which the site and Markdown also show: modes of each point, bottlenecks of cells.

They need neither pandas nor plotly, so that a terminal command starts quickly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from effbench.environments import labelled
from effbench.errors import UsageError
from effbench.labels import ABSENT, LabelledRow, mode_order
from effbench.metrics import INTERVALS, METRICS, Better
from effbench.report.mode_scores import UNCLEAR, least
from effbench.store.bottleneck import why
from effbench.table import Column, Shown, Table, as_json

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo

FORMATS = ("markdown", "csv", "json")
#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
NOT_RUN = "not run"
#: With bounds more than this many times apart, a figure is shown as unclear. A figure of one cell stands next to its
#: interval, so this is more lenient than the limit of a mean over cells.
UNKNOWN = 100
NO_BASELINE = "no baseline"
NO_INTERVAL = "no interval: too few rounds"
NO_REASON = "no reason recorded"
NOT_PROFILED = "not profiled: no CUDA, protocol.profile=false, or it failed (profile_failed in trial.extra)"


def rows_of(store: Store, sweep: SweepInfo) -> list[dict[str, Any]]:
    """Return the view's rows of a sweep, labelled by interpreter if it has several; each cell's in the order in which
    the interpreters were given."""
    rows = store.results(sweep.id)
    rank = {one: index for index, one in enumerate(sweep.host.get("environments") or ())}
    place: dict[str, int] = {}
    for row in rows:
        place.setdefault(row["cell_key"], len(place))
    rows.sort(key=lambda row: (place[row["cell_key"]], rank.get(row["environment_id"], len(rank))))
    return labelled(rows, store.environments(row["environment_id"] for row in rows))


@dataclass
class Entry:
    """One mode at one point.

    `value`, `low` and `high` are in the metric's unit and None unless `status` is `ok`; `status` is None if the mode
    was not run here. `significant` is None without an interval and for metrics other than speedup. `best`:
    significantly better than every other mode of its row.
    """

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    status: str | None = None
    reason: str | None = None
    best: bool = False
    trials: int | None = None
    significant: bool | None = None
    baseline: bool = False

    @property
    def unclear(self) -> bool:
        """Whether its interval is too wide to show the value."""
        return self.low is not None and self.high is not None and self.high > UNKNOWN * self.low

    @property
    def tone(self) -> str:
        if self.status != "ok":
            return "status"
        return "best" if self.best else "unsure" if self.significant is False else ""

    @property
    def shown(self) -> Shown:
        """Value and marks, with the interval as second line."""
        value, _, rest = self.text.partition(" (")
        interval, _, mark = rest.partition(")")
        return Shown(self.value, value + mark + (" ★" if self.best else ""), self.tone, interval)


@dataclass
class Row:
    """`labels`: model, further swept parameters, bs, in reading order; `cells`: an entry for every mode."""

    labels: dict[str, Any]
    cells: dict[str, Entry]

    @property
    def no_winner(self) -> bool:
        """Whether several modes are ok and none is the best."""
        entries = self.cells.values()
        return sum(entry.status == "ok" for entry in entries) > 1 and not any(entry.best for entry in entries)


@dataclass
class SpeedupTable:
    """Points (model × bs and whatever else was swept) × modes under one metric."""

    rows: list[Row] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    metric: str = "speedup"
    baseline_mode: str = "eager"

    @property
    def label_names(self) -> list[str]:
        return list(self.rows[0].labels) if self.rows else ["model", "bs"]

    @property
    def entries(self) -> list[Entry]:
        return [entry for row in self.rows for entry in row.cells.values()]

    def legend(self, best: str) -> list[str]:
        """Explain the marks that the table has; `best` is the mark of the best of a row."""
        open_rows = sum(row.no_winner for row in self.rows)
        entries = [entry for entry in self.entries if entry.value is not None]
        marks = [
            (any(entry.best for entry in self.entries), f"{best} best of its row, significantly"),
            (open_rows, f"no significant winner in {open_rows} of {len(self.rows)} rows"),
            (any(entry.significant is False and not entry.unclear for entry in entries),
             f"{NOT_SIGNIFICANT}: the interval includes 1"),
            (any(entry.unclear for entry in entries),
             f"{UNCLEAR}: the interval's upper bound is more than {UNKNOWN} times the lower one"),
            (any(entry.low is None and not entry.baseline for entry in entries), NO_INTERVAL),
            (any(" (" in entry.text for entry in entries), "(low–high) 95 % interval over processes"),
        ]  # fmt: skip
        return [text for applies, text in marks if applies]

    def render(self, fmt: str) -> str:
        """Return the table as `markdown` (as read), `csv` (one line an entry, exact numbers) or `json` (everything)."""
        return as_json(dataclasses.asdict(self)) if fmt == "json" else self.wide().render(fmt)

    def _labels(self) -> list[Column]:
        return [Column(name, numeric=name == "bs") for name in self.label_names]

    def wide(self, marked: bool = False) -> Table:
        """A column for each mode. `marked`: with a star at the best, and intervals as second lines."""
        columns = [*self._labels(), *(Column(f"mode {mode}", mode, numeric=True) for mode in self.modes)]
        rows = [
            row.labels
            | {
                f"mode {mode}": entry.shown if marked else Shown(entry.value, entry.text, entry.tone)
                for mode, entry in row.cells.items()
            }
            for row in self.rows
        ]
        facts = ("value", "low", "high", "status", "reason", "best", "significant", "trials")
        data = [
            row.labels | {"mode": mode, "metric": self.metric} | {name: getattr(entry, name) for name in facts}
            for row in self.rows
            for mode, entry in row.cells.items()
        ]
        return Table(columns, rows, data, group="model")

    def long(self) -> Table:
        """A row for each entry: fits where the columns do not."""
        columns = [*self._labels(), Column("a mode", "mode"), Column("its figure", self.metric, numeric=True)]
        rows = [
            row.labels | {"a mode": mode, "its figure": entry.shown}
            for row in self.rows
            for mode, entry in row.cells.items()
        ]
        return Table(columns, rows, group="model")


def speedup_table(rows: Sequence[LabelledRow], metric: str = "speedup", baseline_mode: str = "eager") -> SpeedupTable:
    """Pivot labelled rows of the view `results` into a table of `metric`.

    With `speedup`, the baseline's column shows its latency, so that the absolute level is visible; its value stays the
    speedup 1. Only `ok` entries carry a value and can be best of their row. Raises UsageError for an unknown metric.
    """
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    modes = mode_order((row.mode, row.base_mode) for row in rows)
    points: dict[tuple, list[LabelledRow]] = {}
    for row in rows:
        points.setdefault(tuple(row.labels.values()), []).append(row)
    pivoted = []
    for own in points.values():
        cells = {row.mode: _entry(row, metric, baseline_mode) for row in own}
        best = _best({row.mode: row.source for row in own if row.source["status"] == "ok"}, metric)
        if best is not None:
            cells[best].best = True
        pivoted.append(Row(own[0].labels, {mode: cells.get(mode) or Entry(NOT_RUN) for mode in modes}))
    return SpeedupTable(pivoted, modes, metric, baseline_mode)


def _entry(row: LabelledRow, metric: str, baseline_mode: str) -> Entry:
    source, status = row.source, str(row.source["status"])
    entry = Entry(status, status=status, reason=source.get("reason"), trials=source.get("trials"))
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
        entry.text = _text(entry, metric)
    return entry


def _text(entry: Entry, metric: str) -> str:
    if entry.unclear:  # two trials far apart: the bounds are astronomical
        return UNCLEAR
    form, unit = METRICS[metric].format, METRICS[metric].unit
    text = form(entry.value)
    if entry.low is not None and entry.high is not None:
        low, high = (form(value).removesuffix(unit).rstrip() for value in (entry.low, entry.high))
        text += f" ({low}–{high})"
    return f"{text} {NOT_SIGNIFICANT}" if entry.significant is False else text


def speedup_text(value: float | None, low: float | None, high: float | None) -> str:
    """Return a speedup without its interval: `1.30×`, `1.02× n.s.`, `unclear`, an em dash for none."""
    if low is None or high is None or value is None or not low < high:  # unknown, or the baseline's
        return METRICS["speedup"].format(value)
    if Entry("", value, low, high).unclear:
        return UNCLEAR
    return METRICS["speedup"].format(value) + (f" {NOT_SIGNIFICANT}" if low <= 1 <= high else "")


def _best(sources: dict[str, dict[str, Any]], name: str) -> str | None:
    """The mode that is better than every other ok one: significantly if the metric has an interval. A mode alone is not
    the best of anything."""
    metric = METRICS[name]
    decisive = {"speedup": "latency_ms"}.get(name, name if name in INTERVALS else None)
    if name == "throughput_per_s":
        decisive = "period_ms" if all(source.get("period_ms") for source in sources.values()) else "latency_ms"
    if decisive:
        modes = [mode for mode, source in sources.items() if (source.get(decisive) or 0) > 0]
        if len(modes) < 2:
            return None
        place, tied = least([sources[mode] for mode in modes], decisive)
        return None if tied else modes[place]
    values = {mode: source[name] for mode, source in sources.items() if source.get(name) is not None}
    if metric.better is Better.NEITHER or len(set(values.values())) < 2:
        return None
    return (max if metric.better is Better.HIGHER else min)(values, key=lambda mode: values[mode])


def bottleneck_table(rows: Sequence[LabelledRow]) -> Table:
    """What bounds each cell, with the figures that show it."""
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
        source = row.source
        ok = source["status"] == "ok"
        reason = (why(source) or NOT_PROFILED) if ok else f"{source['status']}: {source['reason'] or NO_REASON}"
        labels = {name: str(row.labels.get(name, "")) for name in names} | {"mode": row.mode}
        texts = {name: METRICS[name].format(source.get(name)) if ok else ABSENT for name in figures}
        shown.append(labels | texts | {"bound": (ok and source.get("bound")) or ABSENT, "why": reason})
        data.append(
            labels | {"status": source["status"]} | {name: source.get(name) for name in exact} | {"why": reason}
        )
    return Table(columns, shown, data, caption="What bounds each cell")
