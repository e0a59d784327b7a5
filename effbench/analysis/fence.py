"""How far a metric of a cell moves between sweeps although nothing changed: its own noise fence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median

from effbench.analysis.statistics import is_number

#: Sweeps of one environment before this one that a fence needs; fewer say nothing.
LEAST_SWEEPS = 6
#: Standard deviations of a sweep against the one before it that still pass for noise.
WIDTH = 3.0
#: A fence beyond this would hide everything: then the series is noise, and its limit says so.
WIDEST = 0.5


def noise_fence(*levels: Sequence[float | None]) -> float:
    """Relative change (0.03 = 3 %) that one sweep's figure may make against another's of an unchanged cell.

    `levels`: of each environment one figure a sweep, oldest first. Robust to steps: it is the median absolute
    difference of neighbours that counts, so a change between two sweeps is one odd difference among many. Neighbours
    are of one environment, as two of them may differ for good. Their differences are what is counted: five must be
    known over all environments, which takes LEAST_SWEEPS sweeps of one, and one more for each further one. 0 where
    there are too few.
    """
    jumps = jumps_between(levels)
    if not are_enough(jumps):
        return 0.0
    # the median of |N(0, s)| is 0.6745 s
    spread = median(jumps) / 0.6745
    return min(math.expm1(WIDTH * spread), WIDEST)


def jumps_between(levels: Iterable[Sequence[float | None]]) -> list[float]:
    """Absolute log differences of neighbours."""
    logs = [[math.log(value) for value in own if is_number(value) and value > 0] for own in levels]
    return [abs(new - old) for own in logs for old, new in itertools.pairwise(own)]


def are_enough(jumps: Sequence[float]) -> bool:
    """For a fence; differences of 0 are known as well as others."""
    return len(jumps) >= LEAST_SWEEPS - 1
