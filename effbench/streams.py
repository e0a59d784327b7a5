"""Streams of batch sizes: what a server sees in the place of one size. Generated from a seed, or read from a file.

Standard library only: planning, commands and the worker's tests share it.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from effbench.errors import ConfigError

NONE = "none"
#: Kind -> its settings with their defaults; conf/stream/ has them with what they mean.
KINDS: dict[str, dict[str, Any]] = {
    NONE: {},
    "uniform": {"length": 256, "low": 1, "high": 64, "seed": 0},
    "bursty": {"length": 256, "low": 1, "high": 64, "seed": 0, "spell": 16, "share": 0.25},
    "decode": {"length": 256, "low": 8, "high": 64, "seed": 0, "tokens": 64},
    "csv": {"path": None, "column": "bs"},
}
MOST = 100_000  # calls of one pass; longer ones belong into a sample
MOST_DIGITS = 18  # of a batch size: what is longer is none


def check(settings: Mapping[str, Any]) -> str:
    """The kind, after its settings were found to be its own and sensible. Raises ConfigError."""
    kind = settings.get("name", NONE)
    if kind not in KINDS:
        raise ConfigError(f"stream.name={kind} is no kind of stream; allowed: {', '.join(KINDS)}")
    own = KINDS[kind]
    for name, value in settings.items():
        if name not in ("name", "description", *own) and value is not None:
            has = ", ".join(own) or "none"
            raise ConfigError(f"stream {kind} has no setting {name!r}; it has: {has}")
    for name in own:
        if settings.get(name) is None:
            raise ConfigError(f"stream {kind} needs stream.{name}")
    for name, least in (("length", 1), ("low", 1), ("spell", 1), ("tokens", 1)):
        if name in own and settings[name] < least:
            raise ConfigError(f"stream.{name} must be at least {least}, got {settings[name]}")
    if "length" in own and settings["length"] > MOST:
        raise ConfigError(f"stream.length must be at most {MOST}, got {settings['length']}")
    if "high" in own and settings["high"] < settings["low"]:
        raise ConfigError(f"stream.high={settings['high']} is below stream.low={settings['low']}")
    if "share" in own and not 0 < settings["share"] < 1:
        raise ConfigError(f"stream.share must lie between 0 and 1, got {settings['share']:g}")
    return kind


def sizes_of(settings: Mapping[str, Any]) -> list[int] | None:
    """The batch sizes in order, one a call; None without a stream. Raises ConfigError."""
    kind = check(settings)
    if kind == NONE:
        return None
    if kind == "csv":
        return read_sizes(settings["path"], settings["column"])
    generate: Callable[..., list[int]] = {"uniform": uniform, "bursty": bursty, "decode": decode}[kind]
    own = {name: settings[name] for name in KINDS[kind] if name != "seed"}
    # a seed of text: the same numbers in every version of Python
    return generate(random.Random(f"{kind}/{settings['seed']}"), **own)


def resolve(settings: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A cell's part `stream`: `name` (tells it from other streams), `samples_per_call` (mean), `sizes`; None for none.

    It holds what a file says, not where it lies.
    """
    sizes = sizes_of(settings) if settings else None
    if sizes is None:
        return None
    kind = settings["name"]
    if kind == "csv":
        name = f"csv {hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]}"
    else:
        own = {key: settings[key] for key in KINDS[kind] if settings[key] != KINDS[kind][key]}
        name = " ".join([kind, *(f"{key}={value}" for key, value in own.items())])
    return {"name": name, "samples_per_call": sum(sizes) / len(sizes), "sizes": sizes}


def batch_size(sizes: Sequence[int], given: int | None) -> int:
    """`bs` of a cell with a stream: its largest size. Raises ConfigError where another one was given."""
    largest = max(sizes)
    if given is not None and given != largest:
        raise ConfigError(
            f"bs={given} and a stream whose largest size is {largest}: leave bs away, the stream decides it"
        )
    return largest


def uniform(draw: random.Random, length: int, low: int, high: int) -> list[int]:
    """Every size from `low` to `high` equally likely, each call on its own."""
    return [draw.randint(low, high) for _ in range(length)]


def bursty(draw: random.Random, length: int, low: int, high: int, spell: int, share: float) -> list[int]:
    """Quiet spells in the lowest eighth of the range and bursts in its upper half; spells last `spell` calls on average
    and about `share` of the calls are in bursts."""
    calm, storm = low + (high - low) // 8, (low + high + 1) // 2
    sizes: list[int] = []
    while len(sizes) < length:
        bounds = (storm, high) if draw.random() < share else (low, calm)
        lasts = 1 + int(draw.expovariate(1 / (spell - 1))) if spell > 1 else 1
        sizes += [draw.randint(*bounds) for _ in range(lasts)]
    return sizes[:length]


def decode(draw: random.Random, length: int, low: int, high: int, tokens: int) -> list[int]:
    """Running requests of a server that decodes: each ends after `tokens` calls on average, so the size shrinks; once
    it is at `low` or below (or nobody runs), a batch of new ones is admitted, up to `high` together."""
    running = high
    sizes: list[int] = []
    while len(sizes) < length:
        sizes.append(running)
        running -= sum(draw.random() < 1 / tokens for _ in range(running))
        if running <= low and running < high:
            running = draw.randint(max(running + 1, (low + high + 1) // 2), high)
    return sizes


def read_sizes(path: str, column: str = "bs") -> list[int]:
    """Sizes of a file: one a line, or the column named `column` of a CSV with a heading. Raises ConfigError."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read the stream {path}: {reason}") from error
    # what is counted are lines of the file, so that a message leads to the right one
    try:
        found = list(enumerate(csv.reader(text.splitlines()), start=1))
    except csv.Error as error:
        raise ConfigError(f"cannot read the stream {path}: {error}") from error
    rows = [(number, row) for number, row in found if any(map(str.strip, row))]
    if not rows:
        raise ConfigError(f"the stream {path} is empty: it takes one batch size a line, or a column {column!r}")
    heading = [cell.strip() for cell in rows[0][1]]
    place = 0
    if column in heading:
        place = heading.index(column)
        rows = rows[1:]
    elif len(heading) > 1 or not is_size(heading[0]):
        raise ConfigError(f"the stream {path} has no column {column!r}; it has: {', '.join(heading)[:200]}")
    if not rows:
        raise ConfigError(f"the stream {path} has a heading and no batch size below it")
    if len(rows) > MOST:
        raise ConfigError(f"the stream {path} has {len(rows)} sizes; at most {MOST}: take a part of it")
    sizes = []
    for number, row in rows:
        cell = row[place].strip() if place < len(row) else ""
        if not is_size(cell):
            raise ConfigError(
                f"line {number} of the stream {path} is {cell[:40]!r}; a batch size is a whole number from 1"
            )
        sizes.append(int(cell))
    return sizes


def is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and int(text) >= 1
