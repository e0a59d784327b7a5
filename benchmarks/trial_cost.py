"""Measure the overhead of a trial, and what the check for a disturbed host changes.

    python benchmarks/trial_cost.py overhead [--rounds 3]
    python benchmarks/trial_cost.py host [--rounds 20]

overhead: the harness overhead of an eager trial of `mlp`, forked and spawned: its wall time outside building,
preparing, checking, warming up and timing.

host: sweeps of `mlp` in eager and compiled modes with and without the check for a disturbed host. The output lists the
median and the standard deviation between processes of the latency, and the time of each sweep.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

import effbench
from effbench.store import Store
from effbench.table import Column, Table


def trials_of(db: str, overrides: list[str]) -> list[dict]:
    sweep = effbench.sweep([*overrides, f"db={db}"])
    with Store.open(db) as store:
        return store.trials(sweep.id)


def overhead(db: str, rounds: int, more: list[str]) -> None:
    cell = ["model=mlp", "bs=8", "mode=eager", "protocol.budget_s=1", "protocol.min_time_s=1"]
    cell += [f"protocol.rounds={rounds}"]
    for isolation in ("fork", "spawn"):
        values = [trial["overhead_s"] for trial in trials_of(db, [*cell, f"isolation={isolation}", *more])]
        trials = f"{min(values):.2f}–{max(values):.2f}, {len(values)} trials"
        print(f"isolation={isolation}: {statistics.median(values):.2f} s ({trials})")


def compare_host_checks(db: str, rounds: int, more: list[str]) -> None:
    cells = ["model=mlp", "bs=8", "mode=eager,default,reduce-overhead", "protocol.budget_s=2", "protocol.profile=false"]
    rows = []
    for tolerance in ("0.1", "null"):
        words = [*cells, f"protocol.rounds={rounds}", f"protocol.host_tolerance={tolerance}", *more]
        start = time.perf_counter()
        trials = trials_of(db, words)
        seconds = time.perf_counter() - start
        with Store.open(db) as store:
            modes = {cell.key: cell.mode_name for cell in store.planned(store.find_sweep("last").id)}
        for key, mode in modes.items():
            latencies = [trial["latency_ms"] for trial in trials if (trial["cell_key"], trial["status"]) == (key, "ok")]
            logs = [math.log(value) for value in latencies]
            deviation = f"{statistics.stdev(logs):.1%}" if len(logs) > 1 else "-"
            middle = f"{statistics.median(latencies):.4f}" if latencies else "-"
            numbers = [middle, deviation, str(len(latencies)), f"{seconds:.0f}"]
            rows.append([tolerance, mode, *numbers])
    headings = ("host_tolerance", "mode", "median (ms)", "SD", "ok trials", "sweep (s)")
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "host"])
    parser.add_argument("--rounds", type=int, help="trials per cell (default: 3 and 20)")
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "cost.db")
        if args.what == "overhead":
            overhead(db, args.rounds or 3, more)
        else:
            compare_host_checks(db, args.rounds or 20, more)


if __name__ == "__main__":
    main()
