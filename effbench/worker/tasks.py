"""The interface of tasks: modules next to this one that have `run_task(payload, say_phase)`, and
`preload` of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: Plain JSON: a task's payload and result.
Json = dict[str, Any]
#: Tells the sweep which phase a task enters.
SayPhase = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A request to run a task: `name`, a module next to this one, with its `payload` and further
    environment variables."""

    id: str
    name: str
    payload: Json
    env: dict[str, str]
