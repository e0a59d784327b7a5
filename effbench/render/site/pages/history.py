"""History and regressions: changes over all sweeps, and every series as a figure.

The page loads series from small files on demand. An entry of a file holds all metrics of one track
(see `analysis.history.Track`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from effbench.analysis.history import History, HistoryChange, HistoryPoint, Track
from effbench.analysis.limits import STATUS
from effbench.core.environments import changes_between
from effbench.core.labels import grouped
from effbench.core.metrics import INTERVALS, METRICS
from effbench.render.colors import glyph_of
from effbench.render.history_table import change_text, changes_table, lead, line_id, summary
from effbench.render.marks import UNNAMED_DISTURBANCE
from effbench.render.site.page import CHARTS, GRIDS, Context, Page, PageFolder
from effbench.render.site.writer import Json
from effbench.stats.changepoints import EXACT_SHORTEST, SHORTEST
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
    longest = 0
    if past is not None:
        longest = max((len(track.points) for track in past.tracks), default=0)
    if past is None or longest <= 1:
        return {"longest": longest, "least": SHORTEST}
    changes = None
    if past.changes:
        changes = folder.grid("changes", changes_table(past, MOST_CHANGES))
    return {
        "longest": longest,
        "changes": changes,
        "index": write_lines(folder, past, max(1, POINTS_A_FILE // longest)),
        "lead": lead(past) if past.judged else NO_SERIES,
        "summary": summary(past) if past.judged else "",
        "older": past.older,
        "metrics": [METRICS[name] for name in past.metrics],
        "has_marks": any(point.is_marked for point in past.points),
    }


def write_lines(folder: PageFolder, past: History, size: int) -> str:
    """Write the lines, this many a file, and their index, which the figure and the list of cells
    need; return the index's path."""
    changes = grouped(past.changes, attrgetter("track"))
    rows = {}
    for number, tracks in enumerate(batched(past.tracks, size)):
        lines = {}
        for track in tracks:
            name = line_id(track.cell_key, track.place)
            lines[name] = line(past, track, changes.get(track, ()))
            rows[name] = {"file": number, **summary_of(past, track, changes.get(track, ()))}
        folder.data(f"lines-{number}", lines)
    index = {
        "sweeps": [
            [sweep.id, sweep.name, sweep.label, f"{sweep.started_at:%Y-%m-%d %H:%M}"]
            for sweep in past.sweeps
        ],
        "metrics": {name: describe_metric(name) for name in past.metrics},
        "baselines": [
            [baseline.name, baseline.hardware, baseline.sweep_id] for baseline in past.baselines
        ],
        "modes": {cell.mode_name: glyph_of(cell.mode_name) for cell in past.cells.values()},
        "several": past.has_several_places,
        "lines": rows,
        "first": first_series(past),
        # sweep, hardware, folder and number of environments of each device sweep on the site
        "held": [
            [held.sweep.id, held.hardware, held.slug, len(held.environments)]
            for held in folder.held
        ],
    }
    return folder.data("index", index)


def line(past: History, track: Track, changes: Sequence[HistoryChange] = ()) -> Json:
    """Return the line of a track.

    Its keys: `at`: positions of its sweeps. By index in `at`: `trials`, `environments`, `status`
    ([status, reason] of results that are not ok), `marks` (why results are marked) and `breaks`
    (changes of protocol and environment since the previous point). `figures`: metric or bound of an
    interval -> value at each point, None where it is unknown. `events`: changes.
    """
    points = track.points
    figures = {}
    for name in past.metrics:
        for column in (name, *INTERVALS.get(name, ())):
            values = [rounded(point.figures[column]) for point in points]
            if any(value is not None for value in values):
                figures[column] = values
    numbered = list(enumerate(points))
    return {
        "at": [point.at for point in points],
        "trials": [point.figures["trials"] for point in points],
        "environments": [point.environment_id for point in points],
        "status": {
            index: [point.status, point.reason] for index, point in numbered if not point.is_ok
        },
        "marks": {index: mark_of(point) for index, point in numbered if point.is_marked},
        "figures": figures,
        "breaks": breaks_of(past, track),
        "events": [
            {
                "metric": change.metric,
                "text": change_text(change),
                "state": change.state,
                "worse": change.is_worse,
                "before": change.before.at,
                "after": change.after.at,
            }
            for change in changes
        ],
    }


def breaks_of(past: History, track: Track) -> dict[int, str]:
    """Return the index of each point before which the protocol or environment changed -> what
    did."""
    conditions = [replace(past.conditions(point), host={}) for point in track.points]
    breaks = {}
    for index, (before, after) in enumerate(pairwise(conditions), 1):
        # comparing is much faster than finding the differences
        differences = changes_between(before, after) if before != after else []
        if differences:
            breaks[index] = ", ".join(differences)
    return breaks


def mark_of(point: HistoryPoint) -> str | None:
    """Return why a point of a track is marked; None if it is not."""
    if not point.is_marked:
        return None
    return point.figures["disturbance"] or UNNAMED_DISTURBANCE


def rounded(value: Any) -> Any:
    """Return a figure with seven digits; results have three."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return value


def first_series(past: History) -> str:
    """Return which series the page shows first: the worst open change, or without one the cell with
    the most ok results."""
    for change in past.changes:
        if change.metric != STATUS:
            return f"{line_id(change.track.cell_key, change.track.place)}.{change.metric}"
    longest = max(past.tracks, key=lambda track: sum(point.is_ok for point in track.points))
    return f"{line_id(longest.cell_key, longest.place)}.{past.metrics[0]}"


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
        "changes": sum(change.is_confirmed for change in changes),
        "open": sum(change.is_open for change in changes),
        "hardware": track.hardware,
        "mark": mark_of(last),
    }


def describe_metric(name: str) -> Json:
    """Return what the figure needs to know of a metric."""
    metric = METRICS[name]
    return {
        "title": metric.title,
        "unit": metric.unit,
        "exact": metric.compare == "exact",
        "timed": metric.is_timed,
        "interval": metric.interval,
    }


SCRIPTS = (*GRIDS, *CHARTS, "history.js")
PAGE = Page("history", "History", context, of_device_sweep=False, scripts=SCRIPTS)
