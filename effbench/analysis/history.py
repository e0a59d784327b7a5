"""What changed in the history of cells, when, and what else changed then?

`judge_metric` finds the changes of a figure, `judge_statuses` those of the status;
`HistoryChange.state` says whether one is open.

The results of a cell at one place, one per sweep, are a `Track`. Each of its metrics is a series of
figures, in which `stats.changepoints` finds changes of level; statuses change as well. Software,
protocol and host do not split a series: if they changed with the figure, they are listed with the
change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

from effbench.analysis.limits import STATUS, Limit, Limits
from effbench.analysis.limits import read as read_limits
from effbench.analysis.matching import place_of
from effbench.core.cell import Cell, Conditions, Status, StoredEnvironment
from effbench.core.environments import changes_between
from effbench.core.errors import NothingFoundError
from effbench.core.labels import cell_names
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS
from effbench.core.quantities import Better, Metric
from effbench.stats.changepoints import (
    EXACT_SHORTEST,
    SHORTEST,
    LevelChange,
    find_changes,
    find_exact,
)
from effbench.stats.intervals import Interval
from effbench.store.sides import PastResults, is_valid
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo, is_rerun

#: Metrics that have a history.
JUDGED = [name for name, metric in METRICS.items() if metric.compare != "none"]
#: Energy is judged only on request, because it follows latency and is noisier.
DEFAULT_METRICS = (
    "latency_ms",
    "period_ms",
    "gpu_busy_ms",
    "peak_reserved_bytes",
    "compile_cold_s",
    "cold_s",
    "cache_misses",
    "kernels",
    "graph_breaks",
    "recompiles",
    "cudagraph_skips",
)


@dataclass(frozen=True)
class HistoryPoint:
    """A result in a history. `at`: the position of its sweep; `figures`: its columns."""

    at: int
    environment_id: str
    status: str
    reason: str | None
    is_marked: bool
    figures: Mapping[str, Any]

    @property
    def is_ok(self) -> bool:
        return self.status == Status.OK


@dataclass(frozen=True, eq=False)
class Track:
    """The results of one cell at one place, one per sweep, oldest first. `place`: the hardware,
    plus the interpreter or folder if a sweep compared several."""

    cell_key: str
    place: str
    hardware: str
    points: list[HistoryPoint]


@dataclass(frozen=True)
class HistoryChange:
    """A change of a metric or of the status between two neighbouring results of a track.

    `old`, `new`: levels in the metric's unit, or statuses. `ratio`: new ÷ old with its 95 % bounds,
    None if unknown. `is_last`: the series did not change again. `coincides`: what else changed.
    `reason`: of the status.
    """

    track: Track
    metric: str
    before: HistoryPoint
    after: HistoryPoint
    old: Any
    new: Any
    is_worse: bool
    is_last: bool
    ratio: Interval | None = None
    coincides: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def state(self) -> str:
        """Return past (the series changed again), open (worse) or holds."""
        if not self.is_last:
            return "past"
        return "open" if self.is_worse else "holds"

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    @property
    def word(self) -> str:
        """Return the direction: slower, faster, more, less, broken or fixed."""
        if self.metric == STATUS:
            return "broken" if self.is_worse else "fixed"
        if METRICS[self.metric].unit in ("ms", "s", "×"):
            return "slower" if self.is_worse else "faster"
        return "more" if self.new > self.old else "less"

    @property
    def rank(self) -> tuple[bool, float, float, str, str]:
        """The place in a list: open changes, the worst first; then the others, the newest first."""
        size = 0.0
        if self.metric == STATUS and self.is_worse:
            size = math.inf
        elif self.ratio is not None and self.ratio.value:
            size = abs(math.log(self.ratio.value))
        names = self.track.cell_key, self.metric
        if self.is_open:
            return False, -size, -self.after.at, *names
        return True, -self.after.at, -size, *names


@dataclass
class History:
    """All cells of a database over its sweeps.

    `sweeps`: oldest first; `environments`, `cells`: by id and key. `changes`: the worst open
    ones first. `states`: number of steady, changed and short series (too short to judge). `older`:
    number of the oldest sweeps whose results are left out.
    """

    sweeps: list[SweepInfo]
    environments: Mapping[str, StoredEnvironment]
    cells: Mapping[str, Cell]
    metrics: list[str]
    tracks: list[Track]
    older: int = 0
    changes: list[HistoryChange] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)

    @property
    def points(self) -> list[HistoryPoint]:
        return [point for track in self.tracks for point in track.points]

    @property
    def judged(self) -> int:
        """The number of series that are long enough."""
        return self.states["steady"] + self.states["changed"]

    @property
    def open_changes(self) -> list[HistoryChange]:
        """The changes for the worse that are the last of their series, the worst first."""
        return [change for change in self.changes if change.is_open]

    @cached_property
    def has_several_places(self) -> bool:
        return len({track.place for track in self.tracks}) > 1

    @cached_property
    def names(self) -> dict[str, str]:
        """Cell key -> unique name."""
        return cell_names(self.cells.values())

    def add(self, change: HistoryChange) -> None:
        """Add a change, with what else changed between its points."""
        old = self.conditions(change.before)
        new = self.conditions(change.after)
        coincides = tuple(changes_between(old, new))
        self.changes.append(replace(change, coincides=coincides))

    def conditions(self, point: HistoryPoint) -> Conditions:
        sweep = self.sweeps[point.at]
        return Conditions(self.environments[point.environment_id], sweep.protocol, sweep.host)


# --- reading ---


def read(
    store: Store,
    metrics: Sequence[str] = DEFAULT_METRICS,
    limits: Limits | None = None,
    name: str | None = None,
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> History:
    """Read and judge all series of the database, except re-runs.

    `name`: only sweeps with this name; `environment_ids`: only results in these (empty: all);
    `most`: only the newest sweeps, with at most this many results. Raises NothingFoundError if no
    sweep has the name.
    """
    metrics = list(dict.fromkeys(metrics))
    past = store.past_results(columns_of(metrics), environment_ids, most)
    sweeps = []
    # newest first, those of the future last: as the oldest they hide nothing
    for sweep in reversed(past.sweeps):
        if not is_rerun(sweep.name) and name in (None, sweep.name):
            sweeps.append(sweep)
    if name is not None and not sweeps:
        raise NothingFoundError(f"no sweep has the name {name!r}; effbench ls lists the names")
    return judged(sweeps, past, metrics, limits or read_limits())


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Return the columns of `result` that a history of these metrics needs."""
    columns = ["trials", "marked", "disturbance", "speedup_disturbance"]
    for metric in metrics:
        columns += [metric, *INTERVALS.get(metric, ())]
    return columns


def tracks_of(sweeps: Sequence[SweepInfo], past: PastResults) -> list[Track]:
    """Return the results of these sweeps by cell and place. If a sweep has several results at a
    place (two hosts), the best one counts."""
    position = {sweep.id: at for at, sweep in enumerate(sweeps)}

    def order(row: Mapping[str, Any]) -> tuple[int, bool, bool, int, str]:
        at = position[row["sweep_id"]]
        is_ok = row["status"] == Status.OK
        return at, is_ok, not row["marked"], row["trials"], row["environment_id"]

    tracks: dict[tuple[str, str], Track] = {}
    rows = [row for row in past.rows if row["sweep_id"] in position]
    for row in sorted(rows, key=order):
        point = HistoryPoint(
            at=position[row["sweep_id"]],
            environment_id=row["environment_id"],
            status=row["status"],
            reason=row["reason"],
            is_marked=bool(row["marked"]),
            figures=row,
        )
        environment = past.environments[point.environment_id]
        place = place_of(environment)
        track = Track(row["cell_key"], place, environment.hardware, [])
        points = tracks.setdefault((track.cell_key, place), track).points
        if points and points[-1].at == point.at:
            points.pop()  # the best result of a sweep comes last
        points.append(point)
    return [tracks[key] for key in sorted(tracks)]


# --- judging ---


def judged(
    sweeps: list[SweepInfo],
    past: PastResults,
    metrics: list[str],
    limits: Limits,
) -> History:
    """Return the history of these sweeps (oldest first) with all changes that `limits` do not
    ignore."""
    tracks = tracks_of(sweeps, past)
    history = History(
        sweeps,
        past.environments,
        past.cells,
        metrics,
        tracks,
        older=past.older,
    )
    for track in tracks:
        cell = past.cells[track.cell_key].identity()
        for name in metrics:
            limit = limits.of(cell, track.hardware, name)
            if not limit.ignore:
                judge_metric(
                    history,
                    track,
                    METRICS[name],
                    limit,
                )
        if not limits.of(cell, track.hardware, STATUS).ignore:
            judge_statuses(history, track)
    history.changes.sort(key=lambda change: change.rank)
    return history


def judge_metric(
    history: History,
    track: Track,
    metric: Metric,
    limit: Limit,
) -> None:
    """Add the changes of a metric's level, and note the state of its series."""
    points = [point for point in track.points if counts(point, metric)]
    if not points:
        return
    figures = [point.figures[metric.name] for point in points]
    if metric.compare == "exact":
        changes = find_exact(figures)
        shortest = EXACT_SHORTEST
    else:
        changes = level_changes(metric, limit, figures)
        shortest = SHORTEST
    state = "steady"
    if len(points) < shortest:
        state = "short"
    elif changes:
        state = "changed"
    history.states[state] += 1
    for change in changes:
        history.add(
            HistoryChange(
                track=track,
                metric=metric.name,
                before=points[change.at - 1],
                after=points[change.at],
                old=change.before,
                new=change.after,
                is_worse=(change.after > change.before) == (metric.better == Better.LOWER),
                is_last=change is changes[-1],
                ratio=ratio_of(change),
            )
        )


def ratio_of(change: LevelChange) -> Interval | None:
    """Return after ÷ before of a change in the metric's unit; None if it was 0."""
    if change.before == 0:
        return None
    if change.after == 0 or change.ratio is None:
        return Interval(change.after / change.before)
    return change.ratio


def counts(point: HistoryPoint, metric: Metric) -> bool:
    """Return whether a result has a figure that may make a level. A marked one may not; of degraded
    results only exact figures may."""
    if not is_valid(point.figures[metric.name], metric):
        return False
    if not point.is_ok and (metric.compare != "exact" or point.status != Status.DEGRADED):
        return False
    if metric.name in SPEEDUPS:
        return point.figures["speedup_disturbance"] is None
    return not (metric.is_timed and point.is_marked)


def level_changes(metric: Metric, limit: Limit, figures: Sequence[float]) -> list[LevelChange]:
    """Return the changes of level, in the metric's unit, that exceed the limit."""
    least = limit.least
    # stands for 0, which has no logarithm: values that are all close to 0 stay together
    smallest = min(filter(None, figures), default=1.0)
    tiny = min(smallest, (least or smallest) / 100)
    zero = math.log(tiny) + 1e-9

    def level(log: float) -> float:
        if 0 in figures and log <= zero:
            return 0.0
        return math.exp(log)

    changes = []
    logs = [math.log(figure or tiny) for figure in figures]
    for change in find_changes(logs, limit.least_change(metric)):
        change = replace(change, before=level(change.before), after=level(change.after))
        if abs(change.after - change.before) > least:
            changes.append(change)
    return changes


def judge_statuses(history: History, track: Track) -> None:
    """Add the results from which on a cell fails, or is ok again. A failure in a single sweep does
    not count, unless it is the newest one."""
    lasting: list[HistoryPoint] = []
    for is_ok, run in groupby(track.points, key=lambda point: point.is_ok):
        points = list(run)
        if is_ok or len(points) > 1 or points[-1] is track.points[-1]:
            lasting += points
    turns = [(old, new) for old, new in pairwise(lasting) if old.is_ok != new.is_ok]
    for number, (before, after) in enumerate(turns, 1):
        failed = after if before.is_ok else before
        history.add(
            HistoryChange(
                track=track,
                metric=STATUS,
                before=before,
                after=after,
                old=before.status,
                new=after.status,
                is_worse=before.is_ok,
                is_last=number == len(turns),
                reason=failed.reason,
            )
        )
