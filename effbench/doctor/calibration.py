"""`effbench doctor --calibrate`: what this machine can do at best, and how far processes of the same cell differ (A
against A). Ordinary sweeps through the public API give the smallest slowdown that a standard sweep can show here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import effbench
from effbench.cell import Cell, Environment, Status
from effbench.doctor.finding import Finding, Machine, good, note, problem, warning
from effbench.errors import StoreError, WorkerError
from effbench.labels import cell_names
from effbench.metrics import significant
from effbench.stats.intervals import geometric_mean, speedup
from effbench.stats.significance import smallest_slowdown
from effbench.store.store import Store
from effbench.sweeping import pool
from effbench.sweeping.client import ForkServer
from effbench.table import Column, Table

ROUNDS = 10
STANDARD_TRIALS = 5  # of a side of a standard sweep
LEAST_TRIALS = 4  # of a cell: two odd rounds and two even ones
#: A run of seconds, for tests: its figures are no better than its samples.
QUICK = (
    f"protocol.rounds={LEAST_TRIALS}",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.02",
    "protocol.warmup_s=0.02",
)
METRICS = {"launch_bound": "latency_ms", "gpu_bound": "period_ms"}
NAMES = {"launch_bound": "launch-bound", "gpu_bound": "GPU-bound"}
#: (kind, overrides) of each sweep. All cells of a matrix share their settings, hence two sweeps for GPU-bound cells.
ON_GPU = (
    ("launch_bound", ("model=mlp,attention", "bs=1", "mode=eager")),
    ("gpu_bound", ("model=lin3", "bs=512", "mode=cuda-graph")),
    ("gpu_bound", ("model=mlp", "model.module.width=4096", "bs=2048", "mode=cuda-graph")),
)
ON_CPU = (("launch_bound", ("model=tiny", "bs=1,64", "mode=eager")),)
OLD = timedelta(days=30)
USELESS = 1.0  # a smallest slowdown beyond this (relative) says more about the machine than about cells
HOW = "effbench doctor --calibrate (some minutes; keep the machine free meanwhile)"


class Interrupted(Exception):
    """Ctrl-C during the sweep with this id."""


@dataclass(frozen=True)
class CellNoise:
    """One cell. `sd`: standard deviation of the logarithms of its processes' medians of `metric`; `ratio`: odd rounds ÷
    even rounds of the same cell, with its 95 % interval. All None with fewer than LEAST_TRIALS `ok` trials."""

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


def measure_ceilings(server: ForkServer, db: str, answer: dict[str, Any]) -> Iterator[Finding]:
    """Measure and store the ceilings of each GPU of the probe's `answer`; yield a problem for each that fails.

    Stores the environment as well, also without a GPU. Raises StoreError.
    """
    with Store.open(db, mode="write") as store:
        environment_id = store.add_environment(Environment(**answer["environment"]), answer["details"])
        for gpu in reversed(answer["gpus"]):  # readers get the newest: the first GPU's
            try:
                reason = pool.measure_ceilings(server, store, environment_id, [gpu], again=True)
            except WorkerError as error:
                reason = str(error)
            if reason:
                yield problem(
                    f"GPU {gpu['index']}: its ceilings could not be measured: {reason}",
                    "how near a cell comes to what the GPU can do is unknown",
                )


def measure_noise(db: str, answer: dict[str, Any], quick: bool, quiet: bool) -> tuple[dict[str, Any], list[Finding]]:
    """Run the sweeps of A against A and store the noise; also return what went wrong.

    The noise is {"protocol", "trials", "rounds", "device", "sweep_id", "sweep_ids", "launch_bound", "gpu_bound"}, each
    kind {"sd", "smallest_slowdown", "cells"}, or None if no cell of it gave enough trials; without any nothing is
    stored. Raises Interrupted, and EffbenchError as `effbench.sweep` does.
    """
    gpus = answer["gpus"]
    quoted = db.replace("\\", "\\\\").replace('"', '\\"')  # a URL may hold `=` and `,`
    rounds = QUICK if quick else (f"protocol.rounds={ROUNDS}",)
    shared = ["sweep.name=calibration", "protocol=standard", *rounds, f'db="{quoted}"']
    sweeps: list[tuple[str, str]] = []
    for kind, overrides in ON_GPU if gpus else ON_CPU:
        sweep = effbench.sweep([*overrides, *shared], quiet=quiet)
        if sweep.state != "completed":
            raise Interrupted(sweep.id)
        sweeps.append((kind, sweep.id))
    cells: dict[str, list[CellNoise]] = {kind: [] for kind in METRICS}
    with Store.open(db, mode="read") as store:
        names = cell_names(cell for _, sweep_id in sweeps for cell in store.planned(sweep_id))
        for kind, sweep_id in sweeps:
            trials = store.trials(sweep_id)
            cells[kind] += [
                cell_noise(cell, names, trials, METRICS[kind], sweep_id) for cell in store.planned(sweep_id)
            ]
    noise = {
        "protocol": "quick" if quick else "standard",
        "trials": STANDARD_TRIALS,
        "rounds": LEAST_TRIALS if quick else ROUNDS,
        "device": "cuda" if gpus else "cpu",
        "sweep_id": sweeps[0][1],
        "sweep_ids": [sweep_id for _, sweep_id in sweeps],
        **{kind: kind_noise(members) for kind, members in cells.items()},
    }
    if any(noise[kind] for kind in METRICS):
        # with several GPUs a sweep runs on all of them: the spread belongs to no single one
        uuid = gpus[0]["uuid"] if len(gpus) == 1 else None
        with Store.open(db, mode="write") as store:
            store.add_calibration(Environment(**answer["environment"]).id, uuid, noise=noise)
    return noise, [finding for members in cells.values() for cell in members for finding in failed(cell)]


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


def kind_noise(cells: Iterable[CellNoise]) -> dict[str, Any] | None:
    """Return the noise of the noisiest cell: what holds for it holds for the others."""
    cells = list(cells)
    sd = max((cell.sd for cell in cells if cell.sd is not None), default=None)
    if sd is None:
        return None
    slowdown = smallest_slowdown(sd, STANDARD_TRIALS)
    return {"sd": sd, "smallest_slowdown": slowdown, "cells": [asdict(cell) for cell in cells]}


def failed(cell: CellNoise) -> Iterator[Finding]:
    """Report trials that are not `ok`."""
    others = {status: number for status, number in cell.statuses.items() if status != "ok"}
    if not others and cell.sd is not None:
        return
    listed = ", ".join(f"{number} {status}" for status, number in others.items()) or "too few trials"
    what = f"calibration cell {cell.cell}: {listed}" + (f" ({cell.reason})" if cell.reason else "")
    fix = f"effbench ls --failures --sweep {cell.sweep_id}"
    if cell.sd is None:
        yield problem(what, "its spread is unknown", fix)
    else:
        yield warning(what, f"its spread is that of {cell.trials} trials", fix)


# --- what is known --------------------------------------------------------------------------------------------------


def load(machine: Machine) -> dict[str, Any] | None:
    """Return the newest calibration of this environment, None without one or without a readable database."""
    try:
        with Store.open(machine.db, mode="read") as store:
            return store.calibration(Environment(**machine.answer["environment"]).id)
    except StoreError:  # it has a finding of its own
        return None


def stored(machine: Machine) -> Iterator[Finding]:
    """Report the calibration of this environment."""
    known = load(machine)
    if known is None:
        yield note(
            "this machine has not been calibrated",
            "what it can do, and what a sweep can show on it, is unknown: results cannot be read against it",
            HOW,
        )
        return
    day, noise, rates = f"calibrated on {known['measured_at']:%Y-%m-%d %H:%M} UTC", known["noise"], known["ceilings"]
    kinds = [noise[kind] for kind in METRICS if noise[kind]] if noise else []
    if any(kind["smallest_slowdown"] > USELESS for kind in kinds):
        yield warning(
            f"{day}: {summary(noise)}",
            "most changes are lost in the spread between processes",
            "calibrate again on a quiet machine; more rounds narrow what sweeps show",
        )
    else:
        yield good(f"{day}: {summary(noise)}" if noise else day)
    if not noise:
        yield note("its noise has not been measured", "the smallest slowdown that a sweep can show is unknown", HOW)
    elif noise["protocol"] != "standard":
        yield note(f"its noise comes from a quick run ({noise['rounds']} rounds)", "a rough figure", HOW)
    for cell in (cell for kind in kinds for cell in kind["cells"]):
        if cell["ratio_low"] is not None and not cell["ratio_low"] <= 1 <= cell["ratio_high"]:
            yield warning(
                f"{cell['cell']}: odd and even rounds of the same cell differ ({odd_to_even(cell)})",
                "by chance 1 cell in 20 does so; else the machine moved in step with the rounds",
                "calibrate again on a quiet machine",
            )
    if rates:
        yield note(f"ceilings: {ceilings_text(rates)}")
    elif machine.answer["gpus"]:
        what = "its ceilings have not been measured"
        yield note(what, "how near a cell comes to what the GPU can do is unknown", HOW)
    if (age := datetime.now(UTC) - known["measured_at"]) > OLD:
        yield note(f"the calibration is {age.days} days old", "the machine may have changed", HOW)


def summary(noise: dict[str, Any]) -> str:
    """Say in one sentence what a standard sweep can show here."""
    on_cpu = noise["device"] == "cpu"
    parts = [
        f"of {'small cells on the CPU' if on_cpu else NAMES[kind] + ' cells'} "
        f"from {slowdown_text(noise[kind]['smallest_slowdown'])} on"
        for kind in METRICS
        if noise[kind]
    ]
    end = "; without a GPU no cell is GPU-bound" if on_cpu else ""
    return f"a standard sweep ({STANDARD_TRIALS} trials a cell) shows a slowdown {', '.join(parts)}{end}"


def slowdown_text(fraction: float) -> str:
    """`0.34` is `34 %`, `1.5` is `2.5×`."""
    return f"{significant(100 * fraction, 2)} %" if fraction <= USELESS else f"{significant(1 + fraction, 2)}×"


def odd_to_even(cell: dict[str, Any]) -> str:
    """`1.012 [0.981, 1.044]`: odd rounds ÷ even rounds."""
    value, low, high = (
        f"{cell[name]:.3f}" if 0.1 < cell[name] < 10 else f"{cell[name]:.2g}"
        for name in ("ratio", "ratio_low", "ratio_high")
    )
    return f"{value} [{low}, {high}]"


def ceilings_text(rates: dict[str, Any]) -> str:
    """`copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a graph replay 6.2 µs`."""
    parts = []
    if (speed := rates.get("copy_bytes_per_s")) is not None:
        parts.append(f"copies {significant(speed / 1e12, 3)} TB/s")
    for dtype, speed in (rates.get("flops_per_s") or {}).items():
        if speed is not None:
            parts.append(f"{dtype} {significant(speed / 1e12, 3)} TFLOP/s")
    for key, name in (("launch_ms", "a launch"), ("graph_replay_ms", "a graph replay")):
        if (ms := rates.get(key)) is not None:
            parts.append(f"{name} {significant(1000 * ms, 2)} µs")
    return ", ".join(parts)


def table(noise: dict[str, Any]) -> Table:
    """One row a cell."""
    columns = [Column("cell"), Column("kind")]
    columns += [
        Column(name, numeric=True) for name in ("trials", "median", "spread between processes", "odd ÷ even rounds")
    ]
    rows = []
    for kind in METRICS:
        for cell in noise[kind]["cells"] if noise[kind] else ():
            row = {
                "cell": cell["cell"],
                "kind": "CPU" if noise["device"] == "cpu" else NAMES[kind],
                "trials": cell["trials"],
                "median": "—",
            }
            if (sd := cell["sd"]) is None:
                statuses = ", ".join(f"{number} {status}" for status, number in cell["statuses"].items())
                row |= {"spread between processes": statuses or "not run", "odd ÷ even rounds": "—"}
            else:
                row["median"] = f"{cell['metric'].removesuffix('_ms')} {significant(cell['median_ms'], 3)} ms"
                spread = f"{significant(100 * sd, 2)} %" if sd < 1 else f"× or ÷ {significant(math.exp(sd), 2)}"
                row |= {"spread between processes": spread, "odd ÷ even rounds": odd_to_even(cell)}
            rows.append(row)
    return Table(columns, rows)
