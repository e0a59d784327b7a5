"""The two files of a cluster's job: what it is asked to run, and its events, which are what a local
sweep would store.

Both hold messages (see effbench.core.message).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec

from effbench.core.cell import Environment, Trial
from effbench.core.errors import WorkerError
from effbench.core.message import MessageError, decode, encode
from effbench.run.interpreters import Facts
from effbench.run.plan import CellRun, Settings

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


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower):
    """Something that happened in a job."""

    def encode(self) -> bytes:
        """Return the event as a line."""
        return encode(msgspec.to_builtins(self))


class FoundEnvironment(Event, frozen=True):
    environment: Environment
    details: dict[str, Any]


class NotedEnvironments(Event, frozen=True):
    """`facts`: of the interpreter of each environment, by its id."""

    facts: dict[str, Facts]


class Ended(Event, frozen=True):
    """A trial has ended."""

    environment_id: str
    trial: Trial


class Done(Event, frozen=True):
    """The job has run all its trials. This is its last event."""


AnyEvent: TypeAlias = FoundEnvironment | NotedEnvironments | Ended | Done


def event_of(line: bytes) -> AnyEvent:
    """Return the event of a line. Raises WorkerError."""
    try:
        event: AnyEvent = msgspec.convert(decode(line), AnyEvent)
    except (MessageError, msgspec.ValidationError) as error:
        raise WorkerError(f"a job sent an invalid message: {error}") from error
    return event
