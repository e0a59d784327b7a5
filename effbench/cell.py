"""The core types: what is measured (`Cell`), where (`Environment`) and the outcome (`Trial`,
`Status`)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, get_origin, get_type_hints

from effbench.metrics import TRIAL_METRICS


class Status(StrEnum):
    """How a trial or a result ended, worst first: a result takes the worst status of its trials."""

    INCORRECT = "incorrect"  # output outside tolerance against eager
    CRASHED = "crashed"  # the process died
    TIMEOUT = "timeout"
    ERROR = "error"
    OOM = "oom"
    UNSUPPORTED = "unsupported"  # cannot run on this machine; not a failure
    DEGRADED = "degraded"  # it ran, but not in the way that the mode's name promises
    OK = "ok"

    @property
    def is_failure(self) -> bool:
        """Whether a cell with this status makes a sweep exit with code 1."""
        return self in (Status.ERROR, Status.CRASHED, Status.TIMEOUT, Status.INCORRECT)

    @property
    def is_measured(self) -> bool:
        """Whether a trial with this status has measurements. Speedups are shown only for `ok`."""
        return self in (Status.OK, Status.DEGRADED)


SEVERITY = tuple(Status)
#: Numerics that cells omit while they have these values, so that the keys of older cells stay
#: valid.
LATER_NUMERICS = {"channels_last": False, "quantize": None, "grad_mode": "auto"}


def canonical_json(value: Any) -> str:
    """Return compact JSON with sorted keys: equal values give equal text. Raises ValueError for NaN
    and infinity."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def encodable(text: str) -> str:
    r"""Return `text` with lone surrogates escaped (`\udcff`), because they cannot be printed or
    stored."""
    return text.encode("utf-8", "backslashreplace").decode()


def mode_settings(mode: dict[str, Any]) -> dict[str, Any]:
    """Return a mode's own settings, the keyword arguments of its constructor."""
    return {
        key: value for key, value in mode.items() if key not in ("name", "description", "_target_")
    }


def targets_in(node: Any) -> Iterator[str]:
    """Yield every `_target_` in nested settings, outermost first."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for value in node.values():
            yield from targets_in(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from targets_in(value)


@dataclass(frozen=True, eq=False)
class Cell:
    """One point of the matrix: what is run, but not how it is measured. `key` identifies it.

    `model` holds `name`, `module` (`_target_` and arguments), `inputs` (a list in the order of
    forward's arguments, each with its `name`), `tolerance` and `allow_nonfinite`; `mode` holds
    `name`, `_target_` and the mode's settings. `stream` is None if all calls have the same sizes;
    otherwise it holds what `streams.resolve` returns, and `bs` is the largest batch size.
    `training` and `generate` hold the settings of their phases, otherwise None. `threads` is None
    for one thread for each physical core. All values are plain JSON and resolved: `dtype` and
    `device` are never `auto`.
    """

    model: dict[str, Any]
    bs: int
    mode: dict[str, Any]
    dtype: str
    phase: str
    device: str
    numerics: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stream: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    generate: dict[str, Any] | None = None
    threads: int | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 of the cell's canonical JSON, in hex."""
        return digest(self.params())

    @cached_property
    def comparison_key(self) -> str:
        """SHA-256 of all but the mode: cells that share it are compared."""
        return digest({name: value for name, value in self.params().items() if name != "mode"})

    @property
    def model_name(self) -> str:
        return self.model["name"]

    @property
    def mode_name(self) -> str:
        return self.mode["name"]

    def params(self) -> dict[str, Any]:
        """Return all parameters as plain JSON, without those that are None: older keys stay valid.

        The values are the cell's own: do not change them.
        """
        return {
            name: value
            for name in self.__dataclass_fields__
            if (value := getattr(self, name)) is not None
        }

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Cell:
        return cls(**params)

    def __str__(self) -> str:
        return f"{self.model_name} bs={self.bs} {self.mode_name} {self.dtype}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@dataclass(frozen=True)
class Environment:
    """Fingerprint of hardware and software. Machines with the same fingerprint have the same id."""

    gpu_name: str | None
    gpu_memory_bytes: int | None
    driver_version: str | None
    cuda_version: str | None
    torch_version: str
    triton_version: str | None
    python: str
    cpu_name: str
    platform: str
    flags: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """First 16 hex digits of the fingerprint's SHA-256."""
        return digest(dataclasses.asdict(self))[:16]


@dataclass
class TrialRecord:
    """Fields of every trial; `Trial` adds the measured quantities."""

    cell_key: str
    round: int
    status: Status
    reason: str | None = None
    attempt: int = 0
    phase: str | None = None  # the last phase entered; a failed trial failed in this phase
    started_at: str | None = None  # ISO 8601, UTC
    samples: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the record that `to_json` serialized. Raises ValueError for any other data."""
        try:
            samples = {timer: [*map(float, values)] for timer, values in data["samples"].items()}
            trial = cls(**{**data, "status": Status(data["status"]), "samples": samples})
        except (AttributeError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        for name, kind in get_type_hints(cls).items():
            value, kind = getattr(trial, name), dict if get_origin(kind) is dict else kind
            # JSON does not reliably distinguish integers from floats
            allowed = kind | int | float if isinstance(1, kind) or isinstance(1.0, kind) else kind
            if not isinstance(value, allowed):
                raise ValueError(
                    f"{name}: expected {getattr(kind, '__name__', kind)}, got {str(value)[:100]!r}"
                )
        trial.reason = trial.reason and encodable(trial.reason)
        return trial


Trial = dataclasses.make_dataclass(
    "Trial",
    [(metric.name, metric.kind | None, None) for metric in TRIAL_METRICS],
    bases=(TrialRecord,),
)
Trial.__module__ = __name__  # pickle looks the class up in this module
Trial.__doc__ = """A TrialRecord with the quantities of `metrics.py`.

A quantity that does not apply is None, never 0.

`samples` maps a timer (`latency_ms`, `period_ms`, `warmup_ms`) to its raw values, in ms, in order.
"""
