"""Change points of series: where a level changed and stayed changed. Pure numpy, no randomness.

Candidates come from a penalised fit that no single odd value can move (effbench.stats.segmentation). Each must then
pass a t-test and a floor, and explain the values better than a straight line does. Exact values, such as counters, need
no fit: any difference that lasts is a change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from effbench.stats.intervals import Interval, log_difference, t_tail
from effbench.stats.segmentation import (
    BOUND,
    LEAST_NOISE,
    SHORTEST,
    Segment,
    fit_all,
    likeness_of,
    noise_of,
    segment_of,
    segments_of,
    spread_of,
)
from effbench.stats.significance import FLOOR

#: A change needs so many sweeps on either side.
PERSISTENCE = 3
#: The same for exact values, and the fewest of them that are judged.
EXACT_PERSISTENCE = 2
EXACT_SHORTEST = 2 * EXACT_PERSISTENCE
#: So many changes between two values that both come back are an alternation.
SWITCHES = 4
#: Chance of a false change in a whole series of normal noise. A place is searched for, so each is tested at this ÷ the
#: number of values: 1e-5 for ten. Tested at 1e-5 whatever the length, 3 in 1,000 unchanged series of 200 alarmed.
P_VALUE = 1e-4
#: Two groups this far apart, in spreads within them, are two levels and not one.
_APART = 6.0
#: and among fewer values than this, two such groups are chance too often (in 7 of 1,000 unchanged series of ten).
_ALTERNATING = 12
#: Fewer values than this do not drift.
_DRIFTING = 10
#: A line is taken for a step only where the step is this much better, in squared noise: where it lies was searched for.
_SEARCHED = 4.0
#: Places that cost no more than this above the best one, in squared noise, may be where the change is: of a step in
#: normal noise that cost is below x with a chance of (1 - exp(-x / 2))², which is 95 % here (Yao, 1987).
_WHEREABOUTS = 7.35


@dataclass(frozen=True)
class Change:
    """The level changed between the values `at - 1` and `at` of its series.

    `before`, `after`: the levels, as logarithms or as exact values. `ratio`: after ÷ before with its 95 % Welch bounds.
    `p_value`: of a t-test with the spread of the whole series. Exact values have neither. `undone_at`: where a later
    change came back to within the floor of `before`, else None. `undoes`: `at` of the earliest change that this one
    takes back. `earliest`, `latest`: `at` lies between these with a confidence of 95 %; None if it is certain.
    """

    at: int
    before: Any
    after: Any
    ratio: Interval | None = None
    p_value: float | None = None
    undone_at: int | None = None
    undoes: int | None = None
    earliest: int | None = None
    latest: int | None = None


@dataclass(frozen=True)
class Alternation:
    """Two levels (logarithms, or exact values) between which a series alternates; `switches` counts how often, `last`
    is the place of the last one."""

    low: Any
    high: Any
    switches: int
    last: int


@dataclass(frozen=True)
class Found:
    """Everything found in one series.

    `recent`: the newest one or two values alone lie off the last level: too few to be a change. `alternation`: there
    are no `changes` then. `drift`: ratio of the end to the start of the stretch between changes that slides most; None
    if none does.
    """

    changes: tuple[Change, ...] = ()
    recent: Change | None = None
    alternation: Alternation | None = None
    drift: float | None = None


def find_all(
    series: Sequence[Sequence[float]],
    errors: Sequence[Sequence[float]] | None = None,
    floor: float = FLOOR,
) -> list[Found]:
    """Return the change points of many series of logarithms, each oldest first and of its own length.

    `errors`: the known standard error of each value, NaN or 0 if unknown. The noise of a value is the larger
    of it and of what the series itself shows (the median difference between neighbours, which no step inflates): trials
    of one sweep cannot tell how sweeps differ, so their error is a lower bound and no more; but a sweep of few or
    scattered trials must not count like the others. `floor`: changes within it (0.02: a ratio from 1 ÷ 1.02 to 1.02)
    do not count. Raises ValueError for values that are not finite: omit what was not measured.
    """
    arrays = [np.asarray(one, dtype=float) for one in series]
    for one in arrays:
        if not np.all(np.isfinite(one)):
            raise ValueError("a series must be finite: leave out what was not measured")
    scales = [
        noise_of(one, None if errors is None else np.asarray(errors[index], dtype=float))
        for index, one in enumerate(arrays)
    ]
    log_floor = math.log1p(floor)
    splits = fit_all(arrays, scales)
    return [_judge(*one, log_floor, P_VALUE / max(1, len(one[0]))) for one in zip(arrays, scales, splits, strict=True)]


def _judge(values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float, p_value: float) -> Found:
    """`floor` as a logarithm; `p_value` of one test."""
    if len(values) < SHORTEST:
        return Found()
    alternation = _alternation(values, floor)
    if alternation is not None:
        return Found(alternation=alternation)
    splits = _kept(values, scale, splits, floor, p_value)
    segments = segments_of(values, scale, splits)
    slides = [_drift(values, scale, segment, floor, p_value) for segment in segments]
    drift = max((slide for slide in slides if slide is not None), key=abs, default=None)
    recent = _recent(values, scale, segments, floor, p_value) if slides[-1] is None else None
    spread, df = spread_of(segments, scale)
    likeness = likeness_of(values, segments, spread)
    changes = []
    for one, two in pairwise(segments):
        p = _p_value(one, two, spread * likeness, df)
        ratio = log_difference(two.log_mean(), one.log_mean()).interval()
        earliest, latest = _whereabouts(values, scale, one, two, spread * likeness)
        changes.append(Change(two.start, one.mean, two.mean, ratio, p, earliest=earliest, latest=latest))
    return Found(tuple(mark_undone(changes, floor)), recent, None, drift and math.exp(min(drift, 709.0)))


def find_exact(values: Sequence[Any]) -> Found:
    """Return the changes of a series of exact values (integers or booleans), oldest first.

    A value that lasts for fewer than EXACT_PERSISTENCE places is no level, except that the newest one is `recent`.
    """
    if len(values) < 2:
        return Found()
    every = runs(values)
    if (alternation := _exact_alternation(values, every)) is not None:
        return Found(alternation=alternation)
    # what does not last belongs to the level before it, at the very start to the one after
    lasting: list[tuple[Any, int]] = []
    recent = None
    for index, (value, start, length) in enumerate(every):
        if length < EXACT_PERSISTENCE:
            if index == len(every) - 1 and lasting and value != lasting[-1][0]:
                recent = Change(start, lasting[-1][0], value)
        elif not lasting or lasting[-1][0] != value:
            lasting.append((value, start))
    changes = [Change(b[1], a[0], b[0]) for a, b in pairwise(lasting)]
    return Found(tuple(mark_undone(changes, 0)), recent)


def runs(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Return (value, place of its first, how many) of each run of equal values."""
    found, place = [], 0
    for value, same in groupby(values):
        length = sum(1 for _ in same)
        found.append((value, place, length))
        place += length
    return found


def _exact_alternation(values: Sequence[Any], every: list) -> Alternation | None:
    """Two values that make up nine tenths of the series, alternate, and both occur in a fair share of it."""
    if len(every) - 1 < SWITCHES:
        return None
    (one, many), (other, few) = Counter(values).most_common(2)
    if many + few < 0.9 * len(values) or few < max(3, 0.15 * len(values)):
        return None
    between = [(value, start) for value, start, _ in every if value in (one, other)]
    switches = [start for (a, _), (b, start) in pairwise(between) if a != b]
    if len(switches) < SWITCHES:
        return None
    return Alternation(*sorted((one, other)), len(switches), switches[-1])


def mark_undone(changes: Sequence[Change], floor: float) -> list[Change]:
    """Set `undone_at` and `undoes`: a later level within `floor` of the one before (both as logarithms)."""
    undone = [
        next((later.at for later in changes[index + 1 :] if abs(later.after - one.before) <= floor), None)
        for index, one in enumerate(changes)
    ]
    undoes: dict[int, int] = {}
    for one, back in zip(changes, undone, strict=True):
        if back is not None:
            undoes.setdefault(back, one.at)
    return [replace(one, undone_at=back, undoes=undoes.get(one.at)) for one, back in zip(changes, undone, strict=True)]


def _whereabouts(values: np.ndarray, scale: np.ndarray, one: Segment, two: Segment, spread: float) -> tuple[int, int]:
    """First and last place at which the change between two segments may be: see `Change.earliest`."""
    own = values[one.start : two.end]
    noise = np.maximum(scale[one.start : two.end], spread)
    before, after = (np.minimum(((own - level) / noise) ** 2, BOUND) for level in (one.mean, two.mean))
    cost = np.cumsum(before - after)[:-1]  # of a change after each value
    places = one.start + 1 + np.flatnonzero(cost <= cost.min() + _WHEREABOUTS)
    return min(int(places[0]), two.start), max(int(places[-1]), two.start)


def _p_value(one: Segment, two: Segment, spread: float, df: int) -> float:
    """Two-sided, of Student's t with the spread of the whole series."""
    return t_tail((two.mean - one.mean) / (spread * math.sqrt(1 / one.n + 1 / two.n)), df)


def _kept(values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float, p_value: float) -> list[int]:
    """The splits that are changes. The least convincing goes first, as its segments then become one; until all hold."""
    splits = list(splits)
    while splits:
        segments = segments_of(values, scale, splits)
        pairs = list(pairwise(segments))
        short = [index for index, segment in enumerate(segments) if segment.n < PERSISTENCE]
        if short:
            splits.pop(_nearer(segments, short[0]))
            continue
        spread, df = spread_of(segments, scale)
        spread *= likeness_of(values, segments, spread)
        ps = [_p_value(one, two, spread, df) for one, two in pairs]
        weak = [
            (p + (abs(two.mean - one.mean) < floor), index)
            for index, (p, (one, two)) in enumerate(zip(ps, pairs, strict=True))
            if p >= p_value or abs(two.mean - one.mean) < floor
        ]
        if not weak:
            weak = [
                (gain, index)
                for index, (one, two) in enumerate(pairs)
                if (gain := _line_gain(values, scale, one, two)) > -_SEARCHED
            ]
        if not weak:
            break
        splits.pop(max(weak)[1])
    return splits


def _nearer(segments: list[Segment], index: int) -> int:
    """The split between a short segment and the neighbour whose level is nearer; at an end the only one."""
    if index == 0:
        return 0
    if index == len(segments) - 1:
        return index - 1
    own = segments[index].mean
    return index - 1 if abs(segments[index - 1].mean - own) <= abs(segments[index + 1].mean - own) else index


def _line_gain(values: np.ndarray, scale: np.ndarray, one: Segment, two: Segment) -> float:
    """By how much a straight line through both segments costs less than their two levels, in squared noise."""
    own, noise = values[one.start : two.end], scale[one.start : two.end]
    step = np.concatenate([np.full(one.end - one.start, one.mean), np.full(two.end - two.start, two.mean)])
    # only what is no outlier of its level: a line has nothing to gain from those
    kept = np.abs(own - step) <= math.sqrt(BOUND) * noise
    x, y, w = np.arange(len(own))[kept], own[kept], 1 / noise[kept]
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    slope, offset = np.polyfit(x, y, 1, w=w)
    return float((((y - step[kept]) * w) ** 2).sum() - (((y - slope * x - offset) * w) ** 2).sum())


def _drift(values: np.ndarray, scale: np.ndarray, segment: Segment, floor: float, p_value: float) -> float | None:
    """By how much (a logarithm) a segment slides from start to end, where that is shown and beyond the floor."""
    y, noise = values[segment.start : segment.end], scale[segment.start : segment.end]
    half = len(y) // 2
    # a line's halves are half of it apart: most series need no closer look
    if len(y) < _DRIFTING or abs(np.median(y[half:]) - np.median(y[:half])) < floor / 4:
        return None
    five = np.lib.stride_tricks.sliding_window_view(np.pad(y, 2, mode="reflect"), 5)
    kept = np.abs(y - np.median(five, axis=1)) <= math.sqrt(BOUND) * noise
    x, y, noise = np.flatnonzero(kept).astype(float), y[kept], noise[kept]
    for _ in range(2):  # the second time without what is far off the line
        if len(x) < _DRIFTING:
            return None
        slope, offset = np.polyfit(x, y, 1)
        left = y - slope * x - offset
        kept = np.abs(left) <= math.sqrt(BOUND) * np.maximum(noise, left.std())
        x, y, noise, left = x[kept], y[kept], noise[kept], left[kept]
    total = slope * (segment.end - segment.start - 1)
    error = max(LEAST_NOISE, math.sqrt(float(left @ left) / (len(x) - 2))) / math.sqrt(
        float(((x - x.mean()) ** 2).sum())
    )
    return float(total) if abs(total) > floor and t_tail(slope / error, len(x) - 2) < p_value else None


def _recent(
    values: np.ndarray, scale: np.ndarray, segments: list[Segment], floor: float, p_value: float
) -> Change | None:
    """The newest one or two values, where they lie off the level before them further than noise and floor let them."""
    last = segments[-1]
    for count in (2, 1):
        if last.end - last.start - count < PERSISTENCE:
            continue
        before = segment_of(values, scale, last.start, last.end - count)
        newest = values[-count:]
        spread, df = spread_of([*segments[:-1], before], scale)
        noise = np.maximum(scale[-count:], spread)
        off = newest - before.mean
        if np.all(np.abs(off) > floor) and abs(np.sign(off).sum()) == count and before.n >= PERSISTENCE:
            ps = [t_tail(d / (s * math.sqrt(1 + 1 / before.n)), df) for d, s in zip(off, noise, strict=True)]
            if max(ps) < p_value:
                after = float(newest.mean())
                ratio = Interval(math.exp(min(after - before.mean, 709.0)))
                return Change(len(values) - count, before.mean, after, ratio, max(ps))
    return None


def _alternation(values: np.ndarray, floor: float) -> Alternation | None:
    """Two levels, well apart, with a switch to and fro at least twice and a fair share of the values on each."""
    ordered = np.sort(values)
    n = len(ordered)
    least = max(3, math.ceil(0.15 * n))
    if n < _ALTERNATING or ordered[-least] - ordered[least - 1] <= floor:
        return None
    sums, squares = np.cumsum(ordered), np.cumsum((ordered - ordered.mean()) ** 2)
    counts = np.arange(least, n - least + 1)  # of the lower group
    lower, upper = sums[counts - 1] / counts, (sums[-1] - sums[counts - 1]) / (n - counts)
    within = squares[-1] - counts * (lower - ordered.mean()) ** 2 - (n - counts) * (upper - ordered.mean()) ** 2
    best = int(within.argmin())
    gap = float(upper[best] - lower[best])
    spread = max(LEAST_NOISE, math.sqrt(max(0.0, within[best]) / (n - 2)))
    if gap <= floor or gap < _APART * spread:
        return None
    border = (ordered[counts[best] - 1] + ordered[counts[best]]) / 2
    switched = np.flatnonzero(np.diff(values > border)) + 1
    if len(switched) < 4:
        return None
    return Alternation(float(lower[best]), float(upper[best]), len(switched), int(switched[-1]))
