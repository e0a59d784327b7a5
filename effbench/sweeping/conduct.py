"""One sweep from its configurations, or from given cells, to its last trial: probe, plan, record, resume, end."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.cell import Cell
from effbench.errors import ConfigError, StoreError
from effbench.store import artifacts
from effbench.store.store import Store
from effbench.sweeping import interpreters, interrupts, locks, plan, sites
from effbench.sweeping.ceilings import measure_missing
from effbench.sweeping.cores import share_out, wanted_cores
from effbench.sweeping.host import cache_home
from effbench.sweeping.interpreters import Interpreter, Unit, cells_of, distinct, interpreters_of
from effbench.sweeping.jobs import Job, jobs_of, with_retries
from effbench.sweeping.planned import Command, begin, check_baseline, end, facts_of
from effbench.sweeping.progress import Progress
from effbench.sweeping.schedule import Place, Schedule, Slot
from effbench.sweeping.servers import Servers
from effbench.sweeping.sites import Site, Sites, preload
from effbench.sweeping.workers import ForkServer


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended. `state`: completed or interrupted. `latencies`: median latency in ms by the configuration's
    (or unit's) position, None where it has none. `environments`: the environment of each interpreter; `environment_id`
    is the first of them."""

    sweep_id: str
    environment_id: str
    db: str
    state: str
    on_failure: str
    latencies: list[float | None]
    environments: dict[Interpreter, str] = field(default_factory=dict)


def conduct(
    configs: Sequence[dict[str, Any]],
    command: Command,
    server: ForkServer | None,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None = None,
) -> Outcome:
    """Run (or resume) the sweep of these configurations.

    `server`: of effbench's own interpreter, its owner's to close; None: one is started where it is needed. `extend`: an
    earlier outcome of the same invocation, whose sweep goes on with these cells (sweepers that choose the next cells by
    the results of the last). Raises EffbenchError for anything that is wrong before the first trial; nothing is
    recorded then.
    """
    parts, settings = plan.split(configs)
    chosen = chosen_interpreters(parts, progress)
    wanted: dict[Interpreter, list[dict[str, Any]]] = {}
    for part, interpreter in zip(parts, chosen, strict=True):
        wanted.setdefault(interpreter, []).append(part)
    with (
        Store.open(settings.db, mode="write") as store,  # first: one that cannot be opened is known at once
        sites.opened(wanted, server, settings.baseline_mode) as ready,
    ):
        has_cuda = any(site.gpus for site in ready.values())
        check_baseline(settings, plan.resolve(parts, has_cuda))
        cells = [plan.resolve([part], has_cuda)[0] for part in parts]
        units = [Unit(cell, interpreter) for cell, interpreter in zip(cells, chosen, strict=True)]
        return run_ready(store, settings, units, command, ready, progress, stop, extend)


def chosen_interpreters(parts: Sequence[dict[str, Any]], progress: Progress) -> list[Interpreter]:
    """The interpreter of each configuration; says where two are one. Raises ConfigError."""
    asked = [(part["python"], part["folder"]) for part in parts]
    known = {one: interpreters.resolve(*one) for one in dict.fromkeys(asked)}
    for said in interpreters.named_twice(known):
        progress.note(said)
    return [known[one] for one in asked]


def run_cells(
    settings: plan.Settings,
    units: Sequence[Unit],
    command: Command,
    server: ForkServer | None,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None = None,
) -> Outcome:
    """Run a sweep over given units, each a cell under an interpreter, without Hydra: cells out of a database, say.

    `settings`: of the whole sweep (`plan.Settings.with_defaults(db=…, protocol={"rounds": 10})`). `units`:
    `Unit(cell, interpreter)`, the interpreter from `interpreters.resolve(python, folder)` or `HERE`; each counts once,
    and the interpreters of a cell, in the order in which they come first here, alternate A-B, B-A from round to round.
    `command` is stored as what the user typed. `server`, `progress`, `stop` and `extend` are those of `conduct`: a set
    `stop` ends the sweep as Ctrl-C does; `Progress(quiet=True)` says nothing.

    The outcome's `latencies` go by the position in `units`; `environments` says which environment each interpreter's
    trials have in the database. Cells that fail are results with a status. Raises EffbenchError for anything that is
    wrong before the first trial (no such interpreter, a model that it cannot import): nothing is recorded then.

        units = [Unit(cell, half) for cell in store.planned(sweep_id) for half in (HERE, resolve(python="/old/python"))]
        outcome = run_cells(settings, units, Command(argv, []), None, Progress(quiet=True), threading.Event())
    """
    if not units:
        raise ConfigError("no cell to run")
    wanted: dict[Interpreter, list[dict[str, Any]]] = {}
    for unit in units:
        wanted.setdefault(unit.interpreter, []).append(unit.cell.params())
    with (
        Store.open(settings.db, mode="write") as store,
        sites.opened(wanted, server, settings.baseline_mode) as ready,
    ):
        return run_ready(store, settings, units, command, ready, progress, stop, extend)


def run_ready(
    store: Store,
    settings: plan.Settings,
    asked: Sequence[Unit],
    command: Command,
    ready: Sites,
    progress: Progress,
    stop: threading.Event,
    extend: Outcome | None,
) -> Outcome:
    """The sweep, once its interpreters are ready."""
    units = distinct(asked)
    cells = cells_of(units)
    slots = slots_of(max((site.gpus for site in ready.values()), key=len), cells, settings.executor)
    locks.folder()  # an unsafe one is known before anything is recorded
    ids = {one: store.add_environment(site.environment, site.details) for one, site in ready.items()}
    if extend is None:
        sweep_id = begin(store, settings, command, units, ready, progress)
    else:
        sweep_id = extend.sweep_id
        store.extend_sweep(sweep_id, cells)
        store.note_environments(sweep_id, facts_of(ready))
    recorded, history = {}, {}
    for interpreter in interpreters_of(units):
        found = store.recorded(sweep_id, ids[interpreter])
        recorded |= {((key, interpreter), round): status for (key, round), status in found.items()}
        if found:
            known = store.history(sweep_id, ids[interpreter])
            history |= {(key, interpreter): trials for key, trials in known.items()}
    jobs = jobs_of(units, settings.protocol["rounds"], settings.sweep["seed"], recorded)
    jobs = with_retries(jobs, units, history, settings.protocol["attempts"])
    gpus = [slot.gpu for slot in slots if slot.gpu]
    sweep_cache = cache_folder(settings.executor["cache_dir"]) / sweep_id
    places = {}
    for interpreter, site in ready.items():
        own = [unit.cell for unit in units if unit.interpreter == interpreter]
        preload(site.server, own)
        if gpus and jobs and settings.protocol["profile"]:
            ceilings_of(site, store, ids[interpreter], gpus, settings, progress)
        known = store.calibration(ids[interpreter])
        places[interpreter] = Place(
            Servers(
                site.server,
                equip=lambda fresh, own=own: preload(fresh, own),
                make=site.start,
                renew=settings.executor["renew_server"] and bool(gpus),
                last_round=settings.protocol["rounds"] - 1,
            ),
            sweep_cache / ids[interpreter],
            known and known["ceilings"],
        )
    schedule = Schedule(
        places=places,
        slots=slots,
        protocol=settings.protocol,
        timeout_s=settings.timeout_s,
        isolation=settings.isolation,
        lock_timeout_s=settings.executor["lock_timeout_s"],
        record=lambda job, trial: store.record(sweep_id, ids[job.interpreter], trial),
        observer=progress,
        foreign_wait_s=settings.executor["foreign_wait_s"],
        artifacts=lambda job: wanted_artifacts(job, settings, sweep_id, ids[job.interpreter]),
        history=history,
        stop=stop,
    )
    state, failure = "failed", None
    try:
        with progress.showing(sweep_id, settings, units, jobs, slots), stop_on_ctrl_c(stop):
            schedule.run(jobs)
        state = "interrupted" if stop.is_set() else "completed"
    except KeyboardInterrupt:  # a second Ctrl-C
        state = "interrupted"
        raise
    except StoreError as error:  # a full disk, say: the cells are not at fault, and the rest can be run later
        state, failure = "interrupted", error
    finally:
        if state == "completed" and not settings.executor["keep_cache"]:
            shutil.rmtree(sweep_cache, ignore_errors=True)
        end(store, sweep_id, state, settings.db, failure)
    measured = {(row["cell_key"], row["environment_id"]): row["latency_ms"] for row in store.results(sweep_id)}
    latencies = [measured.get((unit.cell.key, ids[unit.interpreter])) for unit in asked]
    first = ids[units[0].interpreter]
    return Outcome(sweep_id, first, settings.db, state, settings.on_failure, latencies, ids)


def ceilings_of(
    site: Site,
    store: Store,
    environment_id: str,
    gpus: list[dict[str, Any]],
    settings: plan.Settings,
    progress: Progress,
) -> None:
    """Measure them where they are not known, and say where they cannot be."""
    lock_timeout_s = settings.executor["lock_timeout_s"]
    reason = measure_missing(site.server, store, environment_id, gpus, lock_timeout_s=lock_timeout_s)
    if reason:
        progress.note(f"this GPU's ceilings could not be measured: {reason}; no roofline in these results")


def wanted_artifacts(job: Job, settings: plan.Settings, sweep_id: str, environment_id: str) -> dict[str, Any] | None:
    """What the trial shall leave behind, and where: in a cell's first round alone."""
    if not settings.artifacts or job.round > 0:
        return None
    name = artifacts.name_of(sweep_id, job.cell.key)
    if job.interpreter.given:  # beside those of the same cell under another
        name += f"-{environment_id}"
    folder = (artifacts.home(settings.db) / name).absolute()
    return {"kinds": settings.artifacts, "folder": str(folder), "name": name}


def slots_of(gpus: list[dict[str, Any]], cells: Sequence[Cell], executor: dict[str, Any]) -> list[Slot]:
    """The GPUs to use, each with its cores, and the CPU where a cell asks for it or there is no GPU."""
    wanted, cores = executor["gpus"], executor["cores"]
    if wanted != "auto":
        known = {gpu["index"]: gpu for gpu in gpus}
        if missing := [index for index in wanted if index not in known]:
            raise ConfigError(f"executor.gpus names {missing}; visible here: {sorted(known) or 'no GPU'}")
        gpus = [known[index] for index in wanted]
    devices = {cell.device for cell in cells}
    slots = []
    if "cuda" in devices:
        shares = share_out(cores, gpus)
        slots = [
            Slot(f"GPU {gpu['index']}", "cuda", gpu, share and tuple(share))
            for gpu, share in zip(gpus, shares, strict=True)
        ]
    if "cpu" in devices or not slots:
        # a CPU cell has all cores unless some are named: its threads are what is measured
        own = None if cores == "auto" else wanted_cores(cores, os.sched_getaffinity(0))
        slots.append(Slot("CPU", "cpu", cores=own and tuple(own)))
    return slots


def cache_folder(configured: str | None) -> Path:
    """Where compile caches live while a sweep runs."""
    return Path(configured).expanduser().resolve() if configured else cache_home() / "compile"


@contextmanager
def stop_on_ctrl_c(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM, SIGHUP) asks the sweep to stop; a second Ctrl-C is Python's usual one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handler(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    if interrupts.seen():
        stop.set()
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
