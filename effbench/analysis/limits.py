"""Which metrics does a comparison compare, and how large must a change be to count? `Limits.of`
gives the limit of a metric.

conf/check/default.yaml holds effbench's answer. A user's file (`--config`) overrides it, and single
settings (`--set`) override both; docs/how-to/ci.md explains them. msgspec checks their types.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta, Struct, structs

from effbench.core.cell import Identity
from effbench.core.errors import ConfigError
from effbench.core.metrics import METRICS
from effbench.core.printable import one_line
from effbench.core.quantities import Metric
from effbench.core.settings import OnFailure, shipped

#: effbench's answer.
DEFAULTS = shipped("conf") / "check" / "default.yaml"
COMPARED = tuple(
    name for name, metric in METRICS.items() if metric.compare != "none" and metric.unit != "×"
)
#: The metric of a row about a cell's status.
STATUS = "status"
#: What an exception can match, besides the metric: values of the cell.
PATTERNS = ("model", "bs", "mode", "dtype", "phase", "device", "hardware")
#: How a metric is compared, or `status` -> the settings of its limit that have an effect.
EFFECTIVE = {
    "ratio": ("floor", "least", "ignore"),
    "exact": ("least", "ignore"),
    "bound": ("factor", "least", "ignore"),
    "status": ("ignore",),
}


class Fraction(float):
    """A number of at least 0 and below 1; `3%` is 0.03."""


class Limit(Struct, frozen=True):
    """The smallest change that counts. `floor`: relative; `least`: absolute, in the metric's unit;
    `factor`: replaces the floor for compile times and errors. `ignore`: changes do not count.
    `reason`: of the exception that set the limit."""

    floor: float
    least: float = 0.0
    factor: float = 1.25
    ignore: bool = False
    reason: str | None = None

    def least_change(self, metric: Metric) -> float:
        """Return the relative change of a metric that counts."""
        if metric.compare == "exact":
            return 0.0
        if metric.compare == "bound":
            return self.factor - 1
        return self.floor


class LimitSettings(Struct, forbid_unknown_fields=True):
    """The parts of a `Limit` that a configuration sets."""

    floor: Fraction | None = None
    least: Annotated[float, Meta(ge=0)] | None = None
    factor: Annotated[float, Meta(ge=1)] | None = None
    ignore: bool | None = None

    def changes(self, metric: str) -> dict[str, Any]:
        """Return the settings that are set and have an effect on this metric, or on `status`."""
        compare = STATUS if metric == STATUS else METRICS[metric].compare
        values = {name: getattr(self, name) for name in EFFECTIVE[compare]}
        return {name: value for name, value in values.items() if value is not None}


class ExceptionRule(LimitSettings, kw_only=True):
    """A different limit for the cells and metrics that match all patterns (`llama-*`) that are
    set."""

    reason: Annotated[str, Meta(pattern=r"\S")]
    model: str | None = None
    bs: int | str | None = None
    mode: str | None = None
    dtype: str | None = None
    phase: str | None = None
    device: str | None = None
    hardware: str | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        known = (*COMPARED, STATUS)
        if not any(map(self.is_of, known)):
            raise ValueError(f"metric={self.metric} matches none of {', '.join(known)}")

    def fits(self, cell: Identity, hardware: str) -> bool:
        facts = {**vars(cell), "hardware": hardware}
        for name in PATTERNS:
            pattern = getattr(self, name)
            if pattern is not None and not fnmatch.fnmatchcase(str(facts[name]), str(pattern)):
                return False
        return True

    def is_of(self, metric: str) -> bool:
        return fnmatch.fnmatchcase(metric, self.metric or "*")


#: A limit for each metric, under its name.
MetricLimits = msgspec.defstruct(
    "MetricLimits",
    [(name, LimitSettings, msgspec.field(default_factory=LimitSettings)) for name in COMPARED],
    forbid_unknown_fields=True,
)


class Limits(Struct, forbid_unknown_fields=True):
    """All limits of a comparison. `on_missing`, `on_unjudged`: whether a cell that was not
    measured, or whose times are marked, fails a check. `source`: where the limits come from."""

    metrics: list[str] = []
    floor: Fraction = Fraction(0.02)
    q: Fraction = Fraction(0.05)
    on_missing: OnFailure = OnFailure.fail
    on_unjudged: OnFailure = OnFailure.ignore
    limits: MetricLimits = msgspec.field(default_factory=MetricLimits)  # type: ignore[valid-type]
    exceptions: list[ExceptionRule] = []
    source: str | None = None

    def __post_init__(self) -> None:
        self.metrics = list(dict.fromkeys(self.metrics or COMPARED))
        for name in self.metrics:
            check_metric(name)

    def of(self, cell: Identity, hardware: str, metric: str) -> Limit:
        """Return the limit of a metric (or of `status`) for a cell on this hardware. Only the last
        exception that matches counts."""
        settings = getattr(self.limits, metric, LimitSettings())
        limit = structs.replace(Limit(self.floor), **settings.changes(metric))
        for rule in reversed(self.exceptions):
            if rule.fits(cell, hardware) and rule.is_of(metric):
                changes = rule.changes(metric)
                if changes:
                    limit = structs.replace(limit, **changes, reason=rule.reason)
                break
        return limit


def check_metric(name: str) -> str:
    """Return `name` if it can be compared. Raises ConfigError."""
    if name not in COMPARED:
        raise ConfigError(f"metric {name!r} cannot be compared; choose from {', '.join(COMPARED)}")
    return name


# --- reading ---


def read(file: str | None = None, settings: Sequence[str] = ()) -> Limits:
    """Return effbench's default limits, overridden by those of a file and by `settings`
    (name=value). Lists replace, mappings merge. Raises ConfigError."""
    layers = [load(DEFAULTS)]
    source = "effbench's defaults"
    if file is not None:
        layers.append(load(Path(file)))
        source = f"{file} over {source}"
    source = ", ".join([source, *settings])
    try:
        limits = limits_of(*layers, *map(parse_setting, settings))
    except ConfigError as error:
        raise ConfigError(f"{error} (in {source})") from error
    limits.source = source
    return limits


def load(path: Path) -> Any:
    try:
        return parse_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error


def parse_yaml(text: str | bytes, name: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name} is not valid YAML: {one_line(error, 150)}") from error


def parse_setting(word: str) -> Any:
    """Return `limits.latency_ms.floor=0.1` as nested mappings."""
    name, equals, text = word.partition("=")
    if not name or not equals:
        raise ConfigError(f"{word}: expected a setting and its value, such as floor=0.03")
    value = parse_yaml(text, name)
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


def limits_of(*layers: Any) -> Limits:
    """Return limits from configurations, each of which overrides the previous ones. Raises
    ConfigError for unknown settings and invalid values."""
    values: Any = {}
    for layer in layers:
        values = merged(values, layer)
    try:
        return msgspec.convert(
            values,
            Limits,
            strict=False,
            dec_hook=fraction,
        )
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        message = message.replace("Object contains unknown field", "unknown setting")
        message = message[:1].lower() + message[1:]
        place = place.strip("`.")
        raise ConfigError(f"{place}: {message}" if place else message) from error


def merged(old: Any, new: Any) -> Any:
    """Return `new` laid over `old`: lists and values replace, mappings merge."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def fraction(kind: type, value: Any) -> Fraction:
    """Return the value of a setting as a fraction. Raises ValueError."""
    text = str(value)
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if text.endswith("%"):
        number /= 100
    if not 0 <= number < 1:
        raise ValueError(
            f"expected a number of at least 0 and below 1, such as 0.03 or 3%, got {value!r}"
        )
    return Fraction(number)
