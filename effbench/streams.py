"""Streams of batch sizes, as in a server, or of lengths: generated from a seed, or read from a
file."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from effbench.errors import ConfigError
from effbench.folders import expand_user

NONE = "none"
ARRIVALS = "arrivals"
#: Kind -> its settings with their defaults; conf/stream/ explains them. `dim` may stay None, the
#: batch.
KINDS: dict[str, dict[str, Any]] = {
    NONE: {},
    "uniform": {"length": 256, "low": 1, "high": 64, "dim": None, "seed": 0},
    "bursty": {
        "length": 256,
        "low": 1,
        "high": 64,
        "dim": None,
        "seed": 0,
        "spell": 16,
        "share": 0.25,
    },
    "decode": {"length": 256, "low": 8, "high": 64, "seed": 0, "tokens": 64},
    "csv": {"path": None, "column": "bs", "dim": None},
    ARRIVALS: {"rate": 100.0, "high": 64, "seed": 0},
}
MOST = 100_000  # calls of one pass; arrivals: requests per second, and the largest batch
MOST_DIGITS = 18  # of a batch size


def check(settings: Mapping[str, Any]) -> str:
    """Return the kind of stream. Raises ConfigError for an unknown kind, and for an invalid or
    missing setting."""
    kind = settings.get("name", NONE)
    if kind not in KINDS:
        raise ConfigError(f"unknown stream.name={kind}; allowed: {', '.join(KINDS)}")
    defaults = KINDS[kind]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - defaults.keys() - {"name", "description"}:
        if kind == NONE and (having := [other for other in KINDS if name in KINDS[other]]):
            raise ConfigError(f"stream.{name} requires stream={' or '.join(having)}")
        raise ConfigError(
            f"stream {kind} has no setting {name!r}; allowed: {', '.join(defaults) or 'none'}"
        )
    if not isinstance(dim := given.get("dim", 1), int) or dim < 1:
        raise ConfigError(
            f"stream.dim must be an integer of at least 1, got {dim!r}; omit it for the batch"
        )
    for name, default in defaults.items():
        if name not in given and name != "dim":
            raise ConfigError(f"stream.{name} is missing; stream={kind} requires it")
        if default is not None and not isinstance(given[name], int | type(default)):
            noun = {int: "a whole number", float: "a number", str: "text"}[type(default)]
            got = f"got {given[name]!r}. Example: stream.{name}={default}"
            raise ConfigError(f"stream.{name}: expected {noun}, {got}")
        if name in ("length", "low", "spell", "tokens") and given[name] < 1:
            raise ConfigError(f"stream.{name} must be at least 1, got {given[name]}")
    for name in ("rate", "high") if kind == ARRIVALS else ("length",):
        if given.get(name, 0) > MOST:
            raise ConfigError(f"stream.{name} must be at most {MOST}, got {given[name]}")
        if given.get(name, 1) <= 0:
            raise ConfigError(f"stream.{name} must be above 0, got {given[name]}")
    if "low" in defaults and given["high"] < given["low"]:
        raise ConfigError(
            f"stream.high must be at least stream.low={given['low']}, got {given['high']}"
        )
    if "share" in defaults and not 0 < given["share"] < 1:
        raise ConfigError(f"stream.share must be between 0 and 1, got {given['share']:g}")
    return kind


def sizes_of(settings: Mapping[str, Any]) -> list[int] | None:
    """Return the size of each call, in order; None without a stream. Raises ConfigError for invalid
    settings."""
    kind = check(settings)
    if kind == NONE:
        return None
    if kind == "csv":
        return read_sizes(settings["path"], settings["column"])
    if kind == ARRIVALS:
        return [*range(1, settings["high"] + 1)]
    generate: Callable[..., list[int]] = {"uniform": uniform, "bursty": bursty, "decode": decode}[
        kind
    ]
    arguments = {name: settings[name] for name in KINDS[kind] if name not in ("dim", "seed")}
    # a text as seed gives the same numbers in all versions of Python
    return generate(random.Random(f"{kind}/{settings['seed']}"), **arguments)


def resolve(settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a cell's `stream`: a unique `name`, `sizes`, and the mean `samples_per_call` or, if
    the sizes are not those of the batch, their `dim`; None without a stream. For a file it holds
    the content, not the path. Arrivals also have `rate` and `seed`, which are labels of their
    own."""
    sizes = sizes_of(settings) if settings else None
    if sizes is None:
        return None
    kind, dim, own = settings["name"], settings.get("dim"), {}
    if kind == ARRIVALS:
        name, rate = kind, settings["rate"]
        own = {"rate": int(rate) if rate == int(rate) else rate, "seed": settings["seed"]}
    elif kind == "csv":
        name = f"csv {hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]}" + (
            f" dim={dim}" if dim else ""
        )
    else:
        changed = (
            f"{key}={settings[key]}"
            for key, default in KINDS[kind].items()
            if settings[key] != default
        )
        name = " ".join([kind, *changed])
    if dim is not None:
        return {"name": name, "sizes": sizes, "dim": dim}
    return {"name": name, "samples_per_call": sum(sizes) / len(sizes), "sizes": sizes, **own}


def arrival_times(rate: float, seed: int, seconds: float) -> list[float]:
    """Return when requests arrive, in seconds: a Poisson process with `rate` requests per second.
    At least one arrives."""
    draw, times, now = random.Random(f"{ARRIVALS}/{seed}"), [], 0.0
    while (now := now + draw.expovariate(rate)) < seconds:
        times.append(now)
    return times or [0.0]


def batch_sizes(settings: Mapping[str, Any]) -> list[int] | None:
    """Return the sizes of a stream of batch sizes, None for any other. Raises ConfigError for
    invalid settings."""
    return sizes_of(settings) if settings.get("dim") is None else None


def batch_size(sizes: Sequence[int], given: int | None) -> int:
    """Return `bs` of a cell with a stream of batch sizes: the largest. Raises ConfigError if
    another was `given`."""
    largest = max(sizes)
    if given not in (None, largest):
        raise ConfigError(
            f"bs={given} contradicts the stream, whose largest size is {largest}; omit bs"
        )
    return largest


def uniform(draw: random.Random, length: int, low: int, high: int) -> list[int]:
    """Return independent sizes from `low` to `high`, all equally likely."""
    return [draw.randint(low, high) for _ in range(length)]


def bursty(
    draw: random.Random, length: int, low: int, high: int, spell: int, share: float
) -> list[int]:
    """Return sizes of quiet periods (lowest eighth of the range) and bursts (upper half). After
    about `spell` calls one of the two is drawn again, a burst with probability `share`, so equal
    ones may follow each other."""
    calm, storm = low + (high - low) // 8, (low + high + 1) // 2
    sizes: list[int] = []
    while len(sizes) < length:
        bounds = (storm, high) if draw.random() < share else (low, calm)
        lasts = 1 + int(draw.expovariate(1 / (spell - 1))) if spell > 1 else 1
        sizes += [draw.randint(*bounds) for _ in range(lasts)]
    return sizes[:length]


def decode(draw: random.Random, length: int, low: int, high: int, tokens: int) -> list[int]:
    """Return the number of running requests of a server that decodes. Each ends after `tokens`
    calls on average. When `low` or fewer are running, a batch of new requests is admitted, up to
    `high` in total."""
    running = high
    sizes: list[int] = []
    while len(sizes) < length:
        sizes.append(running)
        running -= sum(draw.random() < 1 / tokens for _ in range(running))
        if running <= low and running < high:
            running = draw.randint(max(running + 1, (low + high + 1) // 2), high)
    return sizes


def read_sizes(path: str, column: str = "bs") -> list[int]:
    """Return the sizes in a file: one per line, or the named column of a CSV. Raises ConfigError
    for other content."""
    try:
        lines = Path(expand_user(path, "stream.path")).read_text(encoding="utf-8-sig").splitlines()
        rows = [
            (number, row)
            for number, row in enumerate(csv.reader(lines), start=1)
            if any(map(str.strip, row))
        ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(
            f"cannot read the stream {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    heading = [cell.strip() for cell in rows[0][1]] if rows else []
    index = heading.index(column) if column in heading else 0
    if column in heading:
        rows = rows[1:]
    elif rows and (len(heading) > 1 or not is_size(heading[0])):
        raise ConfigError(
            f"the stream {path} has no column {column!r}; its columns: {', '.join(heading)[:200]}"
        )
    if not 0 < len(rows) <= MOST:
        raise ConfigError(
            f"the stream {path} has {len(rows)} sizes; allowed: 1 to {MOST}, one per line"
        )
    sizes = []
    for number, row in rows:
        cell = row[index].strip() if index < len(row) else ""
        if not is_size(cell):
            raise ConfigError(
                f"the stream {path}, line {number}: expected an integer of at least 1, got"
                f" {cell[:40]!r}"
            )
        sizes.append(int(cell))
    return sizes


def is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= 1
