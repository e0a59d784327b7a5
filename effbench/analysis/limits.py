"""The configuration of `compare` and `check`: which metrics are compared, and how large a change
must be to count.

A user's file overrides the defaults in conf/check/default.yaml, and single settings override both.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from effbench.core.errors import ConfigError
from effbench.core.metrics import METRICS
from effbench.core.settings import OnFailure, shipped

#: Folders of the files that are named without a path: the user's, which is searched first, and
#: effbench's.
OWN, SHIPPED = Path("conf") / "check", shipped("conf") / "check"
DEFAULT = "default"
COMPARED = tuple(
    name for name, metric in METRICS.items() if metric.compare != "none" and metric.unit != "×"
)
#: The metric of a row about a cell's status.
STATUS = "status"
#: What an exception can match: values of the cell, and the metric.
PATTERNS = ("model", "bs", "mode", "dtype", "phase", "device", "hardware", "metric")
#: How a metric is compared -> the keys of its limit that have an effect, besides `ignore`.
USED = {"ratio": ("floor", "least"), "exact": ("least",), "bound": ("factor", "least")}
#: Setting -> its minimum, and the value that it must be below. A floor of 3 was probably meant to
#: be 3 %.
BOUNDS = {
    "floor": (0.0, 1.0),
    "q": (1e-6, 1.0),
    "least": (0.0, math.inf),
    "factor": (1.0, math.inf),
}
#: Marks fields that a file cannot set.
INTERNAL = {"is_internal": True}
Section = TypeVar("Section", bound="Limit | Limits")


@dataclass(frozen=True)
class CellFacts:
    """What exceptions match of a cell. `after`: the facts of the other side, if they differ."""

    model: str = ""
    bs: int = 0
    mode: str = ""
    dtype: str = ""
    phase: str = ""
    device: str = ""
    hardware: str = ""
    after: CellFacts | None = None

    @classmethod
    def of(
        cls, cell: Mapping[str, Any], after: Mapping[str, Any] | None, hardware: str
    ) -> CellFacts:
        """Return the facts of a row of the table `cell`, and of its partner."""
        names = PATTERNS[:-2]
        facts = cls(hardware=hardware, **{name: cell[name] for name in names})
        if after is None:
            return facts
        other = cls.of(after, None, hardware)
        if other == facts:
            return facts
        return replace(facts, after=other)


@dataclass
class Limit:
    """The smallest change that counts. `floor`: relative; `least`: absolute, in the metric's unit;
    `factor`: replaces the floor for compile times and errors. `ignore`: changes do not count. None:
    not set. `reason`: of the exception that set the limit."""

    floor: float | None = None
    least: float | None = None
    factor: float | None = None
    ignore: bool | None = None
    reason: str | None = None

    def given(self, metric: str | None = None) -> dict[str, Any]:
        """Return the keys that are set and have an effect on the metric; see `used_by`."""
        keys = {key: getattr(self, key) for key in used_by(metric)}
        return {key: value for key, value in keys.items() if value is not None}

    def check(self, name: str, metric: str | None = None) -> None:
        """Convert the numbers. Raises ConfigError for invalid values, and for keys without an
        effect on this metric. `name`: of this limit in the configuration."""
        for key, value in self.given().items():
            if key not in used_by(metric):
                allowed = ", ".join(used_by(metric))
                raise ConfigError(f"{name}.{key} does nothing: {metric} only takes {allowed}")
            if key != "ignore":
                setattr(self, key, number(f"{name}.{key}", value))
            elif not isinstance(value, bool):
                raise ConfigError(f"{name}.ignore={value}: expected true or false")


@dataclass
class ExceptionRule(Limit):
    """A different limit for the cells and metrics that match all PATTERNS (`llama-*`) that are set.
    `until`: the last day on which it holds; `used`: some cell matched."""

    model: str | None = None
    bs: str | None = None
    mode: str | None = None
    dtype: str | None = None
    phase: str | None = None
    device: str | None = None
    hardware: str | None = None
    metric: str | None = None
    until: dt.date | None = None
    used: bool = field(default=False, metadata=INTERNAL)

    @property
    def patterns(self) -> dict[str, str]:
        patterns = {name: getattr(self, name) for name in PATTERNS}
        return {name: str(pattern) for name, pattern in patterns.items() if pattern is not None}

    def fits(self, cell: CellFacts) -> bool:
        """Return whether one side of the cell matches."""
        is_match = all(
            fnmatch.fnmatchcase(str(getattr(cell, name)), pattern)
            for name, pattern in self.patterns.items()
            if name != "metric"
        )
        return is_match or (cell.after is not None and self.fits(cell.after))

    def is_of(self, metric: str) -> bool:
        return fnmatch.fnmatchcase(metric, self.metric or "*")

    def check(self, name: str, metric: str | None = None) -> None:
        """Convert the values. Raises ConfigError."""
        for pattern_name, pattern in self.patterns.items():
            setattr(self, pattern_name, pattern)
        if not str(self.reason or "").strip():
            raise ConfigError(f"{name} needs a reason; add `reason:` to record why it exists")
        self.reason = str(self.reason)
        known = (*COMPARED, STATUS)
        if self.metric is not None and not fnmatch.filter(known, self.metric):
            raise ConfigError(f"{name}.metric={self.metric} matches none of {', '.join(known)}")
        if self.metric in known:
            metric = self.metric
        super().check(name, metric)
        if not self.given():
            raise ConfigError(f"{name} changes nothing; set floor, least, factor or ignore")
        try:
            self.until = self.until and dt.date.fromisoformat(str(self.until))
        except ValueError as error:
            raise ConfigError(
                f"{name}.until={self.until}: expected a date such as 2027-03-31"
            ) from error

    def __str__(self) -> str:
        patterns = (f"{name}={pattern}" for name, pattern in self.patterns.items())
        return " ".join(patterns) or "every cell"


@dataclass
class Limits:
    """All limits of a comparison; `limits`: by metric. `on_missing`, `on_unjudged`: whether a cell
    that was not measured, or whose times are marked, fails a check. `expired`: exceptions that have
    ended. `floor_for_all`: replaces every floor, including those of metrics and exceptions.
    `source`: where the limits come from."""

    metrics: list[str] = field(default_factory=lambda: list(COMPARED))
    floor: float = 0.02
    q: float = 0.05
    on_missing: OnFailure = OnFailure.fail
    on_unjudged: OnFailure = OnFailure.ignore
    limits: dict[str, Limit] = field(default_factory=dict)
    exceptions: list[ExceptionRule] = field(default_factory=list)
    expired: list[ExceptionRule] = field(default_factory=list, metadata=INTERNAL)
    floor_for_all: float | None = field(default=None, metadata=INTERNAL)
    source: str | None = field(default=None, compare=False, metadata=INTERNAL)

    def of(self, cell: CellFacts, metric: str) -> Limit:
        """Return the limit of a metric (or of `status`) for a cell. Only the last exception that
        matches counts."""
        limit = default = self.of_metric(metric)
        for rule in self.exceptions:
            if rule.fits(cell):
                rule.used = True
                if rule.is_of(metric):
                    changes = rule.given(metric)
                    limit = default
                    if changes:
                        limit = replace(default, **changes, reason=rule.reason)
        if self.floor_for_all is not None:
            limit = replace(limit, floor=self.floor_for_all)
        return limit

    def of_metric(self, metric: str) -> Limit:
        """Return the limit of a metric where no exception matches."""
        default = Limit(self.floor, 0.0, 1.25, False)
        return replace(default, **self.limits.get(metric, default).given())

    def notes(self) -> list[str]:
        """Return what a reader of a comparison has to know about its exceptions."""
        ended = [
            f"exception for {rule} ended on {rule.until}: {rule.reason}" for rule in self.expired
        ]
        unused = [
            f"exception for {rule} matches no cell here: {rule.reason}"
            for rule in self.exceptions
            if not rule.used
        ]
        return ended + unused


def used_by(metric: str | None) -> tuple[str, ...]:
    """Return the keys of a limit that have an effect on this metric, on `status`, or on any metric
    (None)."""
    if metric is None:
        return ("floor", "least", "factor", "ignore")
    if metric == STATUS:
        return ("ignore",)
    return (*USED[METRICS[metric].compare], "ignore")


def check_metric(name: str) -> str:
    """Return `name` if it can be compared. Raises ConfigError."""
    if name not in COMPARED:
        raise ConfigError(f"metric {name!r} cannot be compared; choose from {', '.join(COMPARED)}")
    return name


# --- reading ---


def read(name: str | None = None, settings: Sequence[str] = ()) -> Limits:
    """Return effbench's default limits, overridden by those of `name` (a file, or a name in
    conf/check here or in effbench; None: `default`) and by `settings` (key=value). Lists replace,
    mappings merge. Raises ConfigError."""
    defaults = SHIPPED / f"{DEFAULT}.yaml"
    path = find(str(name or DEFAULT))
    layers, source = [load(defaults)], "effbench's defaults"
    if path.resolve() != defaults.resolve():
        layers.append(load(path))
        source = f"{path} over {source}"
    source = ", ".join([source, *settings])
    try:
        limits = limits_of(*layers, *(OmegaConf.from_dotlist([word]) for word in settings))
    except (ConfigError, yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        # name the file: the user may not know that it was read
        raise ConfigError(f"{str(error).partition(chr(10))[0]} (in {source})") from error
    limits.source = source
    return limits


def find(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = {path.stem: path for folder in (SHIPPED, OWN) for path in folder.glob("*.yaml")}
    if name not in known:
        raise ConfigError(
            f"no configuration {name!r}; choose from {', '.join(sorted(known))}, or give the path"
            " of a file"
        )
    return known[name]


def load(path: Path) -> DictConfig:
    try:
        return OmegaConf.load(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException, RecursionError) as error:
        reason = " ".join(str(error).split())[:150]
        raise ConfigError(f"{path} is not valid YAML: {reason}") from error


def limits_of(*layers: Mapping[str, Any] | DictConfig, today: dt.date | None = None) -> Limits:
    """Return limits from configurations, each of which overrides the previous ones. Raises
    ConfigError for unknown keys and invalid values."""
    limits = settings_of(Limits, "", merged(layers))
    check_form("metrics", limits.metrics, list)
    names = dict.fromkeys(map(str, limits.metrics or COMPARED))
    limits.metrics = [check_metric(name) for name in names]
    limits.floor, limits.q = number("floor", limits.floor), number("q", limits.q)
    limits.on_missing = choice("on_missing", limits.on_missing)
    limits.on_unjudged = choice("on_unjudged", limits.on_unjudged)
    for metric, values in limits.limits.items():
        name = f"limits.{check_metric(metric)}"
        limits.limits[metric] = settings_of(Limit, name, values)
        limits.limits[metric].check(name, metric)
    rules = exceptions_of(limits.exceptions)
    today = today or dt.datetime.now(dt.UTC).date()
    limits.expired = [rule for rule in rules if rule.until and rule.until < today]
    limits.exceptions = [rule for rule in rules if rule not in limits.expired]
    return limits


def merged(layers: Sequence[Mapping[str, Any] | DictConfig]) -> Any:
    """Return configurations as one mapping. Raises ConfigError."""
    plain = [OmegaConf.to_container(OmegaConf.create(layer), resolve=False) for layer in layers]
    if "${" in str(plain):
        raise ConfigError(
            "${…} is not allowed, as a repository's file must not read the environment; write the"
            " value"
        )
    for layer in plain:
        check_form("limits and exceptions", layer, dict)
        check_form("limits", layer.get("limits", {}), dict)
        for metric, values in layer.get("limits", {}).items():
            check_form(f"limits.{metric}", values, dict)
    return OmegaConf.to_container(OmegaConf.merge({}, *plain))


def exceptions_of(values: Any) -> list[ExceptionRule]:
    """Return the exceptions of a configuration. Raises ConfigError."""
    check_form("exceptions", values, list)
    rules = []
    for index, of_rule in enumerate(values):
        name = f"exceptions[{index}]"
        rule = settings_of(ExceptionRule, name, of_rule)
        rule.check(name)
        rules.append(rule)
    return rules


def settings_of(kind: type[Section], name: str, values: Any) -> Section:
    """Return a class of settings with these values. Raises ConfigError unless they are a mapping
    with known keys."""
    check_form(name, values, dict)
    known = [item.name for item in fields(kind) if not item.metadata]
    for key in values:
        if key not in known:
            where = f"{name}.{key}".removeprefix(".")
            raise ConfigError(f"unknown setting {where}; choose from {', '.join(known)}")
    return kind(**values)


def check_form(name: str, value: Any, form: type) -> None:
    """Raise ConfigError unless a part of a configuration is a list or a mapping, as required."""
    if not isinstance(value, form):
        wanted = "a list" if form is list else "a mapping (key: value)"
        shown = "nothing" if value is None else repr(value)
        raise ConfigError(f"{name}: expected {wanted}, got {shown}")


def choice(name: str, value: Any) -> OnFailure:
    try:
        return OnFailure(value)
    except ValueError as error:
        allowed = ", ".join(OnFailure)
        raise ConfigError(f"{name}: expected one of {allowed}, got {value!r}") from error


def number(name: str, value: Any) -> float:
    """Return a number within BOUNDS; `0.03` and `3%` are the same. Raises ConfigError."""
    low, high = BOUNDS[name.rpartition(".")[2]]
    text = str(value)
    try:
        parsed = float(text.removesuffix("%"))
    except ValueError:
        parsed = math.nan
    if text.endswith("%"):
        parsed /= 100
    if not low <= parsed < high:
        below = f" and below {high:g}" if high < math.inf else ""
        raise ConfigError(
            f"{name}={value}: expected a number of at least {low:g}{below}, such as 0.03 or 3%"
        )
    return parsed
