"""Find change points of series: places where the level changed and stayed changed. Pure numpy, no
randomness.

Candidates come from a penalised fit (effbench.stats.segmentation). Each must pass a t-test, exceed
a floor, and explain the values better than a line. For exact values, such as counters, any lasting
difference is a change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median  # NumPy's takes ten times longer for a short series
from typing import Any

import numpy as np

from effbench.stats.intervals import Interval, log_difference, t_tail
from effbench.stats.segmentation import (
    BOUND,
    LEAST_NOISE,
    NOISIER,
    SHORTEST,
    Segment,
    correlated_spread_of,
    fit_all,
    noise_of,
    segment_of,
    segments_of,
    spread_of,
)
from effbench.stats.significance import FLOOR

#: Minimum number of values on either side of a change.
PERSISTENCE = 3
#: The same for exact values, and the minimum length of their series.
EXACT_PERSISTENCE = 2
EXACT_SHORTEST = 2 * EXACT_PERSISTENCE
#: Minimum number of switches between the two levels of an alternation.
SWITCHES = 4
#: Probability of a false change in a whole series of normal noise. Each position is tested at this
#: ÷ the number of values. At 1e-5 regardless of length, 3 of 1,000 unchanged series of 200 values
#: gave false alarms.
P_VALUE = 1e-4
#: Minimum distance of two levels, in spreads.
_APART = 6.0
#: Minimum numbers of values for an alternation (with ten, 7 of 1,000 unchanged series would have
#: one) and for a drift.
_ALTERNATING, _DRIFTING = 12, 10
#: A step must explain the values better than a line by this much, in squared noise, because its
#: position was searched.
_SEARCHED = 4.0
#: Positions of a change are possible if they cost at most this more than the best one, in squared
#: noise. For a step in normal noise the difference is below x with probability (1 - exp(-x / 2))²,
#: which is 95 % here (Yao, 1987).
_WHEREABOUTS = 7.35


@dataclass(frozen=True)
class Change:
    """A change of level between the values `at - 1` and `at` of a series.

    `before`, `after`: the levels, as logarithms or exact values. `ratio`: after ÷ before with its
    95 % Welch bounds; None for exact values. `undone_at`: where a later change returned to within
    the floor of `before`. `earliest`, `latest`: 95 % bounds of `at`; None for exact values.
    """

    at: int
    before: Any
    after: Any
    ratio: Interval | None = None
    undone_at: int | None = None
    earliest: int | None = None
    latest: int | None = None


@dataclass(frozen=True)
class Alternation:
    """Two levels (logarithms or exact values) between which a series alternates.

    `is_high`: whether each value is on the high level; None for an exact value on neither level.
    """

    low: Any
    high: Any
    is_high: tuple[bool | None, ...]

    @property
    def switches(self) -> list[int]:
        """The positions of the first values after each change of level."""
        known = [
            (index, is_high) for index, is_high in enumerate(self.is_high) if is_high is not None
        ]
        return [index for (_, old), (index, new) in pairwise(known) if old != new]

    @property
    def lasts(self) -> bool:
        """Whether it switched often enough, and has not settled: chance explains the length of the
        newest run."""
        if len(self.switches) < SWITCHES:
            return False
        start = self.switches[-1]
        level = self.is_high[start]
        share = self.is_high[:start].count(level) / start
        return share ** self.is_high[start:].count(level) >= P_VALUE


@dataclass(frozen=True)
class Found:
    """The findings in a series.

    `recent`: a difference of only the newest one or two values from the last level, too few for a
    change. `alternation`: excludes `changes`. `drift`: ratio of the end to the start of the segment
    that drifts most; None without drift.
    """

    changes: tuple[Change, ...] = ()
    recent: Change | None = None
    alternation: Alternation | None = None
    drift: float | None = None


def find_all(
    series: Sequence[Sequence[float]],
    errors: Callable[[int], Sequence[float]] | None = None,
    floor: float = FLOOR,
) -> list[Found]:
    """Return the findings in each of many series of logarithms, which start with the oldest value.

    `errors`: returns the standard errors of the values of the series at an index, NaN or 0 if
    unknown. The trials of a sweep do not show how much sweeps vary, so errors only reduce the
    weight of sweeps that are less precise than the others. `floor`: smaller changes do not count
    (0.02 ignores ratios from 1 ÷ 1.02 to 1.02). Raises ValueError for values that are not finite.
    """
    if not all(all(map(math.isfinite, values)) for values in series):
        raise ValueError("a series must be finite: omit values that were not measured")
    least = math.log1p(floor)
    # the others differ too little for any finding, which saves the fit of most series
    varying = [
        index
        for index, values in enumerate(series)
        if len(values) >= SHORTEST
        and (max(values) - min(values) >= least or _may_drift(values, least))
    ]
    arrays = [np.asarray(series[index], dtype=float) for index in varying]
    known = [np.asarray(errors(index), dtype=float) if errors else None for index in varying]
    scales = [noise_of(*pair) for pair in zip(arrays, known, strict=True)]
    splits = fit_all(arrays, scales)
    found = [Found() for _ in series]
    for index, *fit in zip(varying, arrays, scales, splits, strict=True):
        found[index] = _judge(*fit, least)
    return found


def _judge(values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float) -> Found:
    """Return the findings in a series. `scale`: noise of each value. `floor`: a logarithm."""
    alternation = _alternation(values, floor)
    if alternation is not None:
        return Found(alternation=alternation)
    p_value = P_VALUE / len(values)
    splits = _kept(values, scale, splits, floor, p_value)
    segments = segments_of(values, scale, splits)
    slides = [_drift(values, scale, segment, floor, p_value) for segment in segments]
    drift = max((slide for slide in slides if slide is not None), key=abs, default=None)
    recent = _recent(values, scale, segments, floor, p_value) if slides[-1] is None else None
    spread, _ = correlated_spread_of(values, scale, segments)
    changes = []
    for old, new in pairwise(segments):
        ratio = log_difference(new.log_mean(), old.log_mean()).interval()
        earliest, latest = _whereabouts(values, scale, old, new, spread)
        changes.append(
            Change(new.start, old.mean, new.mean, ratio, earliest=earliest, latest=latest)
        )
    return Found(
        tuple(mark_undone(changes, floor)), recent, None, drift and math.exp(min(drift, 709.0))
    )


def find_exact(values: Sequence[Any]) -> Found:
    """Return the findings in a series of exact values (integers or booleans), which starts with the
    oldest value.

    Fewer than EXACT_PERSISTENCE equal values in a row do not form a level; at the end of the series
    they are `recent`.
    """
    if len(set(values)) < 2:
        return Found()
    if (alternation := _exact_alternation(values)) is not None:
        return Found(alternation=alternation)
    # a value that does not last is attributed to the previous level, or to the next one at the
    # start
    lasting: list[tuple[Any, int]] = []
    recent = None
    for value, start, length in runs(values):
        if length >= EXACT_PERSISTENCE:
            if not lasting or lasting[-1][0] != value:
                lasting.append((value, start))
        elif start + length == len(values) and lasting and value != lasting[-1][0]:
            recent = Change(start, lasting[-1][0], value)
    changes = [Change(start, before, after) for (before, _), (after, start) in pairwise(lasting)]
    return Found(tuple(mark_undone(changes, 0)), recent)


def runs(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Return (value, position of the first, length) of each run of equal values."""
    starts = [
        index for index, value in enumerate(values) if index == 0 or value != values[index - 1]
    ]
    return [(values[start], start, end - start) for start, end in pairwise([*starts, len(values)])]


def _exact_alternation(values: Sequence[Any]) -> Alternation | None:
    """Return an alternation of two values that make up 90 % of the series, with at least 15 % each,
    or None."""
    common = Counter(values).most_common(2)
    if len(common) < 2:
        return None
    (first, many), (second, few) = common
    if many + few < 0.9 * len(values) or few < max(3, 0.15 * len(values)):
        return None
    low, high = sorted((first, second))
    alternation = Alternation(
        low, high, tuple(value == high if value in (low, high) else None for value in values)
    )
    return alternation if alternation.lasts else None


def mark_undone(changes: Sequence[Change], floor: float) -> list[Change]:
    """Return the changes with `undone_at`. A change is undone if a later level is within `floor` of
    the level before it (both as logarithms)."""
    return [
        replace(
            change,
            undone_at=next(
                (it.at for it in changes[n:] if abs(it.after - change.before) <= floor), None
            ),
        )
        for n, change in enumerate(changes, 1)
    ]


def _whereabouts(
    values: np.ndarray, scale: np.ndarray, old: Segment, new: Segment, spread: float
) -> tuple[int, int]:
    """Return the 95 % bounds of the position of the change between two segments; see
    `Change.earliest`."""
    both = values[old.start : new.end]
    noise = np.maximum(scale[old.start : new.end], spread)
    before, after = (
        np.minimum(((both - level) / noise) ** 2, BOUND) for level in (old.mean, new.mean)
    )
    cost = np.cumsum(before - after)[:-1]  # of a change after each value
    positions = old.start + 1 + np.flatnonzero(cost <= cost.min() + _WHEREABOUTS)
    return min(int(positions[0]), new.start), max(int(positions[-1]), new.start)


def _kept(
    values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float, p_value: float
) -> list[int]:
    """Return the splits that are changes: remove the worst split, joining its segments, until all
    pass the tests."""
    splits = list(splits)
    while splits:
        segments = segments_of(values, scale, splits)
        short = [index for index, segment in enumerate(segments) if segment.n < PERSISTENCE]
        if short:
            splits.pop(_nearer(segments, short[0]))
            continue
        pairs = list(enumerate(pairwise(segments)))
        spread, df = correlated_spread_of(values, scale, segments)
        weak = []
        for index, (old, new) in pairs:
            step = new.mean - old.mean
            local = float(np.median(scale[old.start : new.end]))
            # a noisier part has more spread than the whole series
            error = max(spread, local) if local > NOISIER * scale.min() else spread
            p = t_tail(step / (error * math.sqrt(1 / old.n + 1 / new.n)), df)
            if p >= p_value or abs(step) < floor:
                weak.append((p + (abs(step) < floor), index))
        if not weak:
            gains = [(_line_gain(values, scale, old, new), index) for index, (old, new) in pairs]
            weak = [(gain, index) for gain, index in gains if gain > -_SEARCHED]
        if not weak:
            break
        splits.pop(max(weak)[1])
    return splits


def _nearer(segments: list[Segment], index: int) -> int:
    """Return the split between a short segment and its neighbour with the nearer level."""
    neighbours = [other for other in (index - 1, index + 1) if 0 <= other < len(segments)]
    return min(
        index, min(neighbours, key=lambda other: abs(segments[other].mean - segments[index].mean))
    )


def _line_gain(values: np.ndarray, scale: np.ndarray, old: Segment, new: Segment) -> float:
    """Return how much less a line through both segments costs than their two levels, in squared
    noise."""
    both, noise = values[old.start : new.end], scale[old.start : new.end]
    step = np.concatenate(
        [np.full(old.end - old.start, old.mean), np.full(new.end - new.start, new.mean)]
    )
    # omit outliers of the levels, from which a line must not gain
    kept = np.abs(both - step) <= math.sqrt(BOUND) * noise
    x, y, w = np.arange(len(both))[kept], both[kept], 1 / noise[kept]
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    slope, offset = np.polyfit(x, y, 1, w=w)
    return float((((y - step[kept]) * w) ** 2).sum() - (((y - slope * x - offset) * w) ** 2).sum())


def _drift(
    values: np.ndarray, scale: np.ndarray, segment: Segment, floor: float, p_value: float
) -> float | None:
    """Return the drift of a segment from start to end (a logarithm), if it is significant and
    exceeds the floor."""
    y, noise = values[segment.start : segment.end], scale[segment.start : segment.end]
    if not _may_drift(y, floor):
        return None
    five = np.lib.stride_tricks.sliding_window_view(np.pad(y, 2, mode="reflect"), 5)
    kept = np.abs(y - np.median(five, axis=1)) <= math.sqrt(BOUND) * noise
    x, y, noise = np.flatnonzero(kept).astype(float), y[kept], noise[kept]
    for _ in range(2):  # the second fit omits outliers of the first line
        if len(x) < _DRIFTING:
            return None
        slope, offset = np.polyfit(x, y, 1)
        left = y - slope * x - offset
        kept = np.abs(left) <= math.sqrt(BOUND) * np.maximum(noise, left.std())
        x, y, noise, left = x[kept], y[kept], noise[kept], left[kept]
    total = slope * (segment.end - segment.start - 1)
    spread = max(LEAST_NOISE, math.sqrt(float(left @ left) / (len(x) - 2)))
    error = spread / math.sqrt(float(((x - x.mean()) ** 2).sum()))
    return (
        float(total) if abs(total) > floor and t_tail(slope / error, len(x) - 2) < p_value else None
    )


def _may_drift(values: Sequence[float], floor: float) -> bool:
    # the halves of a line differ by half its total, so most series can be skipped
    half = len(values) // 2
    return (
        len(values) >= _DRIFTING and abs(median(values[half:]) - median(values[:half])) >= floor / 4
    )


def _recent(
    values: np.ndarray, scale: np.ndarray, segments: list[Segment], floor: float, p_value: float
) -> Change | None:
    """Return the newest one or two values as a change if they exceed noise and floor around the
    last level, or None."""
    last = segments[-1]
    for count in (2, 1):
        before = segment_of(values, scale, last.start, last.end - count)
        spread, df = spread_of([*segments[:-1], before], scale)
        noise = np.maximum(scale[-count:], spread)
        off = values[-count:] - before.mean
        if (
            before.n < PERSISTENCE
            or np.any(np.abs(off) <= floor)
            or abs(np.sign(off).sum()) != count
        ):
            continue
        if all(
            t_tail(d / (s * math.sqrt(1 + 1 / before.n)), df) < p_value
            for d, s in zip(off, noise, strict=True)
        ):
            after = float(values[-count:].mean())
            ratio = Interval(math.exp(min(after - before.mean, 709.0)))
            return Change(len(values) - count, before.mean, after, ratio)
    return None


def _alternation(values: np.ndarray, floor: float) -> Alternation | None:
    """Return an alternation between two distant levels with at least 15 % of the values on each, or
    None."""
    ordered = np.sort(values)
    n = len(ordered)
    least = max(3, math.ceil(0.15 * n))
    if n < _ALTERNATING or ordered[-least] - ordered[least - 1] <= floor:
        return None
    sums, squares = np.cumsum(ordered), np.cumsum((ordered - ordered.mean()) ** 2)
    counts = np.arange(least, n - least + 1)  # of the lower group
    lower, upper = sums[counts - 1] / counts, (sums[-1] - sums[counts - 1]) / (n - counts)
    within = (
        squares[-1]
        - counts * (lower - ordered.mean()) ** 2
        - (n - counts) * (upper - ordered.mean()) ** 2
    )
    best = int(within.argmin())
    gap = float(upper[best] - lower[best])
    spread = max(LEAST_NOISE, math.sqrt(max(0.0, within[best]) / (n - 2)))
    if gap <= floor or gap < _APART * spread:
        return None
    border = (ordered[counts[best] - 1] + ordered[counts[best]]) / 2
    alternation = Alternation(
        float(lower[best]), float(upper[best]), tuple((values > border).tolist())
    )
    return alternation if alternation.lasts else None
