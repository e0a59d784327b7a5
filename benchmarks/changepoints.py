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
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from effbench.core.table import Column, Table
from effbench.stats.changepoints import PERSISTENCE, find_changes

LENGTHS = (6, 7, 8, 9, 10, 12, 15, 20, 30, 60)
NOISE = (0.005, 0.01, 0.03)
#: Planted steps (0.05: 5 % slower).
STEPS = (
    0.021,
    0.0225,
    0.025,
    0.0275,
    0.03,
    0.035,
    0.04,
    0.045,
    0.05,
    0.06,
    0.07,
    0.08,
    0.09,
    0.1,
    0.12,
    0.14,
    0.17,
    0.2,
    0.25,
    0.3,
    0.35,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    1.0,
    1.25,
    1.5,
    2.0,
)

OTAVA = """
import json, sys
from otava.analysis import compute_change_points
asked = json.load(sys.stdin)
found = []
for values in asked["series"]:
    limits = {"max_pvalue": asked["p"], "min_magnitude": asked["magnitude"]}
    points, _ = compute_change_points(values, **limits)
    found.append([int(point.index) for point in points])
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Case:
    """Series (S, N) as logarithms, and the positions of the planted steps."""

    name: str
    values: np.ndarray
    planted: tuple[int, ...] = ()


def cases(series: int, sweeps: int) -> list[Case]:
    random = np.random.default_rng(20260101)
    shape = (series, sweeps)
    half, third = sweeps // 2, sweeps // 3

    def noise(sd: float) -> np.ndarray:
        return random.normal(0, sd, shape)

    def step(size: float, sd: float, at: int, until: int | None = None) -> np.ndarray:
        values = noise(sd)
        values[:, at:until] += np.log1p(size)
        return values

    def alike(sd: float, likeness: float) -> np.ndarray:
        values = random.normal(0, sd * np.sqrt(1 - likeness**2), shape)
        for place in range(1, sweeps):
            values[:, place] += likeness * values[:, place - 1]
        return values

    odd = noise(0.005)
    for _ in range(3):
        odd[np.arange(series), random.integers(0, sweeps, series)] += random.choice(
            [0.1, 0.3, 1.0], series
        )
    found = [Case(f"unchanged, noise {sd:.1%}", noise(sd)) for sd in (0.005, 0.03, 0.2)]
    found += [
        Case("unchanged, heavy tails (t, 3 df) 0.5%", random.standard_t(3, shape) * 0.005),
        Case("unchanged, neighbours alike (0.6), noise 3%", alike(0.03, 0.6)),
        Case("three odd sweeps, noise 0.5%", odd),
        Case("drift of 10% in all, noise 0.5%", noise(0.005) + np.linspace(0, 0.1, sweeps)),
    ]
    found += [
        Case(f"step of {size:.0%}, noise {sd:.1%}", step(size, sd, half), (half,))
        for size, sd in (
            (0.03, 0.005),
            (0.05, 0.005),
            (0.1, 0.005),
            (0.05, 0.03),
            (0.1, 0.03),
            (0.2, 0.03),
        )
    ]
    late = sweeps - 3
    found.append(Case("step of 5% three sweeps ago, noise 0.5%", step(0.05, 0.005, late), (late,)))
    found.append(
        Case(
            "step of 5%, undone, noise 0.5%",
            step(0.05, 0.005, third, 2 * third),
            (third, 2 * third),
        )
    )
    return found


def ours(values: np.ndarray) -> list[list[int]]:
    found = map(find_changes, values.tolist())
    return [[change.at for change in changes] for changes in found]


def otava(python: str, p: float, magnitude: float) -> Callable[[np.ndarray], list[list[int]]]:
    def judge(values: np.ndarray) -> list[list[int]]:
        asked = json.dumps({"series": np.exp(values).tolist(), "p": p, "magnitude": magnitude})
        done = subprocess.run([python, "-c", OTAVA], input=asked, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python}: {done.stderr.strip().splitlines()[-1]}")
        return json.loads(done.stdout)

    return judge


def rates(
    found: list[list[int]], planted: tuple[int, ...]
) -> tuple[float, float | None, float | None]:
    """Return the fraction of series with a false change, the fraction of steps found, and their
    mean distance."""
    false = sum(
        any(min((abs(at - step) for step in planted), default=99) > 1 for at in places)
        for places in found
    )
    if not planted:
        return false / len(found), None, None
    nearest = [
        min((abs(at - step) for at in places), default=99) for places in found for step in planted
    ]
    near = [distance for distance in nearest if distance <= 5]
    return (
        false / len(found),
        sum(d <= 1 for d in nearest) / len(nearest),
        sum(near) / len(near) if near else None,
    )


def smallest(noise: np.ndarray, at: int) -> str:
    """Return the smallest of STEPS at `at` that is found within one sweep in 95 % of the series,
    assuming that larger steps are found, too."""

    def is_found(step: float) -> bool:
        values = noise.copy()
        values[:, at:] += np.log1p(step)
        return (
            np.mean([any(abs(place - at) <= 1 for place in places) for places in ours(values)])
            >= 0.95
        )

    low, high = 0, len(STEPS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(STEPS[middle]) else (middle + 1, high)
    return f"{100 * STEPS[low]:.3g} %" if low < len(STEPS) else "none"


def power_rows(series: int) -> list[list[str]]:
    random = np.random.default_rng(20260102)
    rows = []
    for sweeps in LENGTHS:
        row, false = [str(sweeps)], 0
        for sd in NOISE:
            noise = random.normal(0, sd, (series, sweeps))
            false += sum(map(bool, ours(noise)))
            row.append(
                " · ".join(
                    smallest(noise, at) for at in dict.fromkeys((sweeps // 2, sweeps - PERSISTENCE))
                )
            )
        rows.append([*row, f"{false} of {len(NOISE) * series}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=300)
    parser.add_argument("--sweeps", type=int, default=60)
    parser.add_argument("--otava", metavar="PYTHON", help="interpreter with apache-otava")
    args = parser.parse_args()
    judges: dict[str, Callable[[np.ndarray], list[list[int]]]] = {"effbench": ours}
    if args.otava:
        judges["Otava"] = otava(args.otava, 0.001, 0.0)
        judges["Otava, 1e-5, 2%"] = otava(args.otava, 1e-5, 0.02)
    rows, seconds = [], dict.fromkeys(judges, 0.0)
    for case in cases(args.series, args.sweeps):
        row = [case.name]
        for name, judge in judges.items():
            start = time.perf_counter()
            found = judge(case.values)
            seconds[name] += time.perf_counter() - start
            false, right, off = rates(found, case.planted)
            row += [
                f"{false:.1%}",
                "" if right is None else f"{right:.1%}",
                "" if off is None else f"{off:.2f}",
            ]
        rows.append(row)
    head = [f"{args.series} series × {args.sweeps} sweeps"]
    for name in judges:
        head += [f"{name}: false", "found", "off"]
    print(Table.of([*map(Column, head)], rows).render("markdown"))
    print(", ".join(f"{name}: {spent:.1f} s" for name, spent in seconds.items()))
    head = ["sweeps", *(f"noise {100 * sd:.2g} %" for sd in NOISE), "false, unchanged"]
    print("\n" + Table.of([*map(Column, head)], power_rows(args.series)).render("markdown"))


if __name__ == "__main__":
    main()
