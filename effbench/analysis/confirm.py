"""Old and new measured in turns: what their pairs say. Drift of the machine meets both sides of a pair alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

from effbench.analysis.statistics import LogDifference, log_mean
from effbench.analysis.verdicts import (
    ALPHA,
    FLOOR,
    Comparison,
    Verdict,
    p_value_of,
    smallest_paired,
    verdict_of,
)

#: Pairs below which nothing is confirmed.
LEAST_PAIRS = 5


def paired(
    before: Mapping[int, float], after: Mapping[int, float], floor: float = FLOOR, alpha: float = ALPHA
) -> Comparison:
    """Compare one figure a trial of two sides that were measured in the same rounds, by the pairs of each round.

    `before` and `after`: round -> figure, in the same unit, lower being better. What only one side has is left out. The
    interval is Student's t over the logarithms of the pairs' ratios; it needs two pairs. Raises ValueError where no
    round has both, and for figures that are not positive and finite.
    """
    rounds = sorted(before.keys() & after.keys())
    if not rounds:
        raise ValueError("no round has both sides")
    ratios = log_mean(after[number] / before[number] for number in rounds)
    if ratios.error is None:
        return Comparison(math.exp(ratios.value), None, None, None, Verdict.AMBIGUOUS, None)
    difference = LogDifference(ratios.value, ratios.error, ratios.n - 1)
    ratio = difference.ratio()
    p_value = p_value_of(difference)
    verdict = verdict_of(ratio.value, ratio.low, ratio.high, p_value < alpha, floor)
    smallest = smallest_paired(ratios, floor, alpha=alpha)
    return Comparison(ratio.value, ratio.low, ratio.high, p_value, verdict, smallest, difference.error, difference.df)


def confirms(found: Comparison, pairs: int, floor: float = FLOOR) -> bool:
    """Does a re-run show the slowdown? The whole paired interval lies beyond the floor, on at least LEAST_PAIRS."""
    return pairs >= LEAST_PAIRS and found.low is not None and found.low > 1 + floor
