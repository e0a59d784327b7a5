"""History and regressions: what changed over all sweeps, every series as a figure, and the baselines.

Every series is in small files that are loaded when a reader looks at one. A line is one cell at one place (hardware,
with the interpreter or folder if these were compared); it holds the series of all its metrics.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from effbench.cell import Status, digest
from effbench.comparison.events import Event, SeriesId
from effbench.comparison.history import Track
from effbench.comparison.sides import hardware_of
from effbench.comparison.verdicts import STATUS
from effbench.environments import changes_between
from effbench.labels import ABSENT
from effbench.metrics import INTERVALS, METRICS
from effbench.report.colors import glyph_of
from effbench.report.history_table import HistoryData, HistoryTable, word
from effbench.report.site.page import CHARTS, GRIDS, Page, PageFolder
from effbench.stats.segmentation import SHORTEST
from effbench.table import Column, Shown, Table

#: Changes in the table; more than anybody reads, and what a browser takes in at once.
MOST_CHANGES = 3000
#: Points in one file: some 300 KiB of nine metrics.
POINTS_A_FILE = 4000
#: Digits of a figure in a file; a sweep is known to three at best.
DIGITS = 7


def context(folder: PageFolder) -> Mapping[str, Any]:
    past = folder.report.history
    if past is None or not past.tracks:
        return {"places": [], "least": SHORTEST, "baselines": None}
    places = places_of(past)
    found: dict[str, Any] = {
        "places": places,
        "least": SHORTEST,
        "several": any(place["sweeps"] > 1 for place in places),
        "summary": past.table.summary(),
        "verdict": past.table.verdict(),
        "baselines": folder.grid("baselines", baselines_table(past)) if past.baselines else None,
        "metrics": [METRICS[name] for name in past.metrics],
        "changes": None,
        "others": None,
        "more": 0,
        "more_than": MOST_CHANGES,
    }
    if not found["several"]:
        return found
    events = past.table.found.events
    found["more"] = max(0, len(events) - MOST_CHANGES)
    if events:
        found["changes"] = folder.grid("changes", changes_table(past, events[:MOST_CHANGES]))
    if others := other_rows(past):
        found["others"] = folder.grid(
            "others", Table.of(OTHERS, others, "Cells that are new, gone, flapping or drifting")
        )
    found["index"] = write_lines(folder, past)
    return found


# --- changes ---


def changes_table(past: HistoryData, events: Sequence[Event]) -> Table:
    """A row for each change; its cell leads to the figure of its series."""
    table = past.table
    columns = [
        Column("change", filter=True),
        Column("cell"),
        *([Column("hardware", filter=True)] if table.several_places else []),
        Column("metric", filter=True),
        Column("after ÷ before", numeric=True, help="ratio of the levels, with its 95 % interval where it is known"),
        Column("levels", help="before and after"),
        Column("first sweep after", help="below it the last one before"),
        Column("state", filter=True, help="open: worse, still so, acknowledged by nobody"),
        Column("notes", wide=True),
        Column("id", help="what effbench history ack calls it"),
    ]
    rows = [change_row(past, event) for event in events]
    return Table.of(columns, rows, "Changes over all sweeps")


def change_row(past: HistoryData, event: Event) -> list[Any]:
    table, series = past.table, event.series
    sign = "▲" if event.worse else "▼" if event.worse is False else "●"
    before = table.sweeps[event.before]["label"] or event.before
    state = state_of(event)
    details = {"undone": event.undone and f"in {table.sweep(event.undone)}", "acknowledged": event.acknowledged}
    interval = "" if event.low is None or event.high is None else f"{event.low:.3f} to {event.high:.3f}"
    notes = [*([f"takes back {table.short.get(event.undoes, event.undoes[:6])}"] if event.undoes else []),
             *([f"coincides with {', '.join(event.with_)}"] if event.with_ else []),
             *([event.reason] if event.reason else [])]  # fmt: skip
    return [
        Shown(None, f"{sign} {word(event)}", "status nowrap" if event.alarms else "nowrap"),
        Shown(None, table.names[series.cell_key], "name", link=address(series), hint="its series as a figure"),
        *([series.place] if table.several_places else []),
        Shown(None, title_of(series), "nowrap"),
        Shown(None, ABSENT) if event.ratio is None else Shown(event.ratio, f"{event.ratio:.3f}×", sub=interval),
        Shown(None, f"{table.level(series, event.old)} → {table.level(series, event.new)}", "nowrap"),
        Shown(event.position, short_sweep(table, event.after), "nowrap", f"after {before}"),
        Shown(None, state, sub=details.get(state) or ""),
        "; ".join(notes),
        table.short[event.id],
    ]


def title_of(series: SeriesId) -> str:
    return METRICS[series.metric].title if series.metric in METRICS else series.metric


def short_sweep(table: HistoryTable, sweep_id: str) -> str:
    """Its label where it has one, else its id; with the day."""
    sweep = table.sweeps[sweep_id]
    return f"{sweep['label']} · {table.date(sweep_id)}" if sweep["label"] else sweep_id


def address(series: SeriesId) -> str:
    return f"#series={line_id(series.cell_key, series.place)}.{series.metric}"


OTHERS = (
    Column("what", filter=True), Column("cell"), Column("hardware", filter=True), Column("metric", filter=True),
    Column("details", wide=True),
)  # fmt: skip


def other_rows(past: HistoryData) -> list[list[Any]]:
    """What is no change of level: new, dead, flapping and drifting ones."""
    table, found = past.table, past.table.found

    def row(what: str, series: SeriesId, details: str) -> list[Any]:
        cell = Shown(None, table.names[series.cell_key], "name", link=address(series))
        return [what, cell, series.place, title_of(series), details]

    rows = []
    for event in found.others:
        details = table.details(event).replace("since", "first in") if event.kind == "new" else table.details(event)
        rows.append(row(event.kind, event.series, details))
    return rows


# --- series ---


def line_id(cell_key: str, place: str) -> str:
    """Return the name of a line in an address."""
    return digest([cell_key, place])[:12]


def files_of(past: HistoryData) -> Iterator[list[Track]]:
    """Yield the lines of each file."""
    part: list[Track] = []
    points = 0
    for track in past.tracks:
        if part and points + len(track.rows) > POINTS_A_FILE:
            yield part
            part, points = [], 0
        part.append(track)
        points += len(track.rows)
    if part:
        yield part


class Lines:
    """Lines as plain values. `texts`: reasons of breaks, which the lines name by their number. `several`: ids of the
    sweeps whose cells the site has in more than one environment."""

    def __init__(self, past: HistoryData, several: Collection[str] = ()) -> None:
        self.past = past
        self.several = frozenset(several)
        self.position = {sweep["id"]: index for index, sweep in enumerate(past.series.sweeps)}
        self.texts: list[str] = []
        self._numbers: dict[tuple, int | None] = {}  # of the texts, by what differs
        protocols: dict[str, int] = {}
        self._protocol = [protocols.setdefault(repr(sweep["protocol"]), len(protocols)) for sweep in past.series.sweeps]

    def line(self, track: Track) -> dict[str, Any]:
        """Return a line.

        `at`: positions of its sweeps; by place in `at`: `trials`, `status` of results that are not ok as [status,
        reason], `breaks` (number of the text that says what changed before), `environments` if a link to the cell needs
        them; `values` and `bounds`: metric -> figures, and lower and upper ones; `events`: changes.
        """
        rows = track.rows
        columns = dict(zip(self.past.series.columns, zip(*rows, strict=True), strict=False))
        found: dict[str, Any] = {
            "at": track.positions,
            "trials": list(columns["trials"]),
            "status": {place: [row[3], row[4]] for place, row in enumerate(rows) if row[3] != Status.OK.value},
            "values": {},
            "bounds": {},
            "breaks": dict(self._breaks(track)),
            "events": [self._event(event) for event in self.past.events_of_line.get((track.cell_key, track.place), ())],
        }
        if self.several:
            found["environments"] = {place: row[2] for place, row in enumerate(rows) if row[0] in self.several}
        for name in self.past.metrics:
            values = list(map(number, columns[name]))
            if any(value is not None for value in values):
                found["values"][name] = values
                sides = [list(map(number, columns[bound])) for bound in INTERVALS.get(name, ())]
                if sides and any(value is not None for value in sides[0]):
                    found["bounds"][name] = sides
        return found

    def _breaks(self, track: Track) -> Iterator[tuple[int, int]]:
        """Places at which the protocol or the environment differs from that of the point before."""
        sweeps, environments = self.past.series.sweeps, self.past.series.environments
        points = list(zip(track.positions, track.rows, strict=True))
        for place, ((at, row), (later, other)) in enumerate(itertools.pairwise(points), 1):
            key = (self._protocol[at], self._protocol[later], row[2], other[2])
            if key[0] == key[1] and key[2] == key[3]:
                continue
            if key not in self._numbers:
                before, after = ({"protocol": sweeps[one]["protocol"], "host": {}} for one in (at, later))
                differences = changes_between((before, environments[row[2]]), (after, environments[other[2]]))
                self._numbers[key] = len(self.texts) if differences else None
                self.texts += [", ".join(differences)] if differences else []
            if self._numbers[key] is not None:
                yield place, self._numbers[key]

    def _event(self, event: Event) -> dict[str, Any]:
        table = self.past.table
        return {
            "id": table.short[event.id],
            "metric": event.series.metric,
            "text": table.change(event),
            "state": state_of(event),
            "before": self.position[event.before],
            "after": event.position,
            "worse": event.worse,
        }


def state_of(event: Event) -> str:
    """Return whether anyone needs to look at a change."""
    if event.kind == "recent":
        return "unconfirmed"
    if event.undone is not None:
        return "undone"
    if event.acknowledged is not None:
        return "acknowledged"
    return "open" if event.worse else "holds"


def number(value: Any) -> float | int | None:
    """Return a figure of a file: integers as they are, others to DIGITS digits, None if it is not finite."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def places_of(past: HistoryData) -> list[dict[str, Any]]:
    """Return each place with its counts: `cells`, `sweeps`, `first` and `last` sweep (rows), `changes`, `open` (for the
    worse, still so) and series by state."""
    sweeps, found = past.series.sweeps, past.table.found
    positions: dict[str, set[int]] = defaultdict(set)
    for track in past.tracks:
        positions[track.place].update(track.positions)
    cells = Counter(track.place for track in past.tracks)
    states: dict[str, Counter[str]] = defaultdict(Counter)
    for series, state in found.states.items():
        states[series.place][state] += 1
    places = []
    for place, own in positions.items():
        events = [event for event in found.events if event.series.place == place]
        places.append({
            "place": place, "cells": cells[place], "sweeps": len(own), "first": sweeps[min(own)],
            "last": sweeps[max(own)], "changes": sum(event.kind != "recent" for event in events),
            "open": sum(event.alarms for event in events), "states": dict(states[place]),
        })  # fmt: skip
    return sorted(places, key=lambda one: (-max(positions[one["place"]]), one["place"]))


def write_lines(folder: PageFolder, past: HistoryData) -> str:
    """Every line in its file, then the index of all: what the figure and the list that a reader searches need."""
    device_sweeps = folder.report.device_sweeps
    lines = Lines(past, {str(one.sweep["id"]) for one in device_sweeps if len(one.environments) > 1})
    files: dict[tuple[str, str], int] = {}
    for place, part in enumerate(files_of(past)):
        folder.data(f"lines-{place}", {line_id(one.cell_key, one.place): lines.line(one) for one in part})
        files |= dict.fromkeys(((one.cell_key, one.place) for one in part), place)
    series, table = past.series, past.table
    hardware = {key: hardware_of(row) for key, row in series.environments.items()}
    places, models, modes, statuses = ({} for _ in range(4))  # what many lines share, by its number
    latency = series.columns.index("latency_ms") if "latency_ms" in series.columns else None
    rows = {}
    for track in past.tracks:
        key, last, about = track.cell_key, track.rows[-1], series.cells[track.cell_key]
        events = past.events_of_line.get((key, track.place), ())
        rows[line_id(key, track.place)] = [
            files[key, track.place], table.names[key],
            places.setdefault((track.place, hardware[last[2]]), len(places)),
            models.setdefault(about["model"], len(models)), modes.setdefault(about["mode"], len(modes)),
            key[:16], len(track.rows), track.positions[-1], statuses.setdefault(last[3], len(statuses)),
            None if latency is None else number(last[latency]),
            sum(event.kind != "recent" for event in events), sum(event.alarms for event in events),
        ]  # fmt: skip
    metrics = {
        metric.name: {"title": metric.title, "unit": metric.unit, "exact": metric.compare == "exact"}
        for metric in (METRICS[name] for name in past.metrics)
    }
    index = {
        "sweeps": [
            [one["id"], one["name"], one["label"], f"{one['started_at']:%Y-%m-%d %H:%M}"] for one in series.sweeps
        ],
        "texts": lines.texts,
        "metrics": metrics | {STATUS: {"title": STATUS, "unit": "", "exact": True}},
        "baselines": [[one.name, one.hardware, one.sweep_id] for one in past.baselines],
        "places": list(places),
        "models": list(models),
        "modes": [[mode, *glyph_of(mode)] for mode in modes],
        "statuses": list(statuses),
        "lines": rows,
        "first": first_series(past),
        # sweep and hardware of each sweep that the site has cells of, and where these are
        "held": [[one.sweep["id"], one.hardware, one.slug] for one in device_sweeps],
    }
    return folder.data("index", index)


def first_series(past: HistoryData) -> str:
    """What is shown before anything is chosen: the newest and worst change, else the longest line's first metric."""
    events = [event for event in past.table.found.events if event.series.metric != STATUS]
    for event in [*(event for event in events if event.alarms), *events][:1]:
        return f"{line_id(event.series.cell_key, event.series.place)}.{event.series.metric}"
    # by its ok results: a line of failures alone has nothing to draw
    longest = max(past.tracks, key=lambda track: sum(row[3] == Status.OK.value for row in track.rows))
    return f"{line_id(longest.cell_key, longest.place)}.{past.metrics[0]}"


# --- baselines ---


def baselines_table(past: HistoryData) -> Table:
    columns = [Column("name"), Column("hardware", filter=True), Column("sweep"), Column("label"),
               Column("sweep began (UTC)"), Column("set (UTC)"), Column("note", wide=True)]  # fmt: skip
    rows = [
        [one.name, one.hardware, Shown(None, one.sweep_id, sub=one.sweep_name or ""), one.label or ABSENT, *(
            "gone" if time is None else f"{time:%Y-%m-%d %H:%M}" for time in (one.started_at, one.set_at)
        ), one.note or ""]
        for one in past.baselines
    ]  # fmt: skip
    return Table.of(columns, rows, "Baselines")


PAGE = Page(
    "history", "History", 60, context, of_device_sweep=False,
    scripts=(*GRIDS, *CHARTS, "history.js"),
)  # fmt: skip
