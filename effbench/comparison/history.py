"""Find what changed in the history of cells, when, what else changed then, and whether the change
is still present.

This turns rows of results into a `History`, without I/O. Software, protocol and host do not split a
series: if they changed with the figure, they are listed with the change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np

from effbench.cell import Status, digest
from effbench.comparison.limits import STATUS, CellFacts, ExceptionRule, Limit, Limits
from effbench.comparison.matching import names_of
from effbench.comparison.verdicts import least_valid
from effbench.environments import Where, changes_between, hardware_of
from effbench.labels import grouped
from effbench.metrics import INTERVALS, METRICS, SPEEDUPS, Better, Metric
from effbench.stats.changepoints import (
    EXACT_SHORTEST,
    Findings,
    LevelChange,
    find_all,
    find_exact,
    mark_undone,
    runs,
)
from effbench.stats.intervals import Interval, is_number, stored_log_mean
from effbench.stats.segmentation import SHORTEST
from effbench.store.decisions import BaselineInfo
from effbench.store.sides import Series

#: Metrics that have a history.
JUDGED = [name for name, metric in METRICS.items() if metric.compare != "none"]
#: Energy is judged only on request, because it follows latency and is noisier.
DEFAULT_METRICS = (
    "latency_ms",
    "period_ms",
    "gpu_busy_ms",
    "peak_reserved_bytes",
    "compile_cold_s",
    "kernels",
    "graph_breaks",
    "recompiles",
    "cudagraph_skips",
)
#: Largest logarithm of a level.
LARGEST = 709.0


@dataclass(frozen=True, order=True)
class TrackId:
    """A cell at a place: hardware, plus the interpreter or folder if a sweep compared several."""

    cell_key: str
    place: str


@dataclass(frozen=True, order=True)
class SeriesId:
    """One metric of a cell at a place."""

    cell_key: str
    place: str
    metric: str

    @property
    def track(self) -> TrackId:
        return TrackId(self.cell_key, self.place)


class Point:
    """A result in a history. `figures`: all its columns."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self.figures = figures
        self.sweep_id: str = figures["sweep_id"]
        self.cell_key: str = figures["cell_key"]
        self.environment_id: str = figures["environment_id"]
        self.status: str = figures["status"]
        self.reason: str | None = figures["reason"]
        self.is_marked = bool(figures["marked"])


@dataclass(frozen=True)
class Track:
    """The results of one cell at one place, one per sweep, oldest first."""

    id: TrackId
    points: list[Point]


@dataclass(frozen=True)
class Event:
    """A change of a series between two neighbouring sweeps (ids).

    `kind`: `change`, `recent` (only the newest one or two sweeps: not confirmed), `broken` or
    `fixed` (the status). `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old
    with its 95 % bounds, None if unknown. `earliest_sweep`, `latest_sweep`: the first sweep after
    the change lies between these with 95 % confidence. `undone_sweep`: the first sweep with the old
    level again. `coincides`: what else changed between the two sweeps. `reason`: the reason of the
    status. `acknowledged`: why the change is accepted; `acknowledgement`: the key of that row.
    """

    kind: str
    series: SeriesId
    before_sweep: str
    after_sweep: str
    id: str
    old: Any
    new: Any
    worse: bool
    earliest_sweep: str
    latest_sweep: str
    undone_sweep: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    coincides: tuple[str, ...] = ()
    reason: str | None = None
    acknowledged: str | None = None
    acknowledgement: int | None = None

    @property
    def state(self) -> str:
        """Return unconfirmed, undone, acknowledged, open (worse and not acknowledged) or holds."""
        if self.kind == "recent":
            return "unconfirmed"
        if self.undone_sweep is not None:
            return "undone"
        if self.acknowledged is not None:
            return "acknowledged"
        return "open" if self.worse else "holds"

    @property
    def alarms(self) -> bool:
        return self.state == "open"

    @property
    def word(self) -> str:
        """Return the direction: slower, faster, more, less, broken or fixed."""
        if self.series.metric == STATUS:
            return self.kind
        metric = METRICS[self.series.metric]
        up = self.new > self.old
        if metric.unit in ("ms", "s", "×"):
            return "slower" if up == (metric.better == Better.LOWER) else "faster"
        return "more" if up else "less"


class History:
    """All cells of a database over its sweeps.

    `series`: the results without re-runs. `sweeps`: rows by id, oldest first; `position`: sweep id
    -> index. `places`: environment id -> place; `hardware`: place -> hardware. `changes`: the worst
    open ones first. `states`: steady, changed or short (too short to judge). `left_out`: number of
    acknowledged changes that were removed from `changes`.
    """

    def __init__(self, series: Series, metrics: Sequence[str]) -> None:
        self.series = series
        self.metrics = metrics
        self.sweeps = {sweep["id"]: sweep for sweep in series.sweeps}
        self.position = {sweep_id: position for position, sweep_id in enumerate(self.sweeps)}
        self.places: dict[str, str] = {}
        self.hardware: dict[str, str] = {}
        for key, environment in series.environments.items():
            self.places[key] = place_of(environment)
            self.hardware[self.places[key]] = hardware_of(environment)
        self.tracks = self._tracks()
        self.changes: list[Event] = []
        self.states: dict[SeriesId, str] = {}
        self.left_out = 0
        self.baselines: Sequence[BaselineInfo] = ()

    def _tracks(self) -> list[Track]:
        """Return all tracks. If a sweep has several results at a place (two hosts), the best one
        counts; of equal ones the last, as in comparisons: perhaps the sweep was resumed after an
        update."""
        names = self.series.columns
        best: dict[TrackId, dict[str, Point]] = defaultdict(dict)
        for row in self.series.rows:
            point = Point(dict(zip(names, row, strict=True)))
            of_track = best[TrackId(point.cell_key, self.places[point.environment_id])]
            other = of_track.get(point.sweep_id)
            if other is None or self._rank(point) > self._rank(other):
                of_track[point.sweep_id] = point
        tracks = []
        for track in sorted(best):
            points = sorted(best[track].values(), key=lambda point: self.position[point.sweep_id])
            tracks.append(Track(track, points))
        return tracks

    def _rank(self, point: Point) -> tuple[bool, bool, int, int, str]:
        known = list((self.sweeps[point.sweep_id]["host"] or {}).get("environments") or ())
        key = point.environment_id
        place = known.index(key) if key in known else -1
        is_ok = point.status == Status.OK
        return is_ok, not point.is_marked, point.figures["trials"], place, key

    @property
    def marked_results(self) -> int:
        """The number of results whose times make no level and no change, because the host was
        disturbed."""
        return sum(point.is_marked for track in self.tracks for point in track.points)

    @property
    def measured_sweeps(self) -> int:
        """The number of sweeps with a result."""
        return len({point.sweep_id for track in self.tracks for point in track.points})

    @cached_property
    def has_several_places(self) -> bool:
        return len({track.id.place for track in self.tracks}) > 1

    @cached_property
    def names(self) -> dict[str, str]:
        """Cell key -> unique name."""
        return names_of(self.series.cells)

    def is_matched(self, event: Event, rule: ExceptionRule) -> bool:
        """Return whether an exception matches the metric and the cell of a change."""
        cell = self.series.cells[event.series.cell_key]
        facts = CellFacts.of(cell, None, self.hardware[event.series.place])
        return rule.is_of(event.series.metric) and rule.fits(facts)

    def where(self, point: Point) -> Where:
        return self.sweeps[point.sweep_id], self.series.environments[point.environment_id]

    def add_change(
        self, kind: str, series: SeriesId, before: Point, after: Point, **facts: Any
    ) -> None:
        """Add the change of a series between two points. `facts`: fields of Event."""
        sweep_id = after.sweep_id
        whereabouts = {"earliest_sweep": sweep_id, "latest_sweep": sweep_id, **facts}
        coincides = tuple(changes_between(self.where(before), self.where(after)))
        change_id = event_id(series, sweep_id)
        event = Event(
            kind,
            series,
            before.sweep_id,
            sweep_id,
            change_id,
            coincides=coincides,
            **whereabouts,
        )
        self.changes.append(event)


def place_of(environment: Mapping[str, Any]) -> str:
    """Return the hardware, plus the interpreter or folder if the environment is one of several in a
    sweep."""
    flags = environment["flags"] or {}
    compared = [f"{name} {flags[name]}" for name in ("interpreter", "folder") if flags.get(name)]
    hardware = hardware_of(environment)
    return f"{hardware} ({', '.join(compared)})" if compared else hardware


def event_id(series: SeriesId, sweep_id: str) -> str:
    """Return the id of a change: 16 hex digits."""
    return digest([series.cell_key, series.place, series.metric, sweep_id])[:16]


def short_id(event_id: str) -> str:
    """Return the start of an id, which is unique among thousands of changes."""
    return event_id[:8]


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Return the columns of `result` that are needed to judge these metrics."""
    figures = [name for metric in metrics for name in (metric, *INTERVALS.get(metric, ()))]
    return [
        "trials",
        "compilations",
        "hosts",
        "marked",
        "disturbance",
        "speedup_disturbance",
        *figures,
    ]


def history(
    series: Series,
    metrics: Sequence[str],
    limits: Limits,
    acknowledged: Iterable[Mapping[str, Any]] = (),
) -> History:
    """Return the history with every series judged.

    `acknowledged`: rows of the table `acknowledgement`; each applies to a change of its series that
    may lie within one sweep of its own. Of the exceptions in `limits`, only `ignore` has an effect:
    a change is acknowledged if the last one that matches it has it, as in checks. Values that are
    NaN, infinite or less than `least_valid` count as not measured.
    """
    past = History(series, metrics)
    for name in metrics:
        metric, limit = METRICS[name], limits.of_metric(name)
        measured = measured_points(past, metric)
        if metric.compare == "exact":
            judge_exact(past, metric, measured)
        else:
            judge_levels(past, metric, limit, measured)
    for track in past.tracks:
        judge_statuses(past, track)
    acknowledge(past, acknowledged, limits.exceptions)
    sort_changes(past)
    return past


# --- figures ---


def measured_points(past: History, metric: Metric) -> dict[SeriesId, list[Point]]:
    """Return the results of each series with a figure that counts."""
    # strings, because two million comparisons with an enum take seconds
    statuses = {Status.OK.value}
    if metric.compare == "exact":
        statuses.add(Status.DEGRADED.value)
    least, name = least_valid(metric.name), metric.name
    measured: dict[SeriesId, list[Point]] = {}
    for track in past.tracks:
        points = []
        for point in track.points:
            value = point.figures[name]
            is_valid = point.status in statuses and is_number(value) and value >= least
            if is_valid and not is_disturbed(point, metric):
                points.append(point)
        if points:
            measured[SeriesId(track.id.cell_key, track.id.place, name)] = points
    return measured


def is_disturbed(point: Point, metric: Metric) -> bool:
    """Return whether the figure of a result is marked: it then makes no level and no change."""
    if metric.name in SPEEDUPS:
        return point.figures["speedup_disturbance"] is not None
    return metric.is_timed and point.is_marked


@dataclass(frozen=True)
class Logs:
    """Logarithms of figures. `zero`: the one that stands for 0, by default -inf."""

    values: list[float]
    zero: float = -math.inf

    @classmethod
    def of(cls, figures: Sequence[float], least: float) -> Logs:
        """Return the logarithms, with that of a small value for 0; `least`: smaller differences do
        not count. The value is at most the smallest other one, so values that are all close to 0
        stay together."""
        if 0 not in figures:
            return cls(np.log(figures).tolist())
        smallest = min(filter(None, figures), default=1.0)
        small = min(smallest, (least or smallest) / 100)
        logs = np.log([value or small for value in figures])
        return cls(logs.tolist(), math.log(small))

    def level(self, log: float) -> float:
        if log <= self.zero + 1e-9:
            return 0.0
        return math.exp(min(log, LARGEST))


def judge_exact(past: History, metric: Metric, measured: Mapping[SeriesId, list[Point]]) -> None:
    """Add the changes of series of exact values, and their states."""
    for series, points in measured.items():
        findings = find_exact([point.figures[metric.name] for point in points])
        past.states[series] = state_of(findings, len(points) < EXACT_SHORTEST)
        for change in all_of(findings):
            add_change(past, series, points, change)


def judge_levels(
    past: History, metric: Metric, limit: Limit, measured: Mapping[SeriesId, list[Point]]
) -> None:
    """Add the changes of level of other series, and their states."""
    points_of = list(measured.values())
    series_of = [
        Logs.of([point.figures[metric.name] for point in points], limit.least)
        for points in points_of
    ]
    floor = limit.floor
    if metric.compare == "bound":
        floor = limit.factor - 1

    def errors(index: int) -> list[float]:
        return [log_error(point, metric.name) for point in points_of[index]]

    judged = find_all([logs.values for logs in series_of], errors, floor)
    for series, logs, findings in zip(measured, series_of, judged, strict=True):
        points = measured[series]
        large = large_only(findings, logs.values, floor, limit.least)
        past.states[series] = state_of(large, len(points) < SHORTEST)
        for change in all_of(large):
            before, after = logs.level(change.before), logs.level(change.after)
            add_change(past, series, points, replace(change, before=before, after=after))


def state_of(findings: Findings, is_short: bool) -> str:
    if is_short:
        return "short"
    return "changed" if findings.changes else "steady"


def all_of(findings: Findings) -> list[LevelChange]:
    """Return the changes, and the unconfirmed one at the end."""
    if findings.recent is None:
        return [*findings.changes]
    return [*findings.changes, findings.recent]


def log_error(point: Point, name: str) -> float:
    """Return the standard error of a figure's logarithm, NaN if unknown."""
    figures = point.figures
    trials = figures["trials"]
    bounds = [figures[column] for column in INTERVALS.get(name, ())]
    if not bounds or not all(map(is_number, (*bounds, trials))):
        return math.nan
    compilations, hosts = figures["compilations"], figures["hosts"]
    error = stored_log_mean(1.0, *bounds, trials, compilations, hosts=hosts).error
    if error is None:
        return math.nan
    return error


def large_only(findings: Findings, logs: Sequence[float], floor: float, least: float) -> Findings:
    """Return the findings without differences up to `least`; several small changes in a row may be
    a large one."""
    if not least:
        return findings
    if math.exp(max(logs)) - math.exp(min(logs)) <= least:
        return Findings()
    large: list[LevelChange] = []
    level: float | None = None  # before the small changes
    for change in all_of(findings):
        before = change.before
        if level is not None:
            before = level
        if abs(math.exp(change.after) - math.exp(before)) <= least:
            level = before
            continue
        if before != change.before:
            ratio = Interval(math.exp(change.after - before))
            change = replace(change, before=before, ratio=ratio)
        large.append(change)
        level = None
    recent = None
    if large and not large[-1].is_confirmed:
        recent = large.pop()
    return Findings(mark_undone(large, math.log1p(floor)), recent)


def add_change(
    past: History, series: SeriesId, points: Sequence[Point], change: LevelChange
) -> None:
    """Add a change of level; its levels are in the metric's unit."""
    old, new = change.before, change.after
    facts: dict[str, Any] = {}
    if old and new and change.ratio:
        ratio = change.ratio
        facts = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    elif old:
        facts = {"ratio": new / old}
    if change.undone_at is not None:
        facts["undone_sweep"] = points[change.undone_at].sweep_id
    past.add_change(
        "change" if change.is_confirmed else "recent",
        series,
        points[change.at - 1],
        points[change.at],
        old=old,
        new=new,
        worse=(new > old) == (METRICS[series.metric].better == Better.LOWER),
        earliest_sweep=points[change.earliest or change.at].sweep_id,
        latest_sweep=points[change.latest or change.at].sweep_id,
        **facts,
    )


# --- statuses ---


def judge_statuses(past: History, track: Track) -> None:
    """Add the sweeps from which on a cell fails, or is ok again. A failure in a single sweep does
    not count, unless it is in the newest sweep."""
    points: list[Point] = []
    for run in runs([point.status == Status.OK for point in track.points]):
        end = run.start + run.length
        if run.value or run.length > 1 or end == len(track.points):
            points += track.points[run.start : end]
    series = SeriesId(track.id.cell_key, track.id.place, STATUS)
    starts = [run.start for run in runs([point.status == Status.OK for point in points])]
    for start, following in zip_longest(starts[1:], starts[2:]):
        before, after = points[start - 1], points[start]
        kind, reason = "broken", after.reason
        if after.status == Status.OK:
            kind, reason = "fixed", before.reason
        facts = {"old": before.status, "new": after.status, "reason": reason}
        if following is not None:
            facts["undone_sweep"] = points[following].sweep_id
        past.add_change(kind, series, before, after, worse=kind == "broken", **facts)


# --- the end ---


def acknowledge(
    past: History, rows: Iterable[Mapping[str, Any]], exceptions: Sequence[ExceptionRule]
) -> None:
    """Mark the accepted changes, and give them the ids under which they were acknowledged."""
    nearest = nearest_rows(past, rows)
    changes, past.changes = past.changes, []
    for event in changes:
        row = nearest.get(event.id)
        if row is not None:
            event = replace(
                event,
                id=event_id(event.series, row["sweep_id"]),
                acknowledged=row["reason"],
                acknowledgement=row["id"],
            )
        else:
            fitting = [rule for rule in exceptions if past.is_matched(event, rule)]
            if fitting and fitting[-1].ignore:
                event = replace(event, acknowledged=fitting[-1].reason)
        past.changes.append(event)


def nearest_rows(past: History, rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the id of each acknowledged change -> the row that acknowledges it.

    Each row applies to one change: the nearest of those that may lie within one sweep of its own.
    If several apply to a change, the nearest counts.
    """
    points_of = {track.id: track.points for track in past.tracks}
    changes = grouped(past.changes, lambda event: event.series)
    nearest: dict[str, Mapping[str, Any]] = {}
    distances: dict[str, int] = {}
    for row in rows:
        series = SeriesId(row["cell_key"], row["hardware"], row["metric"])
        points = points_of.get(series.track, [])
        order = {point.sweep_id: index for index, point in enumerate(points)}
        at = order.get(row["sweep_id"])
        if at is None:
            continue
        near = [
            (abs(order[event.after_sweep] - at), event.id)
            for event in changes.get(series, ())
            if order[event.earliest_sweep] - 1 <= at <= order[event.latest_sweep] + 1
        ]
        if near:
            distance, change_id = min(near)
            if distance < distances.get(change_id, len(points)):
                distances[change_id] = distance
                nearest[change_id] = row
    return nearest


def sort_changes(past: History) -> None:
    """Sort the changes: open ones, the worst first; then the others, the newest first. Metrics of a
    cell that changed together stay together."""
    metrics = [STATUS, *METRICS]

    def badness(event: Event) -> tuple[bool, bool, float]:
        size = abs(math.log(event.ratio)) if event.ratio else 0.0
        return event.kind != "broken", not event.worse, -size

    def rank(events: Sequence[Event]) -> tuple[bool, tuple[bool | float, ...], TrackId]:
        worst, newest = min(map(badness, events)), -past.position[events[0].after_sweep]
        are_open = any(event.alarms for event in events)
        order: tuple[bool | float, ...] = (newest, *worst)
        if are_open:
            order = (*worst, newest)
        return not are_open, order, events[0].series.track

    groups = grouped(past.changes, lambda event: (event.after_sweep, event.series.track))
    past.changes = []
    for events in sorted(groups.values(), key=rank):
        events.sort(key=lambda event: (metrics.index(event.series.metric), event.id))
        past.changes += events
