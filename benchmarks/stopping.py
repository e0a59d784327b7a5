"""What adaptive stopping saves against a fixed number of samples that leaves intervals as narrow.

    python benchmarks/stopping.py [--db FILE] [--read] [--format text|markdown]

Runs one standard sweep of the four cells of `repeatability.py` in which every timer uses its whole budget. On its raw
samples effbench's own stopping rule is then replayed, trial by trial. Beside it, each timer takes one number of samples
that is the same for all cells and trials: the smallest with which no cell's 95 % interval over processes is wider than
with adaptive stopping (by more than a twentieth).
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tables
from repeatability import MATRIX

import effbench
from effbench.analysis.statistics import geometric_mean
from effbench.config import Protocol
from effbench.measure import timing
from effbench.store import Store

NAME = "stopping"
TIMERS = ("latency_ms", "period_ms")
SLACK = 1.05
STEPS = 60


@dataclass(frozen=True)
class Taken:
    """One timer of one trial. A stored sample stands for `sample_s` seconds and `each` samples."""

    cell: str
    timer: str
    samples: list[float]
    sample_s: float
    each: float


def taken(db: str) -> list[Taken]:
    found = []
    with Store.open(db) as store:
        sweep = store.find_sweep(NAME)
        cells = {cell.key: str(cell) for cell in store.planned(sweep.id)}
        for trial in store.trials(sweep.id):
            kept = store.samples(trial["id"])
            for timer in TIMERS:
                if timer not in kept or trial["status"] != "ok":
                    continue
                count = trial["latency_samples"] if timer == "latency_ms" else trial["period_samples"]
                calls = 1 if timer == "latency_ms" else trial["calls_per_block"]
                values = [float(value) for value in kept[timer]]
                each = count / len(values)
                seconds = statistics.fmean(values) * calls * each / 1e3
                found.append(Taken(cells[trial["cell_key"]], timer, values, seconds, each))
    return found


def stops_at(one: Taken, rules: timing.Rules) -> int:
    """Samples after which the adaptive rule is content."""
    stop = timing.Stop(rules, rules.budget_s / 2)
    count = 0
    while not stop.reached(one.samples[:count], count * one.sample_s) and count < len(one.samples):
        count = min(len(one.samples), count + max(1, stop.next_batch))
    return count


def width(trials: list[Taken], counts: list[int]) -> float:
    """Half the 95 % interval over processes, in logarithms."""
    medians = [statistics.median(one.samples[: max(1, count)]) for one, count in zip(trials, counts, strict=True)]
    mean = geometric_mean(medians)
    return math.log(mean.high / mean.low) / 2


def rows_of(found: list[Taken], rules: timing.Rules) -> list[list[str]]:
    groups: dict[tuple[str, str], list[Taken]] = {}
    for one in found:
        groups.setdefault((one.timer, one.cell), []).append(one)
    rows, totals = [], [0.0, 0.0]
    for timer in TIMERS:
        cells = {cell: trials for (name, cell), trials in groups.items() if name == timer}
        if not cells:  # no period on the CPU
            continue
        adaptive = {cell: [stops_at(one, rules) for one in trials] for cell, trials in cells.items()}
        goal = {cell: width(trials, adaptive[cell]) for cell, trials in cells.items()}
        number = least_number(cells, goal)
        for cell, trials in cells.items():
            fixed = [min(len(one.samples), math.ceil(number / one.each)) for one in trials]
            seconds = [
                statistics.fmean(count * one.sample_s for count, one in zip(counts, trials, strict=True))
                for counts in (adaptive[cell], fixed)
            ]
            totals = [total + part for total, part in zip(totals, seconds, strict=True)]
            mean_count = statistics.fmean(count * one.each for count, one in zip(adaptive[cell], trials, strict=True))
            rows.append(
                [
                    cell,
                    timer.removesuffix("_ms"),
                    f"{mean_count:.0f}",
                    f"{seconds[0]:.2f}",
                    f"± {goal[cell]:.2%}",
                    f"{number:.0f}",
                    f"{seconds[1]:.2f}",
                    f"± {width(trials, fixed):.2%}",
                ]
            )
    rows.append(["all", "", "", f"{totals[0]:.2f}", "", "", f"{totals[1]:.2f}", ""])
    return rows


def least_number(cells: dict[str, list[Taken]], goal: dict[str, float]) -> float:
    """The smallest number of samples, the same for all cells, that meets every goal."""
    most = max(len(one.samples) * one.each for trials in cells.values() for one in trials)
    for step in range(1, STEPS + 1):
        number = 30 * (most / 30) ** (step / STEPS)
        counts = {c: [min(len(o.samples), math.ceil(number / o.each)) for o in trials] for c, trials in cells.items()}
        if all(width(trials, counts[cell]) <= SLACK * goal[cell] for cell, trials in cells.items()):
            return number
    return most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--db", help="keep the sweep there (default: a temporary database)")
    parser.add_argument("--read", action="store_true", help="run nothing: read the sweep that --db has")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args, more = parser.parse_known_args()
    names = set(timing.Rules.__dataclass_fields__)
    rules = timing.Rules(**{name: value for name, value in vars(Protocol()).items() if name in names})
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "stopping.db")
        if not args.read:
            whole = [f"protocol.min_time_s={rules.budget_s / 2}", "protocol.target_interval=0", f"sweep.name={NAME}"]
            effbench.sweep([*MATRIX[:-1], *whole, f"db={db}", *more])
        rows = rows_of(taken(db), rules)
    headings = ["cell", "timer", "adaptive: samples", "s", "interval", "fixed: samples", "s", "interval"]
    print(tables.render(headings, rows, args.format))
    print(f"a trial of all cells: {rows[-1][3]} s of timing with adaptive stopping, {rows[-1][6]} s with fixed numbers")


if __name__ == "__main__":
    main()
