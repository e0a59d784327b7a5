"""When a cell has had enough rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from effbench.analysis.statistics import geometric_mean

#: Share of the target that counts at the first look, where the spread is known worst.
FIRST_LOOK = 0.5
LEAST_TRIALS = 5


def enough(medians: Sequence[float], target: float, least: int = LEAST_TRIALS) -> bool:
    """May a cell's further rounds be skipped, since its geometric mean is known to within ± `target`?

    `medians` holds one figure a round so far, `target` is relative (0.01 = 1 %). True where the 95 % interval of
    `geometric_mean` lies within ± `target` of it; at the first look, after `least` rounds, within half of that; before
    it never. Raises ValueError for a `target` that is not positive and finite, for `least` under 2, and as
    `geometric_mean` does.

    Stopping because an interval happens to be narrow makes it cover less, and most so after few rounds: hence the
    stricter first look. In simulations of up to 10 rounds the final 95 % interval covers, and a cell takes:

    ============  ====  ====  ====  ====  ====  ====  ====
    SD ÷ target    0.1   0.3   0.5   1.0   1.6   2.0   5.0
    coverage, %   95.0  95.0  94.6  94.1  93.4  93.8  95.0
    rounds         5.0   5.1   5.6   7.0   9.1   9.6  10.0
    ============  ====  ====  ====  ====  ====  ====  ====

    The SD is that between processes; 93.4 % is the worst. The speedup of two cells that both stopped so is covered
    in 93.0 % at worst. With the full target at the first look too it would be 92.2 %, and a cell 93.0 %; with `least` 4
    a cell is covered in 92.7 % at worst, with 3 in 91.4 %.
    """
    if not 0 < target < math.inf:
        raise ValueError(f"a target is positive and finite, not {target!r}")
    if least < 2:
        raise ValueError(f"an interval needs at least two rounds, not {least}")
    if len(medians) < least:
        return False
    found = geometric_mean(medians)
    allowed = target * FIRST_LOOK if len(medians) == least else target
    # of the two bounds the upper one is farther off
    return found.high <= found.value * (1 + allowed)
