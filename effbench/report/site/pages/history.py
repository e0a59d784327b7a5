"""History and regressions: changes over all sweeps, and every series as a figure.

The page loads series from small files on demand. A line of a file holds all metrics of one cell at
one place (see `comparison.events.Track`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from itertools import islice, pairwise
from typing import Any

from effbench.cell import Status
from effbench.comparison.events import History, SeriesId, Track, short_id
from effbench.comparison.history import OTHER_KINDS
from effbench.comparison.verdicts import STATUS
from effbench.environments import changes_between
from effbench.metrics import INTERVALS, METRICS
from effbench.report.colors import glyph_of
from effbench.report.history_table import (
    change_text,
    coming_and_going,
    details_text,
    events_table,
    lead,
    line_id,
    summary,
)
from effbench.report.marks import is_timed, why_marked
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.stats.changepoints import EXACT_SHORTEST
from effbench.stats.intervals import is_number
from effbench.stats.segmentation import SHORTEST

#: Most changes in the table, which a browser still loads at once.
MOST_CHANGES = 3000
#: Most lines about cells that are new or were not measured again, the newest.
MOST_COMING = 20
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
    longest = max((len(track.rows) for track in past.tracks), default=0) if past else 0
    values: dict[str, Any] = {"longest": longest, "least": SHORTEST}
    if longest > 1:
        is_judged = any(state != "short" for state in past.states.values())
        # a cell that is new or was not measured again is no change
        listed = past.without("new", "dead")[:MOST_CHANGES]
        values["changes"] = folder.grid("changes", events_table(past, listed)) if listed else None
        values["index"] = write_lines(folder, past)
        values["lead"] = lead(past) if is_judged else NO_SERIES
        values["summary"] = summary(past) if is_judged else ""
        values["coming"] = coming_and_going(past)[-MOST_COMING:] if is_judged else []
        values["older"] = past.series.older
        values["metrics"] = [METRICS[name] for name in past.metrics]
        values["has_marks"] = any(mark_of(row) for track in past.tracks for row in track.rows)
    return values


def lines_of(
    past: History, several: Collection[str] = ()
) -> Iterator[tuple[Track, dict[str, Any]]]:
    """Yield each track with its line. `several`: sweeps whose cells the site has in several
    environments.

    Keys of a line: `at`: positions of its sweeps. By index in `at`: `trials`, `status` ([status,
    reason] of results that are not ok), `marks` (why results are marked), `breaks` (changes of
    protocol and environment since the previous point), and `environments` if links to cells need
    them. `values`: metric -> figures. `bounds`: metric -> [lower, upper]. `events`: changes.
    `others`: metric and text of other events, such as flapping.
    """

    @cache
    def difference(*points: tuple[str, str]) -> str:
        where = (
            (
                {"protocol": past.sweeps[sweep_id]["protocol"], "host": {}},
                past.series.environments[environment_id],
            )
            for sweep_id, environment_id in points
        )
        return ", ".join(changes_between(*where))

    events: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in past.changes:
        events[event.series[:2]].append(
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
    others: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for event in past.of(*OTHER_KINDS):
        text = {
            "metric": event.series.metric,
            "text": change_text(event),
            "details": details_text(past, event),
        }
        others[event.series[:2]].append(text)
    for track in past.tracks:
        rows = track.rows
        points = [(row.sweep_id, row.environment_id) for row in rows]
        differences = enumerate((difference(*pair) for pair in pairwise(points)), 1)
        line: dict[str, Any] = {
            "at": [past.position[row.sweep_id] for row in rows],
            "trials": [row.trials for row in rows],
            "status": {
                index: [row.status, row.reason]
                for index, row in enumerate(rows)
                if row.status != Status.OK
            },
            "marks": {index: mark_of(row) for index, row in enumerate(rows) if mark_of(row)},
            "values": {},
            "bounds": {},
            "breaks": {index: text for index, text in differences if text},
            "environments": {
                index: row.environment_id
                for index, row in enumerate(rows)
                if row.sweep_id in several
            },
            "events": events[track[:2]],
            "others": others[track[:2]],
        }
        of_column = dict(zip(past.series.columns, zip(*rows, strict=True), strict=True))
        for name in past.metrics:
            values, *bounds = (
                [*map(number, of_column[column])] for column in (name, *INTERVALS.get(name, ()))
            )
            if any(value is not None for value in values):
                line["values"][name] = values
                if bounds and any(value is not None for value in bounds[0]):
                    line["bounds"][name] = bounds
        yield track, line


def mark_of(row: Any) -> str | None:
    """Return why a row of a track is marked; None if it is not."""
    return why_marked({name: getattr(row, name, None) for name in ("marked", "disturbance")})


def number(value: Any) -> float | int | None:
    """Return a figure for a file: an integer unchanged, another number to DIGITS digits, None for
    other values."""
    if not is_number(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")


def write_lines(folder: PageFolder, past: History) -> str:
    """Write the lines and their index, which the figure and the list of cells need; return the
    index's path."""
    lines = lines_of(past, {sweep.sweep_id for sweep in folder.held if sweep.several})
    size = max(1, POINTS_A_FILE // max(len(track.rows) for track in past.tracks))
    rows = {}
    for file in range(-(-len(past.tracks) // size)):
        part = {
            line_id(track.cell_key, track.place): (track, line)
            for track, line in islice(lines, size)
        }
        folder.data(f"lines-{file}", {name: line for name, (_, line) in part.items()})
        for name, (track, line) in part.items():
            cell, last = past.series.cells[track.cell_key], track.rows[-1]
            states = [event["state"] for event in line["events"]]
            rows[name] = [
                file,
                past.names[track.cell_key],
                track.place,
                cell["model"],
                cell["mode"],
                track.cell_key[:16],
                len(track.rows),
                line["at"][-1],
                last.status,
                number(getattr(last, "latency_ms", None)),
                len(states) - states.count("unconfirmed"),
                states.count("open"),
                past.hardware[track.place],
                mark_of(last),
            ]
    metrics = {
        metric.name: {
            "title": metric.title,
            "unit": metric.unit,
            "exact": metric.compare == "exact",
        }
        | {"timed": is_timed(metric.name)}
        for metric in (METRICS[name] for name in past.metrics)
    }
    sweeps = past.series.sweeps
    # initially show the worst open change, or without one the cell with the most ok results
    changes = [event.series for event in past.changes if event.series.metric != STATUS]
    longest = max(past.tracks, key=lambda track: sum(row.status == Status.OK for row in track.rows))
    first = next(iter(changes), SeriesId(*longest[:2], past.metrics[0]))
    index = {
        "sweeps": [
            [it["id"], it["name"], it["label"], f"{it['started_at']:%Y-%m-%d %H:%M}"]
            for it in sweeps
        ],
        "metrics": metrics | {STATUS: {"title": STATUS, "unit": "", "exact": True, "timed": False}},
        "baselines": [[it.name, it.hardware, it.sweep_id] for it in past.baselines],
        "modes": {cell["mode"]: glyph_of(cell["mode"]) for cell in past.series.cells.values()},
        "several": len({track.place for track in past.tracks}) > 1,
        "lines": rows,
        "first": f"{line_id(first.cell_key, first.place)}.{first.metric}",
        # sweep, hardware and folder of each device sweep on the site
        "held": [[sweep.sweep_id, sweep.hardware, sweep.slug] for sweep in folder.held],
    }
    return folder.data("index", index)


SCRIPTS = (*GRIDS, *CHARTS, "history.js")
PAGE = Page("history", "History", context, of_device_sweep=False, scripts=SCRIPTS)
