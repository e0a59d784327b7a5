"""What `executor.ahead` saves: the same compiled cells, with and without trials that compile ahead.

    python benchmarks/compile_ahead.py [--cells 40] [overrides]

Blocks of twenty cells run alternately with and without the setting, so that the machine's drift affects both alike. The
output lists wall and CPU seconds, cold compilations, and for how many cells the two latencies agree
within their 95 % intervals. On a GPU it counts the cells whose trials ran other kernels or launch shapes.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from several_gpus import agreement

import effbench
from effbench.store import Store

BLOCK = 20
FIXED = [
    "model=tiny", "mode=default", "protocol.rounds=2", "protocol.compilations=2", "protocol.budget_s=0.2",
    "protocol.min_time_s=0.1", "protocol.warmup_s=0.05", "protocol.load_s=0", "protocol.host_tolerance=0.25",
    "executor.keep_cache=true", "on_failure=ignore",
]  # fmt: skip
#: Name -> executor.ahead.
SIDES = {"ahead": "6", "one by one": "0"}


def run_sweep(name: str, setting: str, sizes: list[int], folder: Path, overrides: list[str]) -> np.ndarray:
    """Run a sweep of these batch sizes, with its compile caches in the folder `name`; return wall and CPU seconds."""
    words = [*FIXED, f"bs={','.join(map(str, sizes))}", f"sweep.name={name}", f"executor.ahead={setting}"]
    places = [f"db={folder / 'effbench.db'}", f"executor.cache_dir={folder / name}"]
    start = clocks()
    subprocess.run(
        [sys.executable, "-m", "effbench", "-m", *words, *places, *overrides], check=True, stdout=subprocess.DEVNULL
    )
    return clocks() - start


def clocks() -> np.ndarray:
    """Return the wall seconds, and the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def describe(name: str, seconds: np.ndarray, frame: pd.DataFrame, trials: list[dict[str, Any]]) -> str:
    cold = sum(trial["compile_cache"] == "cold" for trial in trials)
    kernels = defaultdict(set)
    for trial in trials:
        kernels[trial["cell_key"]].add(trial["kernel_fingerprint"])
    other = sum(len(fingerprints) > 1 for fingerprints in kernels.values())
    statuses = frame["status"].value_counts().to_dict()
    return (
        f"{name}: {seconds[0]:.0f} s wall, {seconds[1]:.0f} s CPU; {cold} cold compilations; "
        f"{statuses}; other kernels in {other} of {len(kernels)} cells"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=40, help="number of cells (default: %(default)s)")
    arguments, overrides = parser.parse_known_args()
    sizes = range(1, arguments.cells + 1)
    seconds, frames, trials = dict.fromkeys(SIDES, np.zeros(2)), defaultdict(list), defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="effbench-") as place:
        folder, db = Path(place), str(Path(place) / "effbench.db")
        for block in range(0, len(sizes), BLOCK):
            for side in list(SIDES)[:: -1 if block % (2 * BLOCK) else 1]:
                name = f"{side.replace(' ', '-')}-{block}"
                taken = run_sweep(name, SIDES[side], [*sizes[block : block + BLOCK]], folder, overrides)
                print(f"{name}: {taken[0]:.0f} s wall", flush=True)
                seconds[side] = seconds[side] + taken
                frames[side].append(effbench.results(db, name))
                with Store.open(db) as store:
                    trials[side] += store.trials(store.find_sweep(name).id)
    joined = {side: pd.concat(frames[side]) for side in SIDES}
    for side in SIDES:
        print(describe(side, seconds[side], joined[side], trials[side]))
    wall, cpu = 1 - seconds["ahead"] / seconds["one by one"]
    print(f"compiling ahead saves {wall:.0%} of the wall time and {cpu:.0%} of the CPU time")
    print(agreement(*joined.values()))


if __name__ == "__main__":
    main()
