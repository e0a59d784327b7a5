"""How large must a step be for `effbench history` to find it, by the number of sweeps that there are?

    python benchmarks/history_power.py [--series 400] [--share 0.95] [--format text|markdown]

Series of logarithms of normal noise are made with a fixed seed, with one step in the middle, or three sweeps before the
end. A table shows the smallest step (of `STEPS`) of which `--share` are found within one sweep, in the middle · three
sweeps ago; `none` where none is. Beside it the share of unchanged series with a change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import tables
from XXX import PERSISTENCE

from effbench.stats.changepoints import find_all

SWEEPS = (6, 7, 8, 9, 10, 12, 15, 20, 30, 60)
NOISE = (0.005, 0.01, 0.03)
#: Steps that are tried (0.05: 5 % slower).
STEPS = (
    0.021, 0.0225, 0.025, 0.0275, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.14, 0.17, 0.2,
    0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0,
)  # fmt: skip


def found(noise: np.ndarray, step: float, at: int) -> float:
    """Share of series (S, N) of noise with a step at `at` in which a change within one sweep of it is found."""
    values = noise.copy()
    values[:, at:] += np.log1p(step)
    return float(np.mean([any(abs(c.at - at) <= 1 for c in one.changes) for one in find_all(list(values))]))


def smallest(enough: Callable[[float], bool]) -> float | None:
    """The smallest of STEPS that is enough; larger ones are taken to be, too."""
    low, high = 0, len(STEPS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(STEPS[middle]) else (middle + 1, high)
    return STEPS[low] if low < len(STEPS) else None


def shown(step: float | None) -> str:
    return "none" if step is None else f"{100 * step:.3g} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--series", type=int, default=400)
    parser.add_argument("--share", type=float, default=0.95)
    parser.add_argument("--format", default="text", choices=tables.FORMATS)
    args = parser.parse_args()
    random = np.random.default_rng(20260102)
    rows = []
    for sweeps in SWEEPS:
        row, false = [str(sweeps)], []
        for sd in NOISE:
            noise = random.normal(0, sd, (args.series, sweeps))
            false += [bool(one.changes) for one in find_all(list(noise))]
            places = dict.fromkeys((sweeps // 2, sweeps - PERSISTENCE))
            steps = [smallest(lambda step, at=at: found(noise, step, at) >= args.share) for at in places]  # noqa: B023
            row.append(" · ".join(map(shown, steps)))
        rows.append([*row, f"{sum(false)} of {len(false)}"])
    head = ["sweeps", *(f"noise {100 * sd:.2g} %" for sd in NOISE), "false, unchanged"]
    print(tables.render(head, rows, args.format))


if __name__ == "__main__":
    main()
