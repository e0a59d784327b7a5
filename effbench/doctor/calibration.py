"""Calibrate the machine (`effbench doctor --calibrate`): measure its ceilings, its host's speed,
and the noise between processes. Ordinary sweeps through the public API give the smallest slowdown
that a standard sweep can show."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
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
    db: str, answer: dict[str, Any], quick: bool, quiet: bool, host: Any = None
) -> list[Finding]:
    """Run the calibration sweeps, store the noise with the facts of HOST; return findings about
    trials not `ok`.

    The noise of a kind of cell is None if none of its cells has enough trials; if all are None,
    nothing is stored. Raises KeyboardInterrupt if a sweep was interrupted, and EffbenchError like
    `effbench.sweep`.
    """
    gpus = answer["gpus"]
    rounds = LEAST_TRIALS if quick else ROUNDS
    # one compilation: noise is what remains between processes
    protocol = ["protocol=standard", f"protocol.rounds={rounds}", "protocol.compilations=1"]
    shared = ["sweep.name=calibration", *protocol, f"db={quoted(db)}"]  # a URL may hold `=` and `,`
    cells: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    swept = []
    for kind, overrides in ON_GPU if gpus else ON_CPU:
        sweep = effbench.sweep([*overrides, *shared, *(QUICK if quick else ())], quiet=quiet)
        if sweep.state != "completed":
            raise KeyboardInterrupt
        with Store.open(db, mode="read") as store:
            swept.append((kind, sweep.id, store.planned(sweep.id), store.trials(sweep.id)))
    names = cell_names(cell for _, _, planned, _ in swept for cell in planned)
    for kind, sweep_id, planned, trials in swept:
        cells[kind] += [
            cell_noise(cell, names[cell.key], trials, KINDS[kind][0], sweep_id) for cell in planned
        ]
    sweep_ids = [sweep_id for _, sweep_id, _, _ in swept]
    noise = {
        "protocol": "quick" if quick else "standard",
        "trials": STANDARD_TRIALS,
        "rounds": rounds,
        "device": "cuda" if gpus else "cpu",
        "sweep_id": sweep_ids[0],
        "sweep_ids": sweep_ids,
        **(host or {}),
        **{kind: kind_noise(members) for kind, members in cells.items()},
    }
    if any(noise[kind] for kind in KINDS):
        # with several GPUs a sweep runs on all of them, so the noise belongs to no single GPU
        uuid = gpus[0]["uuid"] if len(gpus) == 1 else None
        with Store.open(db, mode="write") as store:
            store.add_calibration(Environment(**answer["environment"]).id, uuid, noise=noise)
    return [finding for members in cells.values() for cell in members for finding in failed(cell)]


def cell_noise(
    cell: Cell, name: str, trials: Sequence[dict[str, Any]], metric: str, sweep_id: str
) -> dict[str, Any]:
    """Return the noise of one cell, as it is stored. `trials`: rows of the sweep in the order they
    were recorded.

    `sd`: standard deviation of the logarithms of its trials' medians of `metric`; None with fewer
    than LEAST_TRIALS `ok` trials that are not marked. `reason`: of the last other trial.
    """
    # the last attempt of each round
    last = {row["round"]: row for row in trials if row["cell_key"] == cell.key}
    ends = [MARKED if row["disturbance"] else str(row["status"]) for row in last.values()]
    reasons = [row["disturbance"] or row["reason"] for row in last.values()]
    ok = [
        row[metric]
        for row, end in zip(last.values(), ends, strict=True)
        if end == Status.OK and row[metric] is not None
    ]
    is_known = len(ok) >= LEAST_TRIALS
    return {
        "cell": name,
        "metric": metric,
        "sweep_id": sweep_id,
        "statuses": dict(Counter(ends)),
        "trials": len(ok),
        "median_ms": geometric_mean(ok).value if is_known else None,
        "sd": statistics.stdev(map(math.log, ok)) if is_known else None,
        "reason": next((reason for reason in reversed(reasons) if reason), None),
    }


def kind_noise(cells: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the noise of the noisiest cell, as a bound for the others."""
    sd = max((cell["sd"] for cell in cells if cell["sd"] is not None), default=None)
    if sd is None:
        return None
    return {
        "sd": sd,
        "smallest_slowdown": smallest_slowdown(sd, STANDARD_TRIALS),
        "cells": list(cells),
    }


def failed(cell: dict[str, Any]) -> Iterator[Finding]:
    """Yield a finding about trials that are not `ok`."""
    others = [
        f"{number} {status}" for status, number in cell["statuses"].items() if status != Status.OK
    ]
    if not others and cell["sd"] is not None:
        return
    what = (
        f"calibration cell {cell['cell']}:"
        f" {', '.join(others) or 'too few trials'} ({cell['reason']})"
    )
    level, effect = (
        (problem, "is unknown")
        if cell["sd"] is None
        else (warning, f"rests on {cell['trials']} trials")
    )
    yield level(what, f"its noise {effect}", f"effbench ls --failures --sweep {cell['sweep_id']}")


# --- what is known ---


def load(machine: Machine) -> dict[str, Any] | None:
    """Return the newest calibration of this environment; None without calibration or readable
    database."""
    try:
        with Store.open(machine.db, mode="read") as store:
            return store.calibration(Environment(**machine.answer["environment"]).id)
    except StoreError:  # `checks.database` reports it
        return None


def stored(machine: Machine) -> Iterator[Finding]:
    """Yield findings about the calibration of this environment."""
    known = load(machine) or {}
    if noise := known.get("noise"):
        slowdowns = {
            name: noise[kind]["smallest_slowdown"]
            for kind, (_, name) in KINDS.items()
            if noise[kind]
        }
        parts = [
            f"{significant(100 * least, 2)} % in {name} cells" for name, least in slowdowns.items()
        ]
        what = (
            f"a standard sweep ({STANDARD_TRIALS} trials per cell) can show slowdowns from"
            f" {', '.join(parts)}"
        )
        yield (
            good(what)
            if noise["protocol"] == "standard"
            else note(f"{what} (quick run)", "rough figures", HOW)
        )
    else:
        yield note(
            "not calibrated", "the smallest slowdown that a sweep can show here is unknown", HOW
        )
    if rates := known.get("ceilings"):
        yield good(f"ceilings: {ceilings_text(rates)}")


def ceilings_text(rates: dict[str, Any]) -> str:
    """Return the ceilings as text: `copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a
    graph replay 6.2 µs`."""
    speeds = [("copies", rates.get("copy_bytes_per_s"), "TB/s")]
    speeds += [
        (dtype, speed, "TFLOP/s") for dtype, speed in (rates.get("flops_per_s") or {}).items()
    ]
    times = [("a launch", rates.get("launch_ms")), ("a graph replay", rates.get("graph_replay_ms"))]
    parts = [
        f"{name} {significant(speed / 1e12, 3)} {unit}"
        for name, speed, unit in speeds
        if speed is not None
    ]
    parts += [f"{name} {significant(1000 * ms, 2)} µs" for name, ms in times if ms is not None]
    return ", ".join(parts)
