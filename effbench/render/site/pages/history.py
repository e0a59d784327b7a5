"""History and regressions: changes over all sweeps, and every series as a figure.

The page loads series from small files on demand. An entry of a file holds all metrics of one track
(see `analysis.history.Track`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from effbench.analysis.history import History, HistoryChange, HistoryPoint, Track
from effbench.core.labels import grouped
from effbench.core.metrics import INTERVALS, METRICS
from effbench.render.colors import glyph_of
from effbench.render.history_table import change_text, changes_table, lead, line_id, summary
from effbench.render.site.page import CHARTS, GRIDS, Context, Page, PageFolder
from effbench.render.site.writer import Json
from effbench.stats.changepoints import EXACT_SHORTEST, SHORTEST
from effbench.store.sweeps import SweepInfo
from effbench.store.values import batched

#: Most changes in the table, which a browser still loads at once.
MOST_CHANGES = 3000
NO_SERIES = (
    f"No series to judge yet: changes of times need {SHORTEST} sweeps of a cell, changes of"
    f" counters {EXACT_SHORTEST}."
)
#: Points per file: about 300 KiB with nine metrics.
POINTS_A_FILE = 4000


def context(folder: PageFolder) -> Context:
    past = folder.report.history
    longest = max((len(track.points) for track in past.tracks), default=0)
    if longest <= 1:
        return {"longest": longest, "least": SHORTEST}
    conclusion, numbers = NO_SERIES, ""
    if past.judged:
        conclusion, numbers = lead(past), summary(past)
    changes = None
    if past.changes:
        changes = folder.grid("changes", changes_table(past, MOST_CHANGES))
    return {
        "longest": longest,
        "changes": changes,
        "index": write_lines(folder, past, max(1, POINTS_A_FILE // longest)),
        "lead": conclusion,
        "summary": numbers,
        "older": past.older,
        "metrics": [METRICS[name] for name in past.metrics],
        "has_marks": any(point.is_marked for point in past.points),
    }


def write_lines(folder: PageFolder, past: History, size: int) -> str:
    """Write the lines, this many a file, and their index, which the figure and the list of cells
    need; return the index's path."""
    changes = grouped(past.changes, attrgetter("track"))
    listed = {}
    for number, tracks in enumerate(batched(past.tracks, size)):
        lines = {}
        for track in tracks:
            of_track = changes.get(track, [])
            lines[line_id(track)] = line(past, track, of_track)
            listed[line_id(track)] = {"file": number, **summary_of(past, track, of_track)}
        folder.data(f"lines-{number}", lines)
    modes = {cell.mode_name for cell in past.cells.values()}
    index = {
        "sweeps": [describe_sweep(sweep) for sweep in past.sweeps],
        "metrics": {name: describe_metric(name) for name in past.metrics},
        "modes": {mode: glyph_of(mode) for mode in sorted(modes)},
        "several": past.has_several_places,
        "lines": listed,
        "first": first_series(past),
    }
    return folder.data("index", index)


def line(past: History, track: Track, changes: Sequence[HistoryChange]) -> Json:
    """Return the line of a track.

    Of each point: `at` (the position of its sweep), `trials`, `environments` and `figures` (see
    `figures_of`). Of some points, by number: `status` (of results that are not ok) and `marks` (why
    results are marked). `events`: changes.
    """
    points = track.points
    statuses = {}
    marks = {}
    for number, point in enumerate(points):
        if not point.is_ok:
            statuses[number] = {"status": point.status, "reason": point.reason}
        if point.is_marked:
            marks[number] = point.figures["disturbance"]
    return {
        "at": [point.at for point in points],
        "trials": [point.figures["trials"] for point in points],
        "environments": [point.environment_id for point in points],
        "status": statuses,
        "marks": marks,
        "figures": figures_of(points, past.metrics),
        "events": [describe_event(change) for change in changes],
    }


def figures_of(points: Sequence[HistoryPoint], metrics: Sequence[str]) -> dict[str, Json]:
    """Return metric -> its `values` and, if it has an interval, the bounds `low` and `high` of each
    point, None where they are unknown; without metrics that no point has."""
    figures: dict[str, Json] = {}
    for name in metrics:
        parts = {"values": name}
        if name in INTERVALS:
            parts["low"], parts["high"] = INTERVALS[name]
        for part, column in parts.items():
            values = [rounded(point.figures[column]) for point in points]
            if any(value is not None for value in values):
                figures.setdefault(name, {})[part] = values
    return figures


def rounded(value: Any) -> Any:
    """Return a figure with seven digits; results have three."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return value


def first_series(past: History) -> Json:
    """Return which series the page shows first: the worst open change, or without changes the first
    cell."""
    if past.changes:
        change = past.changes[0]
        return {"id": line_id(change.track), "metric": change.metric}
    return {"id": line_id(past.tracks[0]), "metric": past.metrics[0]}


def summary_of(past: History, track: Track, changes: Sequence[HistoryChange]) -> Json:
    """Return what the list of cells shows of a track."""
    cell, last = past.cells[track.cell_key], track.points[-1]
    return {
        "name": past.names[track.cell_key],
        "place": track.place,
        "model": cell.model_name,
        "mode": cell.mode_name,
        "key": track.cell_key[:16],
        "count": len(track.points),
        "last": last.at,
        "status": last.status,
        "latency": rounded(last.figures.get("latency_ms")),
        "changes": len(changes),
        "open": sum(change.is_open for change in changes),
        "hardware": track.hardware,
        "mark": last.figures["disturbance"],
    }


def describe_event(change: HistoryChange) -> Json:
    return {
        "metric": change.metric,
        "text": change_text(change),
        "state": change.state,
        "worse": change.is_worse,
        "before": change.before.at,
        "after": change.after.at,
    }


def describe_sweep(sweep: SweepInfo) -> Json:
    return {
        "id": sweep.id,
        "name": sweep.name,
        "label": sweep.label,
        "date": f"{sweep.started_at:%Y-%m-%d}",
        "time": f"{sweep.started_at:%H:%M}",
    }


def describe_metric(name: str) -> Json:
    """Return what the figure needs to know of a metric."""
    metric = METRICS[name]
    return {
        "title": metric.title,
        "unit": metric.unit,
        "exact": metric.compare == "exact",
        "timed": metric.is_timed,
    }


SCRIPTS = (*GRIDS, *CHARTS, "history.js")
PAGE = Page("history", "History", of_device_sweep=False, scripts=SCRIPTS)
