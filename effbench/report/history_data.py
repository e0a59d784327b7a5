"""History as data of a page: every series in small files that are loaded when one is looked at.

A line is one cell at one place (hardware, with the interpreter or folder where these were compared); it holds the
series of all its metrics.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from effbench.analysis.coincidence import coinciding
from effbench.analysis.events import STATUS, Event
from effbench.analysis.history import Track, tracks_of
from effbench.cell import Status, digest
from effbench.metrics import INTERVALS, METRICS
from effbench.report.history_table import HistoryTable

#: Points in one file: some 300 KiB of nine metrics.
POINTS_A_FILE = 4000
#: Digits of a figure in a file; a sweep is known to three at best.
DIGITS = 7


@dataclass
class HistoryData:
    """What was read and judged. `series`: what `analysis.history.history` takes (effbench.store.series.Series), of
    which `table` was made; `metrics`: those that were judged; `baselines`: with name, hardware, sweep_id, sweep_name,
    label, started_at, set_at, note. `whole`: the series with re-runs (None: there are none in it to leave out)."""

    table: HistoryTable
    series: Any
    metrics: Sequence[str]
    baselines: Sequence[Any] = ()
    whole: Any = None

    @cached_property
    def tracks(self) -> list[Track]:
        return tracks_of(self.series)

    @cached_property
    def sweeps_of_environment(self) -> dict[str, list[str]]:
        """Environment id -> ids of the sweeps with a result in it, oldest first."""
        whole = self.whole or self.series
        position = {sweep["id"]: index for index, sweep in enumerate(whole.sweeps)}
        found: dict[str, set[str]] = defaultdict(set)
        for sweep_id, environment_id, _ in whole.measured:
            found[environment_id].add(sweep_id)
        return {key: sorted(ids, key=position.__getitem__) for key, ids in found.items()}

    @cached_property
    def events_of_line(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.table.found.events:
            found[event.series.cell_key, event.series.place].append(event)
        return found


def line_id(cell_key: str, place: str) -> str:
    """What names a line in an address."""
    return digest([cell_key, place])[:12]


def files_of(past: HistoryData) -> Iterator[list[Track]]:
    """Lines by the file that they lie in."""
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
    """Lines as plain values: `texts` are what breaks a line, by the number that the lines name them by. `several`: ids
    of the sweeps whose cells the site has in more than one environment."""

    def __init__(self, past: HistoryData, several: Collection[str] = ()) -> None:
        self.past = past
        self.several = frozenset(several)
        self.column = {name: index for index, name in enumerate(past.series.columns)}
        self.position = {sweep["id"]: index for index, sweep in enumerate(past.series.sweeps)}
        self.texts: list[str] = []
        self._known: dict[tuple, int] = {}
        protocols = {}
        self._protocol = [protocols.setdefault(repr(sweep["protocol"]), len(protocols)) for sweep in past.series.sweeps]

    def line(self, track: Track) -> dict[str, Any]:
        """`at`: sweeps by their position; `status`: of those that are not ok (place in `at` -> [status, reason]);
        `trials`; `values`: metric -> figures; `bounds`: metric -> lower and upper ones; `breaks`: place in `at` ->
        number of the text that says what changed before it; `events`: what was found; `environments`: place in `at` ->
        environment id, where a link to the cell needs it."""
        rows, column = track.rows, self.column
        found: dict[str, Any] = {
            "at": track.positions,
            "trials": [row[column["trials"]] for row in rows],
            "status": {place: [row[3], row[4]] for place, row in enumerate(rows) if row[3] != Status.OK.value},
            "values": {},
            "bounds": {},
            "breaks": dict(self._breaks(track)),
            "events": [self._event(event) for event in self.past.events_of_line.get((track.cell_key, track.place), ())],
        }
        if self.several:
            found["environments"] = {place: row[2] for place, row in enumerate(rows) if row[0] in self.several}
        for name in self.past.metrics:
            values = [number(row[column[name]]) for row in rows]
            if all(value is None for value in values):
                continue
            found["values"][name] = values
            if name in INTERVALS:
                sides = [[number(row[column[bound]]) for row in rows] for bound in INTERVALS[name]]
                if any(value is not None for value in sides[0]):
                    found["bounds"][name] = sides
        return found

    def _breaks(self, track: Track) -> Iterator[tuple[int, int]]:
        """Where the protocol or the environment is another one than at the point before."""
        points = list(zip(track.positions, track.rows, strict=True))
        for place, ((at, row), (later, other)) in enumerate(itertools.pairwise(points), 1):
            key = (self._protocol[at], self._protocol[later], row[2], other[2])
            if key[0] == key[1] and key[2] == key[3]:
                continue
            if key not in self._known:
                self._known[key] = self._text(at, later, row[2], other[2])
            if self._known[key] >= 0:
                yield place, self._known[key]

    def _text(self, at: int, later: int, old: str, new: str) -> int:
        sweeps, environments = self.past.series.sweeps, self.past.series.environments
        before, after = ({"protocol": sweeps[one]["protocol"], "host": {}} for one in (at, later))
        said = coinciding(before, after, environments[old], environments[new])
        if not said:
            return -1
        self.texts.append(", ".join(said))
        return len(self.texts) - 1

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
    """Whether anyone need look at it."""
    if event.kind == "recent":
        return "unconfirmed"
    if event.undone is not None:
        return "undone"
    if event.acknowledged is not None:
        return "acknowledged"
    return "open" if event.worse else "holds"


def number(value: Any) -> float | int | None:
    """For a file: integers as they are, others to DIGITS digits, None for what is no finite number."""
    if value is None or isinstance(value, int):
        return value
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def sweep_facts(sweeps: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Id, name, label and time of the beginning (UTC) of each, for a page's script."""
    return [[sweep["id"], sweep["name"], sweep["label"], f"{sweep['started_at']:%Y-%m-%d %H:%M}"] for sweep in sweeps]


def metric_facts(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Title, unit, and whether it is a count, for a page's script."""
    found = {
        name: {"title": METRICS[name].title, "unit": METRICS[name].unit, "exact": METRICS[name].compare == "exact"}
        for name in names
    }
    return found | {STATUS: {"title": STATUS, "unit": "", "exact": True}}


def places_of(past: HistoryData) -> list[dict[str, Any]]:
    """Each place with its counts: `cells`, `sweeps`, `first` and `last` sweep (rows), `open` (changes for the worse
    that still hold), `events`, and series by state."""
    sweeps = past.series.sweeps
    positions: dict[str, set[int]] = defaultdict(set)
    cells: dict[str, int] = defaultdict(int)
    for track in past.tracks:
        positions[track.place].update(track.positions)
        cells[track.place] += 1
    states: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for series, state in past.table.found.states.items():
        states[series.place][state] += 1
    found = []
    for place, own in positions.items():
        events = [event for event in past.table.found.events if event.series.place == place]
        found.append({
            "place": place, "cells": cells[place], "sweeps": len(own), "first": sweeps[min(own)],
            "last": sweeps[max(own)], "changes": sum(event.kind != "recent" for event in events),
            "open": sum(event.alarms for event in events), "states": dict(states[place]),
        })  # fmt: skip
    return sorted(found, key=lambda one: (-max(positions[one["place"]]), one["place"]))
