"""The specification of a model's inputs, read from its YAML and validated. Standard library only: planning has no
torch.

model:
  inputs:                    # in order of forward's positional arguments
    x:
      shape: [1024]          # without the batch dimension
      dtype: auto            # auto = the cell's dtype
      low: null              # integers: required, values in [low, high); floats: uniform instead of normal
      high: null
      value: null            # every element is this constant instead
      batch_dim: 0           # where the batch dimension goes; null = this input has none
      keyword: false         # true = passed by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from effbench.errors import ConfigError, nearest

AUTO = "auto"
FLOATS = ("float16", "bfloat16", "float32", "float64")
#: Smallest and largest value of each integer type.
INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 2**8 - 1),
}
DTYPES = (AUTO, *FLOATS, *INTEGERS, "bool")


@dataclass(frozen=True)
class InputSpec:
    """One input of a model's forward. `shape` is without the batch dimension."""

    shape: tuple[int, ...]
    dtype: str = AUTO
    low: float | None = None
    high: float | None = None
    value: float | bool | None = None
    batch_dim: int | None = 0
    keyword: bool = False

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS

    def full_shape(self, bs: int) -> tuple[int, ...]:
        """Return the shape with the batch dimension."""
        if self.batch_dim is None:
            return self.shape
        return (*self.shape[: self.batch_dim], bs, *self.shape[self.batch_dim :])


KEYS = tuple(f.name for f in fields(InputSpec))


def parse_inputs(inputs: Mapping[str, Any]) -> dict[str, InputSpec]:
    """Validate the plain node `model.inputs`; `ConfigError` names the input, the key and what is allowed."""
    if not isinstance(inputs, Mapping):
        raise ConfigError(
            f"model.inputs is {inputs!r}; it maps each input of forward to its description, as x: {{shape: [1024]}}"
        )
    return {str(name): _parse_input(str(name), node) for name, node in inputs.items()}


def _parse_input(name: str, node: Any) -> InputSpec:
    where = f"model.inputs.{name}"
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where} is {node!r}; it takes keys, as {{shape: [1024]}}. Allowed: {', '.join(KEYS)}")
    for key in node:
        if key not in KEYS:
            raise ConfigError(f"{where}.{key}: no such key. {_allowed(key, KEYS)}")
    dtype = node.get("dtype", AUTO)
    if dtype not in DTYPES:
        raise ConfigError(f"{where}.dtype is {dtype!r}. {_allowed(dtype, DTYPES)}")
    shape = _shape(where, node)
    keyword = node.get("keyword", False)
    if not isinstance(keyword, bool):
        raise ConfigError(f"{where}.keyword is {keyword!r}; allowed: false (positional) or true (passed by name)")
    low, high = _range(where, node, dtype)
    return InputSpec(
        shape=shape,
        dtype=dtype,
        low=low,
        high=high,
        value=None if node.get("value") is None else _number(f"{where}.value", node["value"], dtype),
        batch_dim=_batch_dim(where, node, len(shape)),
        keyword=keyword,
    )


def _allowed(word: Any, words: tuple[str, ...]) -> str:
    near = nearest(str(word), words)
    return (f"Did you mean {near}? " if near else "") + f"Allowed: {', '.join(words)}"


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(where: str, value: Any, dtype: str) -> float | bool:
    """Return a value that an input of this type can hold. Raises ConfigError."""
    if dtype == "bool":
        fits, allowed = value in (False, True), "true or false"
    elif dtype in INTEGERS:
        smallest, largest = INTEGERS[dtype]
        fits, allowed = _is_int(value) and smallest <= value <= largest, f"an integer from {smallest} to {largest}"
    else:
        fits = _is_int(value) or (isinstance(value, float) and math.isfinite(value))
        allowed = "a finite number"
    if not fits:
        raise ConfigError(f"{where} is {value!r}; allowed for {dtype}: {allowed}")
    return bool(value) if dtype == "bool" else value


def _shape(where: str, node: Mapping[str, Any]) -> tuple[int, ...]:
    shape = node.get("shape")
    if shape is None:
        raise ConfigError(
            f"{where}.shape is missing; give a list without the batch dimension, as [3, 224, 224] (or [])"
        )
    if not isinstance(shape, list | tuple) or not all(_is_int(size) and size > 0 for size in shape):
        raise ConfigError(f"{where}.shape is {shape!r}; allowed: a list of positive integers, as [3, 224, 224] (or [])")
    return tuple(shape)


def _batch_dim(where: str, node: Mapping[str, Any], rank: int) -> int | None:
    batch_dim = node.get("batch_dim", 0)
    if batch_dim is None or (_is_int(batch_dim) and 0 <= batch_dim <= rank):
        return batch_dim
    raise ConfigError(
        f"{where}.batch_dim is {batch_dim!r}; allowed: 0 to {rank} (a shape of {rank} dimensions) or null"
    )


def _range(where: str, node: Mapping[str, Any], dtype: str) -> tuple[float | None, float | None]:
    low, high = node.get("low"), node.get("high")
    if low is None and high is None:
        if dtype in INTEGERS and node.get("value") is None:
            raise ConfigError(f"{where}: {dtype} needs low and high (values in [low, high)), or value for a constant")
        return None, None
    if node.get("value") is not None:
        raise ConfigError(f"{where}: value excludes low and high; give a constant or a range")
    if dtype == "bool":
        raise ConfigError(f"{where}: bool takes no low and high; allowed: nothing (half true, at random) or value")
    if low is None or high is None:
        missing = "low" if low is None else "high"
        raise ConfigError(f"{where}.{missing} is missing; low and high come together: values in [low, high)")
    _number(f"{where}.low", low, dtype)
    if not (dtype in INTEGERS and _is_int(high) and high == INTEGERS[dtype][1] + 1):  # values are below it
        _number(f"{where}.high", high, dtype)
    if low >= high:
        raise ConfigError(f"{where}: low is {low} and high is {high}; low must be below high (values in [low, high))")
    return low, high
