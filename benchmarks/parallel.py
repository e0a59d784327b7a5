"""Time the same sweep with more and with fewer trials at a time, and compare the latencies.

    python benchmarks/parallel.py gpus [overrides]
    python benchmarks/parallel.py ahead [--cells 40] [overrides]
    python benchmarks/parallel.py contexts

gpus: 24 cells × 2 rounds on all GPUs, on half of them and so on to one. The output lists wall times and the idle share
of each GPU. Before, three quick cells run twice, the second time with known ceilings of the GPU. Overrides may replace
the matrix: `gpus model=tiny bs=1 mode=eager device=cpu` runs anywhere.

ahead: compiled cells with and without `executor.ahead`. Blocks of twenty cells run alternately with and without it, so
that the machine's drift affects both alike. The output lists wall and CPU seconds, cold compilations, and on a GPU the
cells whose trials ran other kernels or launch shapes.

contexts: seconds until one process per GPU has its CUDA context, and until all have ended, if another process keeps the
driver initialized, as in a sweep, or none does.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import effbench
from effbench.store import Store
from effbench.sweeping.devices import Slot, held_driver

#: Without further attempts, all sweeps have the same number of trials.
MATRIX = [
    "model=tiny,mlp,attention", "bs=1,8", "mode=eager,cuda-graph,default,reduce-overhead", "protocol=quick",
    "protocol.rounds=2", "protocol.compilations=2", "protocol.attempts=1",
]  # fmt: skip
QUICK = ["model=tiny", "bs=1", "mode=eager,default,cuda-graph", "protocol=quick"]
COMPILED = [
    "model=tiny", "mode=default", "protocol.rounds=2", "protocol.compilations=2", "protocol.budget_s=0.2",
    "protocol.min_time_s=0.1", "protocol.warmup_s=0.05", "protocol.load_s=0", "protocol.host_tolerance=0.25",
    "executor.keep_cache=true",
]  # fmt: skip
BLOCK = 20
#: Name -> executor.ahead.
SIDES = {"ahead": 6, "one-by-one": 0}


@dataclass
class Measured:
    """A sweep: its wall and CPU seconds, the seconds before its first trial, its results and its trials."""

    wall_s: float
    cpu_s: float
    first_s: float
    results: pd.DataFrame
    trials: list[dict[str, Any]]

    def idle(self) -> dict[str, float]:
        """Return the idle share of each device between the first trial's start and the last one's end."""
        starts = [began(trial) for trial in self.trials]
        whole_s = max(start + trial["wall_s"] for start, trial in zip(starts, self.trials, strict=True)) - min(starts)
        busy_s: dict[str, float] = defaultdict(float)
        for trial in self.trials:
            busy_s["CPU" if trial["gpu_index"] is None else f"GPU {trial['gpu_index']}"] += trial["wall_s"]
        return {device: 1 - seconds / whole_s for device, seconds in sorted(busy_s.items())}

    @property
    def statuses(self) -> dict[str, int]:
        return self.results["status"].value_counts().to_dict()


def began(trial: dict[str, Any]) -> float:
    """Return the trial's start in seconds since 1970."""
    start = pd.Timestamp(trial["started_at"])
    return (start.tz_localize(UTC) if start.tzinfo is None else start).timestamp()


def measure(db: Path, words: list[str]) -> Measured:
    """Run a sweep in a process of its own."""
    start, before = datetime.now(UTC).timestamp(), clocks()
    command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}", "on_failure=ignore"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall_s, cpu_s = clocks() - before
    with Store.open(db) as store:
        trials = store.trials(store.find_sweep("last").id)
    return Measured(wall_s, cpu_s, min(map(began, trials)) - start, effbench.results(str(db)), trials)


def clocks() -> np.ndarray:
    """Return the wall seconds, and the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), used.ru_utime + used.ru_stime])


def agreement(one: pd.DataFrame, other: pd.DataFrame) -> str:
    """Return in how many cells the latencies of two sweeps differ by less than the 95 % interval of their ratio."""
    joined = one.merge(other, on="cell_key", suffixes=("", "_2"))
    joined = joined[(joined["status"] == "ok") & (joined["status_2"] == "ok")]
    joined = joined.dropna(subset=["latency_ci_low_ms", "latency_ci_low_ms_2"])
    if joined.empty:
        return "no cell has intervals in both sweeps"
    ratio = np.log(joined["latency_ms_2"] / joined["latency_ms"])
    widths = [np.log(joined[f"latency_ci_high_ms{of}"] / joined[f"latency_ci_low_ms{of}"]) / 2 for of in ("", "_2")]
    agree = np.abs(ratio) <= np.hypot(*widths)
    return f"latencies agree in {agree.sum()} of {len(joined)} cells (median ratio {np.exp(np.median(ratio)):.3f})"


def compare_gpus(folder: Path, overrides: list[str]) -> None:
    given = {word.partition("=")[0] for word in overrides}
    words = [*(word for word in MATRIX if word.partition("=")[0] not in given), *overrides]
    db, quick = folder / "gpus.db", [*QUICK, *(word for word in overrides if word.startswith("device="))]
    for ceilings in ("unknown", "known"):
        print(f"three quick cells, ceilings {ceilings}: {measure(db, quick).wall_s:.1f} s", flush=True)
    first = measure(db, words)
    sweeps = {len(first.idle()): first}
    while (count := min(sweeps) // 2) > 0:
        sweeps[count] = measure(db, [*words, f"executor.gpus=[{','.join(map(str, range(count)))}]"])
    for count, sweep in sweeps.items():
        idle = ", ".join(f"{device} {share:.1%}" for device, share in sweep.idle().items())
        again = sum(trial["attempt"] > 0 for trial in sweep.trials)
        each = np.mean([trial["wall_s"] for trial in sweep.trials])
        print(
            f"devices: {count}: {sweep.wall_s:.1f} s, first trial after {sweep.first_s:.1f} s; idle: {idle}; "
            f"{len(sweep.trials)} trials of {each:.2f} s on average, {again} of them repeated; {sweep.statuses}"
        )
        ratio, agrees = sweeps[1].wall_s / sweep.wall_s, agreement(sweeps[1].results, sweep.results)
        print(f"against one: {ratio:.2f} times as fast; {agrees}", flush=True)


def compare_ahead(folder: Path, cells: int, overrides: list[str]) -> None:
    sizes, parts = range(1, cells + 1), defaultdict(list)
    for block in range(0, cells, BLOCK):
        matrix = f"bs={','.join(map(str, sizes[block : block + BLOCK]))}"
        for side in list(SIDES)[:: -1 if block % (2 * BLOCK) else 1]:
            words = [matrix, f"executor.ahead={SIDES[side]}", f"executor.cache_dir={folder / side}-{block}"]
            parts[side].append(measure(folder / "ahead.db", [*COMPILED, *words, *overrides]))
            print(f"{matrix}, {side}: {parts[side][-1].wall_s:.0f} s wall", flush=True)
    whole = {
        side: Measured(
            sum(part.wall_s for part in done), sum(part.cpu_s for part in done), done[0].first_s,
            pd.concat(part.results for part in done), [trial for part in done for trial in part.trials],
        )
        for side, done in parts.items()
    }  # fmt: skip
    for side, sweep in whole.items():
        cold, kernels = sum(trial["compile_cache"] == "cold" for trial in sweep.trials), defaultdict(set)
        for trial in sweep.trials:
            kernels[trial["cell_key"]].add(trial["kernel_fingerprint"])
        other = sum(len(fingerprints) > 1 for fingerprints in kernels.values())
        print(
            f"{side}: {sweep.wall_s:.0f} s wall, {sweep.cpu_s:.0f} s CPU; {cold} cold compilations; "
            f"{sweep.statuses}; other kernels in {other} of {len(kernels)} cells"
        )
    ahead, plain = whole.values()
    wall, cpu = 1 - ahead.wall_s / plain.wall_s, 1 - ahead.cpu_s / plain.cpu_s
    print(f"compiling ahead saves {wall:.0%} of the wall time and {cpu:.0%} of the CPU time")
    print(agreement(ahead.results, plain.results))


def use(gpu: int, sender: Any) -> None:
    """Send the time at which this process has a context on a GPU, and exit."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    failed = driver.cuInit(0) or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    sender.send(time.perf_counter() if not failed else None)
    os._exit(0)


def use_all(count: int) -> tuple[float, float]:
    """Return the seconds until processes on so many GPUs all have their contexts, and until all have ended."""
    fork, start = multiprocessing.get_context("fork"), time.perf_counter()
    pipes = [fork.Pipe(duplex=False) for _ in range(count)]
    processes = [fork.Process(target=use, args=(gpu, sender)) for gpu, (_, sender) in enumerate(pipes)]
    for process in processes:
        process.start()
    ready = max(receiver.recv() for receiver, _ in pipes) - start
    for process in processes:
        process.join()
    return ready, time.perf_counter() - start


def compare_contexts(blocks: int = 5) -> None:
    every = torch.cuda.device_count()
    gpus = [Slot(f"GPU {index}", "cuda", {"visible": str(index)}) for index in range(every)]
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(blocks):
        for side, driver in (("not held", nullcontext()), ("held", held_driver(gpus))):
            with driver:
                time.sleep(1)
                for count in sorted({1, every}):
                    seconds[side, count].append(use_all(count))
    for (side, count), measured in seconds.items():
        ready, ended = np.median(measured, axis=0)
        print(f"driver {side}, {count} at once: contexts after {ready:.2f} s, all ended after {ended:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["gpus", "ahead", "contexts"])
    parser.add_argument("--cells", type=int, default=40, help="cells of `ahead` (default: %(default)s)")
    arguments, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        if arguments.what == "gpus":
            compare_gpus(Path(folder), overrides)
        elif arguments.what == "contexts":
            compare_contexts()
        else:
            compare_ahead(Path(folder), arguments.cells, overrides)


if __name__ == "__main__":
    main()
