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
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from effbench.core.cell import Cell, StoredTrial
from effbench.core.labels import grouped
from effbench.store import Store

FORMAT = 1
NAMES = ("repeatability", "injected-gpu", "injected-host", "detection-gpu", "detection-host")
FIGURES = ("latency_ms", "period_ms", "gpu_busy_ms", "kernels", "peak_allocated_bytes", "energy_mj")
MACHINE = ("gpu_name", "torch_version", "driver_version")
VALUES = 60
#: A cell is launch-bound if the GPU is idle for more than this fraction of its period.
IDLE = 0.25

#: A line of the recording.
Record = dict[str, Any]


@dataclass(frozen=True)
class NoiseSweep:
    """A sweep to record. `database`: its letter; `number`: of the sweep in the database; `cells`:
    by key; `trials`: in the order of time."""

    database: str
    number: int
    cells: dict[str, Cell]
    trials: list[StoredTrial]

    @classmethod
    def read(cls, store: Store, sweep_id: str, database: str, number: int) -> Self:
        cells = {cell.key: cell for cell in store.planned(sweep_id)}
        trials = sorted(store.trials(sweep_id), key=lambda trial: trial.id)
        return cls(database, number, cells, trials)

    @property
    def has_delays(self) -> bool:
        return any("us" in cell.model["module"] for cell in self.cells.values())

    def kinds(self) -> dict[str, str | None]:
        """Return key -> whether the cell is launch-bound or GPU-bound; None without a GPU."""
        of_cells = grouped(self.trials, lambda trial: trial.cell_key)
        idle = {key: idle_fraction(trials) for key, trials in of_cells.items()}
        if self.has_delays:
            # its cells are variants of one cell, whose kind follows from the undelayed variant,
            # which idles least
            known = [fraction for fraction in idle.values() if fraction is not None]
            idle = dict.fromkeys(idle, min(known, default=None))
        return {key: kind_of(fraction) for key, fraction in idle.items()}

    def records(self, store: Store) -> Iterator[Record]:
        """Yield one record per trial."""
        kinds = self.kinds()
        for trial in self.trials:
            cell = self.cells[trial.cell_key]
            record = {
                "db": self.database,
                "sweep": self.number,
                "round": trial.round,
                "attempt": trial.attempt,
                "cell": f"{cell.model['name']} bs={cell.bs} {cell.mode['name']}",
                "kind": kinds[cell.key],
                "status": trial.status,
                "marked": trial.disturbance is not None,
                "foreign": trial.foreign_processes,
            }
            if self.has_delays:
                record["delay_us"] = float(cell.model["module"]["us"])
            yield record | figures_of(trial) | latencies_of(store, trial)


def idle_fraction(trials: Sequence[StoredTrial]) -> float | None:
    """Return the median fraction of the period in which no kernel runs; None without a GPU."""
    fractions = []
    for trial in trials:
        if trial.gpu_busy_ms and trial.period_ms:
            fractions.append(1 - trial.gpu_busy_ms / trial.period_ms)
    if not fractions:
        return None
    return statistics.median(fractions)


def kind_of(idle: float | None) -> str | None:
    if idle is None:
        return None
    if idle > IDLE:
        return "launch-bound"
    return "GPU-bound"


def figures_of(trial: StoredTrial) -> Record:
    figures = {}
    for name in FIGURES:
        value = getattr(trial, name)
        if value is not None:
            figures[name] = rounded(value)
    return figures


def latencies_of(store: Store, trial: StoredTrial) -> Record:
    """Return at most VALUES means of consecutive latencies, each over nearly the same number."""
    if trial.latency_ms is None:
        return {}
    samples_ms = store.samples(trial.id)["latency_ms"].astype(float)
    parts = np.array_split(samples_ms, min(VALUES, len(samples_ms)))
    return {"latencies_ms": [rounded(float(part.mean()), 5) for part in parts]}


def rounded(value: float, digits: int = 6) -> float | int:
    if isinstance(value, int):
        return value
    return float(f"{value:.{digits}g}")


def records(files: Sequence[str]) -> Iterator[Record]:
    """Yield the header, with the machine of each database, then one record per trial, ordered by
    database, sweep and time."""
    databases = dict(zip(string.ascii_lowercase, files, strict=False))
    environments = {letter: machine_of(file) for letter, file in databases.items()}
    yield {"format": FORMAT, "values": VALUES, "environments": environments}
    seen: set[str] = set()
    for letter, file in databases.items():
        with Store.open(file) as store:
            sweeps = [sweep for sweep in store.sweeps() if sweep.name in NAMES]
            new = [sweep for sweep in sweeps if sweep.id not in seen]
            new.sort(key=lambda sweep: sweep.started_at)
            for number, sweep in enumerate(new):
                yield from NoiseSweep.read(store, sweep.id, letter, number).records(store)
            seen.update(sweep.id for sweep in new)


def machine_of(file: str) -> dict[str, str | None]:
    """Return the machine of a database."""
    with Store.open(file) as store:
        newest = store.sweeps()[0]
        environment = store.environments_of(newest.id)[0]
    return {name: getattr(environment, name) for name in MACHINE}


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
        for record in records(args.db):
            file.write(json.dumps(record, separators=(",", ":")) + "\n")
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
