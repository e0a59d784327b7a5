"""One sweep over given cells, from its record to its last trial."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Trial
from effbench.errors import ConfigError, StoreError
from effbench.store import artifacts
from effbench.store.store import Store
from effbench.sweep.client import ForkServer
from effbench.sweep.devices import lock_folder, slots_of
from effbench.sweep.interpreters import Interpreter, cache_home
from effbench.sweep.interrupts import stop_on_ctrl_c
from effbench.sweep.plan import CellRun, PlannedTrial, Settings, cells_of, interpreters_of, trials_left
from effbench.sweep.pool import Pools, ServerPool, measure_ceilings, open_pools
from effbench.sweep.progress import Progress
from effbench.sweep.record import Command, begin, end, environment_facts
from effbench.sweep.schedule import Schedule


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended. `state`: completed or interrupted. `latencies`: median latency in ms by position of the cell
    runs, None without one. `environments`: the environment of each interpreter; `environment_id` is the first."""

    sweep_id: str
    environment_id: str
    db: str
    state: str
    on_failure: str
    latencies: list[float | None]
    environments: dict[Interpreter, str] = field(default_factory=dict)


def run_cells(
    settings: Settings,
    runs: Sequence[CellRun],
    command: Command,
    server: ForkServer | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> Outcome:
    """Run a sweep over given cell runs without Hydra, for example of cells from a database.

    `settings`: see `Settings.with_defaults`. `runs`: the interpreters of a cell alternate from round to round; each
    cell run counts once. `command`: stored as what the user typed. `server`: of effbench's own interpreter, which stays
    open; None: one is started if needed. A set `stop` ends the sweep as Ctrl-C does.

    Cells that fail are results with a status. Raises EffbenchError for anything that is wrong before the first trial
    (an unsuitable interpreter, a model that it cannot import); nothing is recorded then.

        runs = [CellRun(cell, one) for cell in store.planned(sweep_id) for one in (HERE, resolve(python="/old/python"))]
        outcome = run_cells(Settings.with_defaults(db="x.db", protocol={"rounds": 10}), runs, Command(argv, []))
    """
    if not runs:
        raise ConfigError("no cell to run")
    wanted: dict[Interpreter, list[dict[str, Any]]] = {}
    for run in runs:
        wanted.setdefault(run.interpreter, []).append(run.cell.params())
    with (
        Store.open(settings.db, mode="write") as store,
        open_pools(wanted, server, settings.baseline_mode) as pools,
    ):
        return run_sweep(
            store, settings, runs, command, pools, progress or Progress(quiet=True), stop or threading.Event()
        )


def run_sweep(
    store: Store,
    settings: Settings,
    asked: Sequence[CellRun],
    command: Command,
    pools: Pools,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None = None,
) -> Outcome:
    """Run (or resume) a sweep whose interpreters are ready. `extend`: the outcome of a sweep that gets these cells in
    addition, for Hydra sweepers that choose the next cells by the results of the last."""
    runs = list(dict.fromkeys(asked))
    cells = cells_of(runs)
    slots = slots_of(max((pool.gpus for pool in pools.values()), key=len), cells, settings.executor)
    lock_folder()  # an unsafe one is refused before anything is recorded
    ids = {one: store.add_environment(pool.environment, pool.details) for one, pool in pools.items()}
    if extend is None:
        sweep_id = begin(store, settings, command, runs, pools, progress)
    else:
        sweep_id = extend.sweep_id
        store.extend_sweep(sweep_id, cells, command.of_cells)
        store.note_environments(sweep_id, environment_facts(pools))
    history = recorded_trials(store, sweep_id, cells, {one: ids[one] for one in interpreters_of(runs)})
    rounds, attempts = settings.protocol["rounds"], settings.protocol["attempts"]
    trials = trials_left(runs, rounds, settings.sweep["seed"], attempts, history)
    sweep_cache = cache_folder(settings.executor["cache_dir"]) / sweep_id
    gpus = [slot.gpu for slot in slots if slot.gpu]
    for interpreter, pool in pools.items():
        pool.cache_root = sweep_cache / ids[interpreter]
        own_cells = [run.cell for run in runs if run.interpreter == interpreter]
        pool.prepare(own_cells, rounds - 1, renews=settings.executor["renew_server"] and bool(gpus))
        if gpus and trials and settings.protocol["profile"]:
            measure_missing_ceilings(pool, store, ids[interpreter], gpus, settings, progress)
        known = store.calibration(ids[interpreter])
        pool.ceilings = known and known["ceilings"]
    schedule = Schedule(
        pools=pools,
        slots=slots,
        settings=settings,
        record=lambda trial, record: store.record(sweep_id, ids[trial.run.interpreter], record),
        progress=progress,
        artifacts=lambda trial: wanted_artifacts(trial, settings, sweep_id, ids[trial.run.interpreter]),
        history=history,
        stop=stop,
    )
    state, failure = "failed", None
    try:
        with progress.showing(sweep_id, settings, runs, trials, slots), stop_on_ctrl_c(stop):
            schedule.run(trials)
        state = "interrupted" if stop.is_set() else "completed"
    except KeyboardInterrupt:  # a second Ctrl-C
        state = "interrupted"
        raise
    except StoreError as error:  # for example a full disk: the cells are not at fault, and the rest can run later
        state, failure = "interrupted", error
    finally:
        if state == "completed" and not settings.executor["keep_cache"]:
            shutil.rmtree(sweep_cache, ignore_errors=True)
        end(store, sweep_id, state, settings.db, failure)
    measured = {(row["cell_key"], row["environment_id"]): row["latency_ms"] for row in store.results(sweep_id)}
    latencies = [measured.get((run.cell.key, ids[run.interpreter])) for run in asked]
    first = ids[runs[0].interpreter]
    return Outcome(sweep_id, first, settings.db, state, settings.on_failure, latencies, ids)


def recorded_trials(
    store: Store, sweep_id: str, cells: Sequence[Cell], ids: dict[Interpreter, str]
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials (last attempts) of each cell run. `ids`: the environment of each interpreter."""
    by_key = {cell.key: cell for cell in cells}
    return {
        CellRun(by_key[key], interpreter): trials
        for interpreter, environment_id in ids.items()
        for key, trials in store.history(sweep_id, environment_id).items()
        if key in by_key
    }


def measure_missing_ceilings(
    pool: ServerPool,
    store: Store,
    environment_id: str,
    gpus: Sequence[dict[str, Any]],
    settings: Settings,
    progress: Progress,
) -> None:
    lock_timeout_s = settings.executor["lock_timeout_s"]
    reason = measure_ceilings(pool.current, store, environment_id, gpus, lock_timeout_s=lock_timeout_s)
    if reason:
        progress.note(f"this GPU's ceilings could not be measured: {reason}; no roofline in these results")


def wanted_artifacts(
    trial: PlannedTrial, settings: Settings, sweep_id: str, environment_id: str
) -> dict[str, Any] | None:
    """Return which artifacts the trial saves, and where; None after a cell's first round."""
    if not settings.artifacts or trial.round > 0:
        return None
    name = artifacts.name_of(sweep_id, trial.run.cell.key)
    if trial.run.interpreter.given:  # next to those of the same cell under another
        name += f"-{environment_id}"
    folder = (artifacts.home(settings.db) / name).absolute()
    return {"kinds": settings.artifacts, "folder": str(folder), "name": name}


def cache_folder(configured: str | None) -> Path:
    """Return where compile caches are during a sweep."""
    return Path(configured).expanduser().resolve() if configured else cache_home() / "compile"
