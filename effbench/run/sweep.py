"""Run a sweep: probe its interpreters, begin or resume its record, and run the trials of its plan
with an executor."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from logging.handlers import MemoryHandler
from pathlib import Path

import effbench
from effbench.core import folders, logs
from effbench.core.cell import Cell
from effbench.core.errors import ConfigError, StoreError
from effbench.core.settings import Config
from effbench.run import resume
from effbench.run.client import ForkServer
from effbench.run.compile_caches import make_cache_folders, sweep_cache
from effbench.run.devices import Slot, slots_of
from effbench.run.executors import queue
from effbench.run.executors.local import LocalExecutor
from effbench.run.executors.slurm import SlurmExecutor
from effbench.run.git import git_state
from effbench.run.interpreters import Facts, Interpreter
from effbench.run.interrupts import StoppedError, stop_on_ctrl_c
from effbench.run.plan import CellRun, Settings, SweepPlan, stored_settings
from effbench.run.pool import Servers, gpus_of, open_servers
from effbench.run.progress import Progress
from effbench.store import liveness, secrets
from effbench.store.connect import folder_of
from effbench.store.store import Store

EXECUTORS: dict[str, type[LocalExecutor | SlurmExecutor]] = {
    "local": LocalExecutor,
    "slurm": SlurmExecutor,
}


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended. `state`: completed or interrupted. `latencies`: median latency in ms of
    each of the plan's `runs`, None if it has none. `environments`: the environment of each
    interpreter."""

    sweep_id: str
    db: str
    state: str
    on_failure: str
    latencies: list[float | None]
    environments: dict[Interpreter, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """The command line, its overrides by key, and what its sweep runs with.

    `server`: a server of effbench's own interpreter, which stays open; None: start one if needed.
    Setting `stop` acts like Ctrl-C. `extended_sweep`: the id of a sweep of this process to add the
    cells to, for Hydra sweepers that choose cells by previous results.
    """

    argv: Sequence[str]
    overrides: Mapping[str, str]
    server: ForkServer | None = None
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    stop: threading.Event = field(default_factory=threading.Event)
    extended_sweep: str | None = None


@dataclass(frozen=True)
class OpenSweep:
    """A sweep whose interpreters are probed and whose database is open, but which is not planned
    yet. `servers`: those of the interpreters, and what they found. `log`: what happened since it
    was opened."""

    settings: Settings
    command: Command
    store: Store
    servers: Servers
    log: MemoryHandler

    def run(self, plan: SweepPlan) -> Outcome:
        """Run or resume the sweep and return its outcome. Failed cells are results.

        Raises EffbenchError for an error before the first trial; then nothing is recorded.
        """
        settings = self.settings
        sweep_id = self.begin(plan)
        logs.write(self.log, folder_of(settings.db), sweep_id)
        with self.ending(sweep_id):
            executor = EXECUTORS[settings.executor.name](
                settings=settings,
                servers=self.servers,
                plan=plan,
                sweep_id=sweep_id,
                progress=self.command.progress,
                stop=self.command.stop,
                store=self.store,
            )
            executor.run()
        environments = executor.environments
        measured = {
            (result.cell_key, environments.get(result.environment_id)): result.latency_ms
            for result in self.store.results(sweep_id)
        }
        latencies = [
            measured.get((run.cell.key, run.interpreter)) if run else None for run in plan.runs
        ]
        return Outcome(
            sweep_id=sweep_id,
            db=settings.db,
            state=self.state(),
            on_failure=settings.on_failure,
            latencies=latencies,
            environments={interpreter: key for key, interpreter in environments.items()},
        )

    def begin(self, plan: SweepPlan) -> str:
        """Begin, resume or extend the sweep and return its id. Raises ResumeError if the plan of
        the sweep to resume differs."""
        settings, command, store = self.settings, self.command, self.store
        facts = resume.facts_here(settings, self.servers)
        if command.extended_sweep is not None:
            sweep_id = command.extended_sweep
            store.extend_sweep(sweep_id, plan.cells(), plan.overrides)
        elif settings.resume is not None:
            sweep_id = resume.take_up(store, settings, plan, facts, command.progress)
        else:
            git = git_state(Path.cwd())
            sweep_id = store.begin_sweep(
                name=settings.sweep.name,
                label=settings.sweep.label or git.description,
                command=secrets.masked([*command.argv]),
                overrides=secrets.masked_db([*command.overrides.values()]),
                protocol=asdict(settings.protocol),
                baseline_mode=settings.baseline_mode,
                seed=settings.sweep.seed,
                git_revision=git.revision,
                host=host_facts() | {"settings": stored_settings(settings)},
                plan=plan.cells(),
                rounds=settings.protocol.rounds,
                cell_overrides=plan.overrides,
            )
        if facts:
            for probed in self.servers.values():
                store.add_environment(probed.machine.environment, probed.machine.details)
            store.note_environments(sweep_id, facts)
        return sweep_id

    @contextmanager
    def ending(self, sweep_id: str) -> Iterator[None]:
        """Record how the sweep ended when this context ends, and remove its compile caches if it is
        complete. An interruption, or a StoreError, names the command that resumes it."""
        settings, store = self.settings, self.store
        command = resume.resume_command(sweep_id, settings.db, store.name)
        state = "failed"
        try:
            try:
                yield
                state = self.state()
            except (KeyboardInterrupt, StoreError):  # a second Ctrl-C, or for example a full disk
                state = "interrupted"
                raise
            finally:
                if state == "completed" and not settings.executor.keep_cache:
                    shutil.rmtree(sweep_cache(settings, sweep_id), ignore_errors=True)
                store.finish_sweep(sweep_id, state)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"resume with: {command}") from None
        except StoreError as error:
            if not store.is_moved():
                raise StoreError(f"{error}\nContinue with: {command}") from error
            store.finish_log()
            raise StoreError(
                f"{error}. If it was deleted or replaced, its trials are lost: run the sweep"
                f" again\nIf it was moved, move it back and continue with: {command}"
            ) from error

    def state(self) -> str:
        """Return the state of the sweep once its trials have ended."""
        return "interrupted" if self.command.stop.is_set() else "completed"


@contextmanager
def open_sweep(
    settings: Settings, runs: Sequence[CellRun], command: Command
) -> Iterator[OpenSweep]:
    """Probe the interpreters of these runs, open the database, and yield the sweep; close all at
    the end. Raises EffbenchError for what cannot run, and KeyboardInterrupt for a Ctrl-C before the
    sweep began."""
    if settings.executor.name == "slurm":
        queue.check()
    else:
        make_cache_folders(settings)
    try:
        with (
            logs.collected() as log,
            # first, to report an unusable database immediately
            Store.open(settings.db, mode="write") as store,
            stop_on_ctrl_c(command.stop),
            open_servers(runs, settings.baseline_mode, command.stop, command.server) as servers,
        ):
            yield OpenSweep(
                settings,
                command,
                store,
                servers,
                log,
            )
    except StoppedError:
        raise KeyboardInterrupt from None


def has_gpus(settings: Settings, servers: Servers) -> bool:
    """Return whether the sweep can use GPUs, to which `device=auto` then refers: those of this
    machine, or of a cluster's jobs."""
    if settings.executor.name == "slurm":
        return "gpu" in (settings.executor.gres or "")
    return any(probed.machine.gpus for probed in servers.values())


def planned_slots(settings: Settings, servers: Servers, cells: Sequence[Cell]) -> list[Slot]:
    """Return the slots on which the sweep would run; one that stands for all of a cluster."""
    if settings.executor.name == "slurm":
        return [Slot("SLURM", "")]
    return slots_of(gpus_of(servers), cells)


def host_facts() -> Facts:
    """Return facts about the machine and process of a sweep that are not part of its
    environment."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpu_count": os.cpu_count(),
        "effbench": effbench.__version__,
        "executable": sys.executable,
        "folder": str(Path.cwd()),
        "user": folders.current_user(),
        "process": liveness.identity(),
    }


def check_baseline(settings: Settings, cells: Iterable[Cell], when: str = "") -> None:
    """Raise ConfigError if the baseline is not in the sweep. Only the default baseline, eager, may
    be missing."""
    modes, baseline = sorted({cell.mode_name for cell in cells}), settings.baseline_mode
    if baseline not in (*modes, Config.baseline_mode):
        raise ConfigError(
            f"baseline_mode={baseline} is not a mode of this sweep{when}; its modes:"
            f" {', '.join(modes)}"
        )
