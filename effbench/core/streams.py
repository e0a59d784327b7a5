"""Streams of batch sizes, as in a server, or of lengths: drawn from a seed, or read from a file."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.core.errors import ConfigError
from effbench.core.folders import expand_user

NONE = "none"
UNIFORM = "uniform"
CSV = "csv"
ARRIVALS = "arrivals"
#: Kind -> its settings with their defaults; conf/stream/ explains them. `dim` may stay None, the
#: batch.
KINDS: dict[str, dict[str, Any]] = {
    NONE: {},
    UNIFORM: {"length": 256, "low": 1, "high": 64, "dim": None, "seed": 0},
    CSV: {"path": None, "column": "bs", "dim": None},
    ARRIVALS: {"rate": 100.0, "high": 64, "seed": 0},
}
MOST = 100_000  # calls of one pass; arrivals: requests per second, and the largest batch
MOST_DIGITS = 18  # of a batch size
#: Names of types in messages.
NOUNS = {int: "a whole number", float: "a number", str: "text"}


def check(settings: Mapping[str, Any]) -> str:
    """Return the kind of stream. Raises ConfigError for an unknown kind, and for an invalid or
    missing setting."""
    kind: str = settings.get("name", NONE)
    if kind not in KINDS:
        raise ConfigError(f"unknown stream.name={kind}; allowed: {', '.join(KINDS)}")
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - KINDS[kind].keys() - {"name", "description"}:
        raise not_of_kind(name, kind)
    check_dimension(given.get("dim", 1))
    for name in KINDS[kind].keys() - {"dim"}:
        check_setting(kind, name, given.get(name))
    if kind == UNIFORM and given["high"] < given["low"]:
        raise ConfigError(
            f"stream.high must be at least stream.low={given['low']}, got {given['high']}"
        )
    return kind


def not_of_kind(name: str, kind: str) -> ConfigError:
    """Return the error for a setting that this kind of stream does not have."""
    having = [other for other, defaults in KINDS.items() if name in defaults]
    if kind == NONE and having:
        return ConfigError(f"stream.{name} requires stream={' or '.join(having)}")
    allowed = ", ".join(KINDS[kind]) or "none"
    return ConfigError(f"stream {kind} has no setting {name!r}; allowed: {allowed}")


def check_dimension(dim: object) -> None:
    """Raise ConfigError if a dimension of the inputs is not a positive integer."""
    if not isinstance(dim, int) or dim < 1:
        raise ConfigError(
            f"stream.dim must be an integer of at least 1, got {dim!r}; omit it for the batch"
        )


def check_setting(kind: str, name: str, value: Any) -> None:
    """Raise ConfigError if this setting is missing, of another type or out of its bounds."""
    default = KINDS[kind][name]
    if value is None:
        raise ConfigError(f"stream.{name} is missing; stream={kind} requires it")
    if default is not None and not isinstance(value, int | type(default)):
        got = f"got {value!r}. Example: stream.{name}={default}"
        raise ConfigError(f"stream.{name}: expected {NOUNS[type(default)]}, {got}")
    if name in ("length", "low") and value < 1:
        raise ConfigError(f"stream.{name} must be at least 1, got {value}")
    if name not in ("length", "rate") and (kind, name) != (ARRIVALS, "high"):
        return
    if value > MOST:
        raise ConfigError(f"stream.{name} must be at most {MOST}, got {value}")
    if value <= 0:
        raise ConfigError(f"stream.{name} must be above 0, got {value}")


def sizes_of(settings: Mapping[str, Any]) -> list[int] | None:
    """Return the size of each call, in order; None without a stream. Raises ConfigError for invalid
    settings."""
    kind = check(settings)
    if kind == NONE:
        return None
    if kind == CSV:
        return read_sizes(settings["path"], settings["column"])
    if kind == ARRIVALS:
        return list(range(1, settings["high"] + 1))
    # a text as seed gives the same numbers in all versions of Python
    draw = random.Random(f"{kind}/{settings['seed']}")
    return [draw.randint(settings["low"], settings["high"]) for _ in range(settings["length"])]


def resolve(settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a cell's `stream`: a unique `name`, `sizes`, and the mean `samples_per_call` or, if
    the sizes are not those of the batch, their `dim`; None without a stream. For a file it holds
    the content, not the path. Arrivals also have `rate` and `seed`, which are labels of their
    own."""
    if settings is None:
        return None
    sizes = sizes_of(settings)
    if sizes is None:
        return None
    stream: dict[str, Any] = {"name": name_of(settings, sizes)}
    if settings.get("dim") is not None:
        return {**stream, "sizes": sizes, "dim": settings["dim"]}
    stream |= {"samples_per_call": sum(sizes) / len(sizes), "sizes": sizes}
    if settings["name"] == ARRIVALS:
        rate = settings["rate"]
        stream["rate"] = int(rate) if rate == int(rate) else rate
        stream["seed"] = settings["seed"]
    return stream


def name_of(settings: Mapping[str, Any], sizes: Sequence[int]) -> str:
    """Return a name of a stream that tells it from all others, except arrivals, whose rate does."""
    kind: str = settings["name"]
    if kind == ARRIVALS:
        return kind
    if kind == CSV:
        words = [kind, hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]]
        if settings.get("dim"):
            words.append(f"dim={settings['dim']}")
        return " ".join(words)
    changed = [
        f"{name}={settings[name]}"
        for name, default in KINDS[kind].items()
        if settings[name] != default
    ]
    return " ".join([kind, *changed])


def arrival_times(rate: float, seed: int, seconds: float) -> list[float]:
    """Return when requests arrive, in seconds: a Poisson process with `rate` requests per second.
    At least one arrives."""
    draw = random.Random(f"{ARRIVALS}/{seed}")
    times: list[float] = []
    now = draw.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(rate)
    return times or [0.0]


def batch_sizes(settings: Mapping[str, Any]) -> list[int] | None:
    """Return the sizes of a stream of batch sizes, None for any other. Raises ConfigError for
    invalid settings."""
    if settings.get("dim") is None:
        return sizes_of(settings)
    return None


def batch_size(sizes: Sequence[int], given: int | None) -> int:
    """Return `bs` of a cell with a stream of batch sizes: the largest. Raises ConfigError if
    another was `given`."""
    largest = max(sizes)
    if given not in (None, largest):
        raise ConfigError(
            f"bs={given} contradicts the stream, whose largest size is {largest}; omit bs"
        )
    return largest


def read_sizes(path: str, column: str = "bs") -> list[int]:
    """Return the sizes in a file: one per line, or the named column of a CSV. Raises ConfigError
    for other content."""
    rows = read_rows(path)
    heading = rows[0].cells if rows else []
    if column in heading:
        index, rows = heading.index(column), rows[1:]
    elif rows and (len(heading) > 1 or not is_size(heading[0])):
        columns = ", ".join(heading)[:200]
        raise ConfigError(f"the stream {path} has no column {column!r}; its columns: {columns}")
    else:
        index = 0
    if not 0 < len(rows) <= MOST:
        raise ConfigError(
            f"the stream {path} has {len(rows)} sizes; allowed: 1 to {MOST}, one per line"
        )
    sizes = []
    for row in rows:
        cell = row.cells[index] if index < len(row.cells) else ""
        if not is_size(cell):
            expected = f"expected an integer of at least 1, got {cell[:40]!r}"
            raise ConfigError(f"the stream {path}, line {row.number}: {expected}")
        sizes.append(int(cell))
    return sizes


@dataclass(frozen=True)
class CsvLine:
    """The cells of a line of a CSV, without spaces around them. `number`: of the line, from 1."""

    number: int
    cells: list[str]


def read_rows(path: str) -> list[CsvLine]:
    """Return the rows of a CSV that are not blank. Raises ConfigError if it cannot be read."""
    try:
        lines = Path(expand_user(path, "stream.path")).read_text(encoding="utf-8-sig").splitlines()
        rows = []
        for number, cells in enumerate(csv.reader(lines), start=1):
            rows.append(CsvLine(number, [cell.strip() for cell in cells]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the stream {path}: {reason}") from error
    return [row for row in rows if any(row.cells)]


def is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= 1
