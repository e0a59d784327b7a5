"""Messages between a sweep and its fork server: versioned lines of plain JSON.

Sweep to server:

    {"v", "op": "run", "id", "task", "payload", "env"}
        task: probe, preload, check, trial or coldstart
    {"v", "op": "kill", "id"}

Server to sweep:

    {"v", "event": "ready", "pid"}
    {"v", "event": "started", "id", "pid"}
    {"v", "event": "phase", "id", "phase"}
    {"v", "event": "ended", "id", "end": a `TaskEnd`}

Task to server, through the task's own result pipe:

    {"v", "phase"}
    {"v", "result"}, once

Standard library only, because both sides import this module.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1
#: Plain JSON: a task's payload and result.
Json = dict[str, Any]
#: The phases in which a trial and a probe first touch a GPU.
DEVICE_PHASE, PROBE_PHASE = "device", "environment"
#: Phases before any user code runs: a failure in them is the harness's.
BEFORE_USER_CODE = (None, DEVICE_PHASE)
#: The phase in which a trial waits for the other member of its duet, which does not count towards
#: its timeout.
DUET_PHASE = "duet"
#: Environment variable with the task's id, inherited by all its processes: it identifies leftover
#: processes.
TRIAL_VARIABLE = "EFFBENCH_TRIAL"
#: Key in `Trial.extra` of a rank that failed: the number of another rank that had failed before,
#: which may be the cause; None if there was none.
LOST_RANK = "lost_rank"


class MessageError(ValueError):
    """A line is not a message of this version."""


def encode(message: dict[str, Any]) -> bytes:
    """Return the message as one line with its newline. NaN and infinity are written as Python's
    JSON does."""
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | bytearray | str) -> dict[str, Any]:
    """Return the message of a line. Raises MessageError for anything but a JSON object of this
    version."""
    message: Any = None
    with suppress(ValueError, RecursionError):
        message = json.loads(line)
    if not isinstance(message, dict) or message.get("v") != VERSION:
        raise MessageError(f"not a message of version {VERSION}: {line[:200]!r}")
    return message


@dataclass(frozen=True)
class MessagePipe:
    """A pipe for messages. `end`: the descriptor of the end to write to."""

    end: int

    def send(self, **message: Any) -> None:
        """Write a message, such as `send(phase="timing")`."""
        data = encode(message)
        while data:
            data = data[os.write(self.end, data) :]


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended. `result`: None if it did not complete; `code`: of its process, negative for
    a signal; `log`: the end of its output. `failed`: why the server could not start it; `died`: how
    the server ended before it; else empty."""

    result: Any = None
    pid: int | None = None
    code: int = 0
    log: str = ""
    oom_killed: bool = False
    failed: str = ""
    died: str = ""


@dataclass
class Payload:
    """Arguments of a task in plain JSON: `Payload(**payload.to_json())` equals `payload`."""

    to_json = asdict


@dataclass
class DuetRequest(Payload):
    """How a trial meets the other member of its duet, which runs at the same time on the same
    device.

    `folder`: of the socket at which they meet. `leads`: whether this member was started first and
    decides when the series ends. `answer_s`: seconds after which a partner that does not answer
    counts as lost.
    """

    folder: str
    leads: bool
    answer_s: float


@dataclass
class RankRequest(Payload):
    """Which part a process has in a trial that uses several devices.

    `rank`: from 0, the leader, whose record is that of the trial; `size`: number of ranks;
    `folder`: a private folder at which they meet.
    """

    rank: int
    size: int
    folder: str


@dataclass
class TrialRequest(Payload):
    """A trial: the cell's parameters, the protocol's settings, and where to run it."""

    cell: dict[str, Any]
    protocol: dict[str, Any]
    round: int = 0
    gpu_uuid: str | None = None
    # compile caches of this cell in this sweep, environment and compilation
    cache_dir: str | None = None
    compilation: int = 0  # number of these compile caches
    is_cold: bool = False  # whether these caches are still empty
    cores: list[int] | None = None  # CPU cores to run on; None: no pinning
    foreign_wait_s: float = 0.0  # maximum seconds to wait for a foreign process on the GPU
    # undisturbed time of the work that shows the host's speed, where known
    host_ms: float | None = None
    # its time in the slower moments of undisturbed trials, where known
    host_high_ms: float | None = None
    # mode whose calls alternate with the trial's, for the speedup
    baseline: dict[str, Any] | None = None
    # the trial alternates with another one; None: it is timed alone
    duet: DuetRequest | None = None
    # the process is one of several ranks; None: it is the only one
    rank: RankRequest | None = None
    # value of CUDA_VISIBLE_DEVICES that selects another GPU, for coldstart.change=gpu
    other_gpu: str | None = None

    def __post_init__(self) -> None:
        # from JSON
        if isinstance(self.duet, dict):
            self.duet = DuetRequest(**self.duet)
        if isinstance(self.rank, dict):
            self.rank = RankRequest(**self.rank)


@dataclass
class ProbeRequest(Payload):
    """A check that targets can be imported; the answer also has the environment.

    `modules`: target of a model -> names of its arguments; `inputs`: target of a model -> the ways
    in which inputs are passed to it, each as name, in order, -> whether it is passed by name;
    `losses`: targets that `training.loss` names; `modes`: text of a mode -> the mode.
    """

    modules: dict[str, list[str]] = field(default_factory=dict)
    inputs: dict[str, list[dict[str, bool]]] = field(default_factory=dict)
    networks: list[dict[str, Any]] = field(default_factory=list)  # arguments of `library.check`
    losses: list[str] = field(default_factory=list)
    modes: dict[str, dict[str, Any]] = field(default_factory=dict)
    device: str = "auto"


@dataclass(frozen=True)
class ProbedGpu:
    """A GPU in the answer of a probe. `index`: among the visible GPUs; `visible`: the value of
    CUDA_VISIBLE_DEVICES that selects it; `near_cores`: the CPU cores near it, such as `0-15`, None
    if unknown."""

    index: int
    uuid: str
    visible: str
    name: str
    memory_bytes: int
    near_cores: str | None


@dataclass
class ProbeAnswer(Payload):
    """What a probe found. `environment`: an `Environment`; `details`: further facts about the
    machine. `errors`: of targets. `settings`: text of a mode -> the names of its constructor's
    arguments, None if it accepts any name. `starts_cuda`: whether importing the targets uses a
    GPU."""

    environment: Json
    details: Json
    gpus: list[ProbedGpu]
    errors: list[str] = field(default_factory=list)
    settings: dict[str, list[str] | None] = field(default_factory=dict)
    starts_cuda: bool = False

    @classmethod
    def from_json(cls, values: Json) -> ProbeAnswer:
        return cls(**{**values, "gpus": [ProbedGpu(**gpu) for gpu in values["gpus"]]})


@dataclass
class CheckRequest(Payload):
    """A behaviour check: the function `target` is called with the device and the settings."""

    target: str
    settings: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    cache_dir: str | None = None  # compile caches; None: a temporary folder
    seed: int = 0
