"""Raw samples of a cell's trials as few bytes: points in order, and counts over all of them.

T trials of the cell that have the timer.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Points of one trial and timer that are drawn in order; fewer where a cell has many trials.
POINTS = 200
MOST_POINTS = 6000
FEWEST_POINTS = 25
BINS = 48
#: Share of the points that the bins cover; what lies above is counted together.
COVERED = 0.99


def shown_points(stored: int, trials: int) -> int:
    """How many of a trial's stored samples are drawn."""
    return min(stored, POINTS, max(FEWEST_POINTS, MOST_POINTS // max(1, trials)))


def evenly(stored: int, shown: int) -> np.ndarray:
    """Which of the stored samples are shown, both ends among them; cell_samples.js does the same."""
    return np.arange(shown) * (stored - 1) // max(1, shown - 1)


def packed(arrays: Sequence[np.ndarray]) -> dict[str, Any]:
    """`arrays`: of each of the T trials its stored samples, float32.

    `stored`, `shown` (T): how many. `points`: those that are shown, trial after trial, as base64 of little-endian
    float32. `counts` (T, BINS + 1): of all that are stored and finite, in BINS equal bins from `low` to `high`, then
    those above; a row is empty where nothing is finite.
    """
    shown = [shown_points(len(array), len(arrays)) for array in arrays]
    points = np.concatenate([_picked(array, many) for array, many in zip(arrays, shown, strict=True)])
    found: dict[str, Any] = {
        "stored": [len(array) for array in arrays],
        "shown": shown,
        "points": base64.b64encode(points.astype("<f4", copy=False).tobytes()).decode("ascii"),
    }
    return found | _histogram(arrays, points)


def _picked(array: np.ndarray, shown: int) -> np.ndarray:
    return array if shown == len(array) else array[evenly(len(array), shown)]


def _histogram(arrays: Sequence[np.ndarray], points: np.ndarray) -> dict[str, Any]:
    sizes = [len(array) for array in arrays]
    pool = np.concatenate(arrays)
    trial = np.repeat(np.arange(len(sizes)) * (BINS + 1), sizes)
    finite = np.isfinite(pool)
    if not finite.all():
        pool, trial, points = pool[finite], trial[finite], points[np.isfinite(points)]
    if not len(pool) or not len(points):
        return {"low": None, "high": None, "counts": [[] for _ in sizes]}
    low, high = float(pool.min()), _upper(points)
    if high <= low:
        high = low + max(abs(low) * 1e-6, 1e-12)
    places = ((pool.astype(np.float64) - low) * (BINS / (high - low))).astype(np.int64)
    # the highest bin holds its upper end
    places[(places == BINS) & (pool <= high)] = BINS - 1
    np.minimum(places, BINS, out=places)
    counts = np.bincount(places + trial, minlength=len(sizes) * (BINS + 1))
    return {"low": low, "high": high, "counts": counts.reshape(len(sizes), BINS + 1).tolist()}


def _upper(points: np.ndarray) -> float:
    place = int(COVERED * (len(points) - 1))
    return float(np.partition(points, place)[place])
