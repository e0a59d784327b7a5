"""Segment series into levels with the Potts model, a bounded loss and dynamic programming. Pure
numpy, deterministic.

Each value gets a level from a grid, and the total cost is minimal. A change of level has a price. A
value costs its squared distance from its level in units of noise, but at most a bound below that
price (the biweight loss of Fearnhead and Rigaill, "Changepoint Detection in the Presence of
Outliers", 2019). Thus one outlier never causes a change, but three values that agree may. Shape: L
levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from effbench.stats.intervals import LogEstimate

Floats = NDArray[np.float64]

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
#: Minimum length of a series: three values before a change and three after.
SHORTEST = 6
#: Probability of a false change in a whole series of normal noise. Each position is tested at this
#: ÷ the number of values. At 1e-5 regardless of length, 3 of 1,000 unchanged series of 200 values
#: gave false alarms.
P_VALUE = 1e-4
#: Distance of levels in units of noise (its effect is at most a hundredth of the price), and
#: maximum number of levels.
_STEP, _LEVELS = 0.1, 600


@dataclass
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
        variance = self.squares / (self.n - 1)
        return LogEstimate(self.mean, math.sqrt(variance / self.n), self.n - 1)


@dataclass(frozen=True)
class NoisySeries:
    """A series of logarithms, oldest first, with the noise of each value."""

    values: Floats
    noise: Floats

    @classmethod
    def of(cls, values: Sequence[float], errors: Sequence[float] | None) -> NoisySeries:
        """Return the series. `errors`: standard errors of the values, NaN or 0 if unknown."""
        logs = np.asarray(values, dtype=float)
        known = np.full(len(logs), math.nan) if errors is None else np.asarray(errors, dtype=float)
        return cls(logs, noise_of(logs, known))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def p_value(self) -> float:
        """The p-value below which a position is a change."""
        return P_VALUE / len(self)

    def segment(self, start: int, end: int) -> Segment:
        inside = self.values[start:end]
        middle = float(np.median(inside))
        distance = np.abs(inside - middle)
        kept = inside[distance <= OUTLYING * self.noise[start:end]]
        mean = float(kept.mean()) if len(kept) else middle
        squares = float(((kept - mean) ** 2).sum())
        return Segment(start, end, mean, max(1, len(kept)), squares)

    def segments(self, splits: Sequence[int]) -> list[Segment]:
        bounds = [0, *splits, len(self)]
        return [self.segment(start, end) for start, end in pairwise(bounds)]

    def spread(self, segments: Sequence[Segment]) -> tuple[float, int]:
        """Return the standard deviation of values around their levels, over all segments, and its
        degrees of freedom.

        With few values it is at least their known noise, because a few values may agree by chance.
        """
        df = sum(segment.n - 1 for segment in segments)
        squares = sum(segment.squares for segment in segments)
        known = LEAST_NOISE
        if df < 10:
            known = float(np.median(self.noise))
        pooled = math.sqrt(squares / max(df, 1))
        return max(pooled, known), max(df, 1)

    def correlated_spread(self, segments: Sequence[Segment]) -> tuple[float, int]:
        """Return the spread, multiplied by the square root of (1 + r) ÷ (1 - r) if neighbouring
        values are correlated.

        r is the correlation of the distances of neighbours from their level, if it is larger than
        by chance. It occurs if a machine is a little slower for several sweeps in a row.
        """
        spread, df = self.spread(segments)
        products = squares = 0.0
        bound = OUTLYING * spread
        for segment in segments:
            inside = self.values[segment.start : segment.end]
            left = np.clip(inside - segment.mean, -bound, bound)
            products += float((left[1:] * left[:-1]).sum())
            squares += float((left * left).sum())
        if squares == 0.0 or products / squares * math.sqrt(len(self)) < 1.0:
            return spread, df
        r = min(products / squares, 0.9)
        return spread * math.sqrt((1 + r) / (1 - r)), df


def noise_of(values: Floats, errors: Floats) -> Floats:
    """Return the noise of each value: the noise of the series, or that around the value if it is
    much larger. An error that exceeds that of the precise quarter of the sweeps raises it in
    proportion, but at most to the error itself: an error that all share, such as the assumed spread
    of compilations, is not noise if the values do not have it.
    """
    # the median |difference| of two normal values is 0.954 standard deviations
    differences = np.abs(np.diff(values)) / 0.9539
    least = max(LEAST_NOISE, float(np.median(differences)))
    noise = np.full(len(values), least)
    if len(differences) >= _WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(differences, _WINDOW)
        half = _WINDOW // 2
        around = np.pad(np.median(windows, axis=1), (half, half + 1), mode="edge")
        noise = np.where(around > NOISIER * least, around, noise)
    known = np.where(np.isfinite(errors), errors, 0.0)
    positive = np.sort(known[known > 0])
    if not len(positive):
        return noise
    precise = positive[len(positive) // 4]
    raised = np.minimum(known, least * known / precise)
    return np.asarray(np.maximum(noise, raised), dtype=float)


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
        total = np.minimum(total, after_change) + np.minimum(distance**2, BOUND)
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
    # relevant segments have at least three values, so their level is near the median of a window of
    # three
    three = np.lib.stride_tricks.sliding_window_view(values, 3)
    tried = [np.median(three, axis=1), three.mean(axis=1)]
    for width in (7, 15):
        if width <= len(values):
            windows = np.lib.stride_tricks.sliding_window_view(values, width)
            tried.append(windows.mean(axis=1))
    step = _STEP * float(series.noise.min())
    steps = np.unique(np.round((np.concatenate(tried) - values[0]) / step))
    levels = np.asarray(steps * step + values[0], dtype=float)
    if len(levels) > _LEVELS:
        kept = np.linspace(0, len(levels) - 1, _LEVELS).astype(int)
        levels = levels[kept]
    return levels
