"""History as data of a page: every series in small files that are loaded when a reader looks at one.

A line is one cell at one place (hardware, with the interpreter or folder if these were compared); it holds the series
of all its metrics.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from effbench.analysis.environments import changes_between
from effbench.cell import Status, digest
from effbench.comparison.events import Event
from effbench.comparison.history import Track, tracks_of
from effbench.metrics import INTERVALS
from effbench.report.history_table import HistoryTable

#: Points in one file: some 300 KiB of nine metrics.
POINTS_A_FILE = 4000
#: Digits of a figure in a file; a sweep is known to three at best.
DIGITS = 7


@dataclass
class HistoryData:
    """What was read and judged. `series`: input of `analysis.history.history`, which `table` was made of; `metrics`:
    those that were judged; `baselines`: rows of effbench.store.baselines; `whole`: the series with re-runs."""

    table: HistoryTable
    series: Any
    metrics: Sequence[str]
    baselines: Sequence[Any]
    whole: Any

    @cached_property
    def tracks(self) -> list[Track]:
        return tracks_of(self.series)

    @cached_property
    def sweeps_of_environment(self) -> dict[str, list[str]]:
        """Environment id -> ids of the sweeps with a result in it, oldest first."""
        position = {sweep["id"]: index for index, sweep in enumerate(self.whole.sweeps)}
        found: dict[str, set[str]] = defaultdict(set)
        for sweep_id, environment_id, _ in self.whole.measured:
            found[environment_id].add(sweep_id)
        return {key: sorted(ids, key=position.__getitem__) for key, ids in found.items()}

    @cached_property
    def events_of_line(self) -> dict[tuple[str, str], list[Event]]:
        found: dict[tuple[str, str], list[Event]] = defaultdict(list)
        for event in self.table.found.events:
            found[event.series.cell_key, event.series.place].append(event)
        return found


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
