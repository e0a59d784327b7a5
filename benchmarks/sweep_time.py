"""Where does the time of a sweep go, and what do parallel GPUs change?

    python benchmarks/sweep_time.py gpus [SETTING ...]
    python benchmarks/sweep_time.py contexts
    python benchmarks/sweep_time.py overhead [SETTING ...]
    python benchmarks/sweep_time.py turns --against CHECKOUT [--repeat 2] [SETTING ...]

gpus: 24 cells × 2 rounds on all GPUs, on half of them and so on to one. The output lists wall times
and the idle share of each GPU. Before, three quick cells run twice, the first time in a new
database. Settings may replace the matrix: `gpus model=tiny bs=1 mode=eager device=cpu`
runs anywhere.

contexts: seconds until one process per GPU has its CUDA context, and until all have ended, if
another process keeps the driver initialized, as in a sweep, or none does.

overhead: the harness overhead of an eager trial of `mlp`, forked and spawned: its wall time outside
building, preparing, checking, warming up and timing.

turns: whole sweeps of the same cells by this checkout and another, in turns (A B, B A, ...). The
output lists the seconds and trials of each sweep, and the seconds of a trial.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median

import numpy as np
import pandas as pd
import torch

import effbench
from effbench.core.cell import StoredTrial
from effbench.core.table import Column, Table
from effbench.run.devices import Slot, held_driver
from effbench.store import Store

HERE = Path(__file__).resolve().parents[1]
MATRIX = [
    "model=tiny,mlp,attention",
    "bs=1,8",
    "mode=eager,cuda-graph,default,reduce-overhead",
    "protocol=quick",
    "protocol.rounds=2",
    "protocol.compilations=2",
]
QUICK = ["model=tiny", "bs=1", "mode=eager,default,cuda-graph", "protocol=quick"]
OVERHEAD = [
    "model=mlp",
    "bs=8",
    "mode=eager",
    "protocol.budget_s=1",
    "protocol.min_time_s=1",
    "protocol.rounds=3",
]
TURNS = ["model=mlp", "bs=8", "mode=eager,default,cuda-graph", "protocol=standard"]
TURN_COLUMNS = [
    Column("effbench"),
    Column("sweep (s)"),
    Column("trials"),
    Column("trial (s)"),
]
#: How often contexts are made.
BLOCKS = 5


def run_sweep(
    db: Path, words: Sequence[str], folder: Path = HERE, env: Mapping[str, str] = os.environ
) -> float:
    """Run a sweep in a process of its own and return its wall seconds. `folder`: the checkout of
    effbench."""
    command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}", "on_failure=ignore"]
    path = f"{folder}:{env.get('PYTHONPATH', '')}"
    began_s = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        cwd=folder,
        env={**env, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - began_s


# --- parallel GPUs


@dataclass(frozen=True)
class MeasuredSweep:
    """A sweep: its wall seconds, the seconds before its first trial, its results and trials."""

    wall_s: float
    first_s: float
    results: pd.DataFrame
    trials: list[StoredTrial]

    @property
    def idle(self) -> dict[str, float]:
        """The idle share of each device between the first trial's start and the last one's end."""
        starts_s = [start_of(trial).timestamp() for trial in self.trials]
        ends_s = []
        busy_s: dict[str, float] = defaultdict(float)
        for trial, start_s in zip(self.trials, starts_s, strict=True):
            ends_s.append(start_s + trial.wall_s)
            busy_s[device_of(trial)] += trial.wall_s
        whole_s = max(ends_s) - min(starts_s)
        return {device: 1 - seconds / whole_s for device, seconds in sorted(busy_s.items())}

    def __str__(self) -> str:
        idle = ", ".join(f"{device} {share:.1%}" for device, share in self.idle.items())
        each_s = mean(trial.wall_s for trial in self.trials)
        statuses = self.results["status"].value_counts().to_dict()
        return (
            f"devices: {len(self.idle)}: {self.wall_s:.1f} s, first trial after"
            f" {self.first_s:.1f} s; idle: {idle}; {len(self.trials)} trials of {each_s:.2f} s on"
            f" average; {statuses}"
        )


def start_of(trial: StoredTrial) -> datetime:
    return datetime.fromisoformat(trial.started_at)


def device_of(trial: StoredTrial) -> str:
    if trial.gpu_index is None:
        return "CPU"
    return f"GPU {trial.gpu_index}"


def measure(db: Path, words: Sequence[str], gpus: int | None = None) -> MeasuredSweep:
    """Measure a sweep. `gpus`: how many of this machine it uses; None: all."""
    env = dict(os.environ)
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
    began = datetime.now(UTC)
    wall_s = run_sweep(db, words, env=env)
    with Store.open(db) as store:
        trials = store.trials(store.find_sweep("last").id)
    first = min(map(start_of, trials))
    results = effbench.results(str(db))
    return MeasuredSweep(wall_s, (first - began).total_seconds(), results, trials)


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return in how many cells the latencies of two sweeps differ by less than the 95 % interval of
    their ratio."""
    one_logs, other_logs = log_latencies(one), log_latencies(other)
    both = one_logs.index.intersection(other_logs.index)
    if both.empty:
        return "no cell has intervals in both sweeps"
    one_logs, other_logs = one_logs.loc[both], other_logs.loc[both]
    ratio = other_logs["latency_ms"] - one_logs["latency_ms"]
    agree = ratio.abs() <= np.hypot(half_width(one_logs), half_width(other_logs))
    return (
        f"latencies agree in {agree.sum()} of {len(both)} cells (median ratio"
        f" {np.exp(ratio.median()):.3f})"
    )


def log_latencies(results: pd.DataFrame) -> pd.DataFrame:
    """Return the logarithms of latencies and their bounds by cell, of those that have bounds."""
    columns = ["latency_ms", "latency_ci_low_ms", "latency_ci_high_ms"]
    ok = results[results["status"] == "ok"].set_index("cell_key")
    return np.log(ok[columns].dropna())


def half_width(logs: pd.DataFrame) -> pd.Series:
    return (logs["latency_ci_high_ms"] - logs["latency_ci_low_ms"]) / 2


def compare_gpus(folder: Path, settings: Sequence[str]) -> None:
    db = folder / "gpus.db"
    devices = [word for word in settings if word.startswith("device=")]
    for turn in ("first", "second"):
        wall_s = run_sweep(db, [*QUICK, *devices])
        print(f"three quick cells, {turn} time: {wall_s:.1f} s", flush=True)
    words = [*MATRIX, *settings]
    sweeps = [measure(db, words)]
    gpus = len(sweeps[0].idle) // 2
    while gpus > 0:
        sweeps.append(measure(db, words, gpus))
        gpus //= 2
    on_one = sweeps[-1]
    for sweep in sweeps:
        print(sweep)
        agrees = agreement(on_one.results, sweep.results)
        print(f"against one: {on_one.wall_s / sweep.wall_s:.2f} times as fast; {agrees}")


# --- CUDA contexts


def make_context(gpu: int, sender: Connection) -> None:
    """Send the time at which this process has a context on a GPU, and exit."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    has_failed = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if not has_failed:
        sender.send(time.perf_counter())
    os._exit(0)


@dataclass(frozen=True)
class Contexts:
    """Seconds until processes on several GPUs all have their contexts, and until all have ended."""

    ready_s: float
    ended_s: float

    @classmethod
    def make(cls, gpus: int) -> Contexts:
        fork = get_context("fork")
        receivers, processes = [], []
        began_s = time.perf_counter()
        for gpu in range(gpus):
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=make_context, args=(gpu, sender))
            process.start()
            sender.close()
            receivers.append(receiver)
            processes.append(process)
        ready_s = max(receiver.recv() for receiver in receivers) - began_s
        for process in processes:
            process.join()
        return cls(ready_s, time.perf_counter() - began_s)


def compare_contexts() -> None:
    every = torch.cuda.device_count()
    slots = [Slot(f"GPU {index}", "cuda", visible=str(index)) for index in range(every)]
    held_slots = {"not held": [], "held": slots}
    counts = sorted({1, every})
    made: dict[str, list[Contexts]] = defaultdict(list)
    for _, side, count in product(range(BLOCKS), held_slots, counts):
        with held_driver(held_slots[side]):
            time.sleep(1)
            contexts = Contexts.make(count)
        made[f"driver {side}, {count} at once"].append(contexts)
    for name, blocks in made.items():
        ready_s = median(contexts.ready_s for contexts in blocks)
        ended_s = median(contexts.ended_s for contexts in blocks)
        print(f"{name}: contexts after {ready_s:.2f} s, all ended after {ended_s:.2f} s")


# --- overhead


def measure_overhead(folder: Path, settings: Sequence[str]) -> None:
    for isolation in ("fork", "spawn"):
        words = [*OVERHEAD, f"isolation={isolation}", *settings]
        sweep = measure(folder / "overhead.db", words)
        seconds = [trial.overhead_s for trial in sweep.trials]
        span = f"{min(seconds):.2f}–{max(seconds):.2f}"
        trials = f"{len(seconds)} trials"
        print(f"isolation={isolation}: {median(seconds):.2f} s ({span}, {trials})")


# --- two checkouts


def compare_turns(folder: Path, against: Path, repeat: int, settings: Sequence[str]) -> None:
    checkouts = [HERE, against.resolve()]
    rows = []
    for _ in range(repeat):
        for checkout in checkouts:
            db = folder / f"{len(rows)}.db"
            wall_s = run_sweep(db, settings or TURNS, checkout)
            # the other checkout may have another schema: only what both have
            with sqlite3.connect(db) as connection:
                query = "SELECT count(*), avg(wall_s) FROM trial"
                trials, trial_s = connection.execute(query).fetchone()
            rows.append([checkout, f"{wall_s:.1f}", trials, f"{trial_s:.1f}"])
        checkouts.reverse()
    print(Table.of(TURN_COLUMNS, rows).render("markdown"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True, metavar="WHAT", dest="what")
    parts.add_parser("contexts")
    turns = parts.add_parser("turns")
    turns.add_argument("--against", type=Path, required=True, help="another checkout of effbench")
    turns.add_argument("--repeat", type=int, default=2, help="sweeps of each (default: 2)")
    for part in (parts.add_parser("gpus"), parts.add_parser("overhead"), turns):
        part.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="effbench-") as name:
        folder = Path(name)
        if args.what == "gpus":
            compare_gpus(folder, args.settings)
        elif args.what == "contexts":
            compare_contexts()
        elif args.what == "overhead":
            measure_overhead(folder, args.settings)
        else:
            compare_turns(folder, args.against, args.repeat, args.settings)


if __name__ == "__main__":
    main()
