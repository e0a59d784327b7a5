"""Run the cells of a sweep as jobs of a SLURM cluster (`executor=slurm`).

A job runs its cells as a local sweep on its node (see effbench.sweeping.executors.job) and appends
what happens to a file in a folder that all nodes share. This side submits the jobs with submitit,
reads these files, and commits each trial when it appears. A job that ends before its cells is lost:
its running trials are recorded as crashed, and another job repeats them as another attempt.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Environment, Status, Trial
from effbench.errors import ConfigError, WorkerError
from effbench.folders import cache_home, expand_user
from effbench.message import MOST_BYTES, MessageError, decode, encode
from effbench.printable import count, one_line
from effbench.store import connect
from effbench.store.store import Store
from effbench.store.summary import last_attempts
from effbench.sweeping.executors import queue
from effbench.sweeping.executors.job import EVENTS, REQUEST
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.interrupts import stop_on_ctrl_c
from effbench.sweeping.plan import (
    LOST,
    CellRun,
    PlannedTrial,
    Settings,
    cells_of,
    interpreters_of,
    trials_left,
)
from effbench.sweeping.run import (
    Asked,
    Command,
    Outcome,
    Plan,
    begin,
    ending,
    open_pools,
    part_of,
    sweep_cache,
)

#: Seconds between two looks at the queue; a job that has ended is given up at the second one.
QUEUE_S = 5.0
READ_S = 0.5
#: Pause after SLURM refused a job while others are in the queue, for example because of a limit per
#: user.
REFUSED_PAUSE_S = 30.0


@dataclass
class Job:
    """A submitted job. `id`: empty for one that a killed effbench submitted. `tries`: number of
    jobs with these runs that ended before their first trial. `left`: number of its remaining
    trials. `running`: trial in flight -> its phase. `has_ended`: whether the queue lists it as
    ended."""

    id: str
    folder: Path
    runs: Sequence[CellRun]
    tries: int
    left: int
    node: str = "?"
    environments: dict[str, Interpreter] = field(default_factory=dict)
    running: dict[PlannedTrial, str | None] = field(default_factory=dict)
    has_begun: bool = False
    is_done: bool = False
    failed: str | None = None
    has_ended: bool = False
    offset: int = 0


def run_on_cluster(settings: Settings, asked: Asked, plan: Plan, command: Command) -> Outcome:
    """Run or resume a sweep as jobs of the cluster; see `run_sweep`."""
    queue.check(settings.executor)
    # sbatch replaces them in the path of the output
    if {"%", "\\"} & {*str(folder := job_folder(settings.executor))}:
        raise ConfigError(f"executor.job_folder must be a path without % and \\, got {folder}")
    with Store.open(settings.db, mode="write") as store:
        with open_pools(asked, settings, command) as pools:
            planned = plan(pools)
        runs = list(dict.fromkeys(filter(None, planned)))
        # jobs report the environments of their nodes
        sweep_id = begin(store, settings, command, cells_of(runs), {})
        with ending(store, sweep_id, settings, command.stop):
            cluster = Cluster(store, sweep_id, settings, runs, command)
            cluster.collect()
            trials = cluster.trials_left(runs)
            showing = command.progress.showing(sweep_id, settings, runs, trials, ["SLURM"])
            with showing, stop_on_ctrl_c(command.stop):
                cluster.run(trials)
        return Outcome.of(store, sweep_id, settings, planned, cluster.interpreters, command.stop)


def job_folder(executor: Mapping[str, Any]) -> Path:
    folder = executor["job_folder"]
    if not folder:
        return cache_home() / "jobs"
    return Path(expand_user(folder, "executor.job_folder")).absolute()


class Cluster:
    """The jobs of a sweep. `history`: environment -> cell key -> its recorded trials (last
    attempts). `interpreters`: environment -> interpreter; `unplaced`: given up before any job told
    its environment."""

    def __init__(
        self,
        store: Store,
        sweep_id: str,
        settings: Settings,
        runs: Sequence[CellRun],
        command: Command,
    ) -> None:
        self.store, self.sweep_id, self.settings = store, sweep_id, settings
        self.runs, self.progress, self.stop = runs, command.progress, command.stop
        recorded = store.find_sweep(sweep_id).host.get("environments") or {}
        self.interpreters = {
            environment: Interpreter.from_facts(facts) for environment, facts in recorded.items()
        }
        self.history = {
            environment: store.history(sweep_id, environment) for environment in self.interpreters
        }
        part = part_of(sweep_id, settings.shard)
        self.folder = job_folder(settings.executor) / part
        self.name = f"effbench-{part}"
        self.jobs: list[Job] = []
        self.losses: Counter[tuple[CellRun, int]] = Counter()  # by round
        self.unplaced: list[tuple[Job, PlannedTrial, Trial]] = []
        self.next_submission_s = 0.0
        self.told: set[str] = set()  # why jobs wait

    def collect(self) -> None:
        """Cancel the jobs of an effbench that was killed, and commit what they recorded."""
        if not self.folder.exists():
            return
        queue.cancel(self.name)
        for events in sorted(self.folder.glob(f"*/{EVENTS}")):
            self.close(Job("", events.parent, self.runs, tries=0, left=0))

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Run these trials as jobs, until all have ended or `stop` is set; then cancel the jobs
        that still run. Raises WorkerError if no job began."""
        waiting = deque(
            (runs, 0) for runs in self.grouped(dict.fromkeys(trial.run for trial in trials))
        )
        look_s, most = time.monotonic() + QUEUE_S, self.settings.executor["max_jobs"]
        try:
            while (waiting or self.jobs) and not self.stop.is_set():
                while (
                    waiting and len(self.jobs) < most and time.monotonic() > self.next_submission_s
                ):
                    if self.stop.is_set() or not self.submit(*waiting[0]):
                        break
                    waiting.popleft()
                is_due = time.monotonic() > look_s
                states = queue.states(self.name) if is_due else None
                look_s = time.monotonic() + QUEUE_S if is_due else look_s
                for job in [*self.jobs]:
                    if reason := self.watch(job, states):
                        waiting.extend(self.lost(job, *reason))
                self.stop.wait(READ_S)
        finally:
            self.cancel()
        if self.unplaced and not self.stop.is_set():
            raise WorkerError(f"{self.unplaced[0][2].reason}; logs: {self.folder}")
        if not self.stop.is_set():
            shutil.rmtree(self.folder, ignore_errors=True)

    def grouped(self, runs: Iterable[CellRun]) -> list[list[CellRun]]:
        """Return the runs of each job, in random order. All interpreters of a cell belong to one
        job."""
        of_cell: dict[Cell, list[CellRun]] = {}
        for run in runs:
            of_cell.setdefault(run.cell, []).append(run)
        size = self.settings.executor["cells_per_job"]
        jobs: dict[Any, list[CellRun]] = {}
        for index, (cell, some) in enumerate(of_cell.items()):
            jobs.setdefault(index // size if size else cell.comparison_key, []).extend(some)
        groups = [*jobs.values()]
        random.Random(self.settings.sweep["seed"]).shuffle(groups)
        return groups

    def best(self, run: CellRun) -> str | None:
        """Return the environment with most trials of the run; without any, the one seen last; None
        if none is known."""
        some = [
            environment for environment, at in self.interpreters.items() if at == run.interpreter
        ]
        return max(
            reversed(some),
            key=lambda one: len(self.history[one].get(run.cell.key, ())),
            default=None,
        )

    def trials_left(self, runs: Sequence[CellRun]) -> list[PlannedTrial]:
        """Return the remaining trials of these runs, as far as one environment has recorded
        them."""
        protocol, seed = self.settings.protocol, self.settings.sweep["seed"]
        lost = {
            run
            for (run, _), times in self.losses.items()
            if times > self.settings.executor["job_retries"]
        }
        some = [run for run in runs if run not in lost]
        history = {run: self.history.get(self.best(run), {}).get(run.cell.key, []) for run in some}
        return trials_left(some, protocol["rounds"], seed, history)

    # --- one job ---

    def submit(self, runs: Sequence[CellRun], tries: int) -> bool:
        """Submit a job. Return False if SLURM refuses it while others are in the queue; without,
        raise WorkerError."""
        folder = next(
            path for n in itertools.count(1) if not (path := self.folder / f"{n:05}").exists()
        )
        executor = self.settings.executor
        keys = {run.cell.key for run in runs}
        settings = dataclasses.asdict(self.settings) | {
            "db": str(connect.artifact_home(self.settings.db).absolute() / "unused.db"),
            "executor": {
                **executor,
                "name": "local",
                # a lost job may still write to its own
                "cache_dir": str(sweep_cache(self.settings, self.sweep_id) / folder.name),
            },
            "resume": None,
        }
        known = {
            environment: self.store.calibration(environment) for environment in self.interpreters
        }
        request = {
            "sweep_id": self.sweep_id,
            "first_rounds": self.store.first_rounds(self.sweep_id),
            "settings": settings,
            "runs": [(run.interpreter.given, run.cell.params()) for run in runs],
            "history": {
                environment: {
                    key: [trial.to_json() for trial in cells[key]] for key in keys & cells.keys()
                }
                for environment, cells in self.history.items()
            },
            "ceilings": {environment: row["ceilings"] for environment, row in known.items() if row},
        }
        try:
            folder.mkdir(parents=True, mode=0o700)
            (folder / REQUEST).write_bytes(encode(request))
            (folder / EVENTS).touch(mode=0o600)
        except OSError as error:
            raise WorkerError(
                f"cannot write {folder} (executor.job_folder): {error.strerror}"
            ) from error
        try:
            job_id = queue.submit(self.name, folder, executor)
        except WorkerError as error:
            shutil.rmtree(folder)
            if not self.jobs:
                raise
            self.progress.note(f"{error}; trying again in {REFUSED_PAUSE_S:.0f} s")
            self.next_submission_s = time.monotonic() + REFUSED_PAUSE_S
            return False
        self.jobs.append(Job(job_id, folder, runs, tries, len(self.trials_left(runs))))
        return True

    def watch(
        self, job: Job, states: Mapping[str, tuple[str, str]] | None
    ) -> tuple[Status, str] | None:
        """Read the job's events. Return how it was lost, or None if it runs, waits or has done its
        work. `states`: what the queue says, None: not asked."""
        try:
            self.read(job)
        except MessageError as error:
            queue.run("scancel", job.id)
            return Status.CRASHED, f"sent an invalid message: {error}"
        if job.is_done:
            self.jobs.remove(job)
            shutil.rmtree(job.folder, ignore_errors=True)
            self.progress.resized(-job.left)
        elif job.failed:
            return Status.CRASHED, f"could not run trials: {job.failed}"
        elif states is not None:
            state, why = states.get(job.id, ("UNKNOWN", ""))
            # a network file system may have shown the last events late
            if job.has_ended and state in queue.ENDED:
                status = Status.TIMEOUT if state in ("TIMEOUT", "DEADLINE") else Status.CRASHED
                limit = (
                    f" after {self.settings.executor['time_limit_min']} min"
                    " (executor.time_limit_min)"
                )
                return (
                    status,
                    f"{queue.ENDED[state]}{limit if status is Status.TIMEOUT else ''} ({state})",
                )
            job.has_ended = state in queue.ENDED
            # for example for ever: PartitionTimeLimit
            if state == "PENDING" and why not in (*queue.USUAL, *self.told):
                self.told.add(why)
                self.progress.note(f"job {job.id} waits: {one_line(why)}")
        return None

    def read(self, job: Job) -> None:
        """Handle the job's new events. Raises MessageError for invalid ones, StoreError if they
        cannot be stored."""
        with suppress(FileNotFoundError), (job.folder / EVENTS).open("rb") as file:
            file.seek(job.offset)
            while (line := file.readline(4 * MOST_BYTES)).endswith(b"\n"):
                job.offset = file.tell()
                message = decode(line)
                try:
                    self.handle(job, message)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise MessageError(f"{type(error).__name__}: {error}") from error
            if len(line) == 4 * MOST_BYTES:
                raise MessageError(f"a line of more than {len(line)} bytes")

    def handle(self, job: Job, message: dict[str, Any]) -> None:
        known = {(run.cell.key, run.interpreter): run for run in job.runs}
        match message:
            case {"event": "environment", "environment": dict(facts), "details": dict(details)}:
                self.store.add_environment(Environment(**facts), details)
            case {"event": "began", "node": str(node), "environments": dict(environments)}:
                job.node = node
                job.environments = {
                    key: Interpreter.from_facts(facts) for key, facts in environments.items()
                }
                if not {*job.environments.values()} <= {*interpreters_of(job.runs)}:
                    raise ValueError("it ran under another interpreter")
                self.know(environments)
            case {"event": kind} if not job.id and kind != "record":
                pass  # progress of a job that a killed effbench submitted
            case {"event": "planned", "trials": int(number)}:
                self.resize(job, number - job.left)
            case {"event": "resized", "change": int(change)}:
                self.resize(job, change)
            case {
                "event": "started" | "phase" as kind,
                "cell_key": key,
                "interpreter": dict(given),
            }:
                trial = PlannedTrial(
                    known[key, Interpreter(**given)], int(message["round"]), int(message["attempt"])
                )
                if kind == "started":
                    slot = f"job {job.id} ({job.node} {message['slot']})"
                    job.has_begun, job.running[trial] = True, None
                    self.progress.started(slot, trial)
                elif trial in job.running:
                    job.running[trial] = str(message["phase"])
                    self.progress.phase(trial, job.running[trial])
            case {"event": "record", "environment_id": str(environment_id), "trial": dict(data)}:
                record = Trial.from_json(data)
                run = known[record.cell_key, job.environments[environment_id]]
                self.record(
                    job, PlannedTrial(run, record.round, record.attempt), environment_id, record
                )
            case {
                "event": "ceilings",
                "environment_id": str(key),
                "gpu_uuid": gpu_uuid,
                "ceilings": dict(ceilings),
            }:
                self.store.add_calibration(
                    job.environments[key] and key, gpu_uuid, ceilings=ceilings
                )
            case {"event": "note", "text": str(text)}:
                self.progress.note(f"job {job.id} on {job.node}: {one_line(text)}")
            case {"event": "failed", "reason": str(reason)}:
                job.failed = one_line(reason)
            case {"event": "done"}:
                job.is_done = True
            case _:
                raise MessageError(f"unknown event: {str(message)[:200]}")

    def know(self, environments: Mapping[str, Any]) -> None:
        """Record the environments of a job: id -> facts of its interpreter."""
        self.store.note_environments(self.sweep_id, dict(environments))
        for environment_id, facts in environments.items():
            self.interpreters[environment_id] = Interpreter.from_facts(facts)
            self.history.setdefault(environment_id, {})
        unplaced, self.unplaced = self.unplaced, []
        for job, trial, record in unplaced:
            self.progress.resized(1)
            self.place(job, trial, self.best(trial.run), record)

    def resize(self, job: Job, change: int) -> None:
        job.left += change
        self.progress.resized(change)

    def place(
        self, job: Job, trial: PlannedTrial, environment_id: str | None, record: Trial
    ) -> None:
        """Commit a lost trial, or keep it until its interpreter has an environment: this machine's
        is another one."""
        if environment_id is None:
            self.unplaced.append((job, trial, record))
        else:
            self.record(job, trial, environment_id, record)

    def record(self, job: Job, trial: PlannedTrial, environment_id: str, record: Trial) -> None:
        """Commit a trial, unless a killed effbench did so."""
        known = self.history[environment_id].get(trial.run.cell.key, [])
        if any(other.round == trial.round and other.attempt >= trial.attempt for other in known):
            return
        self.store.record(self.sweep_id, environment_id, record)
        recent = dataclasses.replace(record, samples={})  # which take megabytes
        self.history[environment_id][trial.run.cell.key] = last_attempts([*known, recent])
        if not job.id:
            return
        job.running.pop(trial, None)
        job.left -= 1
        self.progress.ended(trial, record)

    def lost(self, job: Job, status: Status, how: str) -> list[tuple[Sequence[CellRun], int]]:
        """Record the trials in flight of a lost job as `status`, and return what other jobs are to
        run.

        A run is given up if one of its trials was in flight in too many lost jobs. So are all runs
        of a job that ended before its first trial, if this happened too often.
        """
        self.jobs.remove(job)
        # stops a job that still runs on a node that lost contact
        (job.folder / EVENTS).unlink(missing_ok=True)
        logs = sorted(job.folder.glob("*.err"))
        log = logs[-1].read_text(errors="replace")[-100_000:] if logs else ""
        where = f"job {job.id} on {job.node}" if job.has_begun else f"job {job.id}"
        reason = one_line(f"{where} {how}")
        ended = dict(job.running)
        tries = 0 if job.has_begun else job.tries + 1
        if tries > self.settings.executor["job_retries"]:
            # the first one of each run
            left = {trial.run: trial for trial in reversed(self.trials_left(job.runs))}
            ended = dict.fromkeys(left.values())
            retries = self.settings.executor["job_retries"]
            self.losses.update(
                dict.fromkeys(((trial.run, trial.round) for trial in ended), retries)
            )
            lines = [
                line
                for line in log.splitlines()
                if line.strip() and not line.startswith("srun: error: ")
            ]
            last = "" if job.failed or not lines else lines[-1]  # srun only tells the exit code
            reason = one_line(f"{reason} before its first trial{last and f': {last}'}", 1000)
        left = job.left
        for trial, phase in ended.items():
            self.losses[trial.run, trial.round] += 1
            at = (
                key
                for key, interpreter in job.environments.items()
                if interpreter == trial.run.interpreter
            )
            environment_id = next(at, None) or self.best(trial.run)
            why, extra = f"{reason}{f' (in {phase})' if phase else ''}", {LOST: job.id, "log": log}
            record = Trial(
                trial.run.cell.key,
                trial.round,
                status,
                why,
                trial.attempt,
                phase=phase,
                extra=extra,
            )
            self.place(job, trial, environment_id, record)
        repeated = self.trials_left(job.runs)
        self.progress.resized(len(repeated) - job.left)
        if repeated:
            self.progress.note(f"{reason}; another job runs {len(repeated)} of its {left} trials")
        runs = [*dict.fromkeys(trial.run for trial in repeated)]
        return [(some, tries) for some in self.grouped(runs)]

    def cancel(self) -> None:
        """Cancel all jobs, wait until they have left the queue, and commit what they recorded
        before."""
        if self.jobs:
            self.progress.note(f"cancelling {count(len(self.jobs), 'job')}")
            queue.cancel(self.name)
        for job in [*self.jobs]:
            self.close(job)

    def close(self, job: Job) -> None:
        """Commit what an ended job recorded, and remove its folder."""
        with suppress(MessageError):
            self.read(job)
        shutil.rmtree(job.folder, ignore_errors=True)
