"""Measure the overhead of a trial, and whether trials of different fork servers differ.

    python benchmarks/trial_cost.py overhead [--rounds 3]
    python benchmarks/trial_cost.py servers [--servers 8] [--rounds 4]
    python benchmarks/trial_cost.py host [--rounds 20]

overhead: runs sweeps into a temporary database, and prints the harness overhead of an eager trial (wall time outside
building, preparing, checking, warming up and timing), the set-up of a compiled trial with a cold and a warm compile
cache (overhead and preparation), and the wall time of a whole command for one eager BERT cell with 1 s of timing.

servers: several fork servers run trials of the same cell (`tiny`, bs 64, eager) in random order within each round, so
that the machine's drift affects all alike. The output lists the spread of trials of one server, the spread of servers
beyond that, and the probability of such a difference by chance (one-way analysis of variance on logarithms).

host: sweeps of `mlp` in eager and compiled modes with and without the check for a disturbed host. The output lists the
median and the standard deviation between processes of the latency, and the time of each sweep.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tables
from scipy.stats import f_oneway

import effbench
from effbench.message import TrialRequest
from effbench.store import Store
from effbench.sweeping.client import ForkServer

SECOND = ["protocol.budget_s=1", "protocol.min_time_s=1"]
METRICS = ("latency_ms", "period_ms", "enqueue_ms")


def trials_of(db: str, overrides: list[str]) -> list[dict]:
    sweep = effbench.sweep([*overrides, f"db={db}"])
    with Store.open(db) as store:
        return store.trials(sweep.id)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f}–{max(values):.2f}, {len(values)} trials)"


def overhead(db: str, rounds: int) -> None:
    mlp = ["model=mlp", "bs=8", *SECOND]
    for isolation in ("fork", "spawn"):
        trials = trials_of(db, [*mlp, "mode=eager", f"protocol.rounds={rounds}", f"isolation={isolation}"])
        values = [trial["overhead_s"] for trial in trials]
        print(f"harness overhead, eager mlp bs 8, isolation={isolation}: {spread(values)}")
    trials = trials_of(db, [*mlp, "mode=default", f"protocol.rounds={rounds + 1}"])
    for state in ("cold", "warm"):
        some = [trial for trial in trials if trial["compile_cache"] == state]
        whole = spread([trial["overhead_s"] + trial["compile_s"] for trial in some])
        compiling = spread([trial["compile_s"] for trial in some])
        print(f"set-up, compiled mlp bs 8, {state} cache: {whole}, including compiling {compiling}")
    if importlib.util.find_spec("transformers") is None:
        print("one eager BERT cell: transformers is not installed")
        return
    words = ["model=bert-base", "bs=1", "mode=eager", "protocol=quick", f"db={db}", *SECOND]
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "effbench", *words], check=True, stdout=subprocess.DEVNULL)
    print(f"whole command, one eager bert-base cell with 1 s of timing: {time.perf_counter() - start:.1f} s")


def request(db: str, more: list[str]) -> dict:
    """Run a sweep of one trial, and return the request of this trial."""
    look = effbench.sweep(["model=tiny", "bs=64", "mode=eager", "protocol.rounds=1", f"db={db}", *more])
    with Store.open(db) as store:
        sweep = store.find_sweep(look.id)
        (cell,) = store.planned(look.id)
        (trial,) = store.trials(look.id)
    return TrialRequest(cell.params(), sweep.protocol, gpu_uuid=trial["gpu_uuid"]).to_json()


def analyse(groups: list[list[float]]) -> list[str]:
    """Return the SD within a group, the SD between groups beyond that, and the p-value of no difference."""
    within = statistics.fmean(statistics.variance(group) for group in groups)
    between = statistics.variance([statistics.fmean(group) for group in groups])
    beyond = max(0.0, between - within / len(groups[0]))
    return [f"{math.sqrt(within):.2%}", f"{math.sqrt(beyond):.2%}", f"{f_oneway(*groups).pvalue:.3f}"]


def compare_servers(db: str, count: int, rounds: int, more: list[str]) -> None:
    payload, order = request(db, more), random.Random(0)
    servers = [ForkServer() for _ in range(count)]
    found: dict[str, list[list[float]]] = {metric: [[] for _ in servers] for metric in METRICS}
    try:
        for server in servers:
            server.wait_ready()
        for _ in range(rounds):
            for index in order.sample(range(count), count):
                trial = servers[index].call("trial", payload, 300.0)
                for metric in METRICS:
                    if trial[metric] is not None:
                        found[metric][index].append(math.log(trial[metric]))
    finally:
        for server in servers:
            server.close()
    rows = [
        [metric, *analyse(groups)] for metric, groups in found.items() if all(len(group) == rounds for group in groups)
    ]
    print(tables.render(["metric", "SD within a server", "SD between servers", "p"], rows))


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
    print(tables.render(["host_tolerance", "mode", "median (ms)", "SD", "ok trials", "sweep (s)"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "servers", "host"])
    parser.add_argument("--servers", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, help="trials per cell (default: 3, 4 and 20)")
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "cost.db")
        if args.what == "overhead":
            overhead(db, args.rounds or 3)
        elif args.what == "host":
            compare_host_checks(db, args.rounds or 20, more)
        else:
            compare_servers(db, args.servers, args.rounds or 4, more)


if __name__ == "__main__":
    main()
