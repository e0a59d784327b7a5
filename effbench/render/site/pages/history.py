"""History and regressions: changes over all sweeps, and every series as a figure.

The page loads series from small files on demand. An entry of a file holds all metrics of one track
(see `analysis.history.Track`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from effbench.analysis.history import History, HistoryChange, HistoryPoint, Track
from effbench.analysis.limits import STATUS
from effbench.core.cell import Conditions
from effbench.core.environments import changes_between
from effbench.core.metrics import INTERVALS, METRICS
from effbench.render.colors import glyph_of
from effbench.render.history_table import change_text, changes_table, lead, line_id, summary
from effbench.render.marks import NO_REASON
from effbench.render.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.stats.changepoints import EXACT_SHORTEST, SHORTEST
from effbench.stats.intervals import is_number

#: Most changes in the table, which a browser still loads at once.
MOST_CHANGES = 3000
NO_SERIES = (
    f"No series to judge yet: changes of times need {SHORTEST} sweeps of a cell, changes of"
    f" counters {EXACT_SHORTEST}."
)
#: Points per file: about 300 KiB with nine metrics.
POINTS_A_FILE = 4000
#: Digits of a figure in a file; sweeps have at most three significant ones.
DIGITS = 7
#: A figure at each point of a track; None where it is unknown.
Figures = list[float | int | None]


def context(folder: PageFolder) -> Mapping[str, Any]:
    past = folder.report.history
    longest = max((len(track.points) for track in past.tracks), default=0) if past else 0
    values: dict[str, Any] = {"longest": longest, "least": SHORTEST}
    if past is None or longest <= 1:
        return values
    changes = None
    if past.changes:
        changes = folder.grid("changes", changes_table(past, MOST_CHANGES))
    return {
        **values,
        "changes": changes,
        "index": write_lines(folder, past),
        "lead": lead(past) if past.judged else NO_SERIES,
        "summary": summary(past) if past.judged else "",
        "older": past.older,
        "metrics": [METRICS[name] for name in past.metrics],
        "has_marks": any(point.is_marked for point in past.points),
    }


def write_lines(folder: PageFolder, past: History) -> str:
    """Write the lines and their index, which the figure and the list of cells need; return the
    index's path."""
    several = {sweep.sweep_id for sweep in folder.held if sweep.several}
    changes: dict[Track, list[HistoryChange]] = defaultdict(list)
    for change in past.changes:
        changes[change.track].append(change)
    size = max(1, POINTS_A_FILE // max(len(track.points) for track in past.tracks))
    rows = {}
    for file, start in enumerate(range(0, len(past.tracks), size)):
        lines = {}
        for track in past.tracks[start : start + size]:
            name = line_id(track.cell_key, track.place)
            lines[name] = line(past, track, changes[track], several)
            rows[name] = {"file": file, **summary_of(past, track, changes[track])}
        folder.data(f"lines-{file}", lines)
    index = {
        "sweeps": [
            [sweep.id, sweep.name, sweep.label, f"{sweep.started_at:%Y-%m-%d %H:%M}"]
            for sweep in past.sweeps
        ],
        "metrics": {name: describe_metric(name) for name in (*past.metrics, STATUS)},
        "baselines": [
            [baseline.name, baseline.hardware, baseline.sweep_id] for baseline in past.baselines
        ],
        "modes": {cell.mode_name: glyph_of(cell.mode_name) for cell in past.cells.values()},
        "several": past.has_several_places,
        "lines": rows,
        "first": first_series(past),
        # sweep, hardware and folder of each device sweep on the site
        "held": [[sweep.sweep_id, sweep.hardware, sweep.slug] for sweep in folder.held],
    }
    return folder.data("index", index)


def line(
    past: History,
    track: Track,
    changes: Sequence[HistoryChange] = (),
    several: Collection[str] = (),
) -> dict[str, Any]:
    """Return the line of a track.

    Its keys: `at`: positions of its sweeps. By index in `at`: `trials`, `status` ([status, reason]
    of results that are not ok), `marks` (why results are marked), `breaks` (changes of protocol and
    environment since the previous point), and `environments` for links to cells in sweeps with
    `several`. `values`: metric -> figures. `bounds`: metric -> [lower, upper]. `events`: changes.
    """
    points = list(enumerate(track.points))
    values = known_figures(track, past.metrics)
    return {
        "at": [point.at for point in track.points],
        "trials": [point.figures["trials"] for point in track.points],
        "status": {
            index: [point.status, point.reason] for index, point in points if not point.is_ok
        },
        "marks": {index: mark_of(point) for index, point in points if point.is_marked},
        "values": values,
        "bounds": intervals_of(track, values),
        "breaks": breaks_of(past, track),
        "environments": {
            index: point.environment_id
            for index, point in points
            if past.sweeps[point.at].id in several
        },
        "events": [event_of(change) for change in changes],
    }


def known_figures(track: Track, metrics: Iterable[str]) -> dict[str, Figures]:
    """Return metric -> its figure at each point, for the metrics that the track has."""
    values = {}
    for metric in metrics:
        figures = figures_of(track, metric)
        if are_any(figures):
            values[metric] = figures
    return values


def intervals_of(track: Track, metrics: Iterable[str]) -> dict[str, list[Figures]]:
    """Return metric -> [lower bounds, upper bounds] at each point, for the metrics that have an
    interval."""
    intervals = {}
    for metric in metrics:
        if metric not in INTERVALS:
            continue
        low, high = (figures_of(track, column) for column in INTERVALS[metric])
        if are_any(low):
            intervals[metric] = [low, high]
    return intervals


def event_of(change: HistoryChange) -> dict[str, Any]:
    """Return what the figure shows of a change."""
    return {
        "metric": change.metric,
        "text": change_text(change),
        "state": change.state,
        "worse": change.is_worse,
        "before": change.before.at,
        "after": change.after.at,
    }


def breaks_of(past: History, track: Track) -> dict[int, str]:
    """Return the index of each point before which the protocol or environment changed -> what
    did."""
    breaks = {}
    for index, (before, after) in enumerate(pairwise(track.points), 1):
        old, new = past.sweeps[before.at].protocol, past.sweeps[after.at].protocol
        if before.environment_id == after.environment_id and old == new:
            continue
        differences = changes_between(
            Conditions(past.environments[before.environment_id], old, {}),
            Conditions(past.environments[after.environment_id], new, {}),
        )
        if differences:
            breaks[index] = ", ".join(differences)
    return breaks


def are_any(figures: Figures) -> bool:
    return any(value is not None for value in figures)


def figures_of(track: Track, column: str) -> Figures:
    return [number(point.figures[column]) for point in track.points]


def mark_of(point: HistoryPoint) -> str | None:
    """Return why a point of a track is marked; None if it is not."""
    if not point.is_marked:
        return None
    return point.figures["disturbance"] or NO_REASON


def number(value: Any) -> float | int | None:
    """Return a figure for a file: an integer unchanged, another number to DIGITS digits, None for
    other values."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def first_series(past: History) -> str:
    """Return which series the page shows first: the worst open change, or without one the cell with
    the most ok results."""
    for change in past.changes:
        if change.metric != STATUS:
            return f"{line_id(change.track.cell_key, change.track.place)}.{change.metric}"
    longest = max(past.tracks, key=lambda track: sum(point.is_ok for point in track.points))
    return f"{line_id(longest.cell_key, longest.place)}.{past.metrics[0]}"


def summary_of(past: History, track: Track, changes: Sequence[HistoryChange]) -> dict[str, Any]:
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
        "latency": number(last.figures.get("latency_ms")),
        "changes": sum(change.is_confirmed for change in changes),
        "open": sum(change.is_open for change in changes),
        "hardware": track.hardware,
        "mark": mark_of(last),
    }


def describe_metric(name: str) -> dict[str, Any]:
    """Return what the figure needs to know of a metric, or of the status."""
    if name == STATUS:
        return {"title": STATUS, "unit": "", "exact": True, "timed": False}
    metric = METRICS[name]
    return {
        "title": metric.title,
        "unit": metric.unit,
        "exact": metric.compare == "exact",
        "timed": metric.is_timed,
    }


SCRIPTS = (*GRIDS, *CHARTS, "history.js")
PAGE = Page("history", "History", context, of_device_sweep=False, scripts=SCRIPTS)
