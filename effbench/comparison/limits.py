"""From which size on a difference between two sweeps is a change: by metric, with exceptions and their reasons.

`conf/check/default.yaml` holds the defaults.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.errors import ConfigError, nearest
from effbench.metrics import METRICS

COMPARED = tuple(name for name, metric in METRICS.items() if metric.compare != "none" and name != "speedup")
#: Which sizes the rule of a metric asks for, by how the metric is compared; the status of a cell knows `ignore` alone.
USED = {"ratio": ("floor", "least"), "exact": ("least",), "bound": ("factor", "least")}
_STATUS = "status"
#: What an exception can be tied to; each is a pattern (`llama-*`) against the cell's value.
PATTERNS = ("model", "bs", "mode", "dtype", "phase", "device", "hardware", "metric")


@dataclass(frozen=True)
class Limit:
    """`floor`: least relative change, `least`: absolute one in the metric's unit; `factor`: replaces the floor for a
    metric with one value a sweep. `ignore`: a change does not count. `reason`: of the exception."""

    floor: float = 0.02
    least: float = 0.0
    factor: float = 1.25
    ignore: bool = False
    reason: str | None = None


@dataclass
class ExceptionRule:
    """Another limit for the cells and metrics that fit all of its patterns."""

    patterns: dict[str, str]
    changes: dict[str, Any]
    reason: str
    until: dt.date | None = None
    used: bool = False

    def fits(self, cell: Mapping[str, Any]) -> bool:
        """`cell["after"]`: values in which the other side differs. One side that fits is enough."""
        wanted = [(name, pattern) for name, pattern in self.patterns.items() if name != "metric"]
        sides = (cell, {**cell, **cell.get("after", {})})
        return any(all(fnmatch.fnmatchcase(str(side.get(name)), one) for name, one in wanted) for side in sides)

    def is_of(self, metric: str) -> bool:
        return fnmatch.fnmatchcase(metric, self.patterns.get("metric", "*"))

    def __str__(self) -> str:
        return " ".join(f"{name}={wanted}" for name, wanted in self.patterns.items()) or "every cell"


@dataclass
class Limits:
    """All limits of a comparison. `expired`: exceptions whose time has passed. `floor_for_all`: replaces every floor,
    also a metric's own and an exception's. `source`: where they come from."""

    metrics: tuple[str, ...] = COMPARED
    floor: float = 0.02
    q: float = 0.05
    on_missing: str = "fail"
    by_metric: dict[str, Limit] = field(default_factory=dict)
    exceptions: list[ExceptionRule] = field(default_factory=list)
    expired: list[ExceptionRule] = field(default_factory=list)
    floor_for_all: float | None = None
    source: str | None = field(default=None, compare=False)

    def of(self, cell: Mapping[str, Any], metric: str) -> Limit:
        """Return the limit of a metric for a cell: its model, bs, mode, dtype, phase, device and hardware.

        Only the last exception that fits counts; its reason is given if it changes something for this metric.
        """
        over = {} if self.floor_for_all is None else {"floor": self.floor_for_all}
        limit = own = replace(self.by_metric.get(metric, Limit(self.floor)), **over)
        for rule in self.exceptions:
            if not rule.fits(cell):
                continue
            rule.used = True  # whether or not this metric was looked at, or a status changed
            if rule.is_of(metric):
                changes = {
                    name: value
                    for name, value in rule.changes.items()
                    if name in used_by(metric) and name not in over and value != getattr(own, name)
                }
                limit = replace(own, **changes, reason=rule.reason) if changes else own
        return limit

    @property
    def unused(self) -> list[ExceptionRule]:
        """Exceptions that no cell of this comparison fitted."""
        return [rule for rule in self.exceptions if not rule.used]


def limits_of(settings: Mapping[str, Any], today: dt.date | None = None) -> Limits:
    """Return limits from the plain values of a configuration. Raises ConfigError for unknown or impossible ones."""
    _only("", settings, ("metrics", "floor", "q", "on_missing", "limits", "exceptions"))
    floor = _share("floor", settings.get("floor", 0.02))
    q = _number("q", settings.get("q", 0.05), 0.0)
    if not 0 < q < 1:
        raise ConfigError(f"q={q:g} is a share of false alarms, between 0 and 1")
    on_missing = settings.get("on_missing", "fail")
    if on_missing not in ("fail", "ignore"):
        raise ConfigError(f"on_missing={on_missing} is not allowed; choose fail or ignore")
    metrics = tuple(dict.fromkeys(check_metric(str(n)) for n in _list("metrics", settings.get("metrics") or COMPARED)))
    given = settings.get("limits") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"limits={given} maps no metric to a limit, as {{latency_ms: {{floor: 0.05}}}} does")
    by_metric = {
        check_metric(str(name)): Limit(**{"floor": floor, **_changes(f"limits.{name}", own, str(name))})
        for name, own in given.items()
    }
    rules = [_rule(index, given) for index, given in enumerate(_list("exceptions", settings.get("exceptions") or ()))]
    today = today or dt.datetime.now(dt.UTC).date()
    expired = [rule for rule in rules if rule.until and rule.until < today]
    valid = [rule for rule in rules if rule not in expired]
    return Limits(metrics, floor, q, on_missing, by_metric, valid, expired)


def check_metric(name: str) -> str:
    """Return `name` if it can be compared. Raises ConfigError."""
    if name in COMPARED:
        return name
    if name == "speedup":
        raise ConfigError("speedup is a ratio within each sweep already: compare latency_ms")
    if name in METRICS:
        raise ConfigError(f"{name} follows from others or only describes; compared are {', '.join(COMPARED)}")
    raise ConfigError(f"unknown metric {name!r}: {_hint(name, COMPARED)}")


def _hint(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"compared are {', '.join(known)}"


def _rule(index: int, given: Any) -> ExceptionRule:
    name = f"exceptions[{index}]"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} is {given!r}; it maps patterns and limits: {{model: gpt2, floor: 0.1, reason: …}}")
    _only(name, given, (*PATTERNS, *SIZES, "ignore", "reason", "until"))
    reason = given.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ConfigError(f"{name} needs a reason: an exception without one outlives everybody who knew it")
    metric, known = given.get("metric"), (*COMPARED, _STATUS)
    if metric is not None and not fnmatch.filter(known, str(metric)):
        raise ConfigError(f"{name}.metric={metric} fits no metric: {_hint(str(metric), known)}")
    # a pattern may fit several metrics, which other keys count for
    sizes = {key: value for key, value in given.items() if key in (*SIZES, "ignore")}
    changes = _changes(name, sizes, metric if metric in known else None)
    if not changes:
        raise ConfigError(f"{name} changes nothing: give it floor, least, factor or ignore")
    patterns = {key: str(given[key]) for key in PATTERNS if given.get(key) is not None}
    return ExceptionRule(patterns, changes, reason.strip(), _date(name, given.get("until")))


def used_by(metric: str) -> tuple[str, ...]:
    """Return the keys of a limit that count for this metric, or for `status`."""
    return (*(() if metric == _STATUS else USED[METRICS[metric].compare]), "ignore")


def _changes(name: str, given: Any, metric: str | None = None) -> dict[str, Any]:
    """The fields of Limit. `metric`: the only one that they are for; keys that do nothing for it are refused."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} is {given!r}; it maps floor, least, factor or ignore to a value")
    _only(name, given, (*SIZES, "ignore"))
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if metric and key not in used_by(metric):
            raise ConfigError(f"{name}.{key} does nothing: of {metric} only {', '.join(used_by(metric))} can be set")
        if key == "ignore" and not isinstance(value, bool):
            raise ConfigError(f"{name}.ignore is {value!r}, neither true nor false")
        changes[key] = value if key == "ignore" else SIZES[key](f"{name}.{key}", value)
    return changes


def _date(name: str, value: Any) -> dt.date | None:
    if value is None or (isinstance(value, dt.date) and not isinstance(value, dt.datetime)):
        return value
    try:
        return dt.date.fromisoformat(str(value))
    except ValueError as error:
        raise ConfigError(f"{name}.until={value} is no date such as 2027-03-31") from error


def _share(name: str, value: Any) -> float:
    """`0.03` and `3%` are the same. A floor of 1 and more would hide a doubling: 3 was meant to be 3 %."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            value = float(value.strip().removesuffix("%")) / 100
        except ValueError as error:
            raise ConfigError(f"{name}={value} is no size such as 3% or 0.03") from error
    number = _number(name, value, 0.0)
    if number >= 1:
        raise ConfigError(f"{name}={value} is {number:.0%}: give a share below 100 %, such as 3% or 0.03")
    return number


def _number(name: str, value: Any, least: float) -> float:
    if isinstance(value, str):  # YAML takes 1e-3 for text
        with contextlib.suppress(ValueError):
            value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ConfigError(f"{name}={value} must be a number of at least {least:g}")
    return float(value)


#: Keys of a limit with a size -> what reads its value.
SIZES: dict[str, Callable[[str, Any], float]] = {
    "floor": _share,
    "least": lambda name, value: _number(name, value, 0.0),
    "factor": lambda name, value: _number(name, value, 1.0),
}


def _list(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name}={value} is no list")
    return value


def _only(name: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ConfigError for a key that is not known."""
    for key in given:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"did you mean {near}?" if near else f"allowed: {', '.join(sorted(known))}"
            raise ConfigError(f"unknown setting {name + '.' if name else ''}{key}; {hint}")
