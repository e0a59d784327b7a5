"""History and regressions: changes over all sweeps, and every series as a figure.

The page loads series from small files on demand. A line of a file holds all metrics of one cell at
one place (see `comparison.history.Track`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from effbench.analysis.history import History, HistoryPoint, Track, TrackId, short_id
from effbench.analysis.limits import STATUS
from effbench.core.cell import Status
from effbench.core.environments import changes_between
from effbench.core.metrics import INTERVALS, METRICS
from effbench.render.colors import glyph_of
from effbench.render.history_table import change_text, events_table, lead, line_id, summary
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


def context(folder: PageFolder) -> Mapping[str, Any]:
    past = folder.report.history
    longest = max((len(track.points) for track in past.tracks), default=0) if past else 0
    values: dict[str, Any] = {"longest": longest, "least": SHORTEST}
    if past is None or longest <= 1:
        return values
    is_judged = any(state != "short" for state in past.states.values())
    table = events_table(past, MOST_CHANGES)
    return {
        **values,
        "changes": folder.grid("changes", table) if past.changes else None,
        "index": write_lines(folder, past),
        "lead": lead(past) if is_judged else NO_SERIES,
        "summary": summary(past) if is_judged else "",
        "older": past.series.older,
        "metrics": [METRICS[name] for name in past.metrics],
        "has_marks": any(mark_of(point) for track in past.tracks for point in track.points),
    }


class Lines:
    """The lines of all tracks. `several`: sweeps whose cells the site has in several
    environments."""

    def __init__(self, past: History, several: Collection[str] = ()) -> None:
        self.past = past
        self.several = several
        self.events: dict[TrackId, list[dict[str, Any]]] = defaultdict(list)
        for event in past.changes:
            self.events[event.series.track].append(
                {
                    "id": short_id(event.id),
                    "metric": event.series.metric,
                    "text": change_text(event),
                    "state": event.state,
                    "worse": event.worse,
                    "before": past.position[event.before_sweep],
                    "after": past.position[event.after_sweep],
                }
            )
        self.difference = cache(self._difference)

    def _difference(self, before: tuple[str, str], after: tuple[str, str]) -> str:
        """Return what changed between two points, given by sweep and environment."""
        where = []
        for sweep_id, environment_id in (before, after):
            sweep = {"protocol": self.past.sweeps[sweep_id]["protocol"], "host": {}}
            where.append((sweep, self.past.series.environments[environment_id]))
        return ", ".join(changes_between(*where))

    def line(self, track: Track) -> dict[str, Any]:
        """Return the line of a track.

        Its keys: `at`: positions of its sweeps. By index in `at`: `trials`, `status` ([status,
        reason] of results that are not ok), `marks` (why results are marked), `breaks` (changes of
        protocol and environment since the previous point), and `environments` if links to cells
        need them. `values`: metric -> figures. `bounds`: metric -> [lower, upper]. `events`:
        changes.
        """
        points = track.points
        values, bounds = {}, {}
        for name in self.past.metrics:
            figures = figures_of(track, name)
            limits = [figures_of(track, column) for column in INTERVALS.get(name, ())]
            if are_any(figures):
                values[name] = figures
                if limits and are_any(limits[0]):
                    bounds[name] = limits
        status, marks, environments = {}, {}, {}
        for index, point in enumerate(points):
            marks[index] = mark_of(point)
            if point.status != Status.OK:
                status[index] = [point.status, point.reason]
            if point.sweep_id in self.several:
                environments[index] = point.environment_id
        return {
            "at": [self.past.position[point.sweep_id] for point in points],
            "trials": [point.figures["trials"] for point in points],
            "status": status,
            "marks": without_none(marks),
            "values": values,
            "bounds": bounds,
            "breaks": self.breaks(points),
            "environments": environments,
            "events": self.events[track.id],
        }

    def breaks(self, points: Sequence[HistoryPoint]) -> dict[int, str]:
        """Return the index of each point before which the protocol or environment changed -> what
        did."""
        places = [(point.sweep_id, point.environment_id) for point in points]
        texts = {
            index: self.difference(before, after)
            for index, (before, after) in enumerate(pairwise(places), 1)
        }
        return without_none(texts)


def without_none(texts: Mapping[int, str | None]) -> dict[int, str]:
    return {index: text for index, text in texts.items() if text}


def are_any(figures: Sequence[float | int | None]) -> bool:
    return any(value is not None for value in figures)


def figures_of(track: Track, column: str) -> list[float | int | None]:
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


def write_lines(folder: PageFolder, past: History) -> str:
    """Write the lines and their index, which the figure and the list of cells need; return the
    index's path."""
    lines = Lines(past, {sweep.sweep_id for sweep in folder.held if sweep.several})
    size = max(1, POINTS_A_FILE // max(len(track.points) for track in past.tracks))
    rows: dict[str, list[Any]] = {}
    for file, start in enumerate(range(0, len(past.tracks), size)):
        tracks = past.tracks[start : start + size]
        part = {line_id(track.id.cell_key, track.id.place): lines.line(track) for track in tracks}
        folder.data(f"lines-{file}", part)
        for track in tracks:
            name = line_id(track.id.cell_key, track.id.place)
            rows[name] = [file, *row_of(past, track, part[name])]
    index = {
        "sweeps": [
            [sweep["id"], sweep["name"], sweep["label"], f"{sweep['started_at']:%Y-%m-%d %H:%M}"]
            for sweep in past.series.sweeps
        ],
        "metrics": metrics_of(past.metrics),
        "baselines": [
            [baseline.name, baseline.hardware, baseline.sweep_id] for baseline in past.baselines
        ],
        "modes": {cell["mode"]: glyph_of(cell["mode"]) for cell in past.series.cells.values()},
        "several": past.has_several_places,
        "lines": rows,
        "first": first_series(past),
        # sweep, hardware and folder of each device sweep on the site
        "held": [[sweep.sweep_id, sweep.hardware, sweep.slug] for sweep in folder.held],
    }
    return folder.data("index", index)


def first_series(past: History) -> str:
    """Return which series the page shows first: the worst open change, or without one the cell with
    the most ok results."""
    for event in past.changes:
        if event.series.metric != STATUS:
            series = event.series
            return f"{line_id(series.cell_key, series.place)}.{series.metric}"
    longest = max(past.tracks, key=count_ok).id
    return f"{line_id(longest.cell_key, longest.place)}.{past.metrics[0]}"


def row_of(past: History, track: Track, line: Mapping[str, Any]) -> list[Any]:
    """Return what the list of cells shows of a track."""
    cell, last = past.series.cells[track.id.cell_key], track.points[-1]
    states = [event["state"] for event in line["events"]]
    return [
        past.names[track.id.cell_key],
        track.id.place,
        cell["model"],
        cell["mode"],
        track.id.cell_key[:16],
        len(track.points),
        line["at"][-1],
        last.status,
        number(last.figures.get("latency_ms")),
        len(states) - states.count("unconfirmed"),
        states.count("open"),
        past.hardware[track.id.place],
        mark_of(last),
    ]


def metrics_of(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what the figure needs to know of each metric, and of the status."""
    metrics: dict[str, dict[str, Any]] = {}
    for name in names:
        metric = METRICS[name]
        metrics[name] = {
            "title": metric.title,
            "unit": metric.unit,
            "exact": metric.compare == "exact",
            "timed": METRICS[name].is_timed,
        }
    return metrics | {STATUS: {"title": STATUS, "unit": "", "exact": True, "timed": False}}


def count_ok(track: Track) -> int:
    return sum(point.status == Status.OK for point in track.points)


SCRIPTS = (*GRIDS, *CHARTS, "history.js")
PAGE = Page("history", "History", context, of_device_sweep=False, scripts=SCRIPTS)
