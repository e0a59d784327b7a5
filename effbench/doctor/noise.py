"""How far the processes of one and the same cell lie apart here: A against A.

Ordinary sweeps through the public API; what their trials say of a kind of cell becomes the smallest slowdown that a
standard sweep can show on this machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import effbench
from effbench.analysis.row_labels import cell_names
from effbench.analysis.statistics import geometric_mean, speedup
from effbench.analysis.verdicts import smallest_slowdown
from effbench.cell import Cell, Status
from effbench.store.store import Store

NAME = "calibration"
ROUNDS = 10
#: Trials a side of what is said about a standard sweep.
STANDARD_TRIALS = 5
#: Least trials of a cell: two odd rounds and two even ones.
LEAST_TRIALS = 4
#: A look of seconds, for tests: its figures are no better than its samples.
QUICK = ("protocol.rounds=4", "protocol.budget_s=0.2", "protocol.min_time_s=0.02", "protocol.warmup_s=0.02")
KINDS = ("launch_bound", "gpu_bound")
METRICS = {"launch_bound": "latency_ms", "gpu_bound": "period_ms"}


@dataclass(frozen=True)
class Part:
    """One sweep. A matrix sets each of its cells the same way, hence two sweeps for the GPU-bound ones."""

    kind: str
    overrides: tuple[str, ...]


ON_GPU = (
    Part("launch_bound", ("model=mlp,attention", "bs=1", "mode=eager")),
    Part("gpu_bound", ("model=lin3", "bs=512", "mode=cuda-graph")),
    Part("gpu_bound", ("model=mlp", "model.module.width=4096", "bs=2048", "mode=cuda-graph")),
)
#: Without a GPU nothing is bound by one.
ON_CPU = (Part("launch_bound", ("model=tiny", "bs=1,64", "mode=eager")),)


@dataclass(frozen=True)
class CellNoise:
    """One cell. `sd`: standard deviation of the logarithms of its processes' medians of `metric`; `ratio`: odd rounds ÷
    even rounds of the very same cell, with its 95 % interval. All None under LEAST_TRIALS `ok` trials."""

    cell: str
    metric: str
    sweep_id: str
    statuses: dict[str, int]
    trials: int
    median_ms: float | None = None
    sd: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    reason: str | None = None  # of the last trial that is not `ok`

    @property
    def is_known(self) -> bool:
        return self.sd is not None


class Interrupted(Exception):
    """Ctrl-C during the sweep with this id."""


def measure(db: str, on_gpu: bool, quick: bool = False, quiet: bool = True) -> tuple[dict[str, Any], list[CellNoise]]:
    """Run the sweeps and judge them: the noise in the form that the store keeps, and every cell.

    The form is {"protocol", "trials", "rounds", "device", "sweep_id", "sweep_ids", "launch_bound", "gpu_bound"}, each
    kind {"sd", "smallest_slowdown", "cells"}, or None where no cell of it gave enough trials. Raises Interrupted, and
    EffbenchError as `effbench.sweep` does.
    """
    sweeps: list[tuple[str, str]] = []
    for part in ON_GPU if on_gpu else ON_CPU:
        sweep = effbench.sweep([*part.overrides, *settings(db, quick)], quiet=quiet)
        if sweep.state != "completed":
            raise Interrupted(sweep.id)
        sweeps.append((part.kind, sweep.id))
    found: dict[str, list[CellNoise]] = {kind: [] for kind in KINDS}
    with Store.open(db, mode="read") as store:
        names = cell_names(cell for _, sweep_id in sweeps for cell in store.planned(sweep_id))
        for kind, sweep_id in sweeps:
            metric = METRICS[kind]
            trials = store.trials(sweep_id)
            found[kind] += [cell_noise(cell, names, trials, metric, sweep_id) for cell in store.planned(sweep_id)]
    noise = {
        "protocol": "quick" if quick else "standard",
        "trials": STANDARD_TRIALS,
        "rounds": LEAST_TRIALS if quick else ROUNDS,
        "device": "cuda" if on_gpu else "cpu",
        "sweep_id": sweeps[0][1],
        "sweep_ids": [sweep_id for _, sweep_id in sweeps],
        **{kind: kind_noise(cells) for kind, cells in found.items()},
    }
    return noise, [cell for cells in found.values() for cell in cells]


def settings(db: str, quick: bool) -> list[str]:
    """Overrides that all the sweeps share."""
    quoted = db.replace("\\", "\\\\").replace('"', '\\"')  # a URL may hold `=` and `,`
    rounds = QUICK if quick else (f"protocol.rounds={ROUNDS}",)
    return [f"sweep.name={NAME}", "protocol=standard", *rounds, f'db="{quoted}"']


def cell_noise(
    cell: Cell, names: dict[str, str], trials: Sequence[dict[str, Any]], metric: str, sweep_id: str
) -> CellNoise:
    """`trials`: rows of the sweep in the order they were recorded."""
    last = {row["round"]: row for row in trials if row["cell_key"] == cell.key}  # the last attempt of each round
    statuses: dict[str, int] = {}
    for row in last.values():
        statuses[str(row["status"])] = statuses.get(str(row["status"]), 0) + 1
    values = {
        round: row[metric] for round, row in last.items() if row["status"] == Status.OK and row[metric] is not None
    }
    odd, even = ([value for round, value in sorted(values.items()) if round % 2 == rest] for rest in (0, 1))
    reason = next((row["reason"] for row in reversed(last.values()) if row["status"] != Status.OK), None)
    known = {"cell": names[cell.key], "metric": metric, "sweep_id": sweep_id, "statuses": statuses, "reason": reason}
    if min(len(odd), len(even)) < LEAST_TRIALS // 2:
        return CellNoise(**known, trials=len(values))
    ratio = speedup(odd, even)
    return CellNoise(
        **known,
        trials=len(values),
        median_ms=geometric_mean(values.values()).value,
        sd=statistics.stdev(map(math.log, values.values())),
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
    )


def kind_noise(cells: Sequence[CellNoise]) -> dict[str, Any] | None:
    """By its noisiest cell: what holds for that holds for the others."""
    known = [cell.sd for cell in cells if cell.sd is not None]
    if not known:
        return None
    sd = max(known)
    return {
        "sd": sd,
        "smallest_slowdown": smallest_slowdown(sd, STANDARD_TRIALS),
        "cells": [asdict(cell) for cell in cells],
    }
