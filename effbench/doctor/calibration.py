"""Calibrate the machine (`effbench doctor --calibrate`): measure its ceilings, its host's speed,
and the noise between processes. Ordinary sweeps through the public API give the smallest slowdown
that a standard sweep can show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import effbench
from effbench.cell import Cell, Environment, Status
from effbench.config import quoted
from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.errors import StoreError
from effbench.labels import cell_names
from effbench.message import CheckRequest
from effbench.metrics import significant
from effbench.stats.intervals import geometric_mean
from effbench.stats.significance import smallest_slowdown
from effbench.store.store import Store
from effbench.sweeping import pool
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import gpu_slot

ROUNDS = 10
MARKED = "marked"  # what a cell's trial counts as if its host was disturbed
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
            if reason := pool.measure_ceilings(server, store, environment_id, gpu_slot(gpu)):
                what = f"GPU {gpu['index']}: its ceilings could not be measured: {reason}"
                yield problem(what, "how close cells come to the GPU's ceilings is unknown")


def measure_noise(
    db: str, answer: dict[str, Any], quick: bool, quiet: bool, host: Mapping[str, Any]
) -> list[Finding]:
    """Run the calibration sweeps, store the noise with the facts of HOST; return findings about
    trials not `ok`.

    The noise of a kind of cell is None if none of its cells has enough trials; if all are None,
    nothing is stored. Raises KeyboardInterrupt if a sweep was interrupted, and EffbenchError like
    `effbench.sweep`.
    """
    gpus = answer["gpus"]
    rounds = LEAST_TRIALS if quick else ROUNDS
    # one compilation: noise is what remains between processes; a URL may hold `=` and `,`
    settings = [
        "protocol=standard",
        f"protocol.rounds={rounds}",
        "protocol.compilations=1",
        "sweep.name=calibration",
        f"db={quoted(db)}",
        *(QUICK if quick else ()),
    ]
    cells: dict[str, list[CellNoise]] = {kind: [] for kind in KINDS}
    for kind, overrides in ON_GPU if gpus else ON_CPU:
        sweep = effbench.sweep([*overrides, *settings], quiet=quiet)
        if sweep.state != "completed":
            raise KeyboardInterrupt
        metric, _ = KINDS[kind]
        with Store.open(db, mode="read") as store:
            planned, trials = store.planned(sweep.id), store.trials(sweep.id)
        names = cell_names(planned)
        cells[kind] += [
            cell_noise(cell, names[cell.key], trials, metric, sweep.id) for cell in planned
        ]
    every = [cell for members in cells.values() for cell in members]
    noise = {
        "protocol": "quick" if quick else "standard",
        "trials": STANDARD_TRIALS,
        "rounds": rounds,
        "device": "cuda" if gpus else "cpu",
        "sweep_id": every[0].sweep_id,
        "sweep_ids": list(dict.fromkeys(cell.sweep_id for cell in every)),
        **host,
        **{kind: kind_noise(members) for kind, members in cells.items()},
    }
    if any(noise[kind] for kind in KINDS):
        # with several GPUs a sweep runs on all of them, so the noise belongs to no single GPU
        uuid = gpus[0]["uuid"] if len(gpus) == 1 else None
        with Store.open(db, mode="write") as store:
            store.add_calibration(Environment(**answer["environment"]).id, uuid, noise=noise)
    findings = map(finding_about, every)
    return [finding for finding in findings if finding is not None]


@dataclass(frozen=True)
class CellNoise:
    """The noise of one cell, as it is stored.

    `trials`: number of `ok` trials that are not marked. `sd`: standard deviation of the logarithms
    of their medians of `metric`; None with fewer than LEAST_TRIALS. `reason`: of the last other
    trial.
    """

    cell: str
    metric: str
    sweep_id: str
    statuses: Mapping[str, int]
    trials: int
    median_ms: float | None
    sd: float | None
    reason: str | None


def cell_noise(
    cell: Cell, name: str, trials: Sequence[Mapping[str, Any]], metric: str, sweep_id: str
) -> CellNoise:
    """Return the noise of one cell. `trials`: rows of the sweep in the order they were recorded."""
    last_attempts = {row["round"]: row for row in trials if row["cell_key"] == cell.key}
    statuses: Counter[str] = Counter()
    values, reason = [], None
    for row in last_attempts.values():
        status = MARKED if row["disturbance"] else str(row["status"])
        statuses[status] += 1
        reason = row["disturbance"] or row["reason"] or reason
        if status == Status.OK and row[metric] is not None:
            values.append(row[metric])
    is_known = len(values) >= LEAST_TRIALS
    return CellNoise(
        cell=name,
        metric=metric,
        sweep_id=sweep_id,
        statuses=dict(statuses),
        trials=len(values),
        median_ms=geometric_mean(values).value if is_known else None,
        sd=statistics.stdev(map(math.log, values)) if is_known else None,
        reason=reason,
    )


def kind_noise(cells: Sequence[CellNoise]) -> dict[str, Any] | None:
    """Return the noise of the noisiest cell, as a bound for the others."""
    known = [cell.sd for cell in cells if cell.sd is not None]
    if not known:
        return None
    return {
        "sd": max(known),
        "smallest_slowdown": smallest_slowdown(max(known), STANDARD_TRIALS),
        "cells": [asdict(cell) for cell in cells],
    }


def finding_about(cell: CellNoise) -> Finding | None:
    """Return a finding about trials that are not `ok`; None without any."""
    others = [f"{number} {status}" for status, number in cell.statuses.items()]
    others = [text for text in others if not text.endswith(f" {Status.OK}")]
    if not others and cell.sd is not None:
        return None
    trials = ", ".join(others) or "too few trials"
    what = f"calibration cell {cell.cell}: {trials} ({cell.reason})"
    fix = f"effbench ls --failures --sweep {cell.sweep_id}"
    if cell.sd is None:
        return problem(what, "its noise is unknown", fix)
    return warning(what, f"its noise rests on {cell.trials} trials", fix)


# --- what is known ---


def load(machine: Machine) -> dict[str, Any] | None:
    """Return the newest calibration of this environment; None without calibration or readable
    database."""
    try:
        with Store.open(machine.db, mode="read") as store:
            return store.calibration(Environment(**machine.probed["environment"]).id)
    except StoreError:  # `checks.database` reports it
        return None


def stored(machine: Machine) -> Iterator[Finding]:
    """Yield findings about the calibration of this environment."""
    known = load(machine) or {}
    noise, rates = known.get("noise"), known.get("ceilings")
    if noise:
        slowdowns = []
        for kind, (_, name) in KINDS.items():
            if noise[kind]:
                least = significant(100 * noise[kind]["smallest_slowdown"], 2)
                slowdowns.append(f"{least} % in {name} cells")
        what = (
            f"a standard sweep ({STANDARD_TRIALS} trials per cell) can show slowdowns from"
            f" {', '.join(slowdowns)}"
        )
        is_quick = noise["protocol"] != "standard"
        yield note(f"{what} (quick run)", "rough figures", HOW) if is_quick else good(what)
    else:
        effect = "the smallest slowdown that a sweep can show here is unknown"
        yield note("not calibrated", effect, HOW)
    if rates:
        yield good(f"ceilings: {ceilings_text(rates)}")


def ceilings_text(rates: Mapping[str, Any]) -> str:
    """Return the ceilings as text: `copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a
    graph replay 6.2 µs`."""
    speeds = {"copies": rates.get("copy_bytes_per_s"), **(rates.get("flops_per_s") or {})}
    times = {"a launch": rates.get("launch_ms"), "a graph replay": rates.get("graph_replay_ms")}
    parts = []
    for name, speed in speeds.items():
        if speed is not None:
            unit = "TB/s" if name == "copies" else "TFLOP/s"
            parts.append(f"{name} {significant(speed / 1e12, 3)} {unit}")
    parts += [f"{name} {significant(1000 * ms, 2)} µs" for name, ms in times.items() if ms]
    return ", ".join(parts)
