"""Settings of the micro-workloads, checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> Any:
    """`value`, or a ValueError that lists what is allowed."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}")
    return value


def whole(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    """`value` as a whole number from `low` to `high`, or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        upto = "" if high is None else f" to {high}"
        raise ValueError(f"{name} is {value!r}; allowed: whole numbers from {low}{upto}")
    return value


def power_of_two(name: str, value: Any, low: int, high: int) -> int:
    """`value` as a power of two from `low` to `high`, or a ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name} is {value!r}; allowed: powers of two from {low} to {high}")
    return value
