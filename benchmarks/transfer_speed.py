"""Seconds and memory that whole sweeps take from one database to another.

    python benchmarks/transfer_speed.py [--sweeps 100] [--cells 100] [--rounds 10] [--samples 100] [--only jsonl]

The database is filled by SQL, with trials as a GPU leaves them (all timers, samples, JSON beside the columns); every
command then runs as a user runs it, in a process of its own, whose peak memory is what the system says of it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from effbench.cell import Cell, Environment, Status, Trial
from effbench.store import Store, samples
from effbench.store.schema import SampleRow, TrialRow
from effbench.store.values import trial_row

MODES = ("eager", "default", "reduce-overhead", "cuda-graph", "compile+graph")
TIMERS = ("latency_ms", "period_ms", "warmup_ms")
EXTRA = {"graph_break_reasons": [f"reason {i}" for i in range(5)], "kernels": {f"kernel_{i}": i for i in range(20)}}


def fill(path: Path, sweeps: int, cells: int, rounds: int, count: int) -> None:
    """A database of `sweeps` × `cells` × `rounds` trials, each with `count` samples a timer."""
    plan = [
        Cell(
            {"name": f"model{i // 20}", "module": {"_target_": "x.Y"}, "inputs": []},
            2 ** (i // 5 % 4),
            {"name": MODES[i % 5], "_target_": "x.M"},
            "bfloat16",
            "inference",
            "cuda",
        )
        for i in range(cells)
    ]
    noise = np.random.default_rng(0)
    facts = {"wall_s": 1.5, "steady": True, "kernels": 12, "gpu_busy_ms": 0.4, "peak_reserved_bytes": 2**30}
    with Store.open(path, mode="write") as store:
        environment = store.add_environment(
            Environment("NVIDIA H200", 1, "1", "13", "2.13", "3.6", "3.12", "CPU", "Linux"), details={}
        )
        for number in range(sweeps):
            sweep_id = store.begin_sweep(
                name="nightly",
                label=f"v{number}",
                command=[],
                overrides=[],
                protocol={"name": "standard", "rounds": rounds},
                baseline_mode="eager",
                seed=number,
                git_revision=None,
                host={},
                plan=plan,
                rounds=rounds,
            )
            with store._writing() as connection:
                for turn in range(rounds):
                    for cell in plan:
                        taken = noise.lognormal(0, 0.01, count)
                        trial = Trial(
                            cell.key,
                            turn,
                            Status.OK,
                            started_at="2026-11-21T12:00:00",
                            latency_ms=float(np.median(taken)),
                            latency_min_ms=float(taken.min()),
                            latency_samples=count,
                            period_ms=float(np.mean(taken)),
                            extra=EXTRA,
                            **facts,
                        )
                        row = {"sweep_id": sweep_id, "environment_id": environment, **trial_row(trial)}
                        trial_id = connection.execute(sa.insert(TrialRow).values(**row)).inserted_primary_key[0]
                        stored, data = samples.encode(taken)
                        blob = {"count": count, "stored": stored, "codec": samples.CODEC, "data": data}
                        connection.execute(
                            sa.insert(SampleRow), [{"trial_id": trial_id, "timer": timer, **blob} for timer in TIMERS]
                        )
            store.rebuild_results(sweep_id)
            store.finish_sweep(sweep_id, "completed")


#: ru_maxrss would hold the memory of whoever started the process
MEASURED = """import sys; from effbench import cli; code = cli.run(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)"""


def run(*args: str) -> tuple[float, float]:
    """Seconds and peak MiB of a command."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"effbench {' '.join(args)}: {done.stderr}")
    return seconds, int(done.stderr.split()[-1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sweeps", 100), ("cells", 100), ("rounds", 10), ("samples", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["jsonl", "parquet", "database"], action="append")
    given = parser.parse_args()
    carriers = given.only or ["jsonl", "parquet", "database"]
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        db = str(here / "from.db")
        began = time.perf_counter()
        fill(Path(db), given.sweeps, given.cells, given.rounds, given.samples)
        trials = given.sweeps * given.cells * given.rounds
        size = Path(db).stat().st_size / 2**20
        took = time.perf_counter() - began
        print(f"{trials} trials in {given.sweeps} sweeps, {size:.0f} MiB; made in {took:.0f} s\n")
        print("| what | seconds | peak MiB |\n| --- | ---: | ---: |")

        def report(what: str, *args: str) -> None:
            seconds, peak = run(*args)
            print(f"| {what} | {seconds:.1f} | {peak:.0f} |", flush=True)

        report("`effbench --version`", "--version")
        for carrier in carriers:
            into = str(here / f"{carrier}.db")
            if carrier == "database":
                report("export --to another database", "export", "--db", db, "--to", into)
            else:
                out = str(here / ("sweeps.jsonl" if carrier == "jsonl" else "sweeps/"))
                report(f"export {carrier}", "export", "--db", db, "--whole", "--out", out)
                report(f"import {carrier}", "import", out, "--db", into)
                report(f"import {carrier} again", "import", out, "--db", into)


if __name__ == "__main__":
    main()
