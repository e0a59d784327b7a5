"""Break down the time of trials by phase.

    python benchmarks/cost.py DB [--sweep NAME] [--format text|markdown]

Reads the trials of all sweeps with a name (default: repeatability) from a database, and prints the fraction of each
phase of a trial, and of the overhead: wall time outside the listed phases.
"""

from __future__ import annotations

import argparse
import math
import statistics

import tables

from effbench.store import Store

PARTS = ("build", "prepare", "check", "warmup", "timing", "profile")


def trials_of(db: str, name: str) -> list[dict]:
    """Return the `ok` trials of all sweeps with this name."""
    with Store.open(db) as store:
        named = [sweep.id for sweep in store.sweeps() if sweep.name == name]
        return [trial for sweep in named for trial in store.trials(sweep) if trial["status"] == "ok"]


def parts(trials: list[dict]) -> list[list[str]]:
    total = sum(trial["wall_s"] for trial in trials)
    seconds = {name: sum(t["extra"]["phase_seconds"].get(name, 0.0) for t in trials) for name in PARTS}
    seconds["overhead"] = sum(trial["overhead_s"] for trial in trials)
    return [[name, f"{value / len(trials):.3f}", f"{value / total:.1%}"] for name, value in seconds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("db")
    parser.add_argument("--sweep", default="repeatability", help="name of the sweeps (default: %(default)s)")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args = parser.parse_args()
    trials = trials_of(args.db, args.sweep)
    if not trials:
        raise SystemExit(f"no trials of sweeps named {args.sweep} in {args.db}")
    print(tables.render(["phase", "seconds per trial", "fraction"], parts(trials), args.format))
    overheads = sorted(trial["overhead_s"] for trial in trials)
    most = overheads[math.ceil(0.95 * len(overheads)) - 1]
    print(f"overhead: median {statistics.median(overheads):.2f} s, 95 % of {len(trials)} trials at most {most:.2f} s")


if __name__ == "__main__":
    main()
