"""The two files of a cluster's job: what it is asked to run, and what has happened (events).

Both hold messages (see effbench.core.message). `Failed` or `Done` is the last event.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from effbench.core.cell import Cell, Environment, Trial
from effbench.core.message import MessageError, decode, encode
from effbench.run.interpreters import Facts, Interpreter
from effbench.run.plan import CellRun, PlannedTrial

REQUEST, EVENTS = "job.json", "events.jsonl"


# --- the request ---


@dataclass(frozen=True)
class JobRun:
    """A cell run in a request. `cell`: its parameters."""

    interpreter: Interpreter
    cell: dict[str, Any]


@dataclass(frozen=True)
class JobRequest:
    """What a job runs. `history`: environment -> cell key -> recorded trials."""

    sweep_id: str
    first_rounds: list[int]
    settings: dict[str, Any]
    runs: list[JobRun]
    history: dict[str, dict[str, list[Trial]]]

    def write(self, folder: Path) -> None:
        (folder / REQUEST).write_bytes(encode(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Return the request of this folder. Raises MessageError, such as for one that another
        version of effbench wrote."""
        try:
            return msgspec.convert(decode((folder / REQUEST).read_bytes()), cls)
        except msgspec.ValidationError as error:
            raise MessageError(str(error)) from error

    def cell_runs(self) -> list[CellRun]:
        return [CellRun(Cell.from_params(run.cell), run.interpreter) for run in self.runs]


# --- events ---


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened in a job."""

    def encode(self) -> bytes:
        """Return the event as a line."""
        return encode(msgspec.to_builtins(self))


@dataclass(frozen=True)
class FoundEnvironment:
    """An environment on the job's node. `interpreter`: its facts."""

    environment: Environment
    details: dict[str, Any]
    interpreter: Facts


class Began(Event, frozen=True):
    """The job runs on this node. `environments`: by id."""

    node: str
    environments: dict[str, FoundEnvironment]


class TrialEvent(Event, frozen=True):
    """Something that happened to a trial. `run`: its number in the request."""

    run: int
    round: int
    attempt: int

    def trial_among(self, runs: list[CellRun]) -> PlannedTrial:
        """Return the trial. `runs`: those of the request."""
        return PlannedTrial(runs[self.run], self.round, self.attempt)


class Started(TrialEvent, frozen=True):
    slot: str


class Record(TrialEvent, frozen=True):
    """The trial has ended. `record`: see Trial.to_json."""

    record: dict[str, Any]


class Note(Event, frozen=True):
    text: str


class Failed(Event, frozen=True):
    reason: str


class Done(Event, frozen=True):
    """The job has run all its trials."""


AnyEvent: TypeAlias = Began | Started | Record | Note | Failed | Done


def event_of(line: bytes) -> AnyEvent:
    """Return the event of a line. Raises MessageError."""
    try:
        event: AnyEvent = msgspec.convert(decode(line), AnyEvent)
    except msgspec.ValidationError as error:
        raise MessageError(str(error)) from error
    return event
