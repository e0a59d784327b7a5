"""Streams of batch sizes, as in a server: drawn from a seed, or read from a file.

`settings.Stream` gives the types and bounds of the settings; here is which kind has which of them.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from effbench.core.errors import ConfigError
from effbench.core.folders import expand_user

NONE = "none"
UNIFORM = "uniform"
CSV = "csv"
ARRIVALS = "arrivals"
#: Kind -> its settings with their defaults; conf/stream/ explains them.
KINDS: dict[str, dict[str, Any]] = {
    NONE: {},
    UNIFORM: {"length": 256, "low": 1, "high": 64, "seed": 0},
    CSV: {"path": None},
    ARRIVALS: {"rate": 100.0, "high": 64, "seed": 0},
}
MOST = 100_000  # calls of one pass
SIZE = re.compile("0*[1-9][0-9]{0,17}")


def check(settings: Mapping[str, Any]) -> str:
    """Return the kind of stream. Raises ConfigError for a setting that this kind does not have or
    that is missing."""
    kind: str = settings["name"]
    known = KINDS[kind]
    for name, value in settings.items():
        if value is not None and name not in ("name", *known):
            having = " or ".join(other for other, names in KINDS.items() if name in names)
            raise ConfigError(f"stream.{name} requires stream={having}")
    for name in known:
        if settings.get(name) is None:
            raise ConfigError(f"stream.{name} is missing; stream={kind} requires it")
    if kind == UNIFORM and settings["high"] < settings["low"]:
        raise ConfigError(
            f"stream.high must be at least stream.low={settings['low']}, got {settings['high']}"
        )
    return kind


def sizes_of(settings: Mapping[str, Any]) -> list[int] | None:
    """Return the size of each call, in order; None without a stream. Raises ConfigError for invalid
    settings."""
    kind = check(settings)
    if kind == NONE:
        return None
    if kind == CSV:
        return read_sizes(settings["path"])
    if kind == ARRIVALS:
        return list(range(1, settings["high"] + 1))
    # a text as seed gives the same numbers in all versions of Python
    draw = random.Random(f"{kind}/{settings['seed']}")
    return [draw.randint(settings["low"], settings["high"]) for _ in range(settings["length"])]


def resolve(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a cell's `stream`: a unique `name`, `sizes`, and the mean `samples_per_call`;
    None without a stream. For a file it holds the content, not the path. Arrivals also have `rate`
    and `seed`, which are labels of their own."""
    sizes = sizes_of(settings)
    if sizes is None:
        return None
    kind = settings["name"]
    stream: dict[str, Any] = {
        "name": kind,
        "sizes": sizes,
        "samples_per_call": sum(sizes) / len(sizes),
    }
    if kind == ARRIVALS:
        rate = settings["rate"]
        stream["rate"] = int(rate) if rate == int(rate) else rate
        stream["seed"] = settings["seed"]
    elif kind == CSV:
        stream["name"] += f" {hashlib.sha256(json.dumps(sizes).encode()).hexdigest()[:8]}"
    else:
        for name, default in KINDS[kind].items():
            if settings[name] != default:
                stream["name"] += f" {name}={settings[name]}"
    return stream


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


def read_sizes(path: str) -> list[int]:
    """Return the sizes in a file, one per line. Raises ConfigError for other content."""
    try:
        text = Path(expand_user(path, "stream.path")).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the stream {path}: {error}") from error
    words = text.split()
    if not 0 < len(words) <= MOST:
        raise ConfigError(
            f"the stream {path} has {len(words)} sizes; allowed: 1 to {MOST}, one per line"
        )
    for number, word in enumerate(words, start=1):
        if not SIZE.fullmatch(word):
            raise ConfigError(
                f"the stream {path}, size {number}: expected an integer of at least 1, got"
                f" {word[:40]!r}"
            )
    return [int(word) for word in words]
