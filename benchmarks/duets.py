"""Simulate the rule that ends the duets of a cell, and count how often it errs.

Each duet gives a ratio, whose logarithm is normal around the true change. As in `check --confirm`,
duets go on until the interval shows or excludes a slowdown beyond the floor, but not before the
third and not after the twentieth. `--two-sided` simulates the rule of `effbench duet`: until the
interval is inside the floor or beyond it. The intervals and the decision come from the code that
effbench itself runs.

    python benchmarks/duets.py [--cells 2000]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from effbench.stats.significance import (
    FLOOR,
    LEAST_DUETS,
    MOST_PAIRS,
    compare_pairs,
    is_decided,
)

#: Standard deviations of the logarithm of a duet's ratio: 1.3 to 2.8 % were measured.
SPREADS = (0.015, 0.02, 0.025, 0.028, 0.032, 0.04)
CHANGES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)


@dataclass
class Rates:
    """How the duets of many cells ended. `slower`: confirmed slowdowns; `same`: excluded ones (or
    excluded changes); `duets`: their numbers."""

    cells: int = 0
    slower: int = 0
    same: int = 0
    duets: Counter[int] = field(default_factory=Counter)

    @property
    def slower_fraction(self) -> float:
        return self.slower / self.cells

    @property
    def same_fraction(self) -> float:
        return self.same / self.cells

    @property
    def mean_duets(self) -> float:
        return sum(number * cells for number, cells in self.duets.items()) / self.cells

    @property
    def median_duets(self) -> float:
        return statistics.median(self.duets.elements())


def simulate(
    rng: np.random.Generator,
    cells: int,
    change: float,
    spread: float,
    floor: float = FLOOR,
    is_gate: bool = True,
) -> Rates:
    """Return how the duets of cells end that became slower by `change`. `spread`: of a duet's
    ratio; `is_gate`: whether only slowdowns matter."""
    rates = Rates()
    for _ in range(cells):
        ratios = np.exp(rng.normal(math.log1p(change), spread, MOST_PAIRS))
        for number in range(LEAST_DUETS, MOST_PAIRS + 1):
            after = {place: float(ratios[place]) for place in range(number)}
            test = compare_pairs(dict.fromkeys(after, 1.0), after, floor)
            if is_decided(test.low, test.high, floor, is_gate):
                break
        is_slower = number >= LEAST_DUETS and (test.low or 0.0) > 1 + floor
        rates.cells += 1
        rates.duets[number] += 1
        rates.slower += is_slower
        rates.same += is_decided(test.low, test.high, floor, is_gate) and not is_slower
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cells",
        type=int,
        default=2000,
        help="simulated cells for each line (default: %(default)s)",
    )
    parser.add_argument("--two-sided", action="store_true", help="the rule of `effbench duet`")
    args = parser.parse_args()
    rng = np.random.default_rng(1)
    print("| SD of a duet | change | slower | same | undecided | duets, mean | median |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for spread in SPREADS:
        for change in CHANGES:
            rates = simulate(rng, args.cells, change, spread, is_gate=not args.two_sided)
            undecided = 1 - rates.slower_fraction - rates.same_fraction
            shares = f"{rates.slower_fraction:.1%} | {rates.same_fraction:.1%} | {undecided:.1%}"
            numbers = f"{rates.mean_duets:.1f} | {rates.median_duets:g}"
            print(f"| {spread:.1%} | {change:.0%} | {shares} | {numbers} |")


if __name__ == "__main__":
    main()
