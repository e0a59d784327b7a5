"""Find change points of series: places where the level changed and stayed changed. Pure numpy, no
randomness. `find_changes` finds those of measured values, `find_exact` those of counters.

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
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from effbench.stats.intervals import Interval, LogEstimate, log_difference, mean_of, t_tail
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
_WINDOW = 15
NOISIER = 1.75
#: Probability of a false change in a whole series of normal noise. Each position is tested at this
#: ÷ the number of values. At 1e-5 regardless of length, 3 of 1,000 unchanged series of 200 values
#: gave false alarms.
P_VALUE = 1e-4
#: Distance of levels in units of noise (its effect is at most a hundredth of the price), and
#: maximum number of levels.
_STEP = 0.1
_LEVELS = 600
#: A step must explain the values better than a line by this much, in squared noise, because its
#: position was searched.
_SEARCHED = 4.0


@dataclass(frozen=True)
class LevelChange:
    """A change of level between the values `at - 1` and `at` of a series.

    `before`, `after`: the levels, as logarithms or exact values. `ratio`: after ÷ before with its
    95 % Welch bounds; None for exact values.
    """

    at: int
    before: float
    after: float
    ratio: Interval | None = None


def find_changes(values: Sequence[float], floor: float = FLOOR) -> list[LevelChange]:
    """Return the changes in a series of logarithms, which starts with the oldest value.

    A level lasts at least PERSISTENCE values, so the newest one or two are never a change.
    `floor`: smaller changes do not count (0.02 ignores ratios from 1 ÷ 1.02 to 1.02). Raises
    ValueError for values that are not finite.
    """
    logs = np.asarray(values, dtype=float)
    if not np.isfinite(logs).all():
        raise ValueError("a series must be finite: omit values that were not measured")
    least = math.log1p(floor)
    # others differ too little for any change
    if len(logs) < SHORTEST or np.ptp(logs) < least:
        return []
    series = Series.of(logs)
    splits = fit(series)
    while True:
        segments = series.parts(splits)
        weakest = _weakest(series, segments, least)
        if weakest is None:
            break
        del splits[weakest]  # which joins its segments
    changes = []
    for old, new in pairwise(segments):
        ratio = log_difference(new.log_mean, old.log_mean).interval()
        changes.append(LevelChange(new.start, old.mean, new.mean, ratio))
    return changes


def find_exact(values: Sequence[Any]) -> list[LevelChange]:
    """Return the changes in a series of exact values (integers or booleans), which starts with the
    oldest value. Fewer than EXACT_PERSISTENCE equal values in a row do not form a level."""
    changes: list[LevelChange] = []
    level: Any = None
    start = 0
    for value, equal in groupby(values):
        end = start + len(list(equal))
        if end - start >= EXACT_PERSISTENCE:
            if level is not None and value != level:
                changes.append(LevelChange(start, level, value))
            level = value
        start = end
    return changes


# --- levels ---


@dataclass(frozen=True)
class Series:
    """A series of logarithms, oldest first, or a part of it from the position `start` on. `noise`:
    the standard deviation of each value."""

    values: Floats
    noise: Floats
    start: int = 0

    @classmethod
    def of(cls, values: Floats) -> Series:
        """Return a series with the noise of all values, or that around a value if it is much
        larger."""
        # the median |difference| of two normal values is 0.954 standard deviations
        differences = np.abs(np.diff(values)) / 0.9539
        least = max(LEAST_NOISE, float(np.median(differences)))
        noise = np.full(len(values), least)
        if len(differences) >= _WINDOW:
            medians = np.median(sliding_window_view(differences, _WINDOW), axis=1)
            half = _WINDOW // 2
            around = np.pad(medians, (half, half + 1), mode="edge")
            noise = np.where(around > NOISIER * least, around, noise)
        return cls(values, noise)

    def part(self, start: int, end: int) -> Series:
        return Series(self.values[start:end], self.noise[start:end], start)

    def parts(self, splits: Sequence[int]) -> list[Series]:
        bounds = [0, *splits, len(self.values)]
        return [self.part(start, end) for start, end in pairwise(bounds)]

    @property
    def end(self) -> int:
        return self.start + len(self.values)

    @cached_property
    def kept(self) -> Floats:
        """The values without outliers; at least their median."""
        middle = np.median(self.values)
        distances = np.abs(self.values - middle)
        kept = self.values[distances <= OUTLYING * self.noise]
        return kept if len(kept) else np.array([middle])

    @cached_property
    def mean(self) -> float:
        return float(self.kept.mean())

    @property
    def n(self) -> int:
        return len(self.kept)

    @cached_property
    def squares(self) -> float:
        """The sum of squared distances from the mean."""
        return float(((self.kept - self.mean) ** 2).sum())

    @property
    def log_mean(self) -> LogEstimate:
        return mean_of(self.kept.tolist())


def fit(series: Series) -> list[int]:
    """Return the positions of level changes on the path with the lowest cost."""
    levels = _levels(series)
    length = len(series.values)
    total = np.zeros(len(levels))  # lowest cost of a path that ends on this level
    # whether the path came from another level, `source`
    jumped = np.zeros((length, len(levels)), dtype=bool)
    source = np.zeros(length, dtype=np.intp)
    for step in range(length):
        source[step] = total.argmin()
        after_change = total[source[step]] + PRICE
        jumped[step] = after_change < total
        distance = (levels - series.values[step]) / series.noise[step]
        total = np.minimum(total, after_change)
        total += np.minimum(distance**2, BOUND)
    splits = []
    level = total.argmin()
    for step in range(length - 1, 0, -1):
        if jumped[step, level]:
            splits.append(step)
            level = source[step]
    return splits[::-1]


def _levels(series: Series) -> Floats:
    """Return the levels to try, ascending: running medians and means on a grid of a tenth of the
    noise. Shape (L,)."""
    values = series.values
    tried = []
    for width in (3, 7, 15):
        if width <= len(values):
            windows = sliding_window_view(values, width)
            tried.append(np.median(windows, axis=1))
            tried.append(windows.mean(axis=1))
    step = _STEP * float(series.noise.min())
    first = values[0]
    distances = np.concatenate(tried) - first
    steps = np.unique(np.round(distances / step))
    if len(steps) > _LEVELS:
        spread = np.linspace(0, len(steps) - 1, _LEVELS)
        steps = steps[spread.astype(int)]
    return np.asarray(steps * step + first, dtype=float)


# --- tests of changes ---


def _weakest(
    series: Series,
    segments: Sequence[Series],
    floor: float,
) -> int | None:
    """Return the split between these segments that is least likely a change; None if all pass the
    tests. `floor`: a logarithm."""
    pairs = list(pairwise(segments))
    if not pairs:
        return None
    short = [index for index, segment in enumerate(segments) if segment.n < PERSISTENCE]
    if short:  # it joins the neighbour with the nearer level
        steps = [abs(new.mean - old.mean) for old, new in pairs]
        around = range(max(0, short[0] - 1), min(short[0] + 1, len(pairs)))
        return min(around, key=lambda split: steps[split])
    doubts = _doubts(series, segments, floor)
    if not any(doubts):
        doubts = [max(0.0, _line_gain(series, old, new) + _SEARCHED) for old, new in pairs]
    if not any(doubts):
        return None
    return int(np.argmax(doubts))


def _spread(series: Series, segments: Sequence[Series], df: int) -> float:
    """Return the standard deviation of the values around their levels, with `df` degrees of
    freedom.

    With few values it is at least their known noise, because a few values may agree by chance. If
    neighbouring values are correlated (r) more than by chance, it is multiplied by the square root
    of (1 + r) ÷ (1 - r). That occurs if a machine is a little slower for several sweeps in a row.
    """
    least = LEAST_NOISE
    if df < 10:
        least = float(np.median(series.noise))
    squares = sum(segment.squares for segment in segments)
    sd = max(math.sqrt(squares / df), least)
    r = _correlation(segments, OUTLYING * sd)
    if r * math.sqrt(len(series.values)) >= 1.0:
        r = min(r, 0.9)
        sd *= math.sqrt((1 + r) / (1 - r))
    return sd


def _correlation(segments: Sequence[Series], bound: float) -> float:
    """Return the correlation of neighbours' distances from their level, which count up to
    `bound`."""
    products = 0.0
    squares = 0.0
    for segment in segments:
        distances = np.clip(segment.values - segment.mean, -bound, bound)
        products += float(distances[1:] @ distances[:-1])
        squares += float(distances @ distances)
    return products / (squares or 1.0)


def _doubts(series: Series, segments: Sequence[Series], floor: float) -> list[float]:
    """Return how doubtful the change between each two segments is; 0 if it passes the t-test and
    exceeds the floor."""
    df = max(1, sum(segment.n - 1 for segment in segments))
    spread = _spread(series, segments, df)
    doubts = []
    for old, new in pairwise(segments):
        sd = spread
        local = float(np.median(series.part(old.start, new.end).noise))
        if local > NOISIER * series.noise.min():
            # a noisier part has more spread than the whole series
            sd = max(sd, local)
        step = new.mean - old.mean
        error = sd * math.sqrt(1 / old.n + 1 / new.n)
        p_value = t_tail(step / error, df)
        if abs(step) < floor:
            doubts.append(1.0 + p_value)
        elif p_value < P_VALUE / len(series.values):
            doubts.append(0.0)
        else:
            doubts.append(p_value)
    return doubts


def _line_gain(
    series: Series,
    old: Series,
    new: Series,
) -> float:
    """Return how much less a line through both segments costs than their two levels, in squared
    noise."""
    both = series.part(old.start, new.end)
    x = np.arange(len(both.values))
    levels = np.where(x < len(old.values), old.mean, new.mean)
    # omit outliers of the levels, from which a line must not gain
    x = np.flatnonzero(np.abs(both.values - levels) <= OUTLYING * both.noise)
    if len(x) < 2 * PERSISTENCE:
        return -math.inf
    values = both.values[x]
    noise = both.noise[x]
    cost_of_levels = (((values - levels[x]) / noise) ** 2).sum()
    _, cost_of_line, *_ = np.polyfit(x, values, 1, w=1 / noise, full=True)
    return float(cost_of_levels - cost_of_line[0])
