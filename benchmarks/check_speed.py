"""How long `effbench check` takes on a large sweep: 1,000 cells × 5 trials against a baseline, with and without earlier
sweeps in the database from which the noise of each cell is known.

    python benchmarks/check_speed.py [--cells 1000] [--trials 5] [--earlier 30] [--profile]

The sweeps are made up: levels by a fixed law, 0.5 % of noise between trials, one cell in a hundred slower by 5 %. They
are written by bulk inserts, results and all, and not through `Store.record`. Every time is that of the whole command in
a fresh process, the least of `--repeat`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.cell import Cell, Environment
from effbench.store import Store
from effbench.store.schema import ResultRow, TrialRow
from effbench.store.values import now

MIB = 2**20
MODES = ("eager", "default", "reduce-overhead", "cuda-graph")
SIZES = (1, 8, 64, 256, 1024)
FACTS = ("latency_ms", "period_ms", "gpu_busy_ms", "energy_mj", "peak_allocated_bytes", "peak_reserved_bytes",
         "graph_pool_bytes", "kernels", "graph_breaks", "recompiles", "cudagraph_skips", "first_call_s")  # fmt: skip


def cells(count: int) -> list[Cell]:
    """Models × sizes × modes, with parameters as real cells have them."""
    found = []
    for index in range(count):
        model, rest = divmod(index, len(SIZES) * len(MODES))
        size, mode = divmod(rest, len(MODES))
        inputs = [{"name": "x", "shape": [3, 224, 224], "dtype": "auto", "low": None, "high": None, "batch_dim": 0}]
        found.append(
            Cell(
                {"name": f"model{model}", "inputs": inputs, "tolerance": None, "allow_nonfinite": False,
                 "module": {"_target_": "nets:Net", "width": 64 * (model + 1), "depth": 12}},
                SIZES[size], {"name": MODES[mode], "_target_": "modes:Any", "fullgraph": False},
                "bfloat16", "inference", "cuda", {"tf32": False, "cudnn_benchmark": False, "seed": 0},
            )
        )  # fmt: skip
    return found


def figures(index: int, factor: float, draw: random.Random) -> dict[str, Any]:
    """One trial of one cell; a third of the cells waits for launches."""
    level = (0.1 + index % 37) * factor

    def noisy(value: float) -> float:
        return value * (1 + draw.gauss(0, 0.005))

    memory = (64 + index % 50) * MIB
    pool = memory // 2 if index % 2 else None
    values = (noisy(level), noisy(0.96 * level), noisy((0.5 if index % 3 else 0.94) * level), noisy(40 * level),
              memory, memory + 20 * MIB, pool, 10 + index % 90, 0, 0, 0, 3.0)  # fmt: skip
    return dict(zip(FACTS, values, strict=True))


def fill(store: Store, plan: list[Cell], environment_id: str, trials: int, seed: int, slower: bool) -> str:
    """One sweep. Its results are the figures of its first trial, which is what a noise threshold needs."""
    draw = random.Random(seed)
    sweep_id = store.begin_sweep(
        name=None, label=f"v{seed}", command=[], overrides=[], protocol={"name": "standard", "rounds": trials},
        baseline_mode="eager", seed=0, git_revision=None, host={}, plan=plan, rounds=trials,
    )  # fmt: skip
    rows, results = [], []
    for index, cell in enumerate(plan):
        keys = {"sweep_id": sweep_id, "cell_key": cell.key, "environment_id": environment_id, "status": "ok"}
        own = [figures(index, 1.05 if slower and index % 100 == 7 else 1.0, draw) for _ in range(trials)]
        rows += [
            {**keys, "round": number, "attempt": 0, "extra": {}, "recorded_at": now(), **values}
            for number, values in enumerate(own)
        ]
        bound = "launch" if index % 3 else "memory"
        results.append(
            {**keys, "trials": trials, "bound": bound, "compile_cold_s": 5.0, "compile_warm_s": 1.0, **own[0]}
        )
    with store._writing() as connection:
        connection.execute(sa.insert(TrialRow), rows)
        connection.execute(sa.insert(ResultRow), results)
    store.finish_sweep(sweep_id, "completed")
    return sweep_id


def make(path: Path, count: int, trials: int, earlier: int) -> None:
    environment = Environment(
        "NVIDIA H200", 150_000_000_000, "570.1", "12.8", "2.13.0", "3.5", "3.12.4", "Xeon", "Linux"
    )
    plan = cells(count)
    with Store.open(path, mode="write") as store:
        environment_id = store.add_environment(environment, {})
        sweeps = [fill(store, plan, environment_id, trials, seed, False) for seed in range(earlier + 1)]
        store.set_baseline("main", sweeps[-1])
        fill(store, plan, environment_id, trials, earlier + 1, True)


def seconds(path: Path, repeat: int, *more: str) -> tuple[float, float]:
    """Wall and processor seconds of the whole command, which fails as it should."""
    words = [sys.executable, "-m", "effbench", "check", "--baseline", "main", "--db", str(path), *more]
    least = (float("inf"), float("inf"))
    for _ in range(repeat):
        began, used = time.perf_counter(), sum(os.times()[2:4])  # of children
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "GITHUB_STEP_SUMMARY": ""})
        wall = time.perf_counter() - began
        used = sum(os.times()[2:4]) - used
        least = min(least, (wall, used))
        assert done.returncode == 1, done.stderr
    return least


def parts(path: Path) -> dict[str, float]:
    """Seconds of each step, in this process, with everything imported."""
    from effbench.comparison import compare
    from effbench.comparison.settings import read
    from effbench.comparison.sides import load, pairs_of
    from effbench.comparison.verdicts import judge
    from effbench.report import comparison
    from effbench.stats.significance import noise_threshold

    told: dict[str, float] = {}

    def timed(name: str, work: Any) -> Any:
        began = time.perf_counter()
        found = work()
        told[name] = time.perf_counter() - began
        return found

    limits = timed("configuration", read)
    with Store.open(path, mode="read") as store:
        after = timed("find the sweep", lambda: store.find_sweep("last"))
        before = store.find_sweep(store.baselines("main")[0].sweep_id)
        old, new = timed("read both sides", lambda: [load(store, one) for one in (before, after)])
        known = timed(
            "read earlier sweeps",
            lambda: store.levels(before.id, list(old.environments), after.started_at, limits.metrics),
        )
    names = timed("name the cells", lambda: compare.names_of(old, new))
    pairs = timed("match the cells", lambda: pairs_of(old, new, names))
    noise = timed("thresholds", lambda: {key: noise_threshold(levels.values()) or 0.0 for key, levels in known.items()})
    changes = timed("verdicts", lambda: judge(pairs, limits, lambda key, metric: noise.get((key, metric), 0.0)))
    timed("verdicts as rows", lambda: comparison.table_of(changes).render("csv"))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--earlier", type=int, default=30, help="sweeps before the baseline")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="also where the time goes, in this process")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for earlier in dict.fromkeys((0, args.earlier)):
            path = Path(folder) / f"{earlier}.db"
            began = time.perf_counter()
            make(path, args.cells, args.trials, earlier)
            made = time.perf_counter() - began
            print(f"{args.cells} cells x {args.trials} trials x 2 sweeps, {earlier} earlier sweeps "
                  f"({path.stat().st_size / 1e6:.0f} MB, made in {made:.1f} s)")  # fmt: skip
            for name, more in (("whole command", ()), ("with --format json", ("--format", "json"))):
                wall, used = seconds(path, args.repeat, *more)
                print(f"  {name:<21}{wall:6.2f} s, {used:.2f} s of a processor")
            for name, took in parts(path).items():
                print(f"    {name:<19}{took:6.2f} s")
            if args.profile:
                profile = cProfile.Profile()
                profile.runcall(parts, path)
                pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
