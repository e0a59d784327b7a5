"""Messages between a sweep and its fork server: versioned, plain JSON lines.

Sweep to server:   {"v", "op": "run", "id", "task", "payload", "env"}   task: probe, preload, ceilings,
                                                                        check, compile_options or trial
                   {"v", "op": "kill", "id"}
Server to sweep:   {"v", "event": "ready", "pid"}
                   {"v", "event": "started", "id", "pid"}
                   {"v", "event": "phase", "id", "phase"}
                   {"v", "event": "ended", "id", "pid", "result" | null, "exit", "signal", "log", "oom_killed",
                    "reason" | null}                    reason: why the server ended the task
                   {"v", "event": "ended", "id", "result": null, "exit", "signal", "failed"}
                                                        failed: why the server could not start the task
Task to server:    {"v", "phase"} and, once, {"v", "result"}, through the task's own result pipe

Standard library only: both sides import it, and nothing else of each other.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
#: Longest line that a task may send. A record with 100,000 samples in each of its three timers takes 6 MiB.
MOST_BYTES = 64 * 2**20
#: The phases in which a trial and a probe first touch a GPU.
DEVICE_PHASE, PROBE_PHASE = "device", "environment"
#: Phases in which no code of the user has run yet: what fails there is the harness's failure.
BEFORE_USER_CODE = (None, DEVICE_PHASE)
#: Set to the task's id in its process, and so in all that it starts: leftovers are known by it.
TRIAL_VARIABLE = "EFFBENCH_TRIAL"


class MessageError(ValueError):
    """A line that is not a message of this version."""


def encode(message: dict[str, Any]) -> bytes:
    """Return one line with its newline. NaN and infinities travel as Python's JSON writes them."""
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | bytearray | str) -> dict[str, Any]:
    """Return the message of a line. Raises MessageError for anything but a JSON object of this version."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {line[:200]!r}") from error
    if not isinstance(message, dict) or message.get("v") != VERSION:
        found = message.get("v") if isinstance(message, dict) else message
        raise MessageError(f"message version {found!r}, expected {VERSION}")
    return message


@dataclass
class Payload:
    """What a task is asked for, in plain JSON: `Payload(**payload.to_json())` is the same."""

    to_json = asdict


@dataclass
class TrialRequest(Payload):
    """One trial: the cell (its params), the protocol's settings, and where to run it."""

    cell: dict[str, Any]
    protocol: dict[str, Any]
    round: int = 0
    attempt: int = 0
    gpu_index: int | None = None
    gpu_uuid: str | None = None
    cache_dir: str | None = None  # the compile caches of this cell in this sweep and environment
    cores: list[int] | None = None  # CPU cores to stay on; None: wherever the kernel puts it
    foreign_wait_s: float = 0.0  # longest wait for another process to leave the GPU alone
    profile: bool = False  # whether the profiled pass belongs to this trial
    ceilings: dict[str, Any] | None = None  # of this machine, where known
    artifacts: dict[str, Any] | None = None  # kinds, the folder to write them to, its name in the record


@dataclass
class ProbeRequest(Payload):
    """Which targets must be importable; the answer carries the environment as well.

    `modules` make models; `others` are targets among their arguments, and losses."""

    modules: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    modes: list[dict[str, Any]] = field(default_factory=list)
    device: str = "auto"


@dataclass
class CheckRequest(Payload):
    """A behaviour check: a function by its target, called with the device and the settings."""

    target: str
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    cache_dir: str | None = None  # its compile caches; None: a fresh folder, gone afterwards
    seed: int = 0
