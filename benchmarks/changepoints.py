"""How many false alarms does `effbench history` raise, what does it find, and how many sweeps does
it need?

    python benchmarks/changepoints.py [--series 300] [--sweeps 60] [--otava PYTHON]

Series of logarithms are drawn with a fixed seed: unchanged series, series that only seem to change,
and series with planted steps. `false`: fraction of series with a change that is not within one
sweep of a planted step. `found`: fraction of planted steps with a change within one sweep. `off`:
mean distance in sweeps between a planted step and the nearest change, if that is within five
sweeps.
`--otava`: an interpreter with apache-otava, which gets the same series (not as logarithms) twice:
with its defaults, and with p = 1e-5 and a minimum magnitude of 2 %.

A second table shows, by the number of sweeps, the smallest of `STEPS` that is found within one
sweep in 95 % of the series, in the middle · three sweeps before the end (or `none`), and the number
of unchanged series with a change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from other_rules import Detector, otava

from effbench.core.table import Column, Table
from effbench.stats.changepoints import PERSISTENCE, find_changes

LENGTHS = (6, 7, 8, 9, 10, 12, 15, 20, 30, 60)
NOISE = (0.005, 0.01, 0.03)
#: Planted steps in per cent: 5 is 5 % slower.
STEPS = (
    *(2.1, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5),
    *(5, 6, 7, 8, 9, 10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 60, 70, 80, 100, 125, 150, 200),
)
#: Sizes of steps, and the noise that they are planted in.
PLANTED = ((0.03, 0.005), (0.05, 0.005), (0.1, 0.005), (0.05, 0.03), (0.1, 0.03), (0.2, 0.03))
#: Sweeps between a step and a change that is no longer the same.
FAR = 5
#: The fraction of series in which a step must be found.
MOST = 0.95


# --- series ---


@dataclass(frozen=True)
class Case:
    """Series (S, N) as logarithms, and the positions of the planted steps."""

    name: str
    values: np.ndarray
    planted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Draw:
    """Draws `series` series of `sweeps` sweeps."""

    random: np.random.Generator
    series: int
    sweeps: int

    def noise(self, sd: float) -> np.ndarray:
        return self.random.normal(0, sd, (self.series, self.sweeps))

    def step(self, size: float, sd: float, begin: int, end: int | None = None) -> np.ndarray:
        """Return noise with a step, which is undone at `end`."""
        return with_step(self.noise(sd), size, begin, end)

    def alike(self, sd: float, likeness: float) -> np.ndarray:
        """Return noise in which each value is like the one before it."""
        values = self.noise(sd * np.sqrt(1 - likeness**2))
        for place in range(1, self.sweeps):
            values[:, place] += likeness * values[:, place - 1]
        return values

    def odd_sweeps(self, sd: float) -> np.ndarray:
        """Return noise with three odd sweeps in each series."""
        values = self.noise(sd)
        for _ in range(3):
            places = self.random.integers(0, self.sweeps, self.series)
            sizes = self.random.choice([0.1, 0.3, 1.0], self.series)
            values[np.arange(self.series), places] += sizes
        return values

    def heavy_tails(self, scale: float) -> np.ndarray:
        return self.random.standard_t(3, (self.series, self.sweeps)) * scale


def with_step(values: np.ndarray, size: float, begin: int, end: int | None = None) -> np.ndarray:
    """Return series that are slower from `begin` to `end`; 0.05 is 5 %."""
    stepped = values.copy()
    stepped[:, begin:end] += np.log1p(size)
    return stepped


def cases(series: int, sweeps: int) -> list[Case]:
    draw = Draw(np.random.default_rng(20260101), series, sweeps)
    odd = draw.odd_sweeps(0.005)
    found = [Case(f"unchanged, noise {sd:.1%}", draw.noise(sd)) for sd in (0.005, 0.03, 0.2)]
    found += [
        Case("unchanged, heavy tails (t, 3 df) 0.5%", draw.heavy_tails(0.005)),
        Case("unchanged, neighbours alike (0.6), noise 3%", draw.alike(0.03, 0.6)),
        Case("three odd sweeps, noise 0.5%", odd),
        Case(
            "drift of 10% in all, noise 0.5%",
            draw.noise(0.005) + np.linspace(0, 0.1, sweeps),
        ),
    ]
    half, third, late = sweeps // 2, sweeps // 3, sweeps - 3
    for size, sd in PLANTED:
        name = f"step of {size:.0%}, noise {sd:.1%}"
        found.append(Case(name, draw.step(size, sd, half), (half,)))
    name = "step of 5% three sweeps ago, noise 0.5%"
    found.append(Case(name, draw.step(0.05, 0.005, late), (late,)))
    name = "step of 5%, undone, noise 0.5%"
    undone = (third, 2 * third)
    found.append(Case(name, draw.step(0.05, 0.005, *undone), undone))
    return found


# --- what is found ---


def by_effbench(values: np.ndarray) -> list[list[int]]:
    """Return the positions of the changes that `history` finds in each series."""
    found = map(find_changes, values.tolist())
    return [[change.at for change in changes] for changes in found]


@dataclass(frozen=True)
class Rates:
    """Fraction of series with a false change; fraction of steps that are found, and the mean
    distance of the nearest change, None without any."""

    false: float
    found: float | None = None
    off: float | None = None

    def texts(self) -> list[str]:
        found = "" if self.found is None else f"{self.found:.1%}"
        off = "" if self.off is None else f"{self.off:.2f}"
        return [f"{self.false:.1%}", found, off]


def rates(found: Sequence[Sequence[int]], planted: Sequence[int]) -> Rates:
    """Return how well the changes found in each series fit the planted steps."""
    false = 0
    distances = []
    for places in found:
        false += any(distance(place, planted) > 1 for place in places)
        distances += [distance(step, places) for step in planted]
    false_fraction = false / len(found)
    if not planted:
        return Rates(false_fraction)
    near = [far for far in distances if far <= FAR]
    return Rates(
        false=false_fraction,
        found=statistics.fmean(far <= 1 for far in distances),
        off=statistics.fmean(near) if near else None,
    )


def distance(place: int, others: Sequence[int]) -> float:
    """Return the distance of the nearest of the others."""
    return min((abs(place - other) for other in others), default=float("inf"))


def smallest(noise: np.ndarray, at: int) -> str:
    """Return the smallest of STEPS at `at` that is found within one sweep in most series, assuming
    that larger steps are found, too."""

    def is_found(percent: float) -> bool:
        found = by_effbench(with_step(noise, percent / 100, at))
        return statistics.fmean(distance(at, places) <= 1 for places in found) >= MOST

    first = bisect_left(STEPS, True, key=is_found)
    return f"{STEPS[first]:.3g} %" if first < len(STEPS) else "none"


# --- tables ---


def print_found(series: int, sweeps: int, detectors: dict[str, Detector]) -> None:
    """Print the rates of each detector, and how long it takes."""
    spent_s = dict.fromkeys(detectors, 0.0)
    rows = []
    for case in cases(series, sweeps):
        row = [case.name]
        for name, detect in detectors.items():
            begin = time.perf_counter()
            found = detect(case.values)
            spent_s[name] += time.perf_counter() - begin
            row += rates(found, case.planted).texts()
        rows.append(row)
    headings = [f"{series} series × {sweeps} sweeps"]
    for name in detectors:
        headings += [f"{name}: false", "found", "off"]
    print(Table.of([*map(Column, headings)], rows).render("markdown"))
    print(", ".join(f"{name}: {seconds:.1f} s" for name, seconds in spent_s.items()))


def print_power(series: int) -> None:
    """Print the smallest steps that are found, by the number of sweeps."""
    random = np.random.default_rng(20260102)
    rows = []
    for sweeps in LENGTHS:
        middle, late = sweeps // 2, sweeps - PERSISTENCE
        row = [str(sweeps)]
        false = 0
        for sd in NOISE:
            noise = random.normal(0, sd, (series, sweeps))
            false += sum(map(bool, by_effbench(noise)))
            steps = [smallest(noise, place) for place in dict.fromkeys((middle, late))]
            row.append(" · ".join(steps))
        row.append(f"{false} of {len(NOISE) * series}")
        rows.append(row)
    headings = ["sweeps", *(f"noise {100 * sd:.2g} %" for sd in NOISE), "false, unchanged"]
    table = Table.of([*map(Column, headings)], rows)
    print(f"\n{table.render('markdown')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--otava", metavar="PYTHON", help="interpreter with apache-otava")
    args = parser.parse_args()
    detectors: dict[str, Detector] = {"effbench": by_effbench}
    if args.otava:
        detectors["Otava"] = otava(args.otava, 0.001, 0.0)
        detectors["Otava, 1e-5, 2%"] = otava(args.otava, 1e-5, 0.02)
    print_found(args.series, args.sweeps, detectors)
    print_power(args.series)


if __name__ == "__main__":
    main()
