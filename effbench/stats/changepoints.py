"""Find change points of series: places where the level changed and stayed changed. Pure numpy, no
randomness.

Candidates come from a penalised fit (effbench.stats.segmentation). Each must pass a t-test, exceed
a floor, and explain the values better than a line. For exact values, such as counters, any lasting
difference is a change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from effbench.stats.intervals import Interval, log_difference, t_tail
from effbench.stats.segmentation import (
    BOUND,
    NOISIER,
    OUTLYING,
    SHORTEST,
    NoisySeries,
    Segment,
    fit,
)
from effbench.stats.significance import FLOOR

#: Minimum number of values on either side of a change.
PERSISTENCE = 3
#: The same for exact values, and the minimum length of their series.
EXACT_PERSISTENCE = 2
EXACT_SHORTEST = 2 * EXACT_PERSISTENCE
#: A step must explain the values better than a line by this much, in squared noise, because its
#: position was searched.
_SEARCHED = 4.0
#: Positions of a change are possible if they cost at most this more than the best one, in squared
#: noise. For a step in normal noise the difference is below x with probability (1 - exp(-x / 2))²,
#: which is 95 % here (Yao, 1987).
_WHEREABOUTS = 7.35


@dataclass(frozen=True)
class LevelChange:
    """A change of level between the values `at - 1` and `at` of a series.

    `before`, `after`: the levels, as logarithms or exact values. `ratio`: after ÷ before with its
    95 % Welch bounds; None for exact values. `undone_at`: where a later change returned to within
    the floor of `before`. `earliest`, `latest`: 95 % bounds of `at`; None for exact values.
    `is_confirmed`: whether enough values follow it.
    """

    at: int
    before: float
    after: float
    ratio: Interval | None = None
    undone_at: int | None = None
    earliest: int | None = None
    latest: int | None = None
    is_confirmed: bool = True


@dataclass(frozen=True)
class Findings:
    """The changes of a series. `recent`: a difference of only the newest one or two values from the
    last level, too few for a change."""

    changes: tuple[LevelChange, ...] = ()
    recent: LevelChange | None = None


@dataclass(frozen=True)
class Run:
    """Equal values of a series, from the position `start` on."""

    value: Any
    start: int
    length: int


def find_all(
    series: Sequence[Sequence[float]],
    errors: Callable[[int], Sequence[float]] | None = None,
    floor: float = FLOOR,
) -> list[Findings]:
    """Return the findings in each of many series of logarithms, which start with the oldest value.

    `errors`: returns the standard errors of the values of the series at an index, NaN or 0 if
    unknown. The trials of a sweep do not show how much sweeps vary, so errors only reduce the
    weight of sweeps that are less precise than the others. `floor`: smaller changes do not count
    (0.02 ignores ratios from 1 ÷ 1.02 to 1.02). Raises ValueError for values that are not finite.
    """
    if not all(all(map(math.isfinite, values)) for values in series):
        raise ValueError("a series must be finite: omit values that were not measured")
    least = math.log1p(floor)
    found = []
    for index, values in enumerate(series):
        # the others differ too little for any finding
        if len(values) < SHORTEST or max(values) - min(values) < least:
            found.append(Findings())
            continue
        of_series = errors(index) if errors else None
        noisy = NoisySeries.of(values, of_series)
        found.append(_judge(noisy, fit(noisy), least))
    return found


def find_exact(values: Sequence[Any]) -> Findings:
    """Return the findings in a series of exact values (integers or booleans), which starts with the
    oldest value.

    Fewer than EXACT_PERSISTENCE equal values in a row do not form a level; at the end of the series
    they are `recent`.
    """
    # a value that does not last is attributed to the previous level, or to the next one at the
    # start
    levels: list[Run] = []
    recent = None
    for run in runs(values):
        if levels and levels[-1].value == run.value:
            continue
        if run.length >= EXACT_PERSISTENCE:
            levels.append(run)
        elif levels and run.start + run.length == len(values):
            recent = LevelChange(run.start, levels[-1].value, run.value, is_confirmed=False)
    changes = [LevelChange(new.start, old.value, new.value) for old, new in pairwise(levels)]
    return Findings(mark_undone(changes, 0.0), recent)


def runs(values: Sequence[Any]) -> list[Run]:
    """Return the runs of equal values."""
    found: list[Run] = []
    start = 0
    for value, equal in groupby(values):
        found.append(Run(value, start, sum(1 for _ in equal)))
        start += found[-1].length
    return found


def mark_undone(changes: Sequence[LevelChange], floor: float) -> tuple[LevelChange, ...]:
    """Return the changes with `undone_at`. A change is undone if a later level is within `floor` of
    the level before it (both as logarithms)."""
    marked = []
    for number, change in enumerate(changes, 1):
        back = (later.at for later in changes[number:] if abs(later.after - change.before) <= floor)
        marked.append(replace(change, undone_at=next(back, None)))
    return tuple(marked)


def _judge(series: NoisySeries, splits: list[int], floor: float) -> Findings:
    """Return the findings in a series. `floor`: a logarithm."""
    weakest = _weakest(series, series.segments(splits), floor)
    while weakest is not None:
        del splits[weakest]  # which joins its segments
        weakest = _weakest(series, series.segments(splits), floor)
    segments = series.segments(splits)
    spread, _ = series.correlated_spread(segments)
    changes = []
    for old, new in pairwise(segments):
        ratio = log_difference(new.log_mean(), old.log_mean()).interval()
        change = LevelChange(new.start, old.mean, new.mean, ratio)
        changes.append(_located(change, series, old.start, new.end, spread))
    return Findings(mark_undone(changes, floor), _recent(series, segments, floor))


def _weakest(series: NoisySeries, segments: Sequence[Segment], floor: float) -> int | None:
    """Return the split between these segments that is least likely a change; None if all pass the
    tests."""
    pairs = list(pairwise(segments))
    if not pairs:
        return None
    for index, segment in enumerate(segments):
        if segment.n < PERSISTENCE:
            return _nearer(segments, index)
    spread, df = series.correlated_spread(segments)
    doubts = [_doubt(series, *pair, spread, df, floor) for pair in pairs]
    if not any(doubts):
        doubts = [max(0.0, _line_gain(series, *pair) + _SEARCHED) for pair in pairs]
    doubt, weakest = max((doubt, index) for index, doubt in enumerate(doubts))
    if doubt == 0.0:
        return None
    return weakest


def _doubt(
    series: NoisySeries, old: Segment, new: Segment, spread: float, df: int, floor: float
) -> float:
    """Return how doubtful the change between two segments is; 0 if it passes the t-test and exceeds
    the floor."""
    step = new.mean - old.mean
    local = float(np.median(series.noise[old.start : new.end]))
    if local > NOISIER * series.noise.min():
        # a noisier part has more spread than the whole series
        spread = max(spread, local)
    error = spread * math.sqrt(1 / old.n + 1 / new.n)
    p_value = t_tail(step / error, df)
    if abs(step) < floor:
        return 1.0 + p_value
    if p_value < series.p_value:
        return 0.0
    return p_value


def _nearer(segments: Sequence[Segment], index: int) -> int:
    """Return the split between a short segment and its neighbour with the nearer level."""
    neighbours = [other for other in (index - 1, index + 1) if 0 <= other < len(segments)]
    nearest = min(neighbours, key=lambda other: abs(segments[other].mean - segments[index].mean))
    return min(index, nearest)


def _line_gain(series: NoisySeries, old: Segment, new: Segment) -> float:
    """Return how much less a line through both segments costs than their two levels, in squared
    noise."""
    whole = slice(old.start, new.end)
    both, noise = series.values[whole], series.noise[whole]
    is_old = np.arange(old.start, new.end) < new.start
    step = np.where(is_old, old.mean, new.mean)
    # omit outliers of the levels, from which a line must not gain
    kept = np.abs(both - step) <= OUTLYING * noise
    x, y, weight = np.flatnonzero(kept), both[kept], 1 / noise[kept]
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    slope, offset = np.polyfit(x, y, 1, w=weight)
    cost_of_step = (((y - step[kept]) * weight) ** 2).sum()
    cost_of_line = (((y - slope * x - offset) * weight) ** 2).sum()
    return float(cost_of_step - cost_of_line)


def _located(
    change: LevelChange, series: NoisySeries, start: int, end: int, spread: float
) -> LevelChange:
    """Return the change, which is the only one from `start` to `end`, with the 95 % bounds of its
    position."""
    inside = series.values[start:end]
    noise = np.maximum(series.noise[start:end], spread)
    before = np.minimum(((inside - change.before) / noise) ** 2, BOUND)
    after = np.minimum(((inside - change.after) / noise) ** 2, BOUND)
    cost = np.cumsum(before - after)[:-1]  # of a change after each value
    positions = start + 1 + np.flatnonzero(cost <= cost.min() + _WHEREABOUTS)
    earliest = min(int(positions[0]), change.at)
    latest = max(int(positions[-1]), change.at)
    return replace(change, earliest=earliest, latest=latest)


def _recent(series: NoisySeries, segments: Sequence[Segment], floor: float) -> LevelChange | None:
    """Return the newest one or two values as a change if they exceed noise and floor around the
    last level, or None."""
    last = segments[-1]
    for count in (2, 1):
        before = series.segment(last.start, last.end - count)
        newest = series.values[-count:]
        off = newest - before.mean
        is_apart = bool((off > floor).all() or (off < -floor).all())
        if before.n < PERSISTENCE or not is_apart:
            continue
        spread, df = series.spread([*segments[:-1], before])
        noise = np.maximum(series.noise[-count:], spread)
        of_step = noise * math.sqrt(1 + 1 / before.n)
        if all(t_tail(float(t), df) < series.p_value for t in off / of_step):
            at = len(series) - count
            after = float(newest.mean())
            ratio = Interval(math.exp(min(after - before.mean, 709.0)))
            return LevelChange(at, before.mean, after, ratio, is_confirmed=False)
    return None
