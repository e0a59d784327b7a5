"""What adaptive stopping saves against a fixed number of samples that leaves a cell's trials as near to each other.

    python benchmarks/stopping.py DB [--sweep NAME] [--format text|markdown]

Reads the raw samples of all standard sweeps of a name (default: of `repeatability.py`). Beside what adaptive stopping
took stands the smallest number of samples, the same for all cells of a timer, with which no cell's medians spread more
from trial to trial (by over a twentieth). A trial that had stopped before that number is taken as known; the time for
the rest is counted all the same.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

import tables

from effbench.store import Store

TIMERS = ("latency_ms", "period_ms")
SLACK = 1.05
STEPS = 80


@dataclass(frozen=True)
class Taken:
    """One timer of one trial. A stored sample stands for `sample_s` seconds and `each` samples."""

    samples: list[float]
    sample_s: float
    each: float

    @property
    def count(self) -> float:
        return len(self.samples) * self.each

    @property
    def seconds(self) -> float:
        return len(self.samples) * self.sample_s

    def log_median(self, number: float = math.inf) -> float:
        """Of the first `number` samples."""
        kept = len(self.samples) if number >= self.count else max(1, math.ceil(number / self.each))
        return math.log(statistics.median(self.samples[:kept]))


def taken(db: str, name: str) -> dict[str, dict[str, list[Taken]]]:
    """Timer -> cell -> its trials."""
    found: dict[str, dict[str, list[Taken]]] = {timer: {} for timer in TIMERS}
    with Store.open(db) as store:
        for sweep in store.sweeps():
            if sweep.name != name:
                continue
            cells = {cell.key: str(cell) for cell in store.planned(sweep.id)}
            for trial in store.trials(sweep.id):
                kept = store.samples(trial["id"])
                for timer in TIMERS:
                    if timer in kept and trial["status"] == "ok":
                        values = [float(value) for value in kept[timer]]
                        count = trial["latency_samples" if timer == "latency_ms" else "period_samples"]
                        calls = 1 if timer == "latency_ms" else trial["calls_per_block"]
                        seconds = statistics.fmean(values) * calls * count / 1e3
                        one = Taken(values, seconds / len(values), count / len(values))
                        found[timer].setdefault(cells[trial["cell_key"]], []).append(one)
    return found


def spread(trials: list[Taken], number: float = math.inf) -> float:
    """Standard deviation of the logarithms of the trials' medians."""
    return statistics.stdev(one.log_median(number) for one in trials)


def least_number(cells: dict[str, list[Taken]]) -> float:
    """The smallest number of samples with which no cell spreads more than with adaptive stopping."""
    most = max(one.count for trials in cells.values() for one in trials)
    goals = {cell: SLACK * spread(trials) for cell, trials in cells.items()}
    enough = most
    for step in range(STEPS, 0, -1):  # from above: less must not do by chance what more does not
        number = 10 * (most / 10) ** (step / STEPS)
        if any(spread(trials, number) > goals[cell] for cell, trials in cells.items()):
            break
        enough = number
    return enough


def rows_of(found: dict[str, dict[str, list[Taken]]]) -> list[list[str]]:
    rows, totals = [], [0.0, 0.0]
    for timer, cells in found.items():
        if not cells:  # no period on the CPU
            continue
        number = least_number(cells)
        for cell, trials in cells.items():
            adaptive = statistics.fmean(one.seconds for one in trials)
            fixed = statistics.fmean(number / one.each * one.sample_s for one in trials)
            totals = [totals[0] + adaptive, totals[1] + fixed]
            samples = f"{statistics.fmean(one.count for one in trials):.0f}"
            rows.append(
                [
                    cell,
                    timer.removesuffix("_ms"),
                    str(len(trials)),
                    samples,
                    f"{adaptive:.2f}",
                    f"{spread(trials):.2%}",
                    f"{number:.0f}",
                    f"{fixed:.2f}",
                    f"{spread(trials, number):.2%}",
                ]
            )
    rows.append(["all", "", "", "", f"{totals[0]:.2f}", "", "", f"{totals[1]:.2f}", ""])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db")
    parser.add_argument("--sweep", default="repeatability", help="name of the sweeps (default: %(default)s)")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args = parser.parse_args()
    found = taken(args.db, args.sweep)
    if not any(found.values()):
        raise SystemExit(f"no trials of sweeps named {args.sweep} in {args.db}")
    rows = rows_of(found)
    headings = ["cell", "timer", "trials", "adaptive: samples", "s", "SD", "fixed: samples", "s", "SD"]
    print(tables.render(headings, rows, args.format))
    print(f"timing a trial of each cell: {rows[-1][4]} s with adaptive stopping, {rows[-1][7]} s with fixed numbers")


if __name__ == "__main__":
    main()
