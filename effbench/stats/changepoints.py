"""Change points of series: where a level changed and stayed changed. Pure numpy, no randomness.

Candidates come from a penalised fit (effbench.stats.segmentation). Each must then pass a t-test and a floor, and
explain the values better than a line. Of exact values, such as counters, any difference that lasts is a change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from effbench.stats.intervals import Interval, log_difference, t_tail
from effbench.stats.segmentation import (
    BOUND,
    LEAST_NOISE,
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

#: A change needs so many values on either side.
PERSISTENCE = 3
#: The same for exact values, and the fewest of them that are judged.
EXACT_PERSISTENCE = 2
EXACT_SHORTEST = 2 * EXACT_PERSISTENCE
#: An alternation needs so many switches between its two levels.
SWITCHES = 4
#: Chance of a false change in a whole series of normal noise. Each place is tested at this ÷ the number of values;
#: tested at 1e-5 whatever the length, 3 in 1,000 unchanged series of 200 alarmed.
P_VALUE = 1e-4
#: Groups are two levels if they are this many spreads apart.
_APART = 6.0
#: Fewer values than this do not alternate (7 of 1,000 unchanged series of ten would), or drift.
_ALTERNATING, _DRIFTING = 12, 10
#: A step must explain the values better than a line by this, in squared noise: its place was searched for.
_SEARCHED = 4.0
#: A change may be at places that cost up to this above the best one, in squared noise: of a step in normal noise that
#: cost is below x with a chance of (1 - exp(-x / 2))², which is 95 % here (Yao, 1987).
_WHEREABOUTS = 7.35


@dataclass(frozen=True)
class Change:
    """The level changed between the values `at - 1` and `at` of its series.

    `before`, `after`: the levels, as logarithms or exact values. `ratio`: after ÷ before with its 95 % Welch bounds,
    not for exact values. `undone_at`: where a later change came back to within the floor of `before`. `undoes`: `at` of
    the earliest change that this one takes back. `earliest`, `latest`: 95 % bounds of `at`; None if it is certain.
    """

    at: int
    before: Any
    after: Any
    ratio: Interval | None = None
    undone_at: int | None = None
    undoes: int | None = None
    earliest: int | None = None
    latest: int | None = None


@dataclass(frozen=True)
class Alternation:
    """Two levels (logarithms, or exact values) between which a series alternates.

    `is_high`: whether each value is on the high level; None for an exact value that is on neither.
    """

    low: Any
    high: Any
    is_high: tuple[bool | None, ...]

    @property
    def switches(self) -> list[int]:
        """The first places after a change of level."""
        known = [(place, is_high) for place, is_high in enumerate(self.is_high) if is_high is not None]
        return [place for (_, old), (place, new) in pairwise(known) if old != new]


@dataclass(frozen=True)
class Found:
    """Everything found in one series.

    `recent`: the newest one or two values alone are off the last level: too few for a change. `alternation`: if there
    is one, there are no `changes`. `drift`: ratio of the end to the start of the stretch between changes that slides
    most; None if none does.
    """

    changes: tuple[Change, ...] = ()
    recent: Change | None = None
    alternation: Alternation | None = None
    drift: float | None = None


def find_all(
    series: Sequence[Sequence[float]], errors: Sequence[Sequence[float]] | None = None, floor: float = FLOOR
) -> list[Found]:
    """Return what is found in each of many series of logarithms, oldest value first, of any length.

    `errors`: the known standard error of each value, NaN or 0 if unknown. Trials of one sweep cannot tell how sweeps
    differ, so their error only makes a poor sweep count less. `floor`: changes within it (0.02: a ratio from 1 ÷ 1.02
    to 1.02) do not count. Raises ValueError for values that are not finite.
    """
    arrays = [np.asarray(one, dtype=float) for one in series]
    if not all(np.all(np.isfinite(one)) for one in arrays):
        raise ValueError("a series must be finite: omit what was not measured")
    known = [None] * len(arrays) if errors is None else [np.asarray(one, dtype=float) for one in errors]
    scales = [noise_of(*one) for one in zip(arrays, known, strict=True)]
    splits = fit_all(arrays, scales)
    return [_judge(*one, math.log1p(floor)) for one in zip(arrays, scales, splits, strict=True)]


def _judge(values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float) -> Found:
    """`scale`: noise of each value. `floor`: a logarithm."""
    if len(values) < SHORTEST:
        return Found()
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
    for one, two in pairwise(segments):
        ratio = log_difference(two.log_mean(), one.log_mean()).interval()
        earliest, latest = _whereabouts(values, scale, one, two, spread)
        changes.append(Change(two.start, one.mean, two.mean, ratio, earliest=earliest, latest=latest))
    return Found(tuple(mark_undone(changes, floor)), recent, None, drift and math.exp(min(drift, 709.0)))


def find_exact(values: Sequence[Any]) -> Found:
    """Return what is found in a series of exact values (integers or booleans), oldest first.

    A value that lasts for fewer than EXACT_PERSISTENCE places is no level; the newest one is then `recent`.
    """
    if (alternation := _exact_alternation(values)) is not None:
        return Found(alternation=alternation)
    # a value that does not last belongs to the level before it, at the start to the one after
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
    """Return (value, place of its first, how many) of each run of equal values."""
    places = [place for place, value in enumerate(values) if place == 0 or value != values[place - 1]]
    return [(values[start], start, end - start) for start, end in pairwise([*places, len(values)])]


def _exact_alternation(values: Sequence[Any]) -> Alternation | None:
    """Find two values that make up nine tenths of the series, alternate, and both occur in a fair share of it."""
    common = Counter(values).most_common(2)
    if len(common) < 2:
        return None
    (one, many), (other, few) = common
    if many + few < 0.9 * len(values) or few < max(3, 0.15 * len(values)):
        return None
    low, high = sorted((one, other))
    found = Alternation(low, high, tuple(value == high if value in (low, high) else None for value in values))
    return found if len(found.switches) >= SWITCHES else None


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
    """Return the first and last place at which the change between two segments may be: see `Change.earliest`."""
    own = values[one.start : two.end]
    noise = np.maximum(scale[one.start : two.end], spread)
    before, after = (np.minimum(((own - level) / noise) ** 2, BOUND) for level in (one.mean, two.mean))
    cost = np.cumsum(before - after)[:-1]  # of a change after each value
    places = one.start + 1 + np.flatnonzero(cost <= cost.min() + _WHEREABOUTS)
    return min(int(places[0]), two.start), max(int(places[-1]), two.start)


def _kept(values: np.ndarray, scale: np.ndarray, splits: list[int], floor: float, p_value: float) -> list[int]:
    """Return the splits that are changes. The least convincing goes first, which joins its segments, until all hold."""
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
        for index, (one, two) in pairs:
            step = two.mean - one.mean
            p = t_tail(step / (spread * math.sqrt(1 / one.n + 1 / two.n)), df)
            if p >= p_value or abs(step) < floor:
                weak.append((p + (abs(step) < floor), index))
        if not weak:
            gains = [(_line_gain(values, scale, one, two), index) for index, (one, two) in pairs]
            weak = [(gain, index) for gain, index in gains if gain > -_SEARCHED]
        if not weak:
            break
        splits.pop(max(weak)[1])
    return splits


def _nearer(segments: list[Segment], index: int) -> int:
    """Return the split between a short segment and the neighbour whose level is nearer."""
    neighbours = [other for other in (index - 1, index + 1) if 0 <= other < len(segments)]
    return min(index, min(neighbours, key=lambda other: abs(segments[other].mean - segments[index].mean)))


def _line_gain(values: np.ndarray, scale: np.ndarray, one: Segment, two: Segment) -> float:
    """Return how much less a line through both segments costs than their two levels, in squared noise."""
    own, noise = values[one.start : two.end], scale[one.start : two.end]
    step = np.concatenate([np.full(one.end - one.start, one.mean), np.full(two.end - two.start, two.mean)])
    # without outliers of a level: a line must not gain from those
    kept = np.abs(own - step) <= math.sqrt(BOUND) * noise
    x, y, w = np.arange(len(own))[kept], own[kept], 1 / noise[kept]
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    slope, offset = np.polyfit(x, y, 1, w=w)
    return float((((y - step[kept]) * w) ** 2).sum() - (((y - slope * x - offset) * w) ** 2).sum())


def _drift(values: np.ndarray, scale: np.ndarray, segment: Segment, floor: float, p_value: float) -> float | None:
    """Return by how much (a logarithm) a segment slides from start to end, if significantly and beyond the floor."""
    y, noise = values[segment.start : segment.end], scale[segment.start : segment.end]
    half = len(y) // 2
    # the halves of a line are half of it apart, so most series need no closer look
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
    spread = max(LEAST_NOISE, math.sqrt(float(left @ left) / (len(x) - 2)))
    error = spread / math.sqrt(float(((x - x.mean()) ** 2).sum()))
    return float(total) if abs(total) > floor and t_tail(slope / error, len(x) - 2) < p_value else None


def _recent(
    values: np.ndarray, scale: np.ndarray, segments: list[Segment], floor: float, p_value: float
) -> Change | None:
    """Return the newest one or two values, if they are off the level before them by more than noise and floor."""
    last = segments[-1]
    for count in (2, 1):
        if last.end - last.start - count < PERSISTENCE:
            continue
        before = segment_of(values, scale, last.start, last.end - count)
        spread, df = spread_of([*segments[:-1], before], scale)
        noise = np.maximum(scale[-count:], spread)
        off = values[-count:] - before.mean
        if before.n < PERSISTENCE or np.any(np.abs(off) <= floor) or abs(np.sign(off).sum()) != count:
            continue
        if all(t_tail(d / (s * math.sqrt(1 + 1 / before.n)), df) < p_value for d, s in zip(off, noise, strict=True)):
            after = float(values[-count:].mean())
            ratio = Interval(math.exp(min(after - before.mean, 709.0)))
            return Change(len(values) - count, before.mean, after, ratio)
    return None


def _alternation(values: np.ndarray, floor: float) -> Alternation | None:
    """Find two levels, well apart, with SWITCHES between them and a fair share of the values on each."""
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
    found = Alternation(float(lower[best]), float(upper[best]), tuple((values > border).tolist()))
    return found if len(found.switches) >= SWITCHES else None
