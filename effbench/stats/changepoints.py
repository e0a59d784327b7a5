"""Find change points of series: places where the level changed and stayed changed. Pure numpy, no
randomness.

Candidates come from a fit of levels to the values (the Potts model): each value gets a level from a
grid, and the total cost is minimal. A change of level has a price. A value costs its squared
distance from its level in units of noise, but at most a bound below that price (the biweight loss
of Fearnhead and Rigaill, "Changepoint Detection in the Presence of Outliers", 2019). Thus one
outlier never causes a change, but three values that agree may. Each candidate must then pass a
t-test, exceed a floor, and explain the values better than a line. For exact values, such as
counters, any lasting difference is a change. Shape: L levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from effbench.stats.intervals import Interval, LogEstimate, log_difference, t_tail
from effbench.stats.significance import FLOOR

Floats = NDArray[np.float64]

#: Minimum number of values on either side of a change, and the minimum length of a series.
PERSISTENCE = 3
SHORTEST = 2 * PERSISTENCE
#: The same for exact values.
EXACT_PERSISTENCE = 2
EXACT_SHORTEST = 2 * EXACT_PERSISTENCE
#: Price of a change, in squared noise: the square of the normal quantile of p = 1e-5.
PRICE = 19.5
#: Maximum cost of a value. Two outliers in a row cost less than two changes, three cost more.
BOUND = 0.75 * PRICE
#: Distance from its level, in units of noise, from which a value is an outlier.
OUTLYING = math.sqrt(BOUND)
#: Minimum noise (0.05 %): measurements have a limited resolution, and a constant series is not free
#: of noise.
LEAST_NOISE = 5e-4
#: Number of differences that show the noise around a value. It counts from this multiple of the
#: series' noise on: less occurs by chance.
_WINDOW, NOISIER = 15, 1.75
#: Probability of a false change in a whole series of normal noise. Each position is tested at this
#: ÷ the number of values. At 1e-5 regardless of length, 3 of 1,000 unchanged series of 200 values
#: gave false alarms.
P_VALUE = 1e-4
#: Distance of levels in units of noise (its effect is at most a hundredth of the price), and
#: maximum number of levels.
_STEP, _LEVELS = 0.1, 600
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


def find_changes(values: Sequence[float], floor: float = FLOOR) -> Findings:
    """Return the findings in a series of logarithms, which starts with the oldest value. `floor`:
    smaller changes do not count (0.02 ignores ratios from 1 ÷ 1.02 to 1.02). Raises ValueError for
    values that are not finite."""
    if not all(map(math.isfinite, values)):
        raise ValueError("a series must be finite: omit values that were not measured")
    least = math.log1p(floor)
    # others differ too little for any finding
    if len(values) < SHORTEST or max(values) - min(values) < least:
        return Findings()
    series = NoisySeries.of(values)
    splits = fit(series)
    segments = series.segments(splits)
    weakest = _weakest(series, segments, least)
    while weakest is not None:
        del splits[weakest]  # which joins its segments
        segments = series.segments(splits)
        weakest = _weakest(series, segments, least)
    spread = series.spread(segments)
    changes = []
    for old, new in pairwise(segments):
        difference = log_difference(new.log_mean(), old.log_mean())
        change = LevelChange(new.start, old.mean, new.mean, difference.interval())
        changes.append(_located(change, series, old, new, spread.sd))
    return Findings(mark_undone(changes, least), _recent(series, segments, least))


# --- exact values ---


@dataclass(frozen=True)
class EqualRun:
    """Equal values of a series, from the position `start` on."""

    value: Any
    start: int
    length: int


def runs(values: Sequence[Any]) -> list[EqualRun]:
    """Return the runs of equal values."""
    found: list[EqualRun] = []
    start = 0
    for value, equal in groupby(values):
        found.append(EqualRun(value, start, sum(1 for _ in equal)))
        start += found[-1].length
    return found


def find_exact(values: Sequence[Any]) -> Findings:
    """Return the findings in a series of exact values (integers or booleans), which starts with the
    oldest value.

    Fewer than EXACT_PERSISTENCE equal values in a row do not form a level; at the end of the series
    they are `recent`.
    """
    # a value that does not last is attributed to the previous level, or to the next one at the
    # start
    levels: list[EqualRun] = []
    recent = None
    for run in runs(values):
        if levels and levels[-1].value == run.value:
            continue
        if run.length >= EXACT_PERSISTENCE:
            levels.append(run)
        elif levels and run.start + run.length == len(values):
            before = levels[-1].value
            recent = LevelChange(run.start, before, run.value, is_confirmed=False)
    changes = []
    for old, new in pairwise(levels):
        changes.append(LevelChange(new.start, old.value, new.value))
    return Findings(mark_undone(changes, 0.0), recent)


def mark_undone(changes: Sequence[LevelChange], floor: float) -> tuple[LevelChange, ...]:
    """Return the changes with `undone_at`. A change is undone if a later level is within `floor` of
    the level before it (both as logarithms)."""
    marked = []
    for number, change in enumerate(changes, 1):
        undone_at = None
        for later in changes[number:]:
            if abs(later.after - change.before) <= floor:
                undone_at = later.at
                break
        marked.append(replace(change, undone_at=undone_at))
    return tuple(marked)


# --- levels ---


@dataclass(frozen=True)
class Segment:
    """The values from `start` to `end` (exclusive). `mean`, `n` and `squares` exclude outliers;
    `squares`: sum of squared distances from the mean."""

    start: int
    end: int
    mean: float
    n: int
    squares: float

    def log_mean(self) -> LogEstimate:
        if self.n < 2:
            return LogEstimate(self.mean, None, 0)
        df = self.n - 1
        variance = self.squares / df
        error = math.sqrt(variance / self.n)
        return LogEstimate(self.mean, error, df)


@dataclass(frozen=True)
class Spread:
    """The standard deviation of values around their levels, and its degrees of freedom."""

    sd: float
    df: int


@dataclass(frozen=True)
class NoisySeries:
    """A series of logarithms, oldest first, with the noise of each value: a standard deviation."""

    values: Floats
    noise: Floats

    @classmethod
    def of(cls, values: Sequence[float]) -> NoisySeries:
        """Return a series with the noise of all values, or that around a value if it is much
        larger."""
        logs = np.asarray(values, dtype=float)
        # the median |difference| of two normal values is 0.954 standard deviations
        differences = np.abs(np.diff(logs)) / 0.9539
        least = max(LEAST_NOISE, float(np.median(differences)))
        noise = np.full(len(logs), least)
        if len(differences) >= _WINDOW:
            windows = np.lib.stride_tricks.sliding_window_view(differences, _WINDOW)
            medians = np.median(windows, axis=1)
            half = _WINDOW // 2
            around = np.pad(medians, (half, half + 1), mode="edge")
            noise = np.where(around > NOISIER * least, around, noise)
        return cls(logs, noise)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def p_value(self) -> float:
        """The p-value below which a position is a change."""
        return P_VALUE / len(self)

    def segment(self, start: int, end: int) -> Segment:
        inside = self.values[start:end]
        middle = float(np.median(inside))
        farthest = OUTLYING * self.noise[start:end]
        kept = inside[np.abs(inside - middle) <= farthest]
        mean = middle
        if len(kept):
            mean = float(kept.mean())
        distances = kept - mean
        squares = float((distances**2).sum())
        return Segment(start, end, mean, max(1, len(kept)), squares)

    def segments(self, splits: Sequence[int]) -> list[Segment]:
        bounds = [0, *splits, len(self)]
        return [self.segment(start, end) for start, end in pairwise(bounds)]

    def spread(self, segments: Sequence[Segment]) -> Spread:
        """Return the spread over these segments.

        With few values it is at least their known noise, because a few values may agree by chance.
        If neighbouring values are correlated, it is multiplied by the square root of (1 + r) ÷ (1 -
        r), where r is the correlation of the distances of neighbours from their level, if it is
        larger than by chance. That occurs if a machine is a little slower for several sweeps in a
        row.
        """
        df = max(1, sum(segment.n - 1 for segment in segments))
        total = sum(segment.squares for segment in segments)
        least = LEAST_NOISE
        if df < 10:
            least = float(np.median(self.noise))
        sd = max(math.sqrt(total / df), least)
        products = squares = 0.0
        bound = OUTLYING * sd
        for segment in segments:
            inside = self.values[segment.start : segment.end]
            distances = np.clip(inside - segment.mean, -bound, bound)
            neighbours = distances[1:] * distances[:-1]
            products += float(neighbours.sum())
            squares += float((distances * distances).sum())
        if squares > 0.0 and products / squares * math.sqrt(len(self)) >= 1.0:
            r = min(products / squares, 0.9)
            sd *= math.sqrt((1 + r) / (1 - r))
        return Spread(sd, df)


def fit(series: NoisySeries) -> list[int]:
    """Return the positions of level changes on the path with the lowest cost."""
    levels = _levels(series)
    length = len(series)
    total = np.zeros(len(levels))  # lowest cost of a path that ends on this level
    # whether the path came from another level, `source`
    jumped = np.zeros((length, len(levels)), dtype=bool)
    source = np.zeros(length, dtype=np.intp)
    for step in range(length):
        source[step] = total.argmin()
        after_change = total[source[step]] + PRICE
        jumped[step] = after_change < total
        distance = (levels - series.values[step]) / series.noise[step]
        cost = np.minimum(distance**2, BOUND)
        total = np.minimum(total, after_change) + cost
    splits = []
    level = total.argmin()
    for step in range(length - 1, 0, -1):
        if jumped[step, level]:
            splits.append(step)
            level = source[step]
    return splits[::-1]


def _levels(series: NoisySeries) -> Floats:
    """Return the levels to try, ascending: running medians and means on a grid of a tenth of the
    noise. Shape (L,)."""
    values = series.values
    tried = []
    for width in (3, 7, 15):
        if width <= len(values):
            windows = np.lib.stride_tricks.sliding_window_view(values, width)
            tried.append(np.median(windows, axis=1))
            tried.append(windows.mean(axis=1))
    step = _STEP * float(series.noise.min())
    first = values[0]
    distances = np.concatenate(tried) - first
    steps = np.unique(np.round(distances / step))
    levels = np.asarray(steps * step + first, dtype=float)
    if len(levels) > _LEVELS:
        kept = np.linspace(0, len(levels) - 1, _LEVELS).astype(int)
        levels = levels[kept]
    return levels


# --- tests of changes ---


def _weakest(series: NoisySeries, segments: Sequence[Segment], floor: float) -> int | None:
    """Return the split between these segments that is least likely a change; None if all pass the
    tests. `floor`: a logarithm."""
    pairs = list(pairwise(segments))
    if not pairs:
        return None
    for index, segment in enumerate(segments):
        if segment.n < PERSISTENCE:
            return _nearer(segments, index)
    spread = series.spread(segments)
    doubts = [_doubt(series, old, new, spread, floor) for old, new in pairs]
    if not any(doubts):
        gains = [_line_gain(series, old, new) for old, new in pairs]
        doubts = [max(0.0, gain + _SEARCHED) for gain in gains]
    if not any(doubts):
        return None
    ranked = zip(doubts, range(len(doubts)), strict=True)
    _, weakest = max(ranked)
    return weakest


def _doubt(series: NoisySeries, old: Segment, new: Segment, spread: Spread, floor: float) -> float:
    """Return how doubtful the change between two segments is; 0 if it passes the t-test and exceeds
    the floor."""
    step = new.mean - old.mean
    noise = series.noise[old.start : new.end]
    local = float(np.median(noise))
    sd = spread.sd
    if local > NOISIER * series.noise.min():
        # a noisier part has more spread than the whole series
        sd = max(sd, local)
    error = sd * math.sqrt(1 / old.n + 1 / new.n)
    p_value = t_tail(step / error, spread.df)
    if abs(step) < floor:
        return 1.0 + p_value
    if p_value < series.p_value:
        return 0.0
    return p_value


def _nearer(segments: Sequence[Segment], index: int) -> int:
    """Return the split between a short segment and its neighbour with the nearer level."""
    last = len(segments) - 1
    if index == 0:
        return 0
    if index == last:
        return last - 1
    mean = segments[index].mean
    to_previous = abs(segments[index - 1].mean - mean)
    to_next = abs(segments[index + 1].mean - mean)
    if to_previous <= to_next:
        return index - 1
    return index


def _line_gain(series: NoisySeries, old: Segment, new: Segment) -> float:
    """Return how much less a line through both segments costs than their two levels, in squared
    noise."""
    values = series.values[old.start : new.end]
    noise = series.noise[old.start : new.end]
    positions = np.arange(old.start, new.end)
    levels = np.where(positions < new.start, old.mean, new.mean)
    # omit outliers of the levels, from which a line must not gain
    distances = np.abs(values - levels)
    x = np.flatnonzero(distances <= OUTLYING * noise)
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    kept = values[x]
    noise = noise[x]
    slope, offset = np.polyfit(x, kept, 1, w=1 / noise)
    from_step = (kept - levels[x]) / noise
    from_line = (kept - slope * x - offset) / noise
    return float((from_step**2).sum() - (from_line**2).sum())


def _located(
    change: LevelChange, series: NoisySeries, old: Segment, new: Segment, spread: float
) -> LevelChange:
    """Return the change between these segments with the 95 % bounds of its position."""
    inside = series.values[old.start : new.end]
    noise = np.maximum(series.noise[old.start : new.end], spread)
    from_before = (inside - change.before) / noise
    from_after = (inside - change.after) / noise
    before = np.minimum(from_before**2, BOUND)
    after = np.minimum(from_after**2, BOUND)
    cost = np.cumsum(before - after)[:-1]  # of a change after each value
    likely = np.flatnonzero(cost <= cost.min() + _WHEREABOUTS)
    positions = old.start + 1 + likely
    earliest = min(int(positions[0]), change.at)
    latest = max(int(positions[-1]), change.at)
    return replace(change, earliest=earliest, latest=latest)


def _recent(series: NoisySeries, segments: Sequence[Segment], floor: float) -> LevelChange | None:
    """Return the newest one or two values as a change if they exceed noise and floor around the
    last level, or None."""
    last = segments[-1]
    for count in (2, 1):
        before = series.segment(last.start, last.end - count)
        off = series.values[-count:] - before.mean
        is_above = bool((off > floor).all())
        is_below = bool((off < -floor).all())
        if before.n < PERSISTENCE or not (is_above or is_below):
            continue
        spread = series.spread([*segments[:-1], before])
        sd = np.maximum(series.noise[-count:], spread.sd)
        errors = sd * math.sqrt(1 + 1 / before.n)
        p_values = [t_tail(float(t), spread.df) for t in off / errors]
        if max(p_values) < series.p_value:
            step = float(off.mean())
            ratio = Interval(math.exp(min(step, 709.0)))
            at = len(series) - count
            return LevelChange(at, before.mean, before.mean + step, ratio, is_confirmed=False)
    return None
