"""Where does the time of a sweep go, and what do parallel GPUs and checks
change?

    python benchmarks/sweep_time.py gpus [overrides]
    python benchmarks/sweep_time.py contexts
    python benchmarks/sweep_time.py overhead [--rounds 3] [overrides]
    python benchmarks/sweep_time.py host [--rounds 20] [overrides]
    python benchmarks/sweep_time.py matrix [--cells 1000,10000] [--repeat 3] [--against CHECKOUT]
    python benchmarks/sweep_time.py turns --against CHECKOUT [--repeat 2] [overrides]

gpus: 24 cells × 2 rounds on all GPUs, on half of them and so on to one. The output lists wall times
and the idle share of each GPU. Before, three quick cells run twice, the first time in a new
database. Overrides may replace the matrix: `gpus model=tiny bs=1 mode=eager device=cpu`
runs anywhere.

contexts: seconds until one process per GPU has its CUDA context, and until all have ended, if
another process keeps the driver initialized, as in a sweep, or none does.

overhead: the harness overhead of an eager trial of `mlp`, forked and spawned: its wall time outside
building, preparing, checking, warming up and timing.

host: sweeps of `mlp` in eager and compiled modes with and without the check for a disturbed host.
The output lists the median and the standard deviation between processes of the latency, and the
time of each sweep.

matrix: seconds until the first trial of a large matrix, and effbench's peak memory until then. A
probe module notes the time at which the first trial builds it; then the sweep is interrupted. Its
seconds count from the start of the command. `--against`: another checkout of effbench to measure in
turns, such as one of the main branch.

turns: whole sweeps of the same cells by this checkout and another, in turns (A B, B A, ...). The
output lists the seconds and trials of each sweep, and the seconds of a trial.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import resource
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch

import effbench
from effbench.core.cell import StoredTrial, Trial
from effbench.core.table import Column, Table
from effbench.run.devices import Slot, held_driver
from effbench.store import Store

MATRIX = [
    "model=tiny,mlp,attention",
    "bs=1,8",
    "mode=eager,cuda-graph,default,reduce-overhead",
    "protocol=quick",
    "protocol.rounds=2",
    "protocol.compilations=2",
]
QUICK = ["model=tiny", "bs=1", "mode=eager,default,cuda-graph", "protocol=quick"]
HERE = Path(__file__).resolve().parents[1]
FIVE_MODES = "eager,default,reduce-overhead,max-autotune,max-autotune-no-cudagraphs"
PROBE = """
import os, time, torch

class Probe(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        noted = os.environ["LARGE_MATRIX_NOTE"]
        with open(f"{noted}.draft", "w") as file:
            file.write(str(time.time()))
        os.replace(f"{noted}.draft", noted)
        time.sleep(60)
"""
MOST_S = 300.0


@dataclass
class Measured:
    """A sweep: its wall and CPU seconds, the seconds before its first trial, its results and its
    trials."""

    wall_s: float
    cpu_s: float
    first_s: float
    results: pd.DataFrame
    trials: list[StoredTrial]

    def idle(self) -> dict[str, float]:
        """Return the idle share of each device between the first trial's start and the last one's
        end."""
        starts = [began(trial) for trial in self.trials]
        whole_s = max(
            start + trial.wall_s for start, trial in zip(starts, self.trials, strict=True)
        ) - min(starts)
        busy_s: dict[str, float] = defaultdict(float)
        for trial in self.trials:
            device = "CPU" if trial.gpu_index is None else f"GPU {trial.gpu_index}"
            busy_s[device] += trial.wall_s
        return {device: 1 - seconds / whole_s for device, seconds in sorted(busy_s.items())}

    @property
    def statuses(self) -> dict[str, int]:
        return self.results["status"].value_counts().to_dict()


def began(trial: Trial) -> float:
    """Return the trial's start in seconds since 1970."""
    start = pd.Timestamp(trial.started_at)
    return (start.tz_localize(UTC) if start.tzinfo is None else start).timestamp()


def measure(db: Path, words: list[str], gpus: int | None = None) -> Measured:
    """Run a sweep in a process of its own. `gpus`: how many of this machine it uses; None: all."""
    env = dict(os.environ)
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
    start, before = datetime.now(UTC).timestamp(), clocks()
    command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}", "on_failure=ignore"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    wall_s, cpu_s = clocks() - before
    with Store.open(db) as store:
        trials = store.trials(store.find_sweep("last").id)
    return Measured(
        wall_s, cpu_s, min(map(began, trials)) - start, effbench.results(str(db)), trials
    )


def clocks() -> np.ndarray:
    """Return the wall seconds, and the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return in how many cells the latencies of two sweeps differ by less than the 95 % interval of
    their ratio."""
    joined = one.merge(other, on="cell_key", suffixes=("", "_2"))
    joined = joined[(joined["status"] == "ok") & (joined["status_2"] == "ok")]
    joined = joined.dropna(subset=["latency_ci_low_ms", "latency_ci_low_ms_2"])
    if joined.empty:
        return "no cell has intervals in both sweeps"
    ratio = np.log(joined["latency_ms_2"] / joined["latency_ms"])
    widths = [
        np.log(joined[f"latency_ci_high_ms{of}"] / joined[f"latency_ci_low_ms{of}"]) / 2
        for of in ("", "_2")
    ]
    agree = np.abs(ratio) <= np.hypot(*widths)
    return (
        f"latencies agree in {agree.sum()} of {len(joined)} cells (median ratio"
        f" {np.exp(np.median(ratio)):.3f})"
    )


def compare_gpus(folder: Path, args: argparse.Namespace, overrides: list[str]) -> None:
    given = {word.partition("=")[0] for word in overrides}
    words = [*(word for word in MATRIX if word.partition("=")[0] not in given), *overrides]
    db, quick = (
        folder / "gpus.db",
        [*QUICK, *(word for word in overrides if word.startswith("device="))],
    )
    for turn in ("first", "second"):
        print(f"three quick cells, {turn} time: {measure(db, quick).wall_s:.1f} s", flush=True)
    first = measure(db, words)
    sweeps = {len(first.idle()): first}
    while (count := min(sweeps) // 2) > 0:
        sweeps[count] = measure(db, words, count)
    for count, sweep in sweeps.items():
        idle = ", ".join(f"{device} {share:.1%}" for device, share in sweep.idle().items())
        each = np.mean([trial.wall_s for trial in sweep.trials])
        print(
            f"devices: {count}: {sweep.wall_s:.1f} s, first trial after {sweep.first_s:.1f} s;"
            f" idle: {idle}; {len(sweep.trials)} trials of {each:.2f} s on average;"
            f" {sweep.statuses}"
        )
        ratio, agrees = sweeps[1].wall_s / sweep.wall_s, agreement(sweeps[1].results, sweep.results)
        print(f"against one: {ratio:.2f} times as fast; {agrees}", flush=True)


def use(gpu: int, sender: Any) -> None:
    """Send the time at which this process has a context on a GPU, and exit."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    failed = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    sender.send(time.perf_counter() if not failed else None)
    os._exit(0)


def use_all(count: int) -> tuple[float, float]:
    """Return the seconds until processes on so many GPUs all have their contexts, and until all
    have ended."""
    fork, start = multiprocessing.get_context("fork"), time.perf_counter()
    pipes = [fork.Pipe(duplex=False) for _ in range(count)]
    processes = [
        fork.Process(target=use, args=(gpu, sender)) for gpu, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    ready = max(receiver.recv() for receiver, _ in pipes) - start
    for process in processes:
        process.join()
    return ready, time.perf_counter() - start


def compare_contexts(
    folder: Path, args: argparse.Namespace, overrides: list[str], blocks: int = 5
) -> None:
    every = torch.cuda.device_count()
    gpus = [Slot(f"GPU {index}", "cuda", visible=str(index)) for index in range(every)]
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(blocks):
        for side, driver in (("not held", nullcontext()), ("held", held_driver(gpus))):
            with driver:
                time.sleep(1)
                for count in sorted({1, every}):
                    seconds[side, count].append(use_all(count))
    for (side, count), measured in seconds.items():
        ready, ended = np.median(measured, axis=0)
        print(
            f"driver {side}, {count} at once: contexts after {ready:.2f} s, all ended after"
            f" {ended:.2f} s"
        )


def measure_overhead(folder: Path, args: argparse.Namespace, overrides: list[str]) -> None:
    cell = ["model=mlp", "bs=8", "mode=eager", "protocol.budget_s=1", "protocol.min_time_s=1"]
    cell += [f"protocol.rounds={args.rounds}"]
    for isolation in ("fork", "spawn"):
        sweep = measure(folder / "overhead.db", [*cell, f"isolation={isolation}", *overrides])
        values = [trial.overhead_s for trial in sweep.trials]
        trials = f"{min(values):.2f}–{max(values):.2f}, {len(values)} trials"
        print(f"isolation={isolation}: {median(values):.2f} s ({trials})")


def compare_host_checks(folder: Path, args: argparse.Namespace, overrides: list[str]) -> None:
    cells = [
        "model=mlp",
        "bs=8",
        "mode=eager,default,reduce-overhead",
        "protocol.budget_s=2",
        "protocol.profile=false",
    ]
    rows = []
    for tolerance in ("0.1", "null"):
        words = [
            *cells,
            f"protocol.rounds={args.rounds}",
            f"protocol.host_tolerance={tolerance}",
            *overrides,
        ]
        sweep = measure(folder / "host.db", words)
        for key, mode in zip(sweep.results["cell_key"], sweep.results["mode"], strict=True):
            of_cell = [trial for trial in sweep.trials if trial.cell_key == key]
            # without discarding, all samples give the figures, marked or not
            counted = [
                trial for trial in of_cell if tolerance == "null" or trial.disturbance is None
            ]
            values = [trial.latency_ms for trial in counted]
            deviation = f"{statistics.stdev(np.log(values)):.1%}" if len(values) > 1 else "-"
            middle = f"{median(values):.4f}" if values else "-"
            of = f"{len(values)} of {len(of_cell)}"
            rows.append([tolerance, mode, middle, deviation, of, f"{sweep.wall_s:.0f}"])
    headings = ("host_tolerance", "mode", "median (ms)", "SD", "trials that count", "sweep (s)")
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


def first_trial(checkout: Path, cells: int) -> tuple[float, float, float, float]:
    """Return the seconds until the first line of output and until the first trial, the CPU seconds
    of the orchestrator until then, and its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        home, noted = Path(folder), Path(folder) / "noted"
        (home / "probe.py").write_text(PROBE)
        sizes = cells // 50
        command = [
            sys.executable,
            "-m",
            "effbench",
            "-m",
            f"mode={FIVE_MODES}",
            f"bs=range(1,{sizes + 1})",
            "db=x.db",
            "device=cpu",
            "model=custom",
            "model.module._target_=probe.Probe",
            "model.inputs.x.shape=[16]",
            "model.module.width=" + ",".join(map(str, range(10))),
            "protocol=quick",
            "protocol.rounds=1",
        ]
        env = {**os.environ, "PYTHONPATH": f"{checkout}:{home}", "LARGE_MATRIX_NOTE": str(noted)}
        output = home / "output"
        began, spoke, peak_kib = time.time(), None, 0
        with output.open("w") as stream:
            sweep = subprocess.Popen(
                command, cwd=home, env=env, stdout=stream, stderr=subprocess.STDOUT
            )
        try:
            while not noted.exists() and sweep.poll() is None and time.time() - began < MOST_S:
                time.sleep(0.01)
                if spoke is None and output.stat().st_size:
                    spoke = time.time() - began
                status = Path(f"/proc/{sweep.pid}/status").read_text()
                peak_kib = max(
                    [
                        peak_kib,
                        *(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line),
                    ]
                )
            if not noted.exists():
                raise SystemExit(f"no trial began: {output.read_text()[-500:]}")
            ticks = Path(f"/proc/{sweep.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            first = float(noted.read_text()) - began
            return (
                spoke or first,
                first,
                sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
                peak_kib / 1024,
            )
        finally:
            sweep.send_signal(signal.SIGINT)
            sweep.wait(300)


def measure_matrices(folder: Path, args: argparse.Namespace, overrides: list[str]) -> None:
    checkouts = {"this checkout": HERE} | (
        {str(args.against): args.against.resolve()} if args.against else {}
    )
    rows = []
    for cells in map(int, args.cells.split(",")):
        runs: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in checkouts}
        for _ in range(args.repeat):
            for name, checkout in checkouts.items():
                runs[name].append(first_trial(checkout, cells))
        for name, measured in runs.items():
            spoke, first, cpu, peak = (median(values) for values in zip(*measured, strict=True))
            rows.append(
                [name, f"{cells:,}", f"{spoke:.1f}", f"{first:.1f}", f"{cpu:.1f}", f"{peak:.0f}"]
            )
    heads = ("effbench", "cells", "first output, s", "first trial, s", "CPU, s", "peak memory, MiB")
    print(Table.of([*map(Column, heads)], rows).render("markdown"))


def compare_turns(folder: Path, args: argparse.Namespace, overrides: list[str]) -> None:
    words = overrides or ["model=mlp", "bs=8", "mode=eager,default,cuda-graph", "protocol=standard"]
    checkouts = [HERE, args.against.resolve()]
    rows = []
    for turn in range(args.repeat):
        for checkout in checkouts:
            db = folder / f"{turn}-{checkouts.index(checkout)}.db"
            command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}"]
            env = {**os.environ, "PYTHONPATH": f"{checkout}:{os.environ.get('PYTHONPATH', '')}"}
            began = time.perf_counter()
            subprocess.run(command, check=True, cwd=checkout, env=env, stdout=subprocess.DEVNULL)
            wall_s = time.perf_counter() - began
            # the other checkout may have another schema: only what both have
            with sqlite3.connect(db) as connection:
                query = "SELECT count(*), avg(wall_s) FROM trial"
                trials, trial_s = connection.execute(query).fetchone()
            rows.append([str(checkout), f"{wall_s:.1f}", f"{trials}", f"{trial_s:.1f}"])
        checkouts.reverse()
    headings = ("effbench", "sweep (s)", "trials", "trial (s)")
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True, metavar="WHAT")
    compared = {
        "gpus": compare_gpus,
        "contexts": compare_contexts,
        "overhead": measure_overhead,
        "host": compare_host_checks,
        "matrix": measure_matrices,
        "turns": compare_turns,
    }
    part = {name: parts.add_parser(name) for name in compared}
    for name, function in compared.items():
        part[name].set_defaults(function=function)
    part["overhead"].add_argument(
        "--rounds", type=int, default=3, help="trials per cell (default: %(default)s)"
    )
    part["host"].add_argument(
        "--rounds", type=int, default=20, help="trials per cell (default: %(default)s)"
    )
    matrix = part["matrix"]
    matrix.add_argument("--cells", default="1000,10000", help="(default: %(default)s)")
    matrix.add_argument(
        "--repeat",
        type=int,
        default=3,
        help="runs of each, of which the median counts (default: 3)",
    )
    matrix.add_argument(
        "--against", type=Path, help="another checkout of effbench, measured in turns with this one"
    )
    turns = part["turns"]
    turns.add_argument("--against", type=Path, required=True, help="another checkout of effbench")
    turns.add_argument("--repeat", type=int, default=2, help="sweeps of each (default: 2)")
    args, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        args.function(Path(folder), args, overrides)


if __name__ == "__main__":
    main()
