"""The speedup table as plain data: rows model × bs (and whatever else was swept) × one column a mode.

Standard library only, so that a terminal command starts quickly. `render` gives Markdown, CSV and JSON; the page and
the terminal draw the same structure in their own way.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis.scores import UNCLEAR, least
from effbench.analysis.swept import SweptRow, mode_order, plain_rows, swept_rows
from effbench.errors import UsageError
from effbench.metrics import INTERVALS, METRICS, Better, Metric
from effbench.printable import one_line

#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
NOT_RUN = "not run"
#: With bounds more than this many times apart, a figure is shown as unclear. A figure of one cell stands next to its
#: interval, so this is more lenient than the limit of a mean over cells.
UNKNOWN = 100
NO_BASELINE = "no baseline"
NO_INTERVAL = "no interval: too few rounds"
FORMATS = ("markdown", "csv", "json")


@dataclass
class Entry:
    """One cell of the table.

    `value`, `low` and `high` are in the metric's unit and None unless `status` is `ok`; `status` is None where nothing
    was run. `significant` is None without an interval and for metrics other than speedup. `best`: significantly better
    than every other mode of its row. `tone` is `plain`, `best`, `unsure` (not significant) or `status`, for whoever
    colours it.
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
        if self.best:
            return "best"
        return "unsure" if self.significant is False else "plain"


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
    rows: list[Row] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    metric: str = "speedup"
    baseline_mode: str = "eager"

    @property
    def label_names(self) -> list[str]:
        return list(self.rows[0].labels) if self.rows else ["model", "bs"]

    def legend(self, best: str) -> list[str]:
        """Explain the marks that the table has; `best` is the one of the best of a row."""
        rows = [row for row in self.rows if row.no_winner]
        entries = [entry for row in self.rows for entry in row.cells.values() if entry.value is not None]
        marks = [
            (any(entry.best for row in self.rows for entry in row.cells.values()),
             f"{best} best of its row, significantly"),
            (bool(rows), f"no significant winner in {len(rows)} of {len(self.rows)} rows"),
            (any(entry.text.endswith(NOT_SIGNIFICANT) for entry in entries),
             f"{NOT_SIGNIFICANT}: the interval includes 1"),
            (any(entry.unclear for entry in entries),
             f"{UNCLEAR}: the interval's upper bound is more than {UNKNOWN} times the lower one"),
            (any(entry.low is None and not entry.baseline for entry in entries), NO_INTERVAL),
            (any(" (" in entry.text for entry in entries), "(low–high) 95 % interval over processes"),
        ]  # fmt: skip
        return [text for applies, text in marks if applies]

    def render(self, fmt: str) -> str:
        """The table as `markdown` (as read), `csv` (one line an entry, exact numbers) or `json` (all there is)."""
        if fmt == "markdown":
            return self._markdown()
        if fmt == "csv":
            return self._csv()
        if fmt == "json":
            return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False, allow_nan=False)
        raise UsageError(f"unknown table format {fmt!r}; choose from {', '.join(FORMATS)}")

    def _markdown(self) -> str:
        head = [_markdown_text(name) for name in (*self.label_names, *self.modes)]
        lines = [_markdown_line(head), _markdown_line(["---"] * len(self.label_names) + ["---:"] * len(self.modes))]
        for row in self.rows:
            entries = [
                f"**{_markdown_text(entry.text)}**" if entry.best else _markdown_text(entry.text)
                for entry in (row.cells[mode] for mode in self.modes)
            ]
            lines.append(_markdown_line([*(_markdown_text(value) for value in row.labels.values()), *entries]))
        return "\n".join(lines) + "\n"

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        facts = ("value", "low", "high", "status", "reason", "best", "significant", "trials")
        writer.writerow([*self.label_names, "mode", "metric", *facts])
        for row in self.rows:
            for mode, entry in row.cells.items():
                values = [getattr(entry, name) for name in facts]
                flags = [str(value).lower() if isinstance(value, bool) else value for value in values]
                writer.writerow([*row.labels.values(), mode, self.metric, *flags])
        return out.getvalue()


def speedup_table(frame_or_rows: Any, metric: str = "speedup", baseline_mode: str = "eager") -> SpeedupTable:
    """Pivot rows of the view `results` (a DataFrame or a list of dicts) into a table of `metric`.

    With `speedup`, the baseline's column shows its latency, so that the absolute level can be seen, while its value
    stays the speedup 1. Only `ok` entries carry a value and can be best of their row.
    """
    return table_of(swept_rows(plain_rows(frame_or_rows)), metric, baseline_mode)


def table_of(labelled: list[SweptRow], metric: str = "speedup", baseline_mode: str = "eager") -> SpeedupTable:
    """The same of rows that are labelled already."""
    if metric not in METRICS:
        raise UsageError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    modes = mode_order((row.mode, row.base_mode) for row in labelled)
    rows: dict[tuple, Row] = {}
    sources: dict[tuple, dict[str, dict[str, Any]]] = {}
    for source in labelled:
        labels = tuple(source.labels.values())
        row = rows.setdefault(labels, Row(source.labels, {}))
        row.cells[source.mode] = _entry(source, METRICS[metric], baseline_mode)
        sources.setdefault(labels, {})[source.mode] = source.source
    for labels, row in rows.items():
        best = _best(row, sources[labels], METRICS[metric])
        if best is not None:
            row.cells[best].best = True
        row.cells = {mode: row.cells.get(mode) or Entry(NOT_RUN) for mode in modes}
    return SpeedupTable(list(rows.values()), modes, metric, baseline_mode)


def _entry(row: SweptRow, metric: Metric, baseline_mode: str) -> Entry:
    source = row.source
    status = str(source.get("status"))
    entry = Entry(status, status=status, reason=source.get("reason"), trials=source.get("trials"))
    entry.baseline = row.base_mode == baseline_mode
    if status != "ok":
        return entry
    entry.value = source.get(metric.name)
    low, high = INTERVALS.get(metric.name, ("", ""))
    entry.low, entry.high = source.get(low), source.get(high)
    if metric.name == "speedup" and entry.baseline:
        entry.text = METRICS["latency_ms"].format(source.get("latency_ms"))
    elif entry.value is None and metric.name == "speedup":
        entry.text = NO_BASELINE
        entry.reason = entry.reason or f"{baseline_mode} has no ok result to compare with"
    else:
        if metric.name == "speedup" and entry.low is not None and entry.high is not None:
            entry.significant = not entry.low <= 1 <= entry.high
        entry.text = _text(entry, metric)
    return entry


def _text(entry: Entry, metric: Metric) -> str:
    if entry.unclear:  # two trials far apart: the bounds are astronomical
        return UNCLEAR
    text = metric.format(entry.value)
    if entry.low is not None and entry.high is not None:
        low, high = metric.format(entry.low), metric.format(entry.high)
        for suffix in (metric.unit, f" {metric.unit}"):
            low, high = low.removesuffix(suffix).rstrip(), high.removesuffix(suffix).rstrip()
        text += f" ({low}–{high})"
    return f"{text} {NOT_SIGNIFICANT}" if entry.significant is False else text


def speedup_text(value: float | None, low: float | None, high: float | None) -> str:
    """Return a speedup without its interval: `1.30×`, `1.02× n.s.`, `unclear`, an em dash for none."""
    if low is None or high is None or value is None or not low < high:  # unknown, or the baseline's
        return METRICS["speedup"].format(value)
    entry = Entry("", value, low, high)
    mark = f" {NOT_SIGNIFICANT}" if low <= 1 <= high else ""
    return UNCLEAR if entry.unclear else METRICS["speedup"].format(value) + mark


def _best(row: Row, sources: dict[str, dict[str, Any]], metric: Metric) -> str | None:
    """The mode that is better than every other ok one: significantly where the metric has an interval. One alone is the
    best of nothing."""
    ok = [mode for mode, entry in row.cells.items() if entry.status == "ok"]
    decisive = _decisive(metric.name, [sources[mode] for mode in ok])
    if decisive:
        ok = [mode for mode in ok if (sources[mode].get(decisive) or 0) > 0]
        if len(ok) < 2:
            return None
        place, tied = least([sources[mode] for mode in ok], decisive)
        return None if tied else ok[place]
    ok = [mode for mode in ok if row.cells[mode].value is not None]
    if metric.better is Better.NEITHER or len({row.cells[mode].value for mode in ok}) < 2:
        return None
    pick = max if metric.better is Better.HIGHER else min
    return pick(ok, key=lambda mode: row.cells[mode].value)


def _decisive(name: str, sources: list[dict[str, Any]]) -> str | None:
    """The time that decides which mode is best; None for metrics without an interval."""
    if name == "throughput_per_s":
        return "period_ms" if all(source.get("period_ms") for source in sources) else "latency_ms"
    return {"speedup": "latency_ms"}.get(name, name if name in INTERVALS else None)


def _markdown_line(values: list[str]) -> str:
    return f"| {' | '.join(values)} |"


def _markdown_text(value: Any) -> str:
    text = one_line(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
