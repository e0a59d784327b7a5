"""What effbench knows of the jobs of a cluster, and what their events change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from effbench.core.cell import Environment, Trial
from effbench.core.message import MessageError
from effbench.core.printable import one_line
from effbench.run.executors.job_files import EVENTS, read_events
from effbench.run.interpreters import Facts, Interpreter
from effbench.run.plan import CellRun, PlannedTrial, interpreters_of
from effbench.run.progress import Progress
from effbench.store.store import Store
from effbench.store.summary import last_attempts

#: Events that also count from a job that a killed effbench submitted: the others are its progress.
LASTING = ("environment", "began", "record")
#: The end of a job's error output that a lost trial keeps.
MOST_LOG_CHARACTERS = 100_000


@dataclass
class ClusterJob:
    """A submitted job. `id`: empty for one that a killed effbench submitted. `running`: trial in
    flight -> its phase. `has_ended`: whether the queue lists it as ended. `offset`: end of the
    events that were read."""

    id: str
    folder: Path
    runs: Sequence[CellRun]
    node: str = "?"
    environments: dict[str, Interpreter] = field(default_factory=dict)
    running: dict[PlannedTrial, str | None] = field(default_factory=dict)
    has_begun: bool = False
    is_done: bool = False
    failed: str | None = None
    has_ended: bool = False
    offset: int = 0

    def __str__(self) -> str:
        if self.has_begun:
            return f"job {self.id} on {self.node}"
        return f"job {self.id}"

    def trial_of(self, event: Facts) -> PlannedTrial:
        """Return the trial that an event refers to."""
        run = self.run_of(event["cell_key"], Interpreter(**event["interpreter"]))
        return PlannedTrial(run, event["round"], event["attempt"])

    def run_of(self, cell_key: str, interpreter: Interpreter) -> CellRun:
        """Return the job's run of this cell. Raises KeyError."""
        for run in self.runs:
            if run.cell.key == cell_key and run.interpreter == interpreter:
                return run
        raise KeyError(cell_key)

    def environment_of(self, run: CellRun) -> str:
        """Return the environment of the run on the job's node. Raises KeyError."""
        for environment_id, interpreter in self.environments.items():
            if interpreter == run.interpreter:
                return environment_id
        raise KeyError(run)

    def log(self) -> str:
        """Return the end of the job's error output."""
        text = ""
        for path in sorted(self.folder.glob("*.err"))[-1:]:
            text = path.read_text(errors="replace")
        return text[-MOST_LOG_CHARACTERS:]


class ClusterRecord:
    """The record of a sweep whose trials run in jobs. `environments`: id -> interpreter; `trials`:
    the recorded ones (last attempts) by environment and cell key."""

    def __init__(self, store: Store, sweep_id: str, progress: Progress) -> None:
        self.store = store
        self.sweep_id = sweep_id
        self.progress = progress
        self.environments: dict[str, Interpreter] = {}
        self.trials: dict[str, dict[str, list[Trial]]] = {}
        facts = store.find_sweep(sweep_id).host.get("environments") or {}
        for environment_id, known in facts.items():
            self.environments[environment_id] = Interpreter.from_facts(known)
            self.trials[environment_id] = store.history(sweep_id, environment_id)

    def trials_in(self, environment_id: str, run: CellRun) -> list[Trial]:
        return self.trials[environment_id].get(run.cell.key, [])

    def trials_of(self, run: CellRun) -> list[Trial]:
        """Return the trials of the run in the environment with most of them."""
        recorded = [
            self.trials_in(key, run)
            for key, interpreter in self.environments.items()
            if interpreter == run.interpreter
        ]
        return max(recorded, key=len, default=[])

    def add(self, job: ClusterJob, trial: PlannedTrial, environment_id: str, record: Trial) -> None:
        """Commit a trial, unless a killed effbench did so."""
        known = self.trials_in(environment_id, trial.run)
        if any(other.round == trial.round and other.attempt >= trial.attempt for other in known):
            return
        self.store.record(self.sweep_id, environment_id, record)
        recent = replace(record, samples={})  # which take megabytes
        self.trials[environment_id][trial.run.cell.key] = last_attempts([*known, recent])
        if job.id:
            job.running.pop(trial, None)
            self.progress.ended(trial, record)

    # --- events ---

    def read(self, job: ClusterJob) -> None:
        """Handle the job's new events. Raises MessageError for invalid ones, StoreError if they
        cannot be stored."""
        for event in read_events(job.folder / EVENTS, job.offset):
            job.offset = event.end
            if not job.id and event.message.get("event") not in LASTING:
                continue
            try:
                self.handle(job, event.message)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise MessageError(f"{type(error).__name__}: {error}") from error

    def close(self, job: ClusterJob) -> None:
        """Commit what an ended job recorded, and remove its folder."""
        with suppress(MessageError):
            self.read(job)
        shutil.rmtree(job.folder, ignore_errors=True)

    def handle(self, job: ClusterJob, event: Facts) -> None:
        match event["event"]:
            case "environment":
                self.store.add_environment(Environment(**event["environment"]), event["details"])
            case "began":
                self.begin(job, event["node"], event["environments"])
            case "started":
                trial = job.trial_of(event)
                job.has_begun, job.running[trial] = True, None
                self.progress.started(f"job {job.id} ({job.node} {event['slot']})", trial)
            case "phase":
                trial = job.trial_of(event)
                if trial in job.running:
                    job.running[trial] = event["phase"]
                    self.progress.phase(trial, event["phase"])
            case "record":
                record = Trial.from_json(event["trial"])
                run = job.run_of(record.cell_key, job.environments[event["environment_id"]])
                trial = PlannedTrial(run, record.round, record.attempt)
                self.add(job, trial, event["environment_id"], record)
            case "ceilings":
                self.store.add_calibration(
                    event["environment_id"], event["gpu_uuid"], ceilings=event["ceilings"]
                )
            case "note":
                self.progress.note(f"job {job.id} on {job.node}: {one_line(event['text'])}")
            case "failed":
                job.failed = one_line(event["reason"])
            case "done":
                job.is_done = True
            case _:
                raise MessageError(f"unknown event: {str(event)[:200]}")

    def begin(self, job: ClusterJob, node: str, facts: dict[str, Facts]) -> None:
        """Note where a job runs. `facts`: of the interpreter of each environment."""
        job.node = node
        job.environments = {key: Interpreter.from_facts(known) for key, known in facts.items()}
        if not {*job.environments.values()} <= {*interpreters_of(job.runs)}:
            raise ValueError("it ran under another interpreter")
        self.store.note_environments(self.sweep_id, facts)
        self.environments |= job.environments
        for environment_id in facts:
            self.trials.setdefault(environment_id, {})
