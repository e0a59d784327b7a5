"""Run the cells of a sweep as jobs of a SLURM cluster (`executor=slurm`).

A job runs its cells as a local sweep on its node (see effbench.run.executors.job) and appends
what happens to a file in a folder that all nodes share. This side submits the jobs, reads these
files, and commits each trial when it appears. A job that ends before its cells is lost: its running
trials are recorded as crashed, and another job repeats them as another attempt.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from effbench.core.cell import Status, Trial
from effbench.core.errors import ConfigError, WorkerError
from effbench.core.folders import cache_home, expand_user
from effbench.core.message import MessageError
from effbench.core.printable import count, one_line
from effbench.run.compile_caches import sweep_cache
from effbench.run.executors import queue
from effbench.run.executors.base import TrialExecutor
from effbench.run.executors.job_files import (
    EVENTS,
    AnyEvent,
    Began,
    Done,
    Failed,
    JobRequest,
    JobRun,
    Note,
    Record,
    Started,
    event_of,
)
from effbench.run.interpreters import Interpreter
from effbench.run.plan import (
    LOST,
    CellRun,
    PlannedTrial,
    Settings,
    cells_of,
    interpreters_of,
    trials_left,
)
from effbench.store import connect
from effbench.store.store import Store
from effbench.store.summary import last_attempts

#: Seconds between two looks at the queue; a job that has ended is given up at the second one.
QUEUE_S = 5.0
READ_S = 0.5
#: Pause after SLURM refused a job while others are in the queue, for example because of a limit per
#: user.
REFUSED_PAUSE_S = 30.0
#: Events that also count from a job that a killed effbench submitted: the others are its progress.
LASTING = (Began, Record)
LOGGER = logging.getLogger(__name__)
#: Longest line of an event; escaping may lengthen a trial's record.
MOST_LINE_BYTES = 2**28
#: The end of a job's error output that a lost trial keeps.
MOST_LOG_CHARACTERS = 100_000


@dataclass
class ClusterJob:
    """A submitted job. `id`: empty for one that a killed effbench submitted. `environments`: of its
    interpreters on its node. `running`: the trials in flight. `has_begun`: whether a trial has.
    `has_ended`: whether the queue lists it as ended. `offset`: end of the events that were read."""

    id: str
    folder: Path
    runs: list[CellRun]
    node: str = "?"
    environments: dict[Interpreter, str] = field(default_factory=dict)
    running: list[PlannedTrial] = field(default_factory=list)
    has_begun: bool = False
    is_done: bool = False
    failed: str | None = None
    has_ended: bool = False
    offset: int = 0

    def __str__(self) -> str:
        if self.has_begun:
            return f"job {self.id} on {self.node}"
        return f"job {self.id}"

    def new_events(self) -> Iterator[AnyEvent]:
        """Yield the complete events that were not read yet. Raises MessageError for an invalid
        one."""
        with suppress(FileNotFoundError), (self.folder / EVENTS).open("rb") as file:
            file.seek(self.offset)
            while (line := file.readline(MOST_LINE_BYTES)).endswith(b"\n"):
                self.offset = file.tell()
                yield event_of(line)
            if len(line) == MOST_LINE_BYTES:
                raise MessageError(f"a line of more than {len(line)} bytes")

    def log(self) -> str:
        """Return the end of the job's error output."""
        text = ""
        for path in self.folder.glob("*.err"):
            text = path.read_text(errors="replace")
        return text[-MOST_LOG_CHARACTERS:]


@dataclass(frozen=True)
class JobLoss:
    """How a job was lost, as a status of its trials and in words."""

    status: Status
    how: str


@dataclass
class SlurmExecutor(TrialExecutor):
    """Runs trials in jobs.

    `recorded`: the recorded trials (last attempts) by environment and cell key. `unbegun`: in how
    many jobs that ended before their first trial a run was, the last one for the reason
    `why_unbegun`. `noted`: why jobs wait.
    """

    store: Store
    jobs: list[ClusterJob] = field(default_factory=list)
    recorded: dict[str, dict[str, list[Trial]]] = field(default_factory=dict)
    unbegun: Counter[CellRun] = field(default_factory=Counter)
    why_unbegun: str = ""
    noted: set[str] = field(default_factory=set)
    next_submission_s: float = 0.0

    @staticmethod
    def check(settings: Settings) -> None:
        queue.check(settings.executor)
        folder = jobs_folder(settings)
        # sbatch replaces them in the path of the output
        if {"%", "\\"} & {*str(folder)}:
            raise ConfigError(f"executor.job_folder must be a path without % and \\, got {folder}")

    def prepare(self, runs: Sequence[CellRun]) -> None:
        self.runs = runs
        self.slot_names = ["SLURM"]
        for pool in self.pools.values():  # nothing else runs on this machine
            pool.close()

    def open(self, sweep_id: str) -> list[PlannedTrial]:
        self.sweep_id = sweep_id
        known = self.store.find_sweep(sweep_id).host.get("environments") or {}
        for environment_id, facts in known.items():  # jobs add those of their nodes
            self.environments[environment_id] = Interpreter.from_facts(facts)
            self.recorded[environment_id] = self.store.history(sweep_id, environment_id)
        self.folder = jobs_folder(self.settings) / sweep_id
        self.name = f"effbench-{sweep_id}"
        if self.folder.exists():  # of an effbench that was killed
            queue.cancel(self.name)
            for events in self.folder.glob(f"*/{EVENTS}"):
                self.take_over(events.parent)
        return self.trials_left(self.runs)

    def take_over(self, folder: Path) -> None:
        """Commit what a job of an effbench that was killed recorded, and remove its folder."""
        try:
            runs = JobRequest.read(folder).cell_runs()
        except MessageError as error:
            LOGGER.warning("%s: its trials run again: %s", folder, error)
            shutil.rmtree(folder, ignore_errors=True)
            return
        self.close(ClusterJob("", folder, runs))

    def run_trials(self, trials: Sequence[PlannedTrial]) -> None:
        """Run these trials as jobs; at a stop, cancel those that still run. Raises WorkerError at
        the end if the jobs of some cells did not begin."""
        waiting = deque(self.batches(trial.run for trial in trials))
        looked_s = time.monotonic()
        try:
            while (waiting or self.jobs) and not self.stop.is_set():
                self.submit_next(waiting)
                states = None
                if time.monotonic() > looked_s + QUEUE_S:
                    states, looked_s = queue.states(self.name), time.monotonic()
                for job in [*self.jobs]:
                    loss = self.watch(job, states)
                    if loss is not None:
                        waiting.extend(self.batches(self.lost(job, loss)))
                self.stop.wait(READ_S)
        finally:
            self.cancel()
        if self.stop.is_set():
            return
        most = self.settings.executor.job_retries
        if any(times > most for times in self.unbegun.values()):
            raise WorkerError(f"{self.why_unbegun}; logs: {self.folder}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def batches(self, runs: Iterable[CellRun]) -> list[list[CellRun]]:
        """Return the distinct runs of each job, in random order. All interpreters of a cell belong
        to one job."""
        runs = list(dict.fromkeys(runs))
        size = self.settings.executor.cells_per_job
        numbers = {cell: number for number, cell in enumerate(cells_of(runs))}
        jobs: dict[Hashable, list[CellRun]] = {}
        for run in runs:
            key: Hashable = run.cell.comparison_key
            if size:
                key = numbers[run.cell] // size
            jobs.setdefault(key, []).append(run)
        batches = list(jobs.values())
        random.Random(self.settings.sweep.seed).shuffle(batches)
        return batches

    def trials_left(self, runs: Iterable[CellRun]) -> list[PlannedTrial]:
        """Return the remaining trials of these runs, as far as one environment has recorded
        them."""
        history = {run: self.trials_of(run) for run in runs if not self.is_given_up(run)}
        return trials_left([*history], self.settings, history)

    def is_given_up(self, run: CellRun) -> bool:
        """Return whether too many jobs were lost with a trial of the run, or before it began."""
        most = self.settings.executor.job_retries
        lost = [trial for trial in self.trials_of(run) if LOST in trial.extra]
        return self.unbegun[run] > most or any(trial.attempt >= most for trial in lost)

    def trials_of(self, run: CellRun) -> list[Trial]:
        """Return the trials of the run in the environment with most of them."""
        recorded = [
            self.recorded[environment_id].get(run.cell.key, [])
            for environment_id, interpreter in self.environments.items()
            if interpreter == run.interpreter
        ]
        return max(recorded, key=len, default=[])

    # --- submitting ---

    def submit_next(self, waiting: deque[list[CellRun]]) -> None:
        """Submit jobs until the queue is full or SLURM refuses one."""
        while waiting and len(self.jobs) < self.settings.executor.max_jobs:
            is_early = time.monotonic() <= self.next_submission_s
            if is_early or self.stop.is_set() or not self.submit(waiting[0]):
                return
            waiting.popleft()

    def submit(self, runs: list[CellRun]) -> bool:
        """Submit a job. Return False if SLURM refuses it while others are in the queue; without,
        raise WorkerError."""
        try:
            self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self.request_of(runs, folder.name).write(folder)
            (folder / EVENTS).touch(mode=0o600)
        except OSError as error:
            raise WorkerError(
                f"cannot write {self.folder} (executor.job_folder): {error.strerror}"
            ) from error
        try:
            job_id = queue.submit(self.name, folder, self.settings.executor)
        except WorkerError as error:
            shutil.rmtree(folder)
            if not self.jobs:
                raise
            self.progress.note(f"{error}; trying again in {REFUSED_PAUSE_S:.0f} s")
            self.next_submission_s = time.monotonic() + REFUSED_PAUSE_S
            return False
        self.jobs.append(ClusterJob(job_id, folder, runs))
        return True

    def request_of(self, runs: Sequence[CellRun], job_name: str) -> JobRequest:
        """Return what a job is asked to run."""
        # a lost job may still write to its own
        caches = sweep_cache(self.settings, self.sweep_id) / job_name
        settings = replace(
            self.settings,
            db=str(connect.folder_of(self.settings.db).absolute() / "unused.db"),
            executor=replace(self.settings.executor, name="local", cache_dir=str(caches)),
            resume=None,
        )
        keys = {run.cell.key for run in runs}
        history = {}
        for environment_id, recorded in self.recorded.items():
            history[environment_id] = {key: recorded[key] for key in keys & recorded.keys()}
        return JobRequest(
            sweep_id=self.sweep_id,
            first_rounds=self.store.first_rounds(self.sweep_id),
            settings=settings.to_json(),
            runs=[JobRun(run.interpreter, run.cell.params()) for run in runs],
            history=history,
        )

    # --- watching ---

    def watch(self, job: ClusterJob, states: Mapping[str, queue.JobState] | None) -> JobLoss | None:
        """Read the job's events. Return how it was lost, or None if it runs, waits or has done its
        work. `states`: what the queue says, None: not asked."""
        try:
            self.read(job)
        except MessageError as error:
            queue.run_command("scancel", job.id)
            return JobLoss(Status.CRASHED, f"sent an invalid message: {error}")
        if job.is_done:
            self.jobs.remove(job)
            shutil.rmtree(job.folder, ignore_errors=True)
            self.drop(job.runs)
            return None
        if job.failed:
            return JobLoss(Status.CRASHED, f"could not run trials: {job.failed}")
        if states is None:
            return None
        state = states.get(job.id, queue.JobState("UNKNOWN"))
        # a network file system may have shown the last events late
        if job.has_ended and state.has_ended:
            return self.loss_of(state)
        job.has_ended = state.has_ended
        # for example for ever: PartitionTimeLimit
        if state.state == "PENDING" and state.reason not in (*queue.USUAL, *self.noted):
            self.noted.add(state.reason)
            self.progress.note(f"job {job.id} waits: {one_line(state.reason)}")
        return None

    def loss_of(self, state: queue.JobState) -> JobLoss:
        """Return how a job was lost that the queue lists with this state."""
        how = queue.ENDED[state.state]
        status = Status.CRASHED
        if state.state in ("TIMEOUT", "DEADLINE"):
            how += f" after {self.settings.executor.time_limit_min} min (executor.time_limit_min)"
            status = Status.TIMEOUT
        return JobLoss(status, f"{how} ({state.state})")

    def lost(self, job: ClusterJob, loss: JobLoss) -> list[CellRun]:
        """Record the trials in flight of a lost job, and return the runs that other jobs are to
        continue."""
        self.jobs.remove(job)
        # stops a job that still runs on a node that lost contact
        (job.folder / EVENTS).unlink(missing_ok=True)
        log = job.log()
        reason = one_line(f"{job} {loss.how}")
        if not job.has_begun:
            words = ""
            if not job.failed:
                words = last_words(log)
            reason = one_line(f"{reason} before its first trial{words}", 1000)
            self.why_unbegun = reason
            self.unbegun.update(job.runs)
        for trial in [*job.running]:
            record = Trial(
                trial.run.cell.key,
                trial.round,
                loss.status,
                reason,
                trial.attempt,
                extra={LOST: job.id, "log": log},
            )
            self.add(job, trial, record)
        repeated = self.trials_left(job.runs)
        runs = [trial.run for trial in repeated]
        self.drop({*job.runs} - {*runs})
        if repeated:
            self.progress.note(
                f"{reason}; another job runs its {count(len(repeated), 'remaining trial')}"
            )
        return runs

    def drop(self, runs: Iterable[CellRun]) -> None:
        """Note that the remaining rounds of these runs are not needed."""
        for run in runs:
            self.progress.dropped(run)

    def cancel(self) -> None:
        """Cancel all jobs, wait until they have left the queue, and commit what they recorded
        before."""
        if self.jobs:
            self.progress.note(f"cancelling {count(len(self.jobs), 'job')}")
            queue.cancel(self.name)
        for job in self.jobs:
            self.close(job)

    # --- events ---

    def read(self, job: ClusterJob) -> None:
        """Handle the job's new events. Raises MessageError for invalid ones, StoreError if they
        cannot be stored."""
        for event in job.new_events():
            if not job.id and not isinstance(event, LASTING):
                continue
            try:
                self.handle(job, event)
            except (LookupError, TypeError, ValueError) as error:
                raise MessageError(f"{type(error).__name__}: {error}") from error

    def close(self, job: ClusterJob) -> None:
        """Commit what an ended job recorded, and remove its folder."""
        with suppress(MessageError):
            self.read(job)
        shutil.rmtree(job.folder, ignore_errors=True)

    def handle(self, job: ClusterJob, event: AnyEvent) -> None:
        match event:
            case Began():
                self.begin(job, event)
            case Started():
                trial = event.trial_among(job.runs)
                job.has_begun = True
                job.running.append(trial)
                self.progress.started(f"job {job.id} ({job.node} {event.slot})", trial)
            case Record():
                self.add(job, event.trial_among(job.runs), Trial.from_json(event.record))
            case Note():
                self.progress.note(f"job {job.id} on {job.node}: {one_line(event.text)}")
            case Failed():
                job.failed = one_line(event.reason)
            case Done():
                job.is_done = True

    def begin(self, job: ClusterJob, event: Began) -> None:
        """Note where a job runs."""
        job.node = event.node
        for environment_id, found in event.environments.items():
            interpreter = Interpreter.from_facts(found.interpreter)
            if interpreter not in interpreters_of(job.runs):
                raise ValueError("it ran under another interpreter")
            self.store.add_environment(found.environment, found.details)
            self.store.note_environments(self.sweep_id, {environment_id: found.interpreter})
            self.environments[environment_id] = interpreter
            self.recorded.setdefault(environment_id, {})
            job.environments[interpreter] = environment_id

    def add(self, job: ClusterJob, trial: PlannedTrial, record: Trial) -> None:
        """Commit a trial, unless a killed effbench did so."""
        environment_id = job.environments[trial.run.interpreter]
        recorded = self.recorded[environment_id]
        known = recorded.get(trial.run.cell.key, [])
        if any(other.round == trial.round and other.attempt >= trial.attempt for other in known):
            return
        self.store.add_trial(self.sweep_id, environment_id, record)
        recent = replace(record, samples={})  # which take megabytes
        recorded[trial.run.cell.key] = last_attempts([*known, recent])
        if job.id:
            job.running.remove(trial)
            self.progress.ended(trial, record)


def last_words(log: str) -> str:
    """Return the last line of a job's error output with a colon; srun only tells the exit code."""
    for line in reversed(log.splitlines()):
        if line.strip() and not line.startswith("srun: error: "):
            return f": {line}"
    return ""


def jobs_folder(settings: Settings) -> Path:
    """Return the folder of all jobs, which all nodes share."""
    folder = settings.executor.job_folder
    if not folder:
        return cache_home() / "jobs"
    return Path(expand_user(folder, "executor.job_folder")).absolute()
