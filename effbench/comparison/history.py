"""Find what changed in the history of cells, when, what else changed then, and whether the change
is still present.

This turns rows of results into a `History`, without I/O. Software, protocol and host do not split a
series: if they changed with the figure, they are listed with the change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from effbench.cell import Status
from effbench.comparison.events import Event, History, SeriesId, Track, event_id, unit_of
from effbench.comparison.limits import ExceptionRule, Limit, Limits
from effbench.comparison.verdicts import STATUS, least_valid
from effbench.environments import changes_between, separating
from effbench.labels import grouped
from effbench.metrics import INTERVALS, METRICS, SPEEDUPS, Better, Metric
from effbench.stats.changepoints import (
    EXACT_SHORTEST,
    Alternation,
    Found,
    find_all,
    find_exact,
    mark_undone,
    runs,
)
from effbench.stats.intervals import Interval, is_number, stored_log_mean
from effbench.stats.segmentation import SHORTEST
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
#: `new`: first seen in the newest sweeps, this many; `dead`: not seen in these sweeps.
NEWEST = 3
#: Order of the events that are not changes.
OTHER_KINDS = ("new", "dead", "flapping", "drifting")


def columns_of(metrics: Iterable[str]) -> list[str]:
    """Return the columns of `result` that are needed to judge these metrics."""
    figures = [name for metric in metrics for name in (metric, *INTERVALS.get(metric, ()))]
    return ["trials", "compilations", "hosts", "marked", "disturbance", *figures]


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
    timeline = History(series, metrics)
    for name in metrics:
        _judge_metric(timeline, METRICS[name], limits.of_metric(name))
    for track in timeline.tracks:
        _judge_statuses(timeline, track)
    _judge_presence(timeline)
    _acknowledge(timeline, acknowledged, limits.exceptions)
    _sort(timeline)
    return timeline


# --- figures ---


def _judge_metric(timeline: History, metric: Metric, limit: Limit) -> None:
    exact = metric.compare == "exact"
    # strings, because two million comparisons with an enum take seconds
    statuses = {Status.OK.value, Status.DEGRADED.value} if exact else {Status.OK.value}
    least, value_of = (
        least_valid(metric.name),
        itemgetter(timeline.series.columns.index(metric.name)),
    )
    measured: dict[SeriesId, list[Any]] = {}
    values: list[list[Any]] = []
    for track in timeline.tracks:
        known = [
            row
            for row in track.rows
            if row.status in statuses and not is_disturbed(timeline, row, metric)
        ]
        rows = [row for row in known if is_number(value_of(row)) and value_of(row) >= least]
        if rows:
            measured[SeriesId(track.cell_key, track.place, metric.name)] = rows
            values.append([*map(value_of, rows)])
    if exact:
        judged = [find_exact(series) for series in values]
    else:
        values = [
            np.log(without_zeros(series, limit.least) if 0 in series else series).tolist()
            for series in values
        ]
        rows_of = list(measured.values())
        floor = limit.factor - 1 if metric.compare == "bound" else limit.floor
        judged = find_all(
            values, lambda index: [_error(row, metric.name) for row in rows_of[index]], floor
        )
        if limit.least:
            judged = [
                _large_only(*pair, floor, limit.least) for pair in zip(judged, values, strict=True)
            ]
    for (series, rows), levels, result in zip(measured.items(), values, judged, strict=True):
        _add_found(timeline, series, rows, levels, result)


def is_disturbed(timeline: History, row: Any, metric: Metric) -> bool:
    """Return whether the figure of a result is marked: it then makes no level and no change."""
    if not metric.is_timed:
        return False
    has_marked_baseline = (
        metric.name in SPEEDUPS and unit_of(timeline, row) in timeline.marked_baselines
    )
    return bool(row.marked) or has_marked_baseline


def without_zeros(values: Sequence[float], least: float) -> list[float]:
    """Return the values with a small one for each 0, which has no logarithm; `least`: smaller
    differences do not count. It is at most the smallest other value, so values that are all close
    to 0 stay together."""
    smallest = min(filter(None, values), default=1.0)
    return [value or min(smallest, (least or smallest) / 100) for value in values]


def _error(row: Any, name: str) -> float:
    """Return the standard error of a figure's logarithm, NaN if unknown."""
    known = [*(getattr(row, bound) for bound in INTERVALS.get(name, ())), row.trials]
    if len(known) < 3 or not all(map(is_number, known)):
        return math.nan
    error = stored_log_mean(1.0, *known, row.compilations, hosts=row.hosts).error
    return math.nan if error is None else error


def _large_only(judged: Found, values: Sequence[float], floor: float, least: float) -> Found:
    """Return the judgement without differences up to `least`; several small changes in a row may be
    a large one."""
    flapping = judged.alternation
    low, high = (flapping.low, flapping.high) if flapping else (min(values), max(values))
    if math.exp(high) - math.exp(low) <= least:
        return Found()
    kept, level = [], None
    for change in filter(None, (*judged.changes, judged.recent)):
        before = change.before if level is None else level
        is_large = abs(math.exp(change.after) - math.exp(before)) > least
        if is_large and level not in (None, change.before):
            change = replace(change, before=before, ratio=Interval(math.exp(change.after - before)))
        kept += [change] if is_large else []
        level = None if is_large else before
    recent = kept.pop() if judged.recent and kept and kept[-1].at == judged.recent.at else None
    return replace(judged, changes=tuple(mark_undone(kept, math.log1p(floor))), recent=recent)


def _add_found(
    timeline: History, series: SeriesId, rows: list[Any], values: Sequence[Any], judged: Found
) -> None:
    """Add the events of a series and its state. `values` are logarithms unless the metric is
    exact."""
    metric = METRICS[series.metric]
    exact = metric.compare == "exact"
    recent = [judged.recent] if judged.recent else []
    known = zip(rows, values, strict=True) if recent or judged.changes or judged.alternation else ()
    zero = next((value for row, value in known if getattr(row, metric.name) == 0), -math.inf)

    def level(value: Any) -> Any:
        return value if exact else math.exp(min(value, 709.0)) if value > zero + 1e-9 else 0.0

    for change in (*judged.changes, *recent):
        old, new = level(change.before), level(change.after)
        ratio = (
            change.ratio if change.ratio and old and new else Interval(new / old if old else None)
        )
        _add_change(
            timeline,
            series,
            "recent" if change is judged.recent else "change",
            rows[change.at - 1],
            rows[change.at],
            old=old,
            new=new,
            ratio=ratio.value,
            low=ratio.low,
            high=ratio.high,
            worse=(new > old) == (metric.better == Better.LOWER),
            earliest_sweep=rows[change.earliest or change.at].sweep_id,
            latest_sweep=rows[change.latest or change.at].sweep_id,
            undone_sweep=None if change.undone_at is None else rows[change.undone_at].sweep_id,
        )
    if (apart := judged.alternation) is not None:
        _add_flapping(timeline, series, rows, apart, level(apart.low), level(apart.high))
    if judged.drift is not None:
        timeline.events.append(Event("drifting", series, ratio=judged.drift))
    states = {"flapping": judged.alternation, "changed": judged.changes, "drifting": judged.drift}
    state = next((name for name, result in states.items() if result), "steady")
    timeline.states[series] = (
        "short" if len(rows) < (EXACT_SHORTEST if exact else SHORTEST) else state
    )


def _add_change(
    timeline: History, series: SeriesId, kind: str, before: Any, after: Any, **facts: Any
) -> None:
    coincides = changes_between(_where(timeline, before), _where(timeline, after))
    facts = {
        "earliest_sweep": after.sweep_id,
        "latest_sweep": after.sweep_id,
        "coincides": tuple(coincides),
        **facts,
    }
    change_id = event_id(series, after.sweep_id)
    timeline.events.append(Event(kind, series, before.sweep_id, after.sweep_id, change_id, **facts))


def _add_flapping(
    timeline: History, series: SeriesId, rows: list[Any], apart: Alternation, old: Any, new: Any
) -> None:
    low, high = (
        [
            _where(timeline, row)
            for row, is_high in zip(rows, apart.is_high, strict=True)
            if is_high is side
        ]
        for side in (False, True)
    )
    after = rows[apart.switches[-1]].sweep_id
    facts = {
        "old": old,
        "new": new,
        "switches": len(apart.switches),
        "coincides": tuple(separating(low, high)),
    }
    timeline.events.append(Event("flapping", series, None, after, **facts))


def _where(timeline: History, row: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return timeline.sweeps[row.sweep_id], timeline.series.environments[row.environment_id]


# --- statuses and presence ---


def _judge_statuses(timeline: History, track: Track) -> None:
    """Add the sweeps from which on a cell fails, or is ok again.

    A failure in a single sweep does not count, unless it is in the newest sweep, or failures are so
    frequent that the cell is flapping.
    """
    series = SeriesId(track.cell_key, track.place, STATUS)
    rows = track.rows
    ok = [row.status == Status.OK for row in rows]
    if (alternation := find_exact(ok).alternation) is not None:
        failed = next(row.status for row in reversed(rows) if row.status != Status.OK)
        _add_flapping(timeline, series, rows, alternation, Status.OK, failed)
        return
    passing = {start for is_ok, start, length in runs(ok)[:-1] if not is_ok and length == 1}
    rows = [row for place, row in enumerate(rows) if place not in passing]
    starts = [start for _, start, _ in runs([row.status == Status.OK for row in rows])]
    for index, start in enumerate(starts[1:], 1):
        before, after = rows[start - 1], rows[start]
        is_fixed = after.status == Status.OK
        _add_change(
            timeline,
            series,
            "fixed" if is_fixed else "broken",
            before,
            after,
            old=before.status,
            new=after.status,
            worse=not is_fixed,
            reason=before.reason if is_fixed else after.reason,
            undone_sweep=rows[starts[index + 1]].sweep_id if index + 1 < len(starts) else None,
        )


def _judge_presence(timeline: History) -> None:
    """Add new and dead cells, judged by the sweeps that measured their place, or their model there.

    A cell is new only after EXACT_SHORTEST sweeps without it, and dead only after as many with it:
    the first sweeps of a database, and single sweeps of other matrices, tell neither.
    """
    measured: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for sweep_id, environment_id, model in timeline.series.measured:
        place = timeline.places[environment_id]
        measured[place,].add(timeline.position[sweep_id])
        measured[place, model].add(timeline.position[sweep_id])
    ordered = {key: sorted(positions) for key, positions in measured.items()}
    for track in timeline.tracks:
        oldest, newest = track.rows[0].sweep_id, track.rows[-1].sweep_id
        first, last = timeline.position[oldest], timeline.position[newest]
        model = timeline.series.cells[track.cell_key]["model"]
        of_model, of_place = ordered[track.place, model], ordered[track.place,]
        series = SeriesId(track.cell_key, track.place, STATUS)
        if any(is_new(first, among) for among in (of_model, of_place)):
            timeline.events.append(Event("new", series, after_sweep=oldest))
        has_gone = len(of_model) > NEWEST and last < of_model[-NEWEST]
        if has_gone and len(track.rows) >= EXACT_SHORTEST:
            timeline.events.append(Event("dead", series, before_sweep=newest))


def is_new(first: int, among: Sequence[int]) -> bool:
    """Return whether a cell that was first measured at this position is new among the positions of
    these sweeps."""
    earlier = sum(position < first for position in among)
    return earlier >= EXACT_SHORTEST and first in among[-NEWEST:]


# --- the end ---


def _acknowledge(
    timeline: History, rows: Iterable[Mapping[str, Any]], exceptions: Sequence[ExceptionRule]
) -> None:
    """Mark the accepted changes, and give them the ids under which they were acknowledged.

    Each acknowledgement applies to one change: the nearest of those that may lie within one sweep
    of its own. If several apply to a change, the nearest counts.
    """
    tracks = {(track.cell_key, track.place): track.rows for track in timeline.tracks}
    changes = grouped(timeline.changes, lambda event: event.series)
    held: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for row in rows:
        series = SeriesId(row["cell_key"], row["hardware"], row["metric"])
        order = {result.sweep_id: index for index, result in enumerate(tracks.get(series[:2], ()))}
        at = order.get(row["sweep_id"])
        near = [
            (abs(order[event.after_sweep] - at), event.id)
            for event in changes.get(series, ())
            if at is not None
            and order[event.earliest_sweep] - 1 <= at <= order[event.latest_sweep] + 1
        ]
        if near:
            distance, nearest = min(near)
            held[nearest].append((distance, row))

    def marked(event: Event) -> Event:
        if event.id in held:
            _, row = min(held[event.id], key=lambda pair: pair[0])
            known_as = event_id(event.series, row["sweep_id"])
            return replace(
                event, acknowledged=row["reason"], acknowledgement=row["id"], id=known_as
            )
        fitting = [
            rule for rule in exceptions if event.id is not None and timeline.is_matched(event, rule)
        ]
        return (
            replace(event, acknowledged=fitting[-1].reason)
            if fitting and fitting[-1].ignore
            else event
        )

    timeline.events = [marked(event) for event in timeline.events]


def _sort(timeline: History) -> None:
    """Sort the events: open changes, the worst first; then other changes, the newest first; then
    other events, of each kind the newest first, by cell. Metrics of a cell that changed together
    stay together."""

    def badness(event: Event) -> tuple:
        size = abs(math.log(event.ratio)) if event.ratio else 0.0
        return (event.kind != "broken", not event.worse, -size)

    def group(event: Event) -> tuple:
        return (event.after_sweep, event.series.cell_key, event.series.place)

    groups = grouped(timeline.changes, group)

    def rank(key: tuple) -> tuple:
        worst, newest = min(map(badness, groups[key])), -timeline.position[key[0]]
        return (
            (0, worst, newest, key)
            if any(event.alarms for event in groups[key])
            else (1, newest, worst, key)
        )

    metrics = [STATUS, *METRICS]
    changes = [
        event
        for key in sorted(groups, key=rank)
        for event in sorted(
            groups[key], key=lambda event: (metrics.index(event.series.metric), event.id)
        )
    ]

    def place(event: Event) -> tuple:
        newest = timeline.position.get(event.after_sweep or event.before_sweep, 0)
        return (-newest, timeline.names[event.series.cell_key], event.series)

    others = [event for kind in OTHER_KINDS for event in sorted(timeline.of(kind), key=place)]
    timeline.events = [*changes, *others]
