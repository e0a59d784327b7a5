"""Run a sweep over given cells: create or resume its record, run its trials, and record how it
ended."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import effbench
from effbench.cell import Cell, Trial
from effbench.config import Config
from effbench.errors import ConfigError, ResumeError, StoreError, WorkerError
from effbench.folders import cache_home, expand_user, plain_path
from effbench.printable import count
from effbench.store import connect, liveness, secrets
from effbench.store.bottleneck import set_floors
from effbench.store.store import Store
from effbench.store.sweeps import Shard, SweepInfo, processes
from effbench.store.values import artifact_folder, now
from effbench.sweeping import resume
from effbench.sweeping.client import ForkServer, StoppedError
from effbench.sweeping.devices import Slot, held_driver, lock_folder, slots_of
from effbench.sweeping.duets import StoppingRule
from effbench.sweeping.interpreters import HERE, Interpreter, git_description, git_revision
from effbench.sweeping.interrupts import stop_on_ctrl_c
from effbench.sweeping.matrix import parse_shard
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.sweeping.pool import Pools, ServerPool, measure_ceilings
from effbench.sweeping.progress import Progress
from effbench.sweeping.schedule import Schedule

#: Interpreter and parameters of each cell of the command line.
Asked = Sequence[tuple[Interpreter, dict[str, Any]]]
#: Returns the cell run of each entry of `Asked`, or None for one that is not planned, once
#: interpreters are probed.
Plan = Callable[[Pools], Sequence[CellRun | None]]


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended. `state`: completed or interrupted. `latencies`: median latency in ms of
    each entry of `Asked`, None if it has none. `environments`: the environment of each
    interpreter."""

    sweep_id: str
    db: str
    state: str
    on_failure: str
    latencies: list[float | None]
    environments: dict[Interpreter, str] = field(default_factory=dict)
    shard: str | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        sweep_id: str,
        settings: Settings,
        planned: Sequence[CellRun | None],
        environments: Mapping[str, Interpreter],
        stop: threading.Event,
    ) -> Outcome:
        """Return how a sweep ended. `environments`: the interpreter of each environment."""
        rows = store.results(sweep_id)
        measured = {
            (row["cell_key"], environments.get(row["environment_id"])): row["latency_ms"]
            for row in rows
        }
        latencies = [run and measured.get((run.cell.key, run.interpreter)) for run in planned]
        ids = {interpreter: environment_id for environment_id, interpreter in environments.items()}
        state = "interrupted" if stop.is_set() else "completed"
        return cls(
            sweep_id, settings.db, state, settings.on_failure, latencies, ids, settings.shard
        )


@dataclass
class Command:
    """The command line, its overrides, and what its sweep runs with.

    `server`: a server of effbench's own interpreter, which stays open; None: start one if needed.
    Setting `stop` acts like Ctrl-C. `outcome`: of a sweep to add the cells to, for Hydra sweepers
    that choose cells by previous results. `duet_rule`: see Schedule. The plan adds `of_cells` (cell
    key -> overrides that reproduce the cell), the cells of the `matrix`, also those of other
    shards, and the `excluded` ones.
    """

    argv: Sequence[str]
    overrides: Sequence[str]
    server: ForkServer | None = None
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    stop: threading.Event = field(default_factory=threading.Event)
    outcome: Outcome | None = None
    duet_rule: StoppingRule | None = None
    of_cells: dict[str, list[str]] = field(default_factory=dict)
    matrix: list[Cell] = field(default_factory=list)
    excluded: list[Cell] = field(default_factory=list)


def run_cells(
    settings: Settings,
    runs: Sequence[CellRun],
    command: Command,
    check: Callable[[Pools], None] = lambda pools: None,
    store: Store | None = None,
) -> Outcome:
    """Run a sweep over given cell runs without Hydra, for example cells from a database. See
    `run_sweep`. `check`: raises EffbenchError if the probed interpreters must not run."""
    asked = [(run.interpreter, run.cell.params()) for run in runs]

    def plan(pools: Pools) -> Sequence[CellRun]:
        check(pools)
        return runs

    return run_sweep(settings, asked, plan, command, store)


def run_sweep(
    settings: Settings, asked: Asked, plan: Plan, command: Command, store: Store | None = None
) -> Outcome:
    """Run or resume a sweep and return its outcome. Failed cells are results. `store`: replaces the
    database of the settings.

    Raises EffbenchError for an error before the first trial; then nothing is recorded.
    """
    progress, stop = command.progress, command.stop
    if not asked:
        raise ConfigError("there is no cell to run")
    if settings.executor["name"] == "slurm":
        from effbench.sweeping.executors.slurm import run_on_cluster

        return run_on_cluster(settings, asked, plan, command)
    compile_caches = make_cache_folders(settings)
    with (
        # first, to report an unusable database immediately
        nullcontext(store) if store else Store.open(settings.db, mode="write") as store,
        open_pools(asked, settings, command) as pools,
    ):
        for note in dict.fromkeys(note for pool in pools.values() for note in pool.notes):
            progress.note(f"note: {note}")
        planned = plan(pools)
        runs = list(dict.fromkeys(filter(None, planned)))
        cells = cells_of(runs)
        slots = slots_of(
            max((pool.gpus for pool in pools.values()), key=len), cells, settings.executor
        )
        lock_folder()  # raises for an unsafe folder before anything is recorded
        ids = {
            where: store.add_environment(pool.environment, pool.details)
            for where, pool in pools.items()
        }
        sweep_id = begin(store, settings, command, cells, ids)
        known = {run: run for run in runs}
        history = {
            known.get(run, run): done
            for run, done in recorded_trials(store, sweep_id, cells, ids).items()
        }
        protocol = settings.protocol
        trials = trials_left(runs, protocol["rounds"], settings.sweep["seed"], history)
        caches = compile_caches / part_of(sweep_id, settings.shard)
        gpus = [slot for slot in slots if slot.gpu]
        for interpreter, pool in pools.items():
            pool.stop = stop
            pool.cache_root = caches / ids[interpreter]
            pool.cells = [run.cell for run in runs if run.interpreter == interpreter]
            pool.last_round = (
                protocol["rounds"] - 1 if settings.executor["renew_server"] and gpus else 0
            )

        def record(trial: PlannedTrial, result: Trial) -> None:
            ceilings = pools[trial.run.interpreter].ceilings
            if result.min_bytes is not None and ceilings:
                set_floors(result, trial.run.cell, ceilings)
            store.record(sweep_id, ids[trial.run.interpreter], result)

        schedule = Schedule(
            pools=pools,
            slots=slots,
            settings=settings,
            record=record,
            progress=progress,
            artifacts=lambda trial: wanted_artifacts(
                trial, settings, sweep_id, ids[trial.run.interpreter]
            ),
            history=history,
            host_speeds={
                one: store.host_speeds(environment_id) for one, environment_id in ids.items()
            },
            stop=stop,
            first_rounds=store.first_rounds(sweep_id),
            duet_rule=command.duet_rule,
        )
        trials = schedule.needed(trials)
        with (
            ending(store, sweep_id, settings, stop),
            progress.showing(sweep_id, settings, runs, trials, [slot.name for slot in slots]),
            stop_on_ctrl_c(stop),
            held_driver(slots),
        ):
            if gpus and protocol["profile"]:
                load_ceilings(store, ids, pools, gpus[0], settings, command)
            with suppress(StoppedError):  # Ctrl-C while a server loaded
                schedule.run(trials)
        return Outcome.of(
            store, sweep_id, settings, planned, {key: at for at, key in ids.items()}, stop
        )


@contextmanager
def open_pools(asked: Asked, settings: Settings, command: Command) -> Iterator[Pools]:
    """Start a pool for each interpreter, probe it with its cells, and yield the pools; close them
    at the end.

    The modes of the cells are adapted in place. Raises ConfigError as `probe` does and for an
    unsuitable interpreter.
    """
    wanted: dict[Interpreter, list[dict[str, Any]]] = {}
    for interpreter, part in asked:
        wanted.setdefault(interpreter, []).append(part)
    command.progress.planning(len(asked), "importing their modules and modes")
    pools: dict[Interpreter, ServerPool] = {}
    try:
        for interpreter in wanted:  # all load in parallel
            server = command.server if interpreter == HERE else None
            pools[interpreter] = ServerPool(interpreter, server, command.stop)
        # meanwhile: the first record needs it, and the next trial would wait
        importlib.import_module("numpy")
        for interpreter, parts in wanted.items():
            try:
                pools[interpreter].probe(parts, settings.baseline_mode)
            except (ConfigError, WorkerError) as error:
                if str(error).startswith("python=") or (interpreter == HERE and len(wanted) == 1):
                    raise
                raise ConfigError(f"{interpreter}: {error}") from error
            # device=auto means the devices of the jobs, not of this machine
            if settings.executor["name"] == "slurm":
                pools[interpreter].gpus = [{}] if "gpu" in (settings.executor["gres"] or "") else []
        yield pools
    finally:
        for pool in pools.values():
            pool.close()


def load_ceilings(
    store: Store,
    ids: Mapping[Interpreter, str],
    pools: Pools,
    gpu: Slot,
    settings: Settings,
    command: Command,
) -> None:
    """Load the ceilings of each pool's environment; measure unknown ones on this GPU. A failure is
    noted."""
    for interpreter, pool in pools.items():
        known = store.calibration(ids[interpreter])
        if not (known and known["ceilings"]):
            timeout_s = settings.executor["lock_timeout_s"]
            why = measure_ceilings(
                pool.current, store, ids[interpreter], gpu, timeout_s, command.stop
            )
            if why and not command.stop.is_set():
                command.progress.note(
                    f"could not measure this GPU's ceilings: {why}; these results have no roofline"
                )
            known = store.calibration(ids[interpreter])
        pool.ceilings = known["ceilings"] if known else None


def recorded_trials(
    store: Store, sweep_id: str, cells: Sequence[Cell], ids: Mapping[Interpreter, str]
) -> dict[CellRun, list[Trial]]:
    """Return the recorded trials (last attempts) of each cell run. `ids`: the environment of each
    interpreter."""
    recorded = {
        where: store.history(sweep_id, environment_id) for where, environment_id in ids.items()
    }
    return {
        CellRun(cell, at): recorded[at][cell.key]
        for at in ids
        for cell in cells
        if cell.key in recorded[at]
    }


def wanted_artifacts(
    trial: PlannedTrial, settings: Settings, sweep_id: str, environment_id: str
) -> dict[str, Any] | None:
    """Return which artifacts the trial saves and where, or None after a cell's first round."""
    if not settings.artifacts or trial.round > 0:
        return None
    name = artifact_folder(sweep_id, trial.run.cell.key)
    if trial.run.interpreter.given:  # distinguishes it from the same cell under another interpreter
        name += f"-{environment_id}"
    folder = (connect.artifact_home(settings.db) / name).absolute()
    return {"kinds": settings.artifacts, "folder": str(folder), "name": name}


def cache_folder(configured: str | None) -> Path:
    """Return the folder of compile caches during a sweep."""
    if not configured:
        return cache_home() / "compile"
    return Path(expand_user(configured, "executor.cache_dir")).resolve()


def make_cache_folders(settings: Settings) -> Path:
    """Create the folders of compile caches and return the path of that of sweeps, as compilers can
    read it.

    Raises ConfigError if one cannot be written or read: torch would not start with it, or every
    compiled cell would fail.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        make_cache_folder(cache_home() / "inductor", "XDG_CACHE_HOME")
    return make_cache_folder(cache_folder(settings.executor["cache_dir"]), "executor.cache_dir")


def make_cache_folder(folder: Path, setting: str) -> Path:
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigError(
            f"compile caches cannot be written to {folder}; name another folder with {setting}"
        )
    return plain_path(folder, setting)


def part_of(sweep_id: str, shard: str | None) -> str:
    """Return the name of this part of a sweep: all its shards, which may run at the same time,
    share its id."""
    return "-".join([sweep_id, *(shard.split("/") if shard else ())])


def sweep_cache(settings: Settings, sweep_id: str) -> Path:
    return cache_folder(settings.executor["cache_dir"]) / part_of(sweep_id, settings.shard)


# --- the record of a sweep ---


def begin(
    store: Store,
    settings: Settings,
    command: Command,
    cells: Sequence[Cell],
    ids: Mapping[Interpreter, str],
) -> str:
    """Begin, resume or extend a sweep and return its id. `ids`: the environment of each
    interpreter; empty if they become known later.

    Raises ResumeError if the plan of the sweep to resume differs.
    """
    environments = {
        environment_id: interpreter.facts() for interpreter, environment_id in ids.items()
    }
    if command.outcome is not None:
        store.extend_sweep(command.outcome.sweep_id, cells, command.of_cells)
        store.note_environments(command.outcome.sweep_id, environments)
        return command.outcome.sweep_id
    if settings.resume is not None:
        info = store.find_sweep(settings.resume)
        for process in processes(info.host, settings.shard) if info.state == "running" else ():
            if liveness.is_running(process):
                how = (
                    f"is still running in process {process['pid']}; wait for its end, or end it"
                    " first"
                )
                raise ResumeError(f"sweep {info.id} {how}")
        resume.check_same_plan(info, store.planned(info.id), cells, command.matrix, settings)
        if ids:
            resume.check_same_interpreters(info, ids.keys())
        for change in resume.changes(info, environments):
            command.progress.note(change)
        add_rounds(store, info, settings, command)
        store.note_environments(info.id, environments)
        store.finish_sweep(info.id, "running", settings.shard)
        return info.id
    command.progress.planning(len(cells), "storing the plan")
    here = Path.cwd()
    revision = git_revision(here)
    label = settings.sweep["label"] or git_description(here)
    return store.begin_sweep(
        started_at=now(),
        shard=settings.shard
        and Shard(settings.shard, shard_facts(settings, label, revision), command.matrix),
        name=settings.sweep["name"],
        label=label,
        command=secrets.masked([*command.argv]),
        overrides=secrets.masked_db([*command.overrides]),
        protocol=settings.protocol,
        baseline_mode=settings.baseline_mode,
        seed=settings.sweep["seed"],
        git_revision=revision,
        host=host_facts() | {"environments": environments},
        plan=cells,
        rounds=settings.protocol["rounds"],
        cell_overrides=command.of_cells,
    )


def add_rounds(store: Store, info: SweepInfo, settings: Settings, command: Command) -> None:
    """Store the rounds that these settings add to the sweep, if any."""
    rounds = settings.protocol["rounds"]
    if rounds <= info.rounds:
        return
    command.progress.note(
        f"sweep {info.id} gets {count(rounds - info.rounds, 'more round')}: {rounds} in total"
    )
    has_caches = sweep_cache(settings, info.id).exists()
    overrides = resume.with_rounds(info.overrides, rounds)
    protocol = {**info.protocol, "rounds": rounds}
    store.add_rounds(info.id, protocol, overrides, starts_part=not has_caches)


def shard_facts(settings: Settings, label: str | None, revision: str | None) -> list[Any]:
    """Return what all shards of a sweep have in common, besides the matrix."""
    _, number = parse_shard(settings.shard)
    return [settings.sweep, label, revision, settings.protocol, settings.baseline_mode, number]


@contextmanager
def ending(
    store: Store, sweep_id: str, settings: Settings, stop: threading.Event
) -> Iterator[None]:
    """Record how the sweep ended when this context ends, and remove its compile caches if it is
    complete."""
    state, failure = "failed", None
    try:
        yield
        state = "interrupted" if stop.is_set() else "completed"
    except KeyboardInterrupt:  # a second Ctrl-C
        state = "interrupted"
        again = resume.resume_command(sweep_id, settings.db, store.name, shard=settings.shard)
        raise KeyboardInterrupt(f"resume with: {again}") from None
    except StoreError as error:  # for example a full disk: the sweep can be resumed later
        state, failure = "interrupted", error
    finally:
        if state == "completed" and not settings.executor["keep_cache"]:
            shutil.rmtree(sweep_cache(settings, sweep_id), ignore_errors=True)
        end(store, sweep_id, state, settings, failure)


def end(
    store: Store, sweep_id: str, state: str, settings: Settings, failure: StoreError | None = None
) -> None:
    """Record how the sweep ended. `failure`: why the database could not store a trial, if so.

    If the database file was moved, deleted or replaced, save the recorded data in another file. In
    this case, and if anything could not be stored, raise StoreError with the command that resumes
    the sweep.
    """
    try:
        store.finish_sweep(sweep_id, state, settings.shard)
    except StoreError as error:
        failure = failure or error
    db, name = settings.db, store.name
    if store.is_moved():
        db = name = str(store.rescue(sweep_id))
        failure = StoreError(f"{connect.moved(store.name)}; everything recorded is in {name}")
    if failure is not None:
        again = resume.resume_command(sweep_id, db, name, shard=settings.shard)
        raise StoreError(f"{failure}\nContinue with: {again}") from failure


def host_facts() -> dict[str, Any]:
    """Return facts about the machine and process of a sweep that are not part of its
    environment."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpu_count": os.cpu_count(),
        "effbench": effbench.__version__,
        "executable": sys.executable,
        "folder": str(Path.cwd()),
        "user": resume.current_user(),
        "process": liveness.identity(),
    }


def check_baseline(settings: Settings, cells: Sequence[Cell], when: str = "") -> None:
    """Raise ConfigError if the baseline is not in the sweep. Only the default baseline, eager, may
    be missing."""
    modes, baseline = sorted({cell.mode_name for cell in cells}), settings.baseline_mode
    if baseline not in (*modes, Config.baseline_mode):
        raise ConfigError(
            f"baseline_mode={baseline} is not a mode of this sweep{when}; its modes:"
            f" {', '.join(modes)}"
        )
