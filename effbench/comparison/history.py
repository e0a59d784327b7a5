"""The history of cells: what changed over all sweeps, when, with what, and whether it is still so.

Pure: rows of results in, `History` out. A series is one metric of one cell at one place: the hardware (GPU, without one
the CPU), with the interpreter or folder if a sweep compared several. Software and protocol do not split a series: that
they changed with the figure is listed next to the change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from effbench.cell import Status
from effbench.comparison.events import Event, History, SeriesId, event_id
from effbench.comparison.limits import ExceptionRule
from effbench.comparison.verdicts import STATUS
from effbench.environments import changes_between, hardware_of, separating
from effbench.metrics import INTERVALS, METRICS, Better, Metric
from effbench.stats import changepoints
from effbench.stats.changepoints import EXACT_SHORTEST, find_exact, runs
from effbench.stats.intervals import is_number, stored_log_mean
from effbench.stats.segmentation import SHORTEST
from effbench.stats.significance import FLOOR
from effbench.store.sides import Series

#: Energy moves with latency and scatters more: on request.
DEFAULT_METRICS = (
    "latency_ms", "period_ms", "gpu_busy_ms", "peak_reserved_bytes", "compile_cold_s",
    "kernels", "graph_breaks", "recompiles", "cudagraph_skips",
)  # fmt: skip
#: A metric with one value a sweep changes by this factor and this many seconds, or not at all.
BOUND_RATIO, BOUND_S = 1.25, 1.0
#: `new`: first seen in the newest so many sweeps; `dead`: not seen in them.
NEWEST = 3


@dataclass
class Track:
    """The results of one cell at one place, oldest first: one row a sweep, with its position among all sweeps."""

    cell_key: str
    place: str
    rows: list[tuple]
    positions: list[int]


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Return the columns of `result` by which these metrics are judged."""
    return ["trials", *(name for metric in metrics for name in (metric, *INTERVALS.get(metric, ())))]


def judgeable() -> list[str]:
    """Return the metrics that have a history: those with a direction and a rule to compare them by."""
    return [name for name, metric in METRICS.items() if metric.compare != "none" and metric.better != Better.NEITHER]


def history(
    series: Series, metrics: Sequence[str], acknowledged: Iterable[Mapping[str, Any]] = (),
    exceptions: Iterable[ExceptionRule] = (), floor: float = FLOOR,
) -> History:  # fmt: skip
    """Judge every series.

    `acknowledged`: rows of the table `acknowledgement`; each holds for a change of its series at most one of its sweeps
    away from where the change may be. `exceptions`: those with `ignore` acknowledge every change of the cells that they
    match. Values that are NaN, infinite or not positive (where a ratio is needed) count as not measured.
    """
    found = _Judging(series)
    for name in metrics:
        found.judge(METRICS[name], floor)
    found.judge_statuses()
    found.judge_presence()
    return found.finish(list(acknowledged), [rule for rule in exceptions if rule.ignore])


def place_of(environment: Mapping[str, Any]) -> str:
    """Return the hardware; with the interpreter or folder, if the environment is one of several in a sweep."""
    flags = environment["flags"] or {}
    compared = [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)]
    hardware = hardware_of(environment)
    return f"{hardware} ({', '.join(compared)})" if compared else hardware


def tracks_of(series: Series) -> list[Track]:
    """Return one row for each cell, place and sweep: of several similar environments (two hosts) the ok one with most
    trials."""
    best: dict[tuple[str, str], dict[str, tuple]] = defaultdict(dict)
    places = {key: place_of(environment) for key, environment in series.environments.items()}
    position = {sweep["id"]: index for index, sweep in enumerate(series.sweeps)}
    trials = series.columns.index("trials")

    def rank(row: tuple) -> tuple:
        return (row[3] == Status.OK, row[trials], row[2])

    for row in series.rows:
        own = best[row[1], places[row[2]]]
        if row[0] not in own or rank(row) > rank(own[row[0]]):
            own[row[0]] = row
    tracks = []
    for (cell_key, place), rows in sorted(best.items()):
        ordered = sorted((position[sweep_id], row) for sweep_id, row in rows.items())
        tracks.append(Track(cell_key, place, [row for _, row in ordered], [at for at, _ in ordered]))
    return tracks


class _Judging:
    """Judges one metric after the other over the same tracks."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.column = {name: index for index, name in enumerate(series.columns)}
        self.ids = [sweep["id"] for sweep in series.sweeps]
        self.sweeps = {sweep["id"]: sweep for sweep in series.sweeps}
        self.position = {sweep_id: index for index, sweep_id in enumerate(self.ids)}
        self.tracks = tracks_of(series)
        self.result = History()

    # --- figures ---

    def judge(self, metric: Metric, floor: float) -> None:
        column, exact = self.column[metric.name], metric.compare == "exact"
        # plain texts: two million comparisons with an enum take seconds
        statuses = {Status.OK.value, *([Status.DEGRADED.value] if exact else [])}
        measured = []
        for track in self.tracks:
            rows = [
                row
                for row in track.rows
                if row[3] in statuses and is_number(row[column]) and (exact or row[column] > 0)
            ]
            if rows:
                measured.append((SeriesId(track.cell_key, track.place, metric.name), rows))
        if exact:
            for key, rows in measured:
                values = [row[column] for row in rows]
                found = find_exact(values)
                self._add_all(key, rows, values, found, found.changes, metric, EXACT_SHORTEST)
            return
        floor = math.log(BOUND_RATIO) if metric.compare == "bound" else math.log1p(floor)
        logs = [np.log([row[column] for row in rows]) for _, rows in measured]
        errors = [self._errors(rows, metric.name) for _, rows in measured]
        judged = changepoints.find_all(logs, errors, math.expm1(floor))
        for (key, rows), values, found in zip(measured, logs, judged, strict=True):
            changes = found.changes
            if metric.compare == "bound":
                found = replace(found, recent=found.recent if found.recent and _is_large(found.recent) else None)
                changes = changepoints.mark_undone([one for one in changes if _is_large(one)], floor)
            self._add_all(key, rows, values, found, changes, metric, SHORTEST)

    def _errors(self, rows: list[tuple], name: str) -> np.ndarray:
        """Standard error of each logarithm, NaN if unknown."""
        if name not in INTERVALS:
            return np.full(len(rows), np.nan)
        low, high = (self.column[bound] for bound in INTERVALS[name])
        trials = self.column["trials"]
        return np.array([_error(row[low], row[high], row[trials]) for row in rows])

    def _add_all(
        self, key: SeriesId, rows: list[tuple], values: Sequence[Any], found: changepoints.Found,
        changes: Sequence[changepoints.Change], metric: Metric, shortest: int,
    ) -> None:  # fmt: skip
        """Add the events of a series, and its state. Levels are logarithms unless the metric is exact."""
        exact = metric.compare == "exact"

        def level(value: Any) -> Any:
            return value if exact else math.exp(min(value, 709.0))

        for kind, one in [*(("change", one) for one in changes), *([("recent", found.recent)] if found.recent else [])]:
            before, after = rows[one.at - 1], rows[one.at]
            old, new = level(one.before), level(one.after)
            facts: dict[str, Any] = {"ratio": new / old if old else None}
            if not exact:
                ratio = one.ratio
                facts = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "p_value": one.p_value}
            if one.earliest != one.latest and None not in (one.earliest, one.latest):
                facts |= {"earliest": rows[one.earliest][0], "latest": rows[one.latest][0]}
            self._event(
                key, kind, before, after, old=old, new=new, worse=(new > old) == (metric.better == Better.LOWER),
                undone=None if one.undone_at is None else rows[one.undone_at][0],
                undoes=None if one.undoes is None else event_id(key, rows[one.undoes][0]),
                **facts,
            )  # fmt: skip
        if (apart := found.alternation) is not None:
            low, high = level(apart.low), level(apart.high)
            border = math.log(math.sqrt(low) * math.sqrt(high)) if not exact else None
            sides = [
                (row, value == high if exact else value > border)
                for row, value in zip(rows, values, strict=True)
                if not exact or value in (low, high)
            ]
            self._flapping(key, rows, sides, low, high, apart)
        if found.drift is not None:
            self._other("drifting", key, ratio=found.drift)
        self.result.states[key] = (
            "short" if len(rows) < shortest
            else "flapping" if found.alternation is not None
            else "changed" if changes
            else "drifting" if found.drift is not None
            else "steady"
        )  # fmt: skip

    def _flapping(
        self, key: SeriesId, rows: list[tuple], sides: Iterable[tuple[tuple, bool]], low: Any, high: Any,
        apart: changepoints.Alternation,
    ) -> None:  # fmt: skip
        """`sides`: rows, each with whether it is on the high level."""
        levels: tuple[list, list] = ([], [])
        for row, is_high in sides:
            levels[int(is_high)].append((self.sweeps[row[0]], self.series.environments[row[2]]))
        after = rows[apart.last][0]
        with_ = tuple(separating(*levels))
        self._other("flapping", key, after=after, old=low, new=high, switches=apart.switches, with_=with_)

    def _event(self, key: SeriesId, kind: str, before: tuple, after: tuple, **facts: Any) -> None:
        old, new = ((self.sweeps[row[0]], self.series.environments[row[2]]) for row in (before, after))
        event = Event(
            event_id(key, after[0]), kind, key, before[0], after[0], self.position[after[0]],
            with_=tuple(changes_between(old, new)), **facts,
        )  # fmt: skip
        self.result.events.append(event)

    def _other(self, kind: str, key: SeriesId, before: str | None = None, after: str | None = None, **facts) -> None:
        self.result.others.append(Event("", kind, key, before, after, self.position.get(after, -1), **facts))

    # --- statuses ---

    def judge_statuses(self) -> None:
        """Find from which sweep on a cell was not ok, or ok again. Disturbed (noisy) results are skipped.

        A failure of one sweep that was over in the next does not count, unless failures come often enough to call the
        cell flapping, or it is in the newest sweep.
        """
        for track in self.tracks:
            rows = [row for row in track.rows if row[3] != Status.NOISY]
            key = SeriesId(track.cell_key, track.place, STATUS)
            ok = [row[3] == Status.OK for row in rows]
            if (alternation := find_exact(ok).alternation) is not None:
                failed = next(row[3] for row in reversed(rows) if row[3] != Status.OK)
                self._flapping(key, rows, zip(rows, ok, strict=True), Status.OK, failed, alternation)
                continue
            found = [run for run in runs(ok) if run[1]]  # not how it began
            for index, (well, start, length) in enumerate(found):
                before, after = rows[start - 1], rows[start]
                facts: dict[str, Any] = {"old": before[3], "new": after[3], "worse": not well}
                following = found[index + 1][1] if index + 1 < len(found) else None
                back = None if following is None else rows[following][0]
                if not well and (following is None or length > 1):
                    self._event(key, "broken", before, after, reason=after[4], undone=back, **facts)
                elif well and (start > 1 if index == 0 else found[index - 1][2] > 1):
                    facts["undoes"] = None if index == 0 else event_id(key, rows[found[index - 1][1]][0])
                    lasts = following is None or (found[index + 1][2] == 1 and index + 2 < len(found))
                    facts["undone"] = None if lasts else back
                    self._event(key, "fixed", before, after, reason=before[4], **facts)

    # --- presence ---

    def judge_presence(self) -> None:
        """Find new and dead cells, among the sweeps in which their hardware was measured (with their model)."""
        places = {key: place_of(environment) for key, environment in self.series.environments.items()}
        of_place: dict[str, set[int]] = defaultdict(set)
        of_model: dict[tuple[str, str], set[int]] = defaultdict(set)
        for sweep_id, environment_id, model in self.series.measured:
            place, at = places[environment_id], self.position[sweep_id]
            of_place[place].add(at)
            of_model[place, model].add(at)
        ordered = {key: sorted(positions) for key, positions in (of_place | of_model).items()}
        for track in self.tracks:
            first, last = track.positions[0], track.positions[-1]
            model = self.series.cells[track.cell_key]["model"]
            near, wide = ordered[track.place, model], ordered[track.place]
            key = SeriesId(track.cell_key, track.place, STATUS)
            if any(first > among[0] and first in among[-NEWEST:] for among in (near, wide)):
                self._other("new", key, after=self.ids[first])
            if len(near) > NEWEST and last < near[-NEWEST]:
                self._other("dead", key, before=self.ids[last])

    # --- the end ---

    def finish(self, acknowledged: list[Mapping[str, Any]], exceptions: list[ExceptionRule]) -> History:
        result = self.result
        rows = {(track.cell_key, track.place): [row[0] for row in track.rows] for track in self.tracks}
        by_series: dict[SeriesId, list[Mapping[str, Any]]] = defaultdict(list)
        for one in acknowledged:
            by_series[SeriesId(one["cell_key"], one["hardware"], one["metric"])].append(one)
        events = [event for event in result.events if event.series not in by_series]
        for key, held in by_series.items():
            own = [event for event in result.events if event.series == key]
            events += _acknowledged(own, held, rows.get((key.cell_key, key.place), []))
        if exceptions:
            events = [
                event if event.acknowledged is not None else self._excepted(event, exceptions) for event in events
            ]
        result.events = _ordered(events)
        result.others.sort(key=lambda event: ("new", "dead", "flapping", "drifting").index(event.kind))
        result.sweeps = sorted({row[0] for row in self.series.rows}, key=self.position.__getitem__)
        return result

    def _excepted(self, event: Event, exceptions: list[ExceptionRule]) -> Event:
        """Return the event, acknowledged with the reason of the last exception that matches."""
        cell = self.series.cells[event.series.cell_key]
        rules = [rule for rule in exceptions if matches(rule, event, cell)]
        return replace(event, acknowledged=rules[-1].reason) if rules else event


def matches(rule: ExceptionRule, event: Event, cell: Mapping[str, Any]) -> bool:
    """Return whether an exception is about the metric and the cell (its row) of an event."""
    hardware = event.series.place.partition(" (interpreter ")[0].partition(" (folder ")[0]
    return rule.is_of(event.series.metric) and rule.fits({**cell, "hardware": hardware})


def _acknowledged(events: list[Event], candidates: list[Mapping[str, Any]], sweep_ids: list[str]) -> list[Event]:
    """Return the events of a series; those that are acknowledged have the id that they were acknowledged by.

    Each of `candidates` holds for one event: the nearest of those that may lie in its sweep, or a neighbouring one. Of
    several that hold for an event the nearest counts.
    """
    place = {sweep_id: index for index, sweep_id in enumerate(sweep_ids)}
    best: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for one in candidates:
        at = place.get(one["sweep_id"])
        if at is None:
            continue
        near = []
        for event in events:
            first, last = place[event.earliest or event.after] - 1, place[event.latest or event.after] + 1
            if first <= at <= last:
                near.append((abs(place[event.after] - at), event.id))
        if near:
            distance, nearest = min(near)
            if nearest not in best or distance < best[nearest][0]:
                best[nearest] = (distance, one)
    marked = []
    for event in events:
        if event.id in best:
            row = best[event.id][1]
            known_as = event_id(event.series, row["sweep_id"])
            event = replace(event, acknowledged=row["reason"], acknowledgement=row["id"], id=known_as)
        marked.append(event)
    return marked


def _ordered(events: list[Event]) -> list[Event]:
    """Newest first; of one sweep what broke, then what is worse by most, then what is better by most. The metrics of a
    cell that changed together stay together."""

    def badness(event: Event) -> tuple:
        size = abs(math.log(event.ratio)) if event.ratio else math.inf
        return (event.kind != "broken", {True: 0, None: 1, False: 2}[event.worse], -size)

    def group(event: Event) -> tuple:
        return (event.position, event.series.cell_key, event.series.place)

    worst: dict[tuple, tuple] = {}
    for event in events:
        worst[group(event)] = min(badness(event), worst.get(group(event), (2,)))
    metrics = [STATUS, *METRICS]
    return sorted(
        events,
        key=lambda event: (
            -event.position, worst[group(event)], group(event), metrics.index(event.series.metric), event.id
        ),
    )  # fmt: skip


def _is_large(change: changepoints.Change) -> bool:
    return abs(math.exp(change.after) - math.exp(change.before)) > BOUND_S


def _error(low: float | None, high: float | None, trials: int) -> float:
    if not all(isinstance(value, int | float) for value in (low, high, trials)):
        return math.nan
    error = stored_log_mean(1.0, low, high, trials).error
    return math.nan if error is None else error
