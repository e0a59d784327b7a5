"""History and regressions: what changed over all sweeps, and every series as a figure.

The series are in small files that are loaded when a reader looks at one. A line of a file is one cell at one place
(see `comparison.events.Track`) with all its metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from effbench.cell import Status
from effbench.comparison.events import Event, History, SeriesId, Track
from effbench.comparison.verdicts import STATUS
from effbench.environments import changes_between
from effbench.metrics import INTERVALS, METRICS
from effbench.report.colors import glyph_of
from effbench.report.history_table import change_text, events_table, line_id, summary
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.stats.intervals import is_number
from effbench.stats.segmentation import SHORTEST

#: Changes in the table; more than anybody reads, and what a browser takes in at once.
MOST_CHANGES = 3000
#: Points in one file: some 300 KiB of nine metrics.
POINTS_A_FILE = 4000
#: Digits of a figure in a file; a sweep is known to three at best.
DIGITS = 7


def context(folder: PageFolder) -> Mapping[str, Any]:
    past = folder.report.history
    longest = max((len(track.rows) for track in past.tracks), default=0) if past else 0
    found: dict[str, Any] = {"longest": longest, "least": SHORTEST}
    if longest > 1:
        found["changes"] = folder.grid("changes", events_table(past, MOST_CHANGES)) if past.events else None
        found["index"] = write_lines(folder, past)
        found["summary"] = summary(past)
        found["metrics"] = [METRICS[name] for name in past.metrics]
        found["more"] = max(0, len(past.events) - MOST_CHANGES)
    return found


# --- series ---


def files_of(past: History) -> Iterator[list[Track]]:
    """Yield the tracks of each file."""
    longest = max(len(track.rows) for track in past.tracks)
    size = max(1, POINTS_A_FILE // longest)
    for start in range(0, len(past.tracks), size):
        yield past.tracks[start : start + size]


class Lines:
    """Tracks as plain values. `several`: ids of the sweeps whose cells the site has in more than one environment."""

    def __init__(self, past: History, several: Collection[str] = ()) -> None:
        self.past = past
        self.several = frozenset(several)
        self.events: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in past.changes:
            self.events[event.series[:2]].append(event)

        @cache
        def difference(*points: tuple[str, str]) -> str:
            where = (
                ({"protocol": past.sweeps[sweep_id]["protocol"], "host": {}}, past.series.environments[environment_id])
                for sweep_id, environment_id in points
            )
            return ", ".join(changes_between(*where))

        self.difference = difference

    def line(self, track: Track) -> dict[str, Any]:
        """Return a line.

        `at`: positions of its sweeps. By index in `at`: `trials`, `status` of results that are not ok as [status,
        reason], `breaks` (what protocol and environment differ in from the point before), `environments` if a link to
        the cell needs them. `values` and `bounds`: metric -> figures, and lower and upper ones; `events`: changes.
        """
        rows = track.rows
        points = [(row.sweep_id, row.environment_id) for row in rows]
        differences = enumerate((self.difference(*pair) for pair in pairwise(points)), 1)
        found: dict[str, Any] = {
            "at": [self.past.position[row.sweep_id] for row in rows],
            "trials": [row.trials for row in rows],
            "status": {index: [row.status, row.reason] for index, row in enumerate(rows) if row.status != Status.OK},
            "values": {},
            "bounds": {},
            "breaks": {index: text for index, text in differences if text},
            "events": [self._event(event) for event in self.events[track[:2]]],
        }
        if self.several:
            found["environments"] = {
                i: row.environment_id for i, row in enumerate(rows) if row.sweep_id in self.several
            }
        for name in self.past.metrics:
            values, *bounds = (
                [number(getattr(row, column)) for row in rows] for column in (name, *INTERVALS.get(name, ()))
            )
            if any(value is not None for value in values):
                found["values"][name] = values
                if bounds and any(value is not None for value in bounds[0]):
                    found["bounds"][name] = bounds
        return found

    def _event(self, event: Event) -> dict[str, Any]:
        return {
            "id": self.past.short_id(event.id),
            "metric": event.series.metric,
            "text": change_text(event),
            "state": event.state,
            "before": self.past.position[event.before],
            "after": self.past.position[event.after],
            "worse": event.worse,
        }


def number(value: Any) -> float | int | None:
    """Return a figure of a file: integers as they are, others to DIGITS digits, None if it is none."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def write_lines(folder: PageFolder, past: History) -> str:
    """Write every line to its file, then the index of all: what the figure and the list that a reader searches need."""
    device_sweeps = folder.report.device_sweeps
    lines = Lines(past, {str(one.sweep["id"]) for one in device_sweeps if len(one.environments) > 1})
    rows = {}
    for file, tracks in enumerate(files_of(past)):
        folder.data(f"lines-{file}", {line_id(track.cell_key, track.place): lines.line(track) for track in tracks})
        for track in tracks:
            cell, last, events = past.series.cells[track.cell_key], track.rows[-1], lines.events[track[:2]]
            rows[line_id(track.cell_key, track.place)] = [
                file, past.names[track.cell_key], track.place, cell["model"], cell["mode"], track.cell_key[:16],
                len(track.rows), past.position[last.sweep_id], last.status, number(getattr(last, "latency_ms", None)),
                sum(event.kind != "recent" for event in events), sum(event.alarms for event in events),
                past.hardware[track.place],
            ]  # fmt: skip
    metrics = {
        metric.name: {"title": metric.title, "unit": metric.unit, "exact": metric.compare == "exact"}
        for metric in (METRICS[name] for name in past.metrics)
    }
    sweeps = past.series.sweeps
    # at first the newest and worst change is shown; without one the cell with most ok results
    longest = max(past.tracks, key=lambda track: sum(row.status == Status.OK for row in track.rows))
    changes = [event.series for event in past.changes if event.series.metric != STATUS]
    first = next(iter(changes), SeriesId(longest.cell_key, longest.place, past.metrics[0]))
    index = {
        "sweeps": [[one["id"], one["name"], one["label"], f"{one['started_at']:%Y-%m-%d %H:%M}"] for one in sweeps],
        "metrics": metrics | {STATUS: {"title": STATUS, "unit": "", "exact": True}},
        "baselines": [[one.name, one.hardware, one.sweep_id] for one in past.baselines],
        "modes": {cell["mode"]: glyph_of(cell["mode"]) for cell in past.series.cells.values()},
        "several": len({track.place for track in past.tracks}) > 1,
        "lines": rows,
        "first": f"{line_id(first.cell_key, first.place)}.{first.metric}",
        # sweep and hardware of each sweep that the site has cells of, and where these are
        "held": [[one.sweep["id"], one.hardware, one.slug] for one in device_sweeps],
    }
    return folder.data("index", index)


PAGE = Page(
    "history", "History", 60, context, of_device_sweep=False,
    scripts=(*GRIDS, "linked.js", *CHARTS, "history.js"),
)  # fmt: skip
