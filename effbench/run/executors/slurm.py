"""Run the cells of a sweep as jobs of a SLURM cluster (`executor=slurm`).

A job runs its cells as a local sweep on its node (see effbench.run.executors.job), and appends what
such a sweep would store to a file in a folder that all nodes share. This side submits the jobs,
reads these files, and commits each trial when it appears. A job that ends before its trials is
lost: the sweep goes on without it, and runs them when it is resumed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from effbench.core.cell import Trial
from effbench.core.errors import WorkerError
from effbench.core.folders import cache_home, expand_user
from effbench.core.labels import grouped
from effbench.core.printable import count
from effbench.run.client import last_words
from effbench.run.compile_caches import sweep_cache
from effbench.run.executors import queue
from effbench.run.executors.base import TrialExecutor
from effbench.run.executors.job_files import (
    EVENTS,
    AnyEvent,
    Done,
    FoundEnvironment,
    JobRequest,
    TrialEnded,
    event_of,
)
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings
from effbench.run.resume import resume_command
from effbench.run.schedule import RoundsNeeded, TrialGroup
from effbench.store.store import Store

#: Seconds between two looks at the queue; a job that has ended is given up at the second one.
QUEUE_S = 5.0
READ_S = 0.5


@dataclass
class ClusterJob:
    """A submitted job. `id`, `runs`: empty for one that a killed effbench submitted. `has_ended`:
    whether the queue listed it as ended. `offset`: end of the events that were read."""

    folder: Path
    id: str = ""
    runs: Sequence[CellRun] = ()
    is_done: bool = False
    has_ended: bool = False
    offset: int = 0

    def new_events(self) -> Iterator[AnyEvent]:
        """Yield the complete events that were not read yet. Raises WorkerError for an invalid
        one."""
        with (self.folder / EVENTS).open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):  # the job is writing it
                    return
                self.offset += len(line)
                yield event_of(line)

    def last_words(self) -> str:
        """Return the last line of the job's error output, after a colon; empty without any."""
        with suppress(OSError):
            return last_words((self.folder / f"{self.id}.err").read_text(errors="replace"))
        return ""


@dataclass
class SlurmExecutor(TrialExecutor):
    """Runs trials in jobs. `lost`: how the last one that was lost ended. `history`: environment ->
    cell key -> recorded trials."""

    store: Store

    def __post_init__(self) -> None:
        self.jobs: list[ClusterJob] = []
        self.lost = ""
        self.history: dict[str, dict[str, list[Trial]]] = {}
        self.folder = jobs_folder(self.settings) / self.sweep_id
        self.name = f"effbench-{self.sweep_id}"

    def run(self) -> None:
        groups = self.remaining()
        with self.progress.showing(self.sweep_id, self.settings, self.runs, groups, ["SLURM"]):
            self.run_groups(groups)

    def remaining(self) -> list[TrialGroup]:
        """Return the remaining trials, after those that earlier jobs recorded are committed."""
        for probed in self.servers.values():  # nothing else runs on this machine
            if not probed.is_lent:
                probed.server.close()
        if self.folder.exists():  # of an effbench that was killed, or with logs of lost jobs
            queue.cancel(self.name)
            for events in self.folder.glob(f"*/{EVENTS}"):
                with suppress(WorkerError):  # of another version: its trials run again
                    self.read(ClusterJob(events.parent))
            shutil.rmtree(self.folder, ignore_errors=True)
        for environment_id, facts in self.store.find_sweep(self.sweep_id).interpreters.items():
            self.environments[environment_id] = Interpreter.from_facts(facts)
            self.history[environment_id] = self.store.history(self.sweep_id, environment_id)
        recorded = {run: self.trials_of(run) for run in self.runs}
        return RoundsNeeded(self.settings, self.runs, recorded).groups()

    def trials_of(self, run: CellRun) -> list[Trial]:
        """Return the recorded trials of the run in the environment with most of them, because
        rounds do not mix environments."""
        recorded = [
            self.history[environment_id].get(run.cell.key, [])
            for environment_id, interpreter in self.environments.items()
            if interpreter == run.interpreter
        ]
        return max(recorded, key=len, default=[])

    def run_groups(self, groups: Sequence[TrialGroup]) -> None:
        """Run these trials as jobs; at a stop, cancel those that still run. Raises WorkerError if
        SLURM refuses a job, and at the end if jobs were lost."""
        try:
            for runs in batches(groups):
                if not self.stop.is_set():
                    self.submit(runs)
            self.watch()
        finally:
            self.cancel()
        if self.lost and not self.stop.is_set():
            command = resume_command(self.sweep_id, self.settings.db, self.store.name)
            raise WorkerError(
                f"{self.lost}; logs: {self.folder}\nRun the remaining trials with: {command}"
            )
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, runs: Sequence[CellRun]) -> None:
        """Submit a job. Raises WorkerError if SLURM refuses it."""
        try:
            self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self.request_of(runs, folder.name).write(folder)
            (folder / EVENTS).touch(mode=0o600)
        except OSError as error:
            raise WorkerError(
                f"cannot write {self.folder} (executor.job_folder): {error.strerror}"
            ) from error
        job_id = queue.submit(self.name, folder, self.settings.executor)
        self.jobs.append(ClusterJob(folder, job_id, runs))

    def request_of(self, runs: Sequence[CellRun], job_name: str) -> JobRequest:
        """Return what a job is asked to run."""
        # each job writes to caches of its own
        caches = sweep_cache(self.settings, self.sweep_id) / job_name
        settings = replace(
            self.settings,
            db="",  # jobs do not use it, and it may contain a password
            executor=replace(self.settings.executor, name="local", cache_dir=str(caches)),
        )
        keys = {run.cell.key for run in runs}
        history = {}
        for environment_id, recorded in self.history.items():
            history[environment_id] = {key: recorded[key] for key in keys & recorded.keys()}
        return JobRequest(
            sweep_id=self.sweep_id,
            settings=settings,
            runs=list(runs),
            history=history,
        )

    def watch(self) -> None:
        """Read the events of the jobs until all have ended or the sweep is stopped."""
        looked_s = time.monotonic()
        while self.jobs and not self.stop.wait(READ_S):
            for job in [*self.jobs]:
                self.read(job)
                if job.is_done:
                    self.jobs.remove(job)
                    shutil.rmtree(job.folder, ignore_errors=True)
                    for run in job.runs:  # perhaps without its last rounds
                        self.progress.dropped(run)
            if time.monotonic() > looked_s + QUEUE_S:
                looked_s = time.monotonic()
                self.look_at_queue()

    def look_at_queue(self) -> None:
        """Give up the jobs that have ended, without having done their work, since the last look."""
        states = queue.states(self.name)
        if states is None:
            return
        for job in [*self.jobs]:
            state = states.get(job.id, queue.UNKNOWN)
            # a network file system may have shown the last events late
            if job.has_ended and state in queue.ENDED:
                self.jobs.remove(job)
                self.lost = f"job {job.id} ended before its last trial: {state}{job.last_words()}"
                self.progress.note(self.lost)
            job.has_ended = state in queue.ENDED

    def cancel(self) -> None:
        """Cancel all jobs, wait until they have left the queue, and commit what they recorded
        before."""
        if self.jobs:
            self.progress.note(f"cancelling {count(len(self.jobs), 'job')}")
            queue.cancel(self.name)
        for job in self.jobs:
            self.read(job)

    def read(self, job: ClusterJob) -> None:
        """Store what the job wrote since the last time. Raises WorkerError for an invalid message,
        and StoreError if it cannot be stored."""
        for event in job.new_events():
            match event:
                case FoundEnvironment():
                    key = event.environment.id
                    self.store.add_environment(event.environment, event.details)
                    self.store.note_environments(self.sweep_id, {key: event.facts})
                    self.environments[key] = Interpreter.from_facts(event.facts)
                case TrialEnded():
                    self.store.add_trial(self.sweep_id, event.environment_id, event.trial)
                    self.ended(job, event)
                case Done():
                    job.is_done = True

    def ended(self, job: ClusterJob, event: TrialEnded) -> None:
        """Show the progress of a trial that has ended in a job of this effbench."""
        trial, interpreter = event.trial, self.environments[event.environment_id]
        for run in job.runs:
            if run.cell.key == trial.cell_key and run.interpreter == interpreter:
                self.progress.ended(run, trial)


def batches(groups: Iterable[TrialGroup]) -> list[list[CellRun]]:
    """Return the runs of each job: those of cells that differ only in their mode."""
    runs = dict.fromkeys(run for group in groups for run in group.runs)
    return list(grouped(runs, lambda run: run.cell.comparison_key).values())


def jobs_folder(settings: Settings) -> Path:
    """Return the folder of all jobs, which all nodes share."""
    folder = settings.executor.job_folder
    if not folder:
        return cache_home() / "jobs"
    return Path(expand_user(folder, "executor.job_folder")).absolute()
