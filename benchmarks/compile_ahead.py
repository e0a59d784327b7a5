"""What `executor.compile_once` saves: the same compiled cells with one compilation per cell and with one per compile cache.

    python benchmarks/compile_ahead.py [--cells 40] [overrides]

Blocks of ten cells run alternately with and without the setting, so that the machine's drift affects both alike. The
output lists wall seconds, cold compilations, compile seconds, for how many cells the two latencies agree within their
95 % intervals, and, from the sweeps that compile in each cache, for how many cells the second compilation generated the
same code. On a GPU it also counts the cells whose trials ran other kernels or launch shapes.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
from several_gpus import agreement

import effbench
from effbench.store import Store

BLOCK = 10
ROUNDS = ("protocol.rounds=4", "protocol.compilations=2", "protocol.budget_s=0.4", "protocol.min_time_s=0.1")
SIDES = {"compile once": "true", "compile in each cache": "false"}


def run_sweep(name: str, setting: str, sizes: list[int], folder: Path, overrides: list[str]) -> float:
    """Run the sweep of these batch sizes; return its wall seconds."""
    words = [
        "-m", "model=tiny", "mode=default", f"bs={','.join(map(str, sizes))}", *ROUNDS, f"sweep.name={name}",
        f"db={folder / 'effbench.db'}", f"executor.compile_once={setting}", "executor.keep_cache=true",
        f"executor.cache_dir={folder / name}", "on_failure=ignore", *overrides,
    ]  # fmt: skip
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "effbench", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def generated(cache: Path) -> set[str]:
    """Return the names of the code files in a compile cache, which Inductor derives from their contents."""
    return {path.name for path in cache.rglob("*") if path.suffix in (".py", ".cpp") and path.stem.startswith("c")}


def same_code(folder: Path) -> tuple[int, int]:
    """Return for how many cells both compilations generated the same code, and the number of cells."""
    caches = [path.parent for path in folder.glob("*/*/*/1")]
    return sum(bool(generated(cache / "0")) and generated(cache / "0") == generated(cache / "1") for cache in caches), len(
        caches
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=40, help="number of cells")
    arguments, overrides = parser.parse_known_args()
    seconds, frames, trials = dict.fromkeys(SIDES, 0.0), {side: [] for side in SIDES}, {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="effbench-") as place:
        folder = Path(place)
        for block, sizes in enumerate(itertools.batched(range(1, arguments.cells + 1), BLOCK)):
            for side in list(SIDES)[:: -1 if block % 2 else 1]:
                name = f"{side.replace(' ', '-')}-{block}"
                seconds[side] += run_sweep(name, SIDES[side], list(sizes), folder, overrides)
                frames[side].append(effbench.results(str(folder / "effbench.db"), name))
                with Store.open(folder / "effbench.db", mode="read") as store:
                    history = store.history(store.find_sweep(name).id, frames[side][-1]["environment_id"].iloc[0])
                trials[side] += [trial for recorded in history.values() for trial in recorded]
        same, cells = same_code(folder / "compile-in-each-cache-0")
        for block in range(1, len(frames["compile once"])):
            more = same_code(folder / f"compile-in-each-cache-{block}")
            same, cells = same + more[0], cells + more[1]
    for side in SIDES:
        cold = [trial.compile_s for trial in trials[side] if trial.compile_cache == "cold"]
        prints = {}
        for trial in trials[side]:
            prints.setdefault(trial.cell_key, set()).add(trial.kernel_fingerprint)
        statuses = pd.concat(frames[side])["status"].value_counts().to_dict()
        print(f"{side}: {seconds[side]:.0f} s, {len(cold)} cold compilations of {sum(cold):.0f} s, {statuses}", end="")
        print(f", other kernels in {sum(len(one) > 1 for one in prints.values())} of {len(prints)} cells")
    saved = 1 - seconds["compile once"] / seconds["compile in each cache"]
    print(f"saved: {saved:.0%} of the wall time; {agreement(*(pd.concat(frames[side]) for side in SIDES))}")
    print(f"the second compilation generated the same code in {same} of {cells} cells")


if __name__ == "__main__":
    main()
