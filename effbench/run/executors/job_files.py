"""The files of a cluster's job: FOLDER/job.json holds what it runs, and to FOLDER/events.jsonl it
appends what happened. Both hold messages (see effbench.core.message)."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from effbench.core.cell import Environment, Trial
from effbench.core.errors import WorkerError
from effbench.core.message import MessageError, decode, encode
from effbench.run.interpreters import Facts
from effbench.run.plan import CellRun, Settings
from effbench.store.trials import HostSpeeds

REQUEST, EVENTS = "job.json", "events.jsonl"


@dataclass(frozen=True)
class JobRequest:
    """What a job runs. `history`: environment -> cell key -> recorded trials."""

    sweep_id: str
    settings: Settings
    runs: list[CellRun]
    history: dict[str, dict[str, list[Trial]]]

    def write(self, folder: Path) -> None:
        (folder / REQUEST).write_bytes(encode(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        return msgspec.convert(decode((folder / REQUEST).read_bytes()), cls)


# --- events ---


class JobEvent(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened in a job."""


class FoundEnvironment(JobEvent, frozen=True):
    """`facts`: of its interpreter."""

    environment: Environment
    details: dict[str, Any]
    facts: Facts


class TrialEnded(JobEvent, frozen=True, tag="ended"):
    """A trial has ended."""

    environment_id: str
    trial: Trial


class Done(JobEvent, frozen=True):
    """The job has run all its trials. This is its last event."""


AnyEvent: TypeAlias = FoundEnvironment | TrialEnded | Done


def event_of(line: bytes) -> AnyEvent:
    """Return the event of a line. Raises WorkerError."""
    try:
        event: AnyEvent = msgspec.convert(decode(line), AnyEvent)
    except (MessageError, msgspec.ValidationError) as error:
        raise WorkerError(f"a job sent an invalid message: {error}") from error
    return event


class JobStore:
    """What a job reads from its request instead of the database, and writes as events.
    Thread-safe."""

    def __init__(self, folder: Path, request: JobRequest) -> None:
        self.events = folder / EVENTS
        self.request = request
        self.writing = threading.Lock()

    def write(self, event: JobEvent) -> None:
        # once it is closed, a network file system shows the line to other machines
        with self.writing, self.events.open("ab") as file:
            file.write(encode(msgspec.to_builtins(event)))

    def history(self, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
        return self.request.history.get(environment_id, {})

    def host_speeds(self, environment_id: str) -> HostSpeeds:
        return HostSpeeds()  # those of other nodes say nothing about this one

    def add_trial(self, sweep_id: str, environment_id: str, trial: Trial) -> None:
        self.write(TrialEnded(environment_id, trial))
