"""What effbench knows of the jobs of a cluster, and what their events change."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from effbench.cell import Environment, Trial
from effbench.message import MessageError
from effbench.printable import one_line
from effbench.store.store import Store
from effbench.store.summary import last_attempts
from effbench.sweeping.executors.job_files import EVENTS, read_events
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, interpreters_of
from effbench.sweeping.progress import Progress

#: Events that also count from a job that a killed effbench submitted: the others are its progress.
LASTING = ("environment", "began", "record")
#: The end of a job's error output that a lost trial keeps.
MOST_LOG_CHARACTERS = 100_000


@dataclass
class Job:
    """A submitted job. `id`: empty for one that a killed effbench submitted. `tries`: number of
    jobs with these runs that ended before their first trial. `left`: number of its remaining
    trials. `running`: trial in flight -> its phase. `has_ended`: whether the queue lists it as
    ended."""

    id: str
    folder: Path
    runs: Sequence[CellRun]
    tries: int = 0
    left: int = 0
    node: str = "?"
    environments: dict[str, Interpreter] = field(default_factory=dict)
    running: dict[PlannedTrial, str | None] = field(default_factory=dict)
    has_begun: bool = False
    is_done: bool = False
    failed: str | None = None
    has_ended: bool = False
    offset: int = 0

    @property
    def place(self) -> str:
        """The job as messages name it."""
        return f"job {self.id} on {self.node}" if self.has_begun else f"job {self.id}"

    def run_of(self, cell_key: str, interpreter: Interpreter) -> CellRun:
        """Return the job's run of this cell. Raises KeyError."""
        for run in self.runs:
            if run.cell.key == cell_key and run.interpreter == interpreter:
                return run
        raise KeyError(cell_key)

    def trial_of(self, reference: Mapping[str, Any]) -> PlannedTrial:
        """Return the trial that an event refers to."""
        run = self.run_of(reference["cell_key"], Interpreter(**reference["interpreter"]))
        return PlannedTrial(run, int(reference["round"]), int(reference["attempt"]))

    def environment_of(self, interpreter: Interpreter) -> str | None:
        """Return the environment of the interpreter on the job's node, if the job has begun."""
        for environment_id, known in self.environments.items():
            if known == interpreter:
                return environment_id
        return None

    def log(self) -> str:
        """Return the end of the job's error output."""
        logs = sorted(self.folder.glob("*.err"))
        return logs[-1].read_text(errors="replace")[-MOST_LOG_CHARACTERS:] if logs else ""


@dataclass(frozen=True)
class LostTrial:
    """A trial of a lost job that was given up before any job told the environment of its
    interpreter."""

    job: Job
    trial: PlannedTrial
    record: Trial


class RecordedTrials:
    """The recorded trials (last attempts) of a sweep, by environment and cell key.
    `environments`: id -> interpreter."""

    def __init__(self, store: Store, sweep_id: str) -> None:
        facts = store.find_sweep(sweep_id).host.get("environments") or {}
        self.environments = {key: Interpreter.from_facts(known) for key, known in facts.items()}
        self.trials: dict[str, dict[str, list[Trial]]] = {
            key: store.history(sweep_id, key) for key in self.environments
        }

    def add_environment(self, environment_id: str, interpreter: Interpreter) -> None:
        self.environments[environment_id] = interpreter
        self.trials.setdefault(environment_id, {})

    def best_environment(self, run: CellRun) -> str | None:
        """Return the environment with most trials of the run; without any, the one seen last; None
        if none is known."""
        known = [key for key, place in self.environments.items() if place == run.interpreter]
        return max(reversed(known), key=lambda key: len(self.trials_in(key, run)), default=None)

    def trials_in(self, environment_id: str, run: CellRun) -> list[Trial]:
        return self.trials[environment_id].get(run.cell.key, [])

    def of(self, run: CellRun) -> list[Trial]:
        """Return the trials of the run in its best environment."""
        environment_id = self.best_environment(run)
        return [] if environment_id is None else self.trials_in(environment_id, run)

    def add(self, run: CellRun, environment_id: str, record: Trial) -> bool:
        """Add a trial. Return False if it is known, or a later attempt."""
        known = self.trials_in(environment_id, run)
        if any(other.round == record.round and other.attempt >= record.attempt for other in known):
            return False
        recent = dataclasses.replace(record, samples={})  # which take megabytes
        self.trials[environment_id][run.cell.key] = last_attempts([*known, recent])
        return True


class JobEvents:
    """Handles the events of jobs: it stores their trials and passes their progress on. `unplaced`:
    lost trials that wait until their interpreter has an environment, as this machine's is another
    one."""

    def __init__(
        self, store: Store, sweep_id: str, recorded: RecordedTrials, progress: Progress
    ) -> None:
        self.store = store
        self.sweep_id = sweep_id
        self.recorded = recorded
        self.progress = progress
        self.unplaced: list[LostTrial] = []
        self.handlers = {
            "environment": self.on_environment,
            "began": self.on_began,
            "planned": self.on_planned,
            "resized": self.on_resized,
            "started": self.on_started,
            "phase": self.on_phase,
            "record": self.on_record,
            "ceilings": self.on_ceilings,
            "note": self.on_note,
            "failed": self.on_failed,
            "done": self.on_done,
        }

    def read(self, job: Job) -> None:
        """Handle the job's new events. Raises MessageError for invalid ones, StoreError if they
        cannot be stored."""
        for offset, message in read_events(job.folder / EVENTS, job.offset):
            job.offset = offset
            kind = message.get("event")
            if kind not in self.handlers:
                raise MessageError(f"unknown event: {str(message)[:200]}")
            if not job.id and kind not in LASTING:
                continue
            try:
                self.handlers[kind](job, message)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise MessageError(f"{type(error).__name__}: {error}") from error

    def close(self, job: Job) -> None:
        """Commit what an ended job recorded, and remove its folder."""
        with suppress(MessageError):
            self.read(job)
        shutil.rmtree(job.folder, ignore_errors=True)

    def on_environment(self, job: Job, event: dict[str, Any]) -> None:
        self.store.add_environment(Environment(**event["environment"]), dict(event["details"]))

    def on_began(self, job: Job, event: dict[str, Any]) -> None:
        facts = dict(event["environments"])
        job.node = str(event["node"])
        job.environments = {key: Interpreter.from_facts(known) for key, known in facts.items()}
        if not {*job.environments.values()} <= {*interpreters_of(job.runs)}:
            raise ValueError("it ran under another interpreter")
        self.store.note_environments(self.sweep_id, facts)
        for environment_id, interpreter in job.environments.items():
            self.recorded.add_environment(environment_id, interpreter)
        unplaced, self.unplaced = self.unplaced, []
        for lost in unplaced:
            self.progress.resized(1)
            environment_id = self.recorded.best_environment(lost.trial.run)
            self.place(lost.job, lost.trial, environment_id, lost.record)

    def on_planned(self, job: Job, event: dict[str, Any]) -> None:
        self.resize(job, int(event["trials"]) - job.left)

    def on_resized(self, job: Job, event: dict[str, Any]) -> None:
        self.resize(job, int(event["change"]))

    def resize(self, job: Job, change: int) -> None:
        job.left += change
        self.progress.resized(change)

    def on_started(self, job: Job, event: dict[str, Any]) -> None:
        trial = job.trial_of(event)
        job.has_begun = True
        job.running[trial] = None
        self.progress.started(f"job {job.id} ({job.node} {event['slot']})", trial)

    def on_phase(self, job: Job, event: dict[str, Any]) -> None:
        trial = job.trial_of(event)
        if trial in job.running:
            phase = str(event["phase"])
            job.running[trial] = phase
            self.progress.phase(trial, phase)

    def on_record(self, job: Job, event: dict[str, Any]) -> None:
        record = Trial.from_json(event["trial"])
        environment_id = event["environment_id"]
        run = job.run_of(record.cell_key, job.environments[environment_id])
        trial = PlannedTrial(run, record.round, record.attempt)
        self.record(job, trial, environment_id, record)

    def on_ceilings(self, job: Job, event: dict[str, Any]) -> None:
        environment_id = event["environment_id"]
        if environment_id not in job.environments:
            raise KeyError(environment_id)
        ceilings = dict(event["ceilings"])
        self.store.add_calibration(environment_id, event["gpu_uuid"], ceilings=ceilings)

    def on_note(self, job: Job, event: dict[str, Any]) -> None:
        self.progress.note(f"job {job.id} on {job.node}: {one_line(event['text'])}")

    def on_failed(self, job: Job, event: dict[str, Any]) -> None:
        job.failed = one_line(event["reason"])

    def on_done(self, job: Job, event: dict[str, Any]) -> None:
        job.is_done = True

    def place(
        self, job: Job, trial: PlannedTrial, environment_id: str | None, record: Trial
    ) -> None:
        """Commit a lost trial, or keep it until its interpreter has an environment."""
        if environment_id is None:
            self.unplaced.append(LostTrial(job, trial, record))
        else:
            self.record(job, trial, environment_id, record)

    def record(self, job: Job, trial: PlannedTrial, environment_id: str, record: Trial) -> None:
        """Commit a trial, unless a killed effbench did so."""
        if not self.recorded.add(trial.run, environment_id, record):
            return
        self.store.record(self.sweep_id, environment_id, record)
        if not job.id:
            return
        job.running.pop(trial, None)
        job.left -= 1
        self.progress.ended(trial, record)
