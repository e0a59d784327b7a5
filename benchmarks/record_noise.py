"""Record the noise of real sweeps for `detection.py`, in a file small enough to commit.

    python benchmarks/record_noise.py --db FILE [FILE …] --out results/reference/noise-h200.jsonl

Reads sweeps that ran the same cells many times (`effbench -m … sweep.name=repeatability db=FILE`;
or, under one of the other NAMES, one sweep of a model with injected delays `model.module.us`).
Writes a line per trial: the database (`a`, `b`, …; each of one version of the code), sweep and
round, the cell, its status, its figures, and 60 means of equally many consecutive latencies, in the
order measured, like a tool that repeats a call for some milliseconds per value. A sweep that is in
two databases is written once.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from effbench.core.cell import Trial
from effbench.store import Store

FORMAT = 1
NAMES = ("repeatability", "injected-gpu", "injected-host", "detection-gpu", "detection-host")
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "energy_mj", "peak_allocated_bytes", "kernels")
VALUES = 60
#: A cell is launch-bound if the GPU is idle for more than this fraction of its period.
IDLE = 0.25


def header(databases: list[str]) -> dict[str, Any]:
    """Return the recording's header: its format, and the machine of each database."""
    environments = {}
    for tag, file in zip(tags(databases), databases, strict=True):
        with Store.open(file) as store:
            used = {
                trial.environment_id for sweep in store.sweeps() for trial in store.trials(sweep.id)
            }
            found = store.environments(used)
        environments[tag] = {
            key: getattr(found[0], key) for key in ("gpu_name", "torch_version", "driver_version")
        }
    return {"format": FORMAT, "values": VALUES, "environments": environments}


def tags(databases: list[str]) -> list[str]:
    return [chr(ord("a") + index) for index in range(len(databases))]


def lines(databases: list[str]) -> Iterator[dict[str, Any]]:
    """Yield one record per trial, ordered by database, sweep and time."""
    seen: set[str] = set()
    for tag, file in zip(tags(databases), databases, strict=True):
        with Store.open(file) as store:
            number = 0
            for sweep in sorted(store.sweeps(), key=lambda sweep: sweep.started_at):
                if sweep.name not in NAMES or sweep.id in seen:
                    continue
                seen.add(sweep.id)
                yield from of_sweep(store, sweep.id, {"db": tag, "sweep": number})
                number += 1


def of_sweep(store: Store, sweep_id: str, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cells = {cell.key: cell for cell in store.planned(sweep_id)}
    trials = sorted(store.trials(sweep_id), key=lambda trial: trial.id)
    delays = {
        key: float(cell.model["module"]["us"])
        for key, cell in cells.items()
        if "us" in cell.model["module"]
    }
    idle = {key: idle_fraction([t for t in trials if t.cell_key == key]) for key in cells}
    least = min((value for value in idle.values() if value is not None), default=None)
    for trial in trials:
        key = trial.cell_key
        # variants of an injected delay are one cell, whose kind follows from the undelayed variant,
        # which idles least
        share = least if delays else idle[key]
        record = {
            **place,
            "round": trial.round,
            "attempt": trial.attempt,
            "cell": f"{cells[key].model['name']} bs={cells[key].bs} {cells[key].mode['name']}",
            "kind": None if share is None else "launch-bound" if share > IDLE else "GPU-bound",
            "status": trial.status,
            "marked": trial.disturbance is not None,
            "foreign": trial.foreign_processes,
        }
        if delays:
            record["delay_us"] = delays[key]
        record |= {
            name: rounded(value)
            for name, value in vars(trial).items()
            if name in FIGURES and value is not None
        }
        if trial.latency_ms is not None:
            record["latencies_ms"] = [
                rounded(value, 5) for value in means(store.samples(trial.id)["latency_ms"])
            ]
        yield record


def idle_fraction(trials: list[Trial]) -> float | None:
    """Return the median fraction of the period in which no kernel runs."""
    shares = [
        1 - trial.gpu_busy_ms / trial.period_ms
        for trial in trials
        if trial.gpu_busy_ms and trial.period_ms
    ]
    return statistics.median(shares) if shares else None


def means(samples: np.ndarray) -> list[float]:
    """Return at most VALUES means of consecutive samples (n,), each over nearly the same number."""
    return [
        float(part.mean())
        for part in np.array_split(samples.astype(float), min(VALUES, len(samples)))
    ]


def rounded(value: float, digits: int = 6) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--db",
        nargs="+",
        required=True,
        help="databases of sweeps, each of one version of the code",
    )
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    with args.out.open("w", encoding="utf-8") as file:
        for record in (header(args.db), *lines(args.db)):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
