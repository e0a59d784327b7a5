"""Where the time of sweeps goes, and what adaptive stopping saves.

    python benchmarks/cost.py DB [--sweep NAME] [--format text|markdown]

Reads the trials of all sweeps of a name (default: of `repeatability.py`) from a database. First the share of each part
of a trial and the overhead: what is not building, preparing, checking, warming up, timing or profiling. Then, of the
trials that reached the width that the protocol asks for: the samples and the time that adaptive stopping took, against
a number of samples that is the same for all and just brings each of them to that width.
"""

from __future__ import annotations

import argparse
import math
import statistics

import tables

from effbench.store import Store

#: ± of a median at which a timer stops (protocol.target_interval)
TARGET = 0.005
PARTS = ("build", "prepare", "check", "warmup", "timing", "profile")


def trials_of(db: str, name: str) -> list[dict]:
    """The `ok` trials of all sweeps of this name, each with its model's name."""
    found = []
    with Store.open(db) as store:
        for sweep in store.sweeps():
            if sweep.name == name:
                models = {cell.key: str(cell) for cell in store.planned(sweep.id)}
                found += [{**t, "cell": models[t["cell_key"]]} for t in store.trials(sweep.id) if t["status"] == "ok"]
    return found


def parts(trials: list[dict]) -> list[list[str]]:
    total = sum(trial["wall_s"] for trial in trials)
    seconds = {name: sum(t["extra"]["phase_seconds"].get(name, 0.0) for t in trials) for name in PARTS}
    seconds["overhead"] = sum(trial["overhead_s"] for trial in trials)
    return [[name, f"{value / len(trials):.3f}", f"{value / total:.1%}"] for name, value in seconds.items()]


def adaptive(trials: list[dict]) -> list[list[str]]:
    """A row a cell: samples and seconds of latency timing, adaptive and fixed."""
    widths = {id(t): width(t) for t in trials}
    measured = [trial for trial in trials if widths[id(trial)] is not None and widths[id(trial)] <= TARGET]
    # the width of an interval falls with the square root of the samples
    needed = max(math.ceil(t["latency_samples"] * (widths[id(t)] / TARGET) ** 2) for t in measured)
    rows, spent, fixed = [], 0.0, 0.0
    for cell in dict.fromkeys(trial["cell"] for trial in measured):
        own = [trial for trial in measured if trial["cell"] == cell]
        taken = sum(t["latency_samples"] * t["latency_ms"] for t in own) / 1e3 / len(own)
        same = sum(needed * t["latency_ms"] for t in own) / 1e3 / len(own)
        spent, fixed = spent + taken * len(own), fixed + same * len(own)
        counts = [t["latency_samples"] for t in own]
        rows.append(
            [
                cell,
                str(len(own)),
                f"{statistics.median(widths[id(t)] for t in own):.3%}",
                f"{statistics.median(counts):.0f}",
                f"{taken:.2f}",
                str(needed),
                f"{same:.2f}",
            ]
        )
    rows.append(["all", str(len(measured)), "", "", f"{spent / len(measured):.2f}", "", f"{fixed / len(measured):.2f}"])
    return rows


def width(trial: dict) -> float | None:
    """Half the interval of the trial's median latency, relative."""
    low, high = trial["latency_median_low_ms"], trial["latency_median_high_ms"]
    return None if low is None or high is None or high == low else (high - low) / 2 / trial["latency_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db")
    parser.add_argument("--sweep", default="repeatability", help="name of the sweeps (default: %(default)s)")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args = parser.parse_args()
    trials = trials_of(args.db, args.sweep)
    if not trials:
        raise SystemExit(f"no trials of sweeps named {args.sweep} in {args.db}")
    print(tables.render(["part", "seconds a trial", "share"], parts(trials), args.format))
    overheads = sorted(trial["overhead_s"] for trial in trials)
    most = overheads[math.ceil(0.95 * len(overheads)) - 1]
    print(f"overhead: median {statistics.median(overheads):.2f} s, 95 % of {len(trials)} trials at most {most:.2f} s\n")
    headings = ["cell", "trials", "± of a median", "samples", "s", "same for all", "s"]
    reached = sum((width(trial) or math.inf) <= TARGET for trial in trials)
    print(f"{reached} of {len(trials)} trials know the median of their latency to ± {TARGET:.1%}")
    if reached:
        print(tables.render(headings, adaptive(trials), args.format))


if __name__ == "__main__":
    main()
