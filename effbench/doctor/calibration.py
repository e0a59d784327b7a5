"""Calibrate the machine (`effbench doctor --calibrate`): measure its ceilings, its host's speed,
and the noise between processes. Ordinary sweeps through the public API give the smallest slowdown
that a standard sweep can show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import effbench
from effbench.cell import Cell, Environment, Status
from effbench.config import quoted
from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.errors import StoreError
from effbench.labels import cell_names
from effbench.message import CheckRequest
from effbench.metrics import significant
from effbench.stats.significance import smallest_slowdown
from effbench.store.store import Store
from effbench.sweeping import pool
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import gpu_slot

ROUNDS = 10
STANDARD_TRIALS = 5  # per cell of a standard sweep
LEAST_TRIALS = 4  # per cell
#: Settings of a run of seconds, whose figures are rough.
QUICK = ("protocol.budget_s=0.2", "protocol.min_time_s=0.02", "protocol.warmup_s=0.02")
#: Kind of cell -> its metric, its name.
KINDS = {"launch_bound": ("latency_ms", "launch-bound"), "gpu_bound": ("period_ms", "GPU-bound")}
#: (kind, overrides) of each sweep. Cells of one sweep share their settings, so GPU-bound cells need
#: two sweeps.
ON_GPU = (
    ("launch_bound", ("model=mlp,attention", "bs=1", "mode=eager")),
    ("gpu_bound", ("model=lin3", "bs=512", "mode=cuda-graph")),
    ("gpu_bound", ("model=mlp", "model.module.width=4096", "bs=2048", "mode=cuda-graph")),
)
ON_CPU = (("launch_bound", ("model=tiny", "bs=1,64", "mode=eager")),)
HOST = CheckRequest("effbench.measure.host.undisturbed", {"seconds": 5.0}, device="cpu")
HOW = "effbench doctor --calibrate"


def measure_ceilings(server: ForkServer, db: str, answer: dict[str, Any]) -> Iterator[Finding]:
    """Measure and store the ceilings of each GPU of the probe's `answer`; yield a problem for each
    that fails.

    Also stores the environment, even without a GPU. Raises StoreError.
    """
    with Store.open(db, mode="write") as store:
        environment_id = store.add_environment(
            Environment(**answer["environment"]), answer["details"]
        )
        for gpu in reversed(answer["gpus"]):  # the newest row counts: that of the first GPU
            reason = pool.measure_ceilings(server, store, environment_id, gpu_slot(gpu))
            if reason:
                what = f"GPU {gpu['index']}: its ceilings could not be measured: {reason}"
                yield problem(what, "how close cells come to the GPU's ceilings is unknown")


def measure_noise(
    db: str, answer: dict[str, Any], quick: bool, quiet: bool, host: Mapping[str, Any]
) -> list[Finding]:
    """Run the calibration sweeps, store the noise with the facts of HOST; return findings about
    cells with trials that do not count.

    The noise of a kind of cell is None if none of its cells has enough trials; if all are None,
    nothing is stored. Raises KeyboardInterrupt if a sweep was interrupted, and EffbenchError like
    `effbench.sweep`.
    """
    gpus = answer["gpus"]
    rounds = LEAST_TRIALS if quick else ROUNDS
    cells = run_sweeps(db, rounds, bool(gpus), QUICK if quick else (), quiet)
    every = list(chain.from_iterable(cells.values()))
    kinds = {kind: kind_noise(members) for kind, members in cells.items()}
    if any(kinds.values()):
        noise = {
            "protocol": "quick" if quick else "standard",
            "trials": STANDARD_TRIALS,
            "rounds": rounds,
            "device": "cuda" if gpus else "cpu",
            "sweep_ids": list(dict.fromkeys(cell.sweep_id for cell in every)),
            **host,
            **kinds,
        }
        # with several GPUs a sweep runs on all of them, so the noise belongs to no single GPU
        uuid = None
        if len(gpus) == 1:
            uuid = gpus[0]["uuid"]
        with Store.open(db, mode="write") as store:
            store.add_calibration(Environment(**answer["environment"]).id, uuid, noise=noise)
    return [finding_about(cell) for cell in every if cell.reason or cell.sd is None]


def run_sweeps(
    db: str, rounds: int, has_gpu: bool, overrides: Sequence[str], quiet: bool
) -> dict[str, list[CellNoise]]:
    """Run the calibration sweeps; return the cells by kind."""
    settings = [
        "protocol=standard",
        f"protocol.rounds={rounds}",
        "protocol.compilations=1",  # noise is what remains between processes
        "sweep.name=calibration",
        f"db={quoted(db)}",  # a URL may hold `=` and `,`
    ]
    cells: dict[str, list[CellNoise]] = {kind: [] for kind in KINDS}
    for kind, matrix in ON_GPU if has_gpu else ON_CPU:
        sweep = effbench.sweep([*matrix, *overrides, *settings], quiet=quiet)
        if sweep.state != "completed":
            raise KeyboardInterrupt
        metric, _ = KINDS[kind]
        cells[kind] += noise_of(sweep, metric)
    return cells


@dataclass(frozen=True)
class CellNoise:
    """The noise of one cell, as it is stored.

    `trials`: number of trials that count. `sd`: standard deviation of the logarithms of their
    medians of `metric`; None with fewer than LEAST_TRIALS. `reason`: why the last other one does
    not count.
    """

    cell: str
    metric: str
    sweep_id: str
    trials: int
    sd: float | None
    reason: str | None


def noise_of(sweep: effbench.Sweep, metric: str) -> list[CellNoise]:
    """Return the noise of each cell of a sweep."""
    with Store.open(sweep.db, mode="read") as store:
        planned, trials = store.planned(sweep.id), store.trials(sweep.id)
    names = cell_names(planned)
    return [cell_noise(cell, names[cell.key], trials, metric, sweep.id) for cell in planned]


def cell_noise(
    cell: Cell, name: str, trials: Sequence[Mapping[str, Any]], metric: str, sweep_id: str
) -> CellNoise:
    """Return the noise of one cell. `trials`: rows of the sweep in the order they were recorded."""
    last_attempts = {row["round"]: row for row in trials if row["cell_key"] == cell.key}
    logs, reason = [], None
    for row in last_attempts.values():
        if row["status"] == Status.OK and row[metric] is not None and not row["disturbance"]:
            logs.append(math.log(row[metric]))
        else:
            reason = row["disturbance"] or row["reason"] or str(row["status"])
    sd = None
    if len(logs) >= LEAST_TRIALS:
        sd = statistics.stdev(logs)
    return CellNoise(name, metric, sweep_id, len(logs), sd, reason)


def kind_noise(cells: Sequence[CellNoise]) -> dict[str, Any] | None:
    """Return the noise of the noisiest cell, as a bound for the others."""
    known = [cell.sd for cell in cells if cell.sd is not None]
    if not known:
        return None
    error = max(known) * math.sqrt(2 / STANDARD_TRIALS)
    least = smallest_slowdown(error, 2 * (STANDARD_TRIALS - 1))
    return {"sd": max(known), "smallest_slowdown": least, "cells": [asdict(cell) for cell in cells]}


def finding_about(cell: CellNoise) -> Finding:
    """Return a finding about trials that do not count."""
    what = f"calibration cell {cell.cell}: only {cell.trials} trials count ({cell.reason})"
    fix = f"effbench ls --failures --sweep {cell.sweep_id}"
    if cell.sd is None:
        return problem(what, "its noise is unknown", fix)
    return warning(what, f"its noise rests on {cell.trials} trials", fix)


# --- what is known ---


def load(machine: Machine) -> dict[str, Any]:
    """Return the newest calibration of this environment; empty without calibration or readable
    database."""
    environment_id = Environment(**machine.probed["environment"]).id
    with suppress(StoreError), Store.open(machine.db, mode="read") as store:
        return dict(store.calibration(environment_id) or {})
    return {}  # `checks.database` reports the error


def stored(machine: Machine) -> Iterator[Finding]:
    """Yield findings about the calibration of this environment."""
    known = load(machine)
    noise, rates = known.get("noise"), known.get("ceilings")
    if not noise:
        effect = "the smallest slowdown that a sweep can show here is unknown"
        yield note("not calibrated", effect, HOW)
    else:
        slowdowns = []
        for kind, (_, name) in KINDS.items():
            if noise[kind]:
                percent = significant(100 * noise[kind]["smallest_slowdown"], 2)
                slowdowns.append(f"{percent} % in {name} cells")
        what = (
            f"a standard sweep ({STANDARD_TRIALS} trials per cell) can show slowdowns from"
            f" {', '.join(slowdowns)}"
        )
        if noise["protocol"] == "standard":
            yield good(what)
        else:
            yield note(f"{what} (quick run)", "rough figures", HOW)
    if rates:
        yield good(f"ceilings: {ceilings_text(rates)}")


def ceilings_text(rates: Mapping[str, Any]) -> str:
    """Return the ceilings as text: `copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a
    graph replay 6.2 µs`."""
    scales = [("copies", rates.get("copy_bytes_per_s"), 1e-12, 3, "TB/s")]
    for dtype, speed in (rates.get("flops_per_s") or {}).items():
        scales.append((dtype, speed, 1e-12, 3, "TFLOP/s"))
    scales.append(("a launch", rates.get("launch_ms"), 1000, 2, "µs"))
    scales.append(("a graph replay", rates.get("graph_replay_ms"), 1000, 2, "µs"))
    return ", ".join(
        f"{name} {significant(scale * value, digits)} {unit}"
        for name, value, scale, digits, unit in scales
        if value is not None
    )
