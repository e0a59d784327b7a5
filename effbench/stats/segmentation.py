"""Segment series into levels with the Potts model, a bounded loss and dynamic programming. Pure
numpy, deterministic.

Each value gets a level from a grid, and the total cost is minimal. A change of level has a price. A
value costs its squared distance from its level in units of noise, but at most a bound below that
price (the biweight loss of Fearnhead and Rigaill, "Changepoint Detection in the Presence of
Outliers", 2019). Thus one outlier never causes a change, but three values that agree may. Shapes: S
series, N values of the longest one, L levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from effbench.stats.intervals import LogEstimate

#: Price of a change, in squared noise: the square of the normal quantile of p = 1e-5.
PRICE = 19.5
#: Maximum cost of a value. Two outliers in a row cost less than two changes, three cost more.
BOUND = 0.75 * PRICE
#: Minimum noise (0.05 %): measurements have a limited resolution, and a constant series is not free
#: of noise.
LEAST_NOISE = 5e-4
#: Number of differences that show the noise around a value. It counts from this multiple of the
#: series' noise on: less occurs by chance.
_WINDOW, NOISIER = 15, 1.75
#: Minimum length of a series: three values before a change and three after.
SHORTEST = 6
#: Distance of levels in units of noise (its effect is at most a hundredth of the price), and
#: maximum number of levels.
_STEP, _LEVELS = 0.1, 600
#: Maximum levels × values of series that are fitted together; their paths take this many bytes of
#: memory.
_BATCH = 16_000_000


def noise_of(values: np.ndarray, errors: np.ndarray | None) -> np.ndarray:
    """Return the noise of each value: the noise of the series, or that around the value if it is
    much larger. An error that exceeds that of the precise quarter of the sweeps raises it in
    proportion, but at most to the error itself: an error that all share, such as the assumed spread
    of compilations, is not noise if the values do not have it.
    """
    noise = LEAST_NOISE
    # the median |difference| of two normal values is 0.954 standard deviations
    differences = np.abs(np.diff(values)) / 0.9539
    if len(differences):
        noise = max(noise, float(np.median(differences)))
    scale = np.full(len(values), noise)
    if len(differences) >= _WINDOW:
        local = np.median(np.lib.stride_tricks.sliding_window_view(differences, _WINDOW), axis=1)
        around = np.pad(local, (_WINDOW // 2, _WINDOW // 2 + 1), mode="edge")
        scale = np.where(around > NOISIER * noise, around, scale)
    known = np.zeros(len(values)) if errors is None else np.where(np.isfinite(errors), errors, 0.0)
    if not (positive := np.sort(known[known > 0])).size:
        return scale
    return np.maximum(scale, np.minimum(known, noise * known / positive[len(positive) // 4]))


def fit_all(arrays: list[np.ndarray], scales: list[np.ndarray]) -> list[list[int]]:
    """Return the positions of level changes for each series of SHORTEST values or more. Series of
    similar length are fitted together."""
    splits: list[list[int]] = [[] for _ in arrays]
    levels = [
        _levels(values, float(scale.min())) for values, scale in zip(arrays, scales, strict=True)
    ]
    batches: list[list[int]] = [[]]
    for index in sorted(range(len(arrays)), key=lambda index: len(arrays[index])):
        if (len(batches[-1]) + 1) * len(arrays[index]) * _LEVELS > _BATCH:
            batches.append([])
        batches[-1].append(index)
    for batch in filter(None, batches):
        fitted = _fit(
            [arrays[i] for i in batch], [scales[i] for i in batch], [levels[i] for i in batch]
        )
        for index, split in zip(batch, fitted, strict=True):
            splits[index] = split
    return splits


def _levels(values: np.ndarray, noise: float) -> np.ndarray:
    """Return the levels to try, ascending: running medians and means on a grid of a tenth of the
    noise. Shape (L,)."""
    # relevant segments have at least three values, so their level is near the median of a window of
    # three
    three = np.sort(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
    tried = [three[1], three.mean(axis=0)]
    sums = np.concatenate([[0.0], np.cumsum(values)])
    tried += [(sums[width:] - sums[:-width]) / width for width in (7, 15) if width <= len(values)]
    steps = np.round((np.concatenate(tried) - values[0]) / (_STEP * noise))
    levels = np.unique(steps) * (_STEP * noise) + values[0]
    return (
        levels
        if len(levels) <= _LEVELS
        else levels[np.linspace(0, len(levels) - 1, _LEVELS).astype(int)]
    )


def _fit(
    arrays: list[np.ndarray], scales: list[np.ndarray], levels: list[np.ndarray]
) -> list[list[int]]:
    """Return the positions of level changes on the path with the lowest cost, for each of several
    series."""
    count, longest = len(arrays), max(map(len, arrays))
    grid = np.full((count, max(map(len, levels))), np.inf)  # (S, L), padded with infinite levels
    data, weight = np.zeros((longest, count, 1)), np.zeros((longest, count, 1))
    for index, (values, scale, candidates) in enumerate(zip(arrays, scales, levels, strict=True)):
        grid[index, : len(candidates)] = candidates
        # shorter series are right-aligned: the steps before them cost nothing and never change
        # level
        data[longest - len(values) :, index, 0] = values
        weight[longest - len(values) :, index, 0] = 1 / scale
    finite = np.isfinite(grid)
    grid = np.where(finite, grid, 0.0)
    total = np.where(finite, 0.0, 1e12)  # (S, L) lowest cost of a path that ends on this level
    # whether the path came from another level, `source`
    jumped = np.zeros((longest, *grid.shape), dtype=bool)
    source = np.zeros((longest, count), dtype=np.intp)
    rows = np.arange(count)
    for step in range(longest):
        best = total.argmin(axis=1)
        source[step] = best
        change = total[rows, best][:, None] + PRICE
        jumped[step] = change < total
        np.minimum(total, change, out=total)
        cost = (grid - data[step]) * weight[step]
        np.multiply(cost, cost, out=cost)
        total += np.minimum(cost, BOUND, out=cost)
    at = total.argmin(axis=1)
    splits: list[list[int]] = [[] for _ in arrays]
    starts = [longest - len(values) for values in arrays]
    for step in range(longest - 1, 0, -1):
        for index in np.flatnonzero(jumped[step, rows, at]):
            splits[index].append(step - starts[index])
            at[index] = source[step, index]
    return [split[::-1] for split in splits]


@dataclass
class Segment:
    """The values from `start` to `end` (exclusive). `mean`, `n` and `squares` exclude outliers."""

    start: int
    end: int
    mean: float
    n: int
    squares: float  # sum of squared distances from the mean

    def log_mean(self) -> LogEstimate:
        error = math.sqrt(self.squares / (self.n - 1) / self.n) if self.n > 1 else None
        return LogEstimate(self.mean, error, self.n - 1)


def segments_of(values: np.ndarray, scale: np.ndarray, splits: Sequence[int]) -> list[Segment]:
    return [
        segment_of(values, scale, start, end) for start, end in pairwise([0, *splits, len(values)])
    ]


def segment_of(values: np.ndarray, scale: np.ndarray, start: int, end: int) -> Segment:
    inside, noise = values[start:end], scale[start:end]
    kept = inside[np.abs(inside - np.median(inside)) <= math.sqrt(BOUND) * noise]
    mean = float(kept.mean()) if len(kept) else float(np.median(inside))
    return Segment(start, end, mean, max(1, len(kept)), float(((kept - mean) ** 2).sum()))


def spread_of(segments: list[Segment], scale: np.ndarray) -> tuple[float, int]:
    """Return the standard deviation of values around their levels, over all segments, and its
    degrees of freedom.

    With few values it is at least their known noise, because a few values may agree by chance.
    """
    df = sum(segment.n - 1 for segment in segments)
    pooled = math.sqrt(sum(segment.squares for segment in segments) / df) if df else 0.0
    known = float(np.median(scale)) if df < 10 else LEAST_NOISE
    return max(pooled, known), max(df, 1)


def correlated_spread_of(
    values: np.ndarray, scale: np.ndarray, segments: list[Segment]
) -> tuple[float, int]:
    """Return `spread_of`, multiplied by the square root of (1 + r) ÷ (1 - r) if neighbouring values
    are correlated.

    r is the correlation of the distances of neighbours from their level, if it is larger than by
    chance. It occurs if a machine is a little slower for several sweeps in a row.
    """
    spread, df = spread_of(segments, scale)
    products = squares = 0.0
    bound = math.sqrt(BOUND) * spread
    for segment in segments:
        left = np.clip(values[segment.start : segment.end] - segment.mean, -bound, bound)
        products += float((left[1:] * left[:-1]).sum())
        squares += float((left * left).sum())
    if squares == 0.0 or products / squares * math.sqrt(len(values)) < 1.0:
        return spread, df
    r = min(products / squares, 0.9)
    return spread * math.sqrt((1 + r) / (1 - r)), df
