"""The core types: what is measured (`Cell`), where (`Environment`), the outcome in one process
(`Trial`, `Status`) and the summary of all (`Summary`, and `Result` with its cell).

core/metrics.py declares their figures. Of several bases of a dataclass, the fields of the last one
come first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Self, TypeAlias

from effbench.core.disturbances import DisturbanceKind
from effbench.core.metrics import ResultFigures, TrialFigures

JsonObject: TypeAlias = dict[str, Any]


class Status(StrEnum):
    """How a trial or a result ended, worst first: a result takes the worst status of its trials."""

    INCORRECT = "incorrect"  # output outside tolerance against eager
    CRASHED = "crashed"  # the process died
    TIMEOUT = "timeout"
    ERROR = "error"
    OOM = "oom"
    UNSUPPORTED = "unsupported"  # cannot run here, or not in this mode; not a failure
    DEGRADED = "degraded"  # it ran, but not as its mode's name promises: RunningTrial.judge
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
#: Numerics that the parameters of cells omit while they have these values, so that the keys of
#: older cells stay valid.
LATER_NUMERICS = {"channels_last": False, "quantize": None, "grad_mode": "auto"}
#: The phase that times fresh processes up to their first answer.
COLDSTART = "coldstart"
#: Values of `cache` and of `coldstart.change` without a cache, and without a change.
NO_CACHE = NO_CHANGE = "none"


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


def mode_settings(mode: JsonObject) -> JsonObject:
    """Return a mode's own settings, the keyword arguments of its constructor."""
    return {
        key: value for key, value in mode.items() if key not in ("name", "description", "_target_")
    }


@dataclass(frozen=True, eq=False)
class Cell:
    """One point of the matrix: what is run, but not how it is measured. `key` identifies it.

    `model` holds `name`, `module` (`_target_` and arguments), `inputs` (a list in the order of
    forward's arguments, each with its `name`), `tolerance`, `allow_nonfinite` and `attention`,
    unless it is the model's own; `mode` holds `name`, `_target_` and the mode's settings. `stream`
    is None if all calls have the same sizes; otherwise it holds what `streams.resolve` returns, and
    `bs` is the largest batch size.
    `training`, `generate` and `coldstart` hold the settings of their phases, otherwise None.
    `threads` is None for one thread for each physical core. `parallel` is None for one device,
    otherwise what `Parallel.parse` reads. `cache` is what a fresh process starts with, None unless
    the phase is `coldstart`. All values are plain JSON. `dtype` and `device` may be `auto` until
    the sweep is planned (`config.cells.resolve`).

    A new axis is a field of `settings.Config`, a field here that is None by default, a line in
    `config.cells.cell_of`, and the code in `worker/trial.py` that reads it; then run
    `python docs/tables.py`. Labels, `exclude` and reports need nothing. A field of `Numerics` needs
    a line in LATER_NUMERICS instead of the field and the line. See docs/reference/extending.md.
    """

    model: JsonObject
    bs: int
    mode: JsonObject
    dtype: str
    phase: str
    device: str
    numerics: JsonObject = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stream: JsonObject | None = None
    training: JsonObject | None = None
    generate: JsonObject | None = None
    threads: int | None = None
    parallel: str | None = None
    coldstart: JsonObject | None = None
    cache: str | None = None

    @cached_property
    def key(self) -> str:
        """SHA-256 of the cell's canonical JSON, in hex."""
        return digest(self.params())

    @cached_property
    def comparison_key(self) -> str:
        """SHA-256 of all but the mode and the cache: cells that share it are compared."""
        compared = self.params()
        compared.pop("mode")
        compared.pop("cache", None)
        return digest(compared)

    @cached_property
    def cold_key(self) -> str:
        """Key of the cell of phase `coldstart` that fills the cache of this one; of another phase
        its own key."""
        if self.coldstart is None:
            return self.key
        filling = self.coldstart | {"change": NO_CHANGE, "processes": 1}
        return dataclasses.replace(self, coldstart=filling, cache=NO_CACHE).key

    def over(self, parallel: str | None) -> Cell:
        """Return the same cell with this value of `parallel`."""
        return dataclasses.replace(self, parallel=parallel)

    @property
    def change(self) -> str:
        """What differs from when the cache was made: a value of `coldstart.change`; NO_CHANGE in
        another phase."""
        change: str = (self.coldstart or {}).get("change", NO_CHANGE)
        return change

    @property
    def model_name(self) -> str:
        name: str = self.model["name"]
        return name

    @property
    def mode_name(self) -> str:
        name: str = self.mode["name"]
        return name

    def params(self) -> JsonObject:
        """Return all parameters as plain JSON, without those that are None and LATER_NUMERICS:
        older keys stay valid.

        The values are the cell's own: do not change them.
        """
        values = {name: getattr(self, name) for name in CELL_FIELDS}
        values["numerics"] = {
            name: value
            for name, value in self.numerics.items()
            if name not in LATER_NUMERICS or LATER_NUMERICS[name] != value
        }
        return {name: value for name, value in values.items() if value is not None}

    def identity(self) -> Identity:
        """Return what labels and names need to know of this cell."""
        return Identity(
            model=self.model_name,
            bs=self.bs,
            mode=self.mode_name,
            dtype=self.dtype,
            phase=self.phase,
            device=self.device,
            params=self.params(),
            cell_key=self.key,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


CELL_FIELDS = tuple(parameter.name for parameter in dataclasses.fields(Cell))


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

    @cached_property
    def id(self) -> str:
        """First 16 hex digits of the fingerprint's SHA-256."""
        return digest(self.fingerprint())[:16]

    def fingerprint(self) -> JsonObject:
        """Return the facts that identify the environment, by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(Environment)}

    @property
    def hardware(self) -> str:
        """The name of the GPU, or of the CPU if there is no GPU."""
        return self.gpu_name or self.cpu_name

    @property
    def interpreter(self) -> str | None:
        """The path that `python=` gave."""
        return self.flags.get("interpreter")

    @property
    def folder(self) -> str | None:
        """The path that `folder=` gave."""
        return self.flags.get("folder")


@dataclass(frozen=True)
class StoredEnvironment(Environment):
    """An environment of a database. `details`: further facts."""

    id: str = ""
    details: JsonObject = field(default_factory=dict)
    first_seen_at: datetime | None = None


@dataclass(frozen=True)
class Conditions:
    """An environment in which a sweep ran, with the protocol and the facts of the machine that the
    sweep records."""

    environment: Environment
    protocol: Mapping[str, Any]
    host: Mapping[str, Any]


@dataclass
class TrialOutcome:
    """Which trial of a cell it is, how it ended, and what it recorded besides figures.

    `samples` maps a timer to its raw values in ms, in order: `latency_ms`, `period_ms`,
    `warmup_ms`; `_disturbed_ms` of these; and both members of the pairs. `trace`: what
    `Trace.to_json` gives; None for a trial that was not traced.
    """

    cell_key: str
    round: int
    status: Status
    reason: str | None = None
    attempt: int = 0
    phase: str | None = None  # the last phase entered; a failed trial failed in this phase
    started_at: str | None = None  # ISO 8601, UTC
    disturbance_kind: DisturbanceKind | None = None  # not stored: for the line of progress
    has_library_status: bool = False  # not stored: an error of cuBLAS, cuDNN or their like
    samples: dict[str, list[float]] = field(default_factory=dict)
    extra: JsonObject = field(default_factory=dict)
    trace: JsonObject | None = None


@dataclass
class Trial(TrialFigures, TrialOutcome):
    """The outcome of a cell in one process: the fields of `TrialOutcome`, then its figures."""

    to_json = dataclasses.asdict

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Return the record that `to_json` serialized. Raises ValueError for any other data."""
        import msgspec  # here, because other interpreters import this module without it

        try:
            trial = msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        if trial.reason is not None:
            trial.reason = encodable(trial.reason)
        return trial


@dataclass
class StoredTrial(Trial):
    """A trial of a database, without its samples."""

    id: int = 0
    environment_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A cell, and the environment and sweep that measured it; both are empty if unknown.

    `interpreter` and `folder` are short names, set only if a sweep has several (see
    `environments.labelled`).
    """

    model: str
    bs: int
    mode: str
    dtype: str
    phase: str
    device: str
    params: JsonObject
    cell_key: str
    gpu_name: str | None = None
    torch_version: str = ""
    python: str = ""
    environment_id: str = ""
    sweep_id: str = ""
    interpreter: str = ""
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultOutcome:
    """The worst status of a cell's trials in one sweep and environment, and how many rounds are
    behind its figures."""

    status: Status
    reason: str | None
    trials: int


@dataclass(frozen=True, kw_only=True)
class Summary(ResultFigures, ResultOutcome):
    """What the trials of a cell in one sweep and environment say together: a row of `result`.

    store/summary.py chooses the trials and computes the figures.
    """


@dataclass(frozen=True, kw_only=True)
class Result(Summary, Identity):
    """The summary of a cell in a sweep and an environment: a row of the view `results`."""

    sweep_name: str | None
    label: str | None
    started_at: datetime
