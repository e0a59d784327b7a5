"""Create a database of synthetic sweeps with planted changes, by direct inserts: large in seconds.

    from synthetic import Plan, fill
    planted = fill("made-up.db", Plan(cells=100, sweeps=60))

Every cell has its own level; every sweep adds noise that all its trials share, and every trial adds further noise. Some
cells have a step from some sweep on; some of these steps are undone later.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from effbench.cell import Cell, Environment
from effbench.stats.intervals import t_quantile
from effbench.store import Store, schema
from effbench.store.values import cell_row

MODES = ("eager", "default", "reduce-overhead", "cuda-graph", "compile+graph")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_CHUNK = 20_000


@dataclass(frozen=True)
class Plan:
    """Settings of the synthetic database.

    `noise`: standard deviation (of the logarithm) of a sweep around its cell's level; `trial_noise`: of a trial around
    its sweep. `changed`: fraction of cells with a step of one of `steps` (0.05: 5 % slower); `undone`: fraction of
    these whose step is undone. `missing`: fraction of missing results. `with_trials`: also create rows of `trial`; for
    figures that trials lack, `effbench db check` derives other results from them.
    """

    cells: int = 100
    sweeps: int = 60
    trials: int = 5
    noise: float = 0.005
    trial_noise: float = 0.005
    changed: float = 0.1
    steps: tuple[float, ...] = (0.03, 0.05, 0.1, -0.05)
    undone: float = 0.3
    missing: float = 0.02
    gpu_name: str = "NVIDIA H200"
    with_trials: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Planted:
    """A step of `step` (0.05: 5 % slower) in the cell from the sweep on, and the sweep where it was undone, or None."""

    cell_key: str
    step: float
    sweep: int
    undone: int | None


def cells_of(plan: Plan) -> list[Cell]:
    """Return distinct cells: models × batch sizes × modes."""
    return [
        Cell(
            {"name": f"model{i // 50}", "module": {"_target_": "nets.Net", "width": 512}, "inputs": []},
            2 ** (i // 5 % 10),
            {"name": MODES[i % 5], "_target_": f"modes.{MODES[i % 5]}"},
            "bfloat16",
            "inference",
            "cuda",
        )
        for i in range(plan.cells)
    ]


def levels_of(plan: Plan, cells: list[Cell]) -> tuple[np.ndarray, list[Planted]]:
    """Return the logarithms of the latencies in ms (cells, sweeps) with the noise of sweeps, and the planted steps."""
    random = np.random.default_rng(plan.seed)
    levels = random.uniform(math.log(0.05), math.log(20), plan.cells)[:, None] + random.normal(
        0, plan.noise, (plan.cells, plan.sweeps)
    )
    planted = []
    for index in np.flatnonzero(random.random(plan.cells) < plan.changed) if plan.sweeps >= 20 else ():
        at = int(random.integers(6, plan.sweeps - 10))
        back = int(random.integers(at + 5, plan.sweeps - 4)) if random.random() < plan.undone else None
        step = float(random.choice(plan.steps))
        levels[index, at:back] += math.log1p(step)
        planted.append(Planted(cells[index].key, step, at, back))
    return levels, planted


def environments_of(plan: Plan) -> list[Environment]:
    """Return two environments: one torch for the first two thirds of the sweeps, the next version afterwards."""
    return [
        Environment(plan.gpu_name, 2**37, "570.86", "12.8", torch, triton, "3.12.4", "Xeon", "Linux-x86_64")
        for torch, triton in (("2.11.0", "3.4.0"), ("2.13.0", "3.6.0"))
    ]


def fill(path: str | Path, plan: Plan) -> list[Planted]:
    """Create the database at `path`, with one sweep per day; return the planted steps."""
    cells = cells_of(plan)
    levels, planted = levels_of(plan, cells)
    random = np.random.default_rng(plan.seed + 1)
    with Store.open(path, mode="write") as store:
        ids = [store.add_environment(environment, {}) for environment in environments_of(plan)]
        tables = schema.METADATA.tables
        with store._writing() as connection:
            sweeps = [_sweep_row(number, plan) for number in range(plan.sweeps)]
            connection.execute(sa.insert(tables["sweep"]), sweeps)
            connection.execute(sa.insert(tables["cell"]), [cell_row(cell) for cell in cells])
            keys = [cell.key for cell in cells]
            _insert(connection, tables["sweep_cell"], (
                {"sweep_id": sweep["id"], "cell_key": key, "position": position}
                for sweep in sweeps for position, key in enumerate(keys)
            ))  # fmt: skip
            for number, sweep in enumerate(sweeps):
                environment = ids[number >= 2 * plan.sweeps // 3]
                logs = levels[:, number, None] + random.normal(0, plan.trial_noise, (plan.cells, plan.trials))
                there = random.random(plan.cells) >= plan.missing
                common = {"sweep_id": sweep["id"], "environment_id": environment}
                if plan.with_trials:
                    _insert(connection, tables["trial"], _trial_rows(keys, logs, there, common, sweep["started_at"]))
                _insert(connection, tables["result"], _result_rows(keys, logs, there, common, plan))
    return planted


def _insert(connection: sa.Connection, table: sa.Table, rows: Iterator[dict[str, Any]]) -> None:
    chunk = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK:
            connection.execute(sa.insert(table), chunk)
            chunk = []
    if chunk:
        connection.execute(sa.insert(table), chunk)


def _sweep_row(number: int, plan: Plan) -> dict[str, Any]:
    started = START + dt.timedelta(days=number)
    return {
        "id": f"{started:%Y%m%d-%H%M%S}-{number:04x}", "name": None, "label": f"v{number}", "state": "completed",
        "started_at": started, "finished_at": started + dt.timedelta(hours=1), "command": [], "overrides": [],
        "protocol": {"name": "standard", "rounds": plan.trials}, "baseline_mode": "eager", "seed": 0,
        "rounds": plan.trials, "git_revision": None, "host": {"hostname": "made-up"},
    }  # fmt: skip


def _figures(latency_ms: float) -> dict[str, Any]:
    """Return the other figures of a trial or a result with this latency."""
    return {
        "latency_min_ms": latency_ms * 0.95, "latency_p95_ms": latency_ms * 1.2, "enqueue_ms": latency_ms * 0.6,
        "period_ms": latency_ms * 0.8, "gpu_busy_ms": latency_ms * 0.6, "kernels": 12, "first_call_s": 2.0,
        "peak_allocated_bytes": 2**29, "peak_reserved_bytes": 2**30, "rel_error": 1e-3, "graph_breaks": 0,
        "recompiles": 0, "cudagraph_skips": 0,
    }  # fmt: skip


def _result_rows(
    keys: list[str], logs: np.ndarray, there: np.ndarray, common: dict[str, Any], plan: Plan
) -> Iterator[dict[str, Any]]:
    means = logs.mean(axis=1)
    half = np.zeros(len(keys))
    if plan.trials > 1:
        half = t_quantile(plan.trials - 1) * logs.std(axis=1, ddof=1) / math.sqrt(plan.trials)
    for key, mean, width, present in zip(keys, means.tolist(), half.tolist(), there.tolist(), strict=True):
        if present:
            low, high = (math.exp(mean - width), math.exp(mean + width)) if plan.trials > 1 else (None, None)
            yield {
                **common, "cell_key": key, "status": "ok", "reason": None, "trials": plan.trials,
                "latency_ms": math.exp(mean), "latency_ci_low_ms": low, "latency_ci_high_ms": high,
                **_figures(math.exp(mean)), "period_ci_low_ms": low and low * 0.8,
                "period_ci_high_ms": high and high * 0.8, "gpu_idle_fraction": 0.25, "compile_cold_s": 2.5,
                "bound": "memory",
            }  # fmt: skip


def _trial_rows(
    keys: list[str], logs: np.ndarray, there: np.ndarray, common: dict[str, Any], started: dt.datetime
) -> Iterator[dict[str, Any]]:
    for key, own, present in zip(keys, logs.tolist(), there.tolist(), strict=True):
        for number, value in enumerate(own if present else ()):
            yield {
                **common, "cell_key": key, "round": number, "attempt": 0, "status": "ok", "reason": None,
                "latency_ms": math.exp(value), "latency_samples": 100, "extra": {}, "started_at": started,
                "recorded_at": started, "compile_s": 1.0 if number else 2.5,
                "compile_cache": "warm" if number else "cold", **_figures(math.exp(value)),
            }  # fmt: skip
