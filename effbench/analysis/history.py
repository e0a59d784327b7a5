"""The history of cells: what changed over all sweeps, when, with what, and whether it is still so.

Pure: rows of results in, `History` out. A series is one metric of one cell at one place: the hardware (GPU, without one
the CPU), with the interpreter or folder where a sweep compared several. Software and protocol do not split a series:
that they changed with the figure is what history is asked for, so it is said on the change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from effbench.analysis import changepoints, exact_changes
from effbench.analysis.coincidence import coinciding, separating
from effbench.analysis.events import STATUS, Drifting, Event, Flapping, History, Seen, SeriesId, event_id
from effbench.analysis.exact_changes import find_exact, runs
from effbench.analysis.potts import SHORTEST
from effbench.analysis.statistics import is_number, stored_log_mean
from effbench.analysis.verdicts import FLOOR
from effbench.cell import Status
from effbench.metrics import INTERVALS, METRICS, Better, Metric

#: Energy moves with latency and scatters more: on request.
DEFAULT_METRICS = (
    "latency_ms", "period_ms", "gpu_busy_ms", "peak_reserved_bytes", "compile_cold_s",
    "kernels", "graph_breaks", "recompiles", "cudagraph_skips",
)  # fmt: skip
#: What has one value a sweep changes by this factor and this many seconds, or not at all.
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
    """The columns of `result` that these metrics are judged by."""
    return ["trials", *(name for metric in metrics for name in (metric, *INTERVALS.get(metric, ())))]


def judgeable() -> list[str]:
    """The metrics that have a history: those with a direction and a rule to compare them by."""
    return [name for name, metric in METRICS.items() if metric.compare != "none" and metric.better != Better.NEITHER]


def history(
    series: Any, metrics: Sequence[str], acknowledged: Iterable[Mapping[str, Any]] = (), floor: float = FLOOR
) -> History:
    """Judge every series of `series` (an effbench.store.series.Series, or what has its fields).

    `acknowledged`: rows of the table `acknowledgement`; each holds for a change of its series no more than one of its
    sweeps away from where the change may be. Values that are NaN, infinite or not positive (where a ratio is asked for)
    count as not measured.
    """
    found = _Judging(series)
    for name in metrics:
        found.judge(METRICS[name], floor)
    found.judge_statuses()
    found.judge_presence()
    return found.finish(list(acknowledged))


def place_of(environment: Mapping[str, Any]) -> str:
    """The hardware; with the interpreter or folder, where the environment is one of several in a sweep."""
    hardware = environment["gpu_name"] or environment["cpu_name"]
    flags = environment["flags"] or {}
    compared = [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)]
    return f"{hardware} ({', '.join(compared)})" if compared else hardware


def tracks_of(series: Any) -> list[Track]:
    """One row a cell, place and sweep: of several environments alike (two hosts) the ok one with most trials."""
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

    def __init__(self, series: Any) -> None:
        self.series = series
        self.column = {name: index for index, name in enumerate(series.columns)}
        self.ids = [sweep["id"] for sweep in series.sweeps]
        self.sweeps = {sweep["id"]: sweep for sweep in series.sweeps}
        self.position = {sweep_id: index for index, sweep_id in enumerate(self.ids)}
        self.places = {key: place_of(environment) for key, environment in series.environments.items()}
        self.tracks = tracks_of(series)
        self.result = History()

    # --- figures ---

    def judge(self, metric: Metric, floor: float) -> None:
        column = self.column[metric.name]
        # plain texts: two million comparisons with an enum take seconds
        statuses = {Status.OK.value, *([Status.DEGRADED.value] if metric.compare == "exact" else [])}
        measured = []
        for track in self.tracks:
            rows = [row for row in track.rows if row[3] in statuses and _is_figure(row[column], metric)]
            if rows:
                measured.append((SeriesId(track.cell_key, track.place, metric.name), rows))
        if metric.compare == "exact":
            for key, rows in measured:
                self._judge_exact(key, rows, [row[column] for row in rows], metric)
            return
        floor = math.log(BOUND_RATIO) if metric.compare == "bound" else math.log1p(floor)
        logs = [np.log([row[column] for row in rows]) for _, rows in measured]
        errors = [self._errors(rows, metric.name) for _, rows in measured]
        judged = changepoints.find_all(logs, errors, math.expm1(floor))
        for (key, rows), found in zip(measured, judged, strict=True):
            self._judge_ratio(key, rows, found, metric, floor)

    def _errors(self, rows: list[tuple], name: str) -> np.ndarray:
        """Standard error of each logarithm, NaN where the trials do not tell."""
        if name not in INTERVALS:
            return np.full(len(rows), np.nan)
        low, high = (self.column[bound] for bound in INTERVALS[name])
        trials = self.column["trials"]
        return np.array([_error(row[low], row[high], row[trials]) for row in rows])

    def _judge_ratio(
        self, key: SeriesId, rows: list[tuple], found: changepoints.Found, metric: Metric, floor: float
    ) -> None:
        changes, recent = list(found.changes), found.recent
        if metric.compare == "bound":
            changes = [one for one in changes if abs(math.exp(one.after) - math.exp(one.before)) > BOUND_S]
            changes = changepoints.mark_undone(changes, floor)
            if recent is not None and abs(math.exp(recent.after) - math.exp(recent.before)) <= BOUND_S:
                recent = None
        for kind, one in [*(("change", one) for one in changes), *([("recent", recent)] if recent else [])]:
            self._add(
                key, rows, one, kind, metric, old=_exp(one.before), new=_exp(one.after), ratio=one.ratio.value,
                low=one.ratio.low, high=one.ratio.high, p_value=one.p_value, **_whereabouts(rows, one),
            )  # fmt: skip
        if found.alternation is not None:
            low, high, last = (_exp(found.alternation.low), _exp(found.alternation.high), found.alternation.last)
            border, column = math.sqrt(low) * math.sqrt(high), self.column[metric.name]
            goes_with = self._separating(rows, [row[column] > border for row in rows])
            self.result.flapping.append(Flapping(key, low, high, found.alternation.switches, rows[last][0], goes_with))
        if found.drift is not None:
            self.result.drifting.append(Drifting(key, found.drift))
        self.result.states[key] = (
            "short" if len(rows) < SHORTEST
            else "flapping" if found.alternation is not None
            else "changed" if changes
            else "drifting" if found.drift is not None
            else "steady"
        )  # fmt: skip

    def _judge_exact(self, key: SeriesId, rows: list[tuple], values: list, metric: Metric) -> None:
        found = find_exact(values)
        for kind, one in [
            *(("change", one) for one in found.changes),
            *([("recent", found.recent)] * bool(found.recent)),
        ]:
            ratio = one.after / one.before if one.before else None
            self._add(key, rows, one, kind, metric, old=one.before, new=one.after, ratio=ratio)
        if found.alternation is not None:
            low, high, switches, last = found.alternation
            kept = [(row, value) for row, value in zip(rows, values, strict=True) if value in (low, high)]
            goes_with = self._separating([row for row, _ in kept], [value == high for _, value in kept])
            self.result.flapping.append(Flapping(key, low, high, switches, rows[last][0], goes_with))
        self.result.states[key] = (
            "short" if len(rows) < exact_changes.SHORTEST
            else "flapping" if found.alternation is not None
            else "changed" if found.changes
            else "steady"
        )  # fmt: skip

    def _separating(self, rows: list[tuple], is_high: list[bool]) -> tuple[str, ...]:
        sides: tuple[list, list] = ([], [])
        for row, high in zip(rows, is_high, strict=True):
            sides[int(high)].append((self.sweeps[row[0]], self.series.environments[row[2]]))
        return tuple(separating(*sides))

    def _add(self, key: SeriesId, rows: list[tuple], one: Any, kind: str, metric: Metric, **figures: Any) -> None:
        before, after = rows[one.at - 1], rows[one.at]
        worse = (figures["new"] > figures["old"]) == (metric.better == Better.LOWER)
        self._event(
            key, kind, before, after, worse=worse,
            undone=None if one.undone_at is None else rows[one.undone_at][0],
            undoes=None if one.undoes is None else event_id(key, rows[one.undoes][0]),
            **figures,
        )  # fmt: skip

    def _event(self, key: SeriesId, kind: str, before: tuple, after: tuple, **facts: Any) -> None:
        environments = self.series.environments
        self.result.events.append(
            Event(
                event_id(key, after[0]), kind, key, before[0], after[0], self.position[after[0]],
                with_=tuple(coinciding(
                    self.sweeps[before[0]], self.sweeps[after[0]], environments[before[2]], environments[after[2]]
                )),
                **facts,
            )
        )  # fmt: skip

    # --- statuses ---

    def judge_statuses(self) -> None:
        """From which sweep on a cell was not ok, or ok again. What was disturbed (noisy) says nothing.

        A failure of one sweep that was over in the next is left out, unless they come often enough to call the cell
        flapping; one in the newest sweep is not.
        """
        for track in self.tracks:
            rows = [row for row in track.rows if row[3] != Status.NOISY]
            key = SeriesId(track.cell_key, track.place, STATUS)
            ok = [row[3] == Status.OK for row in rows]
            if (alternation := find_exact(ok).alternation) is not None:
                _, _, switches, last = alternation
                failed = next(row[3] for row in reversed(rows) if row[3] != Status.OK)
                goes_with = self._separating(rows, ok)
                self.result.flapping.append(Flapping(key, Status.OK, failed, switches, rows[last][0], goes_with))
                continue
            found = [run for run in runs(ok) if run[1]]  # not how it began
            for index, (well, start, length) in enumerate(found):
                before, after = rows[start - 1], rows[start]
                following = found[index + 1][1] if index + 1 < len(found) else None
                facts = {"old": before[3], "new": after[3]}
                if not well and (following is None or length > 1):
                    undone = None if following is None else rows[following][0]
                    self._event(key, "broken", before, after, worse=True, reason=after[4], undone=undone, **facts)
                elif well and (start > 1 if index == 0 else found[index - 1][2] > 1):
                    undoes = None if index == 0 else event_id(key, rows[found[index - 1][1]][0])
                    lasts = following is None or (found[index + 1][2] == 1 and index + 2 < len(found))
                    undone = None if lasts else rows[following][0]
                    self._event(
                        key,
                        "fixed",
                        before,
                        after,
                        worse=False,
                        reason=before[4],
                        undoes=undoes,
                        undone=undone,
                        **facts,
                    )

    # --- presence ---

    def judge_presence(self) -> None:
        """New and dead cells, among the sweeps in which their hardware was measured (with their model)."""
        of_place: dict[str, set[int]] = defaultdict(set)
        of_model: dict[tuple[str, str], set[int]] = defaultdict(set)
        for sweep_id, environment_id, model in self.series.measured:
            place, at = self.places[environment_id], self.position[sweep_id]
            of_place[place].add(at)
            of_model[place, model].add(at)
        ordered = {key: sorted(positions) for key, positions in (of_place | of_model).items()}
        for track in self.tracks:
            first, last = track.positions[0], track.positions[-1]
            model = self.series.cells[track.cell_key]["model"]
            near, wide = ordered[track.place, model], ordered[track.place]
            if any(first > among[0] and first in among[-NEWEST:] for among in (near, wide)):
                self.result.new.append(Seen(track.cell_key, track.place, self.ids[first]))
            if len(near) > NEWEST and last < near[-NEWEST]:
                self.result.dead.append(Seen(track.cell_key, track.place, self.ids[last]))

    # --- the end ---

    def finish(self, acknowledged: list[Mapping[str, Any]]) -> History:
        result = self.result
        rows = {(track.cell_key, track.place): [row[0] for row in track.rows] for track in self.tracks}
        by_series: dict[SeriesId, list[Mapping[str, Any]]] = defaultdict(list)
        for one in acknowledged:
            by_series[SeriesId(one["cell_key"], one["hardware"], one["metric"])].append(one)
        others = [event for event in result.events if event.series not in by_series]
        for key, held in by_series.items():
            own = [event for event in result.events if event.series == key]
            others += _acknowledged(own, held, rows.get((key.cell_key, key.place), []))
        result.events = _ordered(others)
        result.sweeps = sorted({row[0] for row in self.series.rows}, key=self.position.__getitem__)
        return result


def _acknowledged(events: list[Event], candidates: list[Mapping[str, Any]], sweep_ids: list[str]) -> list[Event]:
    """The events of a series, those that are acknowledged marked; they have the id that they were acknowledged by.

    Each of `candidates` holds for one event: the nearest of those that may lie in its sweep, or one beside it. Of
    several that hold for an event it is the nearest.
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
            distance, event_id_ = min(near)
            if event_id_ not in best or distance < best[event_id_][0]:
                best[event_id_] = (distance, one)
    return [
        replace(
            event,
            acknowledged=best[event.id][1]["reason"],
            acknowledgement=best[event.id][1]["id"],
            id=event_id(event.series, best[event.id][1]["sweep_id"]),
        )
        if event.id in best
        else event
        for event in events
    ]


def _whereabouts(rows: list[tuple], one: changepoints.Change) -> dict[str, str]:
    if one.earliest is None or one.latest is None or one.earliest == one.latest:
        return {}
    return {"earliest": rows[one.earliest][0], "latest": rows[one.latest][0]}


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


def _is_figure(value: Any, metric: Metric) -> bool:
    return is_number(value) and (metric.compare == "exact" or value > 0)


def _error(low: float | None, high: float | None, trials: int) -> float:
    if not all(isinstance(value, int | float) for value in (low, high, trials)):
        return math.nan
    error = stored_log_mean(1.0, low, high, trials).error
    return math.nan if error is None else error


def _exp(value: float) -> float:
    return math.exp(min(value, 709.0))
