"""Find what changed in the history of cells, when, what else changed then, and whether the change
is still present.

Software, protocol and host do not split a series: if they changed with the figure, they are listed
with the change.
"""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

from effbench.analysis.limits import STATUS, CellFacts, ExceptionRule, Limit, Limits
from effbench.analysis.limits import read as read_limits
from effbench.analysis.matching import names_of
from effbench.analysis.verdicts import least_valid
from effbench.core.cell import Status, digest
from effbench.core.environments import Where, changes_between, hardware_of
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import grouped
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS, Better, Metric
from effbench.core.printable import one_line
from effbench.stats.changepoints import (
    EXACT_SHORTEST,
    SHORTEST,
    Findings,
    LevelChange,
    find_changes,
    find_exact,
    mark_undone,
    runs,
)
from effbench.stats.intervals import Interval, is_number
from effbench.store.decisions import BaselineInfo
from effbench.store.sides import Series
from effbench.store.store import Store
from effbench.store.sweeps import is_future

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
#: Longest list of known names in a message, in characters.
LONGEST = 200


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


class HistoryPoint:
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
    points: list[HistoryPoint]


@dataclass(frozen=True)
class HistoryEvent:
    """A change of a series between two neighbouring sweeps (ids).

    `kind`: `change`, `recent` (only the newest one or two sweeps: not confirmed), `broken` or
    `fixed` (the status). `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old
    with its 95 % bounds, None if unknown. `earliest_sweep`, `latest_sweep`: the first sweep after
    the change lies between these with 95 % confidence. `undone_sweep`: the first sweep with the old
    level again. `coincides`: what else changed between the two sweeps. `reason`: the reason of the
    status. `acknowledged`: why the change is accepted; `acknowledgement`: the key of that row,
    which names the sweep `acknowledged_sweep`.
    """

    kind: str
    series: SeriesId
    before_sweep: str
    after_sweep: str
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
    acknowledged_sweep: str | None = None

    @cached_property
    def id(self) -> str:
        """The id of the change, under which it was acknowledged if it was."""
        return event_id(self.series, self.acknowledged_sweep or self.after_sweep)

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
        self.changes: list[HistoryEvent] = []
        self.states: dict[SeriesId, str] = {}
        self.left_out = 0
        self.baselines: Sequence[BaselineInfo] = ()

    def _tracks(self) -> list[Track]:
        """Return all tracks. If a sweep has several results at a place (two hosts), the best one
        counts; of equal ones the last, as in comparisons: perhaps the sweep was resumed after an
        update."""
        names = self.series.columns
        best: dict[TrackId, dict[str, HistoryPoint]] = defaultdict(dict)
        for row in self.series.rows:
            point = HistoryPoint(dict(zip(names, row, strict=True)))
            of_track = best[TrackId(point.cell_key, self.places[point.environment_id])]
            other = of_track.get(point.sweep_id)
            if other is None or self._rank(point) > self._rank(other):
                of_track[point.sweep_id] = point
        tracks = []
        for track in sorted(best):
            points = sorted(best[track].values(), key=lambda point: self.position[point.sweep_id])
            tracks.append(Track(track, points))
        return tracks

    def _rank(self, point: HistoryPoint) -> tuple[bool, bool, int, int, str]:
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

    @property
    def open_changes(self) -> list[HistoryEvent]:
        """The changes for the worse that persist and are not acknowledged, the worst first."""
        return [event for event in self.changes if event.alarms]

    @cached_property
    def has_several_places(self) -> bool:
        return len({track.id.place for track in self.tracks}) > 1

    @cached_property
    def names(self) -> dict[str, str]:
        """Cell key -> unique name."""
        return names_of(self.series.cells)

    def is_matched(self, event: HistoryEvent, rule: ExceptionRule) -> bool:
        """Return whether an exception matches the metric and the cell of a change."""
        cell = self.series.cells[event.series.cell_key]
        facts = CellFacts.of(cell, None, self.hardware[event.series.place])
        return rule.is_of(event.series.metric) and rule.fits(facts)

    def where(self, point: HistoryPoint) -> Where:
        return self.sweeps[point.sweep_id], self.series.environments[point.environment_id]

    def coincides(self, before: HistoryPoint, after: HistoryPoint) -> tuple[str, ...]:
        """Return what else changed between two points."""
        return tuple(changes_between(self.where(before), self.where(after)))


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


# --- reading ---


@dataclass(frozen=True)
class Filters:
    """Which results and changes a history has. `name`: only sweeps with this name (empty: sweeps
    without a name); `environment_ids`: only results in these (empty: all); `most`: only the newest
    sweeps, with at most this many results; `since`: omit earlier changes; `everything`: include
    acknowledged ones."""

    models: Sequence[str] = ()
    modes: Sequence[str] = ()
    hosts: Sequence[str] = ()
    name: str | None = None
    environment_ids: Collection[str] = ()
    most: int | None = None
    since: str | None = None
    everything: bool = False

    @property
    def are_limits(self) -> bool:
        """Whether a user chose which results count."""
        return bool(self.models or self.modes or self.hosts) or self.name is not None


ALL = Filters()


def read(
    store: Store,
    metrics: Sequence[str] = DEFAULT_METRICS,
    filters: Filters = ALL,
    limits: Limits | None = None,
) -> History:
    """Read and judge all series of the database, except re-runs.

    Raises NothingFoundError if the filters match nothing, UsageError for an unknown `since`.
    """
    metrics = list(dict.fromkeys(metrics))
    whole = store.series(
        columns_of(metrics), filters.models, filters.modes, filters.environment_ids, filters.most
    )
    series = filtered(store, whole, filters)
    past = history(series, metrics, limits or read_limits(), store.acknowledgements())
    past.baselines = store.baselines()
    if filters.since is not None:
        first = position_of(filters.since, series.sweeps)
        past.changes = [
            event for event in past.changes if past.position[event.after_sweep] >= first
        ]
    if not filters.everything:
        shown = [event for event in past.changes if event.acknowledged is None]
        past.changes, past.left_out = shown, len(past.changes) - len(shown)
    return past


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Return the columns of `result` that a history of these metrics needs."""
    columns = ["trials", "marked", "disturbance", "speedup_disturbance"]
    for metric in metrics:
        columns += [metric, *INTERVALS.get(metric, ())]
    return columns


def filtered(store: Store, whole: Series, filters: Filters) -> Series:
    """Return the series without re-runs, of the hosts and the name that are wanted. Raises
    NothingFoundError if nothing is left."""
    series = whole.without_reruns()
    # a clock was wrong: as in find_sweep, the future is the oldest, else it would hide what the
    # newest sweep shows
    sweeps = sorted(series.sweeps, key=lambda sweep: not is_future(sweep["started_at"]))
    series = replace(series, sweeps=sweeps)
    hosts = {sweep["id"]: (sweep["host"] or {}).get("hostname") for sweep in sweeps}
    names = {sweep["id"]: sweep["name"] or "" for sweep in sweeps}
    if filters.hosts:
        series = of_sweeps(series, hosts, filters.hosts)
    if filters.name is not None:
        series = of_sweeps(series, names, [filters.name])
    if filters.are_limits and not series.rows:
        raise NothingFoundError(nothing_fits(store, hosts.values(), names.values()))
    return series


def of_sweeps(series: Series, values: Mapping[str, str | None], wanted: Sequence[str]) -> Series:
    """Return the series of the sweeps that have one of these values. `values`: by sweep id."""
    return series.of({sweep_id for sweep_id, value in values.items() if value in wanted})


def nothing_fits(store: Store, hosts: Iterable[str | None], names: Iterable[str]) -> str:
    """Return what the filters could be."""
    cells = store.series(None).cells.values()
    texts = [
        f"models {listed({cell['model'] for cell in cells})}",
        f"modes {listed({cell['mode'] for cell in cells})}",
        f"hosts {listed(set(filter(None, hosts)))}",
        f"names {listed(set(map(repr, names)))}",
    ]
    known = one_line("; ".join(texts), LONGEST)
    return f"no result fits --model, --mode, --host and --name; available: {known}"


def listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


def position_of(since: str, sweeps: Sequence[Mapping[str, Any]]) -> int:
    """Return the position of the first sweep that matches `since`: an id, label, name or date
    (UTC). `last` is the newest sweep that was recorded here, or the newest imported one if there is
    no other. Sweeps that start in the future come first. Raises UsageError if nothing matches."""
    if since == "last" and sweeps:
        newest = len(sweeps) - 1
        recorded_here = (at for at, sweep in enumerate(sweeps) if not sweep.get("imported_at"))
        return max(recorded_here, default=newest)
    for key in ("id", "label", "name"):
        for at, sweep in enumerate(sweeps):
            if sweep[key] == since:
                return at
    date = date_of(since)
    starts = [sweep["started_at"] for sweep in sweeps]
    return sum(start < date or is_future(start) for start in starts)


def date_of(text: str) -> dt.datetime:
    try:
        date = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            "--since: expected a date (2026-03-01) or a sweep's id, label or name (see effbench"
            f" ls), got {text!r}"
        ) from error
    return date if date.tzinfo else date.replace(tzinfo=dt.UTC)


# --- judging ---


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
        for series_id, points in measured_points(past, metric).items():
            figures = [point.figures[name] for point in points]
            if metric.compare == "exact":
                findings, shortest = find_exact(figures), EXACT_SHORTEST
            else:
                findings, shortest = level_changes(metric, limit, figures), SHORTEST
            past.states[series_id] = "changed" if findings.changes else "steady"
            if len(points) < shortest:
                past.states[series_id] = "short"
            for change in all_of(findings):
                past.changes.append(level_event(past, series_id, points, change))
    for track in past.tracks:
        judge_statuses(past, track)
    acknowledge(past, acknowledged, limits.exceptions)
    past.changes.sort(key=lambda event: place_in_list(past, event))
    return past


def measured_points(past: History, metric: Metric) -> dict[SeriesId, list[HistoryPoint]]:
    """Return the results of each series with a figure that counts."""
    # strings, because two million comparisons with an enum take seconds
    statuses = {Status.OK.value}
    if metric.compare == "exact":
        statuses.add(Status.DEGRADED.value)
    least, name = least_valid(metric.name), metric.name
    measured: dict[SeriesId, list[HistoryPoint]] = {}
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


def is_disturbed(point: HistoryPoint, metric: Metric) -> bool:
    """Return whether the figure of a result is marked: it then makes no level and no change."""
    if metric.name in SPEEDUPS:
        return point.figures["speedup_disturbance"] is not None
    return metric.is_timed and point.is_marked


def all_of(findings: Findings) -> list[LevelChange]:
    """Return the changes, and the unconfirmed one at the end."""
    if findings.recent is None:
        return [*findings.changes]
    return [*findings.changes, findings.recent]


@dataclass(frozen=True)
class LogScale:
    """Logarithms of figures. `zero`: the one that stands for 0, None without a 0: at most that of
    the smallest other figure, so that values that are all close to 0 stay together."""

    logs: list[float]
    zero: float | None

    @classmethod
    def of(cls, figures: Sequence[float], least: float) -> LogScale:
        """Return the logarithms of figures; `least`: smaller differences do not count."""
        if 0 not in figures:
            return cls([math.log(value) for value in figures], None)
        smallest = min(filter(None, figures), default=1.0)
        small = min(smallest, (least or smallest) / 100)
        return cls([math.log(value or small) for value in figures], math.log(small))

    def figure(self, log: float) -> float:
        if self.zero is not None and log <= self.zero + 1e-9:
            return 0.0
        return math.exp(log)

    def in_unit(self, change: LevelChange) -> LevelChange:
        """Return a change with levels in the metric's unit."""
        return replace(change, before=self.figure(change.before), after=self.figure(change.after))


def level_changes(metric: Metric, limit: Limit, figures: Sequence[float]) -> Findings:
    """Return the changes of level, in the metric's unit, that exceed the limit."""
    floor, least = limit.floor or 0.0, limit.least or 0.0
    if metric.compare == "bound":
        floor = (limit.factor or 1.0) - 1
    scale = LogScale.of(figures, least)
    findings = find_changes(scale.logs, floor)
    if least:
        findings = large_changes(findings, least, floor)
    recent = findings.recent
    if recent is not None:
        recent = scale.in_unit(recent)
    return Findings(tuple(map(scale.in_unit, findings.changes)), recent)


def large_changes(findings: Findings, least: float, floor: float) -> Findings:
    """Return the changes whose levels, given as logarithms, differ by more than `least`; several
    small changes in a row may be a large one."""
    large: list[LevelChange] = []
    level: float | None = None  # before the small changes
    for change in all_of(findings):
        before = change.before if level is None else level
        if abs(math.exp(change.after) - math.exp(before)) <= least:
            level = before
            continue
        if before != change.before:
            ratio = Interval(math.exp(change.after - before))
            change = replace(change, before=before, ratio=ratio)
        large.append(change)
        level = None
    confirmed = [change for change in large if change.is_confirmed]
    recent = None
    if len(confirmed) < len(large):
        recent = large[-1]
    return Findings(mark_undone(confirmed, math.log1p(floor)), recent)


def level_event(
    past: History, series: SeriesId, points: Sequence[HistoryPoint], change: LevelChange
) -> HistoryEvent:
    """Return a change of level, given in the metric's unit."""
    old, new, ratio = change.before, change.after, change.ratio
    if old == 0:
        ratio = None
    elif new == 0 or ratio is None:
        ratio = Interval(new / old)
    before, after = points[change.at - 1], points[change.at]
    undone_sweep = value = low = high = None
    if change.undone_at is not None:
        undone_sweep = points[change.undone_at].sweep_id
    if ratio is not None:
        value, low, high = ratio.value, ratio.low, ratio.high
    return HistoryEvent(
        kind="change" if change.is_confirmed else "recent",
        series=series,
        before_sweep=before.sweep_id,
        after_sweep=after.sweep_id,
        old=old,
        new=new,
        worse=(new > old) == (METRICS[series.metric].better == Better.LOWER),
        earliest_sweep=points[change.earliest or change.at].sweep_id,
        latest_sweep=points[change.latest or change.at].sweep_id,
        undone_sweep=undone_sweep,
        ratio=value,
        low=low,
        high=high,
        coincides=past.coincides(before, after),
    )


def judge_statuses(past: History, track: Track) -> None:
    """Add the sweeps from which on a cell fails, or is ok again. A failure in a single sweep does
    not count, unless it is in the newest sweep."""
    points: list[HistoryPoint] = []
    for run in runs([point.status == Status.OK for point in track.points]):
        end = run.start + run.length
        if run.value or run.length > 1 or end == len(track.points):
            points += track.points[run.start : end]
    series = SeriesId(track.id.cell_key, track.id.place, STATUS)
    starts = [run.start for run in runs([point.status == Status.OK for point in points])]
    for start, following in zip_longest(starts[1:], starts[2:]):
        before, after = points[start - 1], points[start]
        is_fixed = after.status == Status.OK
        undone_sweep = None
        if following is not None:
            undone_sweep = points[following].sweep_id
        event = HistoryEvent(
            kind="fixed" if is_fixed else "broken",
            series=series,
            before_sweep=before.sweep_id,
            after_sweep=after.sweep_id,
            old=before.status,
            new=after.status,
            worse=not is_fixed,
            earliest_sweep=after.sweep_id,
            latest_sweep=after.sweep_id,
            undone_sweep=undone_sweep,
            coincides=past.coincides(before, after),
            reason=before.reason if is_fixed else after.reason,
        )
        past.changes.append(event)


# --- acknowledgements and order ---


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
                acknowledged=row["reason"],
                acknowledgement=row["id"],
                acknowledged_sweep=row["sweep_id"],
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


def place_in_list(past: History, event: HistoryEvent) -> tuple[bool, float, float, str]:
    """Return the place of a change: open ones, the worst first; then the others, the newest
    first."""
    size = abs(math.log(event.ratio)) if event.ratio else 0.0
    if event.kind == "broken":
        size = math.inf
    newest = float(past.position[event.after_sweep])
    if event.alarms:
        return False, -size, -newest, event.id
    return True, -newest, -size, event.id
