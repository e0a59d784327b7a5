"""The specification of a model's inputs, read from its YAML and validated. Planning uses it without
torch.

model:
  inputs:                    # in order of forward's positional arguments
    x:
      shape: [1024]          # without the batch dimension
      dtype: auto            # auto = the cell's dtype
      low: null              # integers: required, in [low, high); floats: uniform, not normal
      high: null
      value: null            # constant value of all elements, instead of random values
      batch_dim: 0           # position of the batch dimension; null = no batch dimension
      keyword: false         # true = passed by name
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard

from effbench.core.errors import ConfigError, suggest

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
    """An input of a model's forward. `shape` does not include the batch dimension."""

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

    @property
    def limits(self) -> list[float]:
        """Return `low` and `high`, without those that are not given."""
        return [limit for limit in (self.low, self.high) if limit is not None]

    def full_shape(self, bs: int) -> tuple[int, ...]:
        """Return the shape with the batch dimension."""
        if self.batch_dim is None:
            return self.shape
        before = self.shape[: self.batch_dim]
        after = self.shape[self.batch_dim :]
        return (*before, bs, *after)


KEYS = tuple(field.name for field in fields(InputSpec))


def parse_inputs(inputs: Mapping[str, Any]) -> dict[str, InputSpec]:
    """Return the specifications in `model.inputs` by name. Raises ConfigError for an invalid
    one."""
    if not isinstance(inputs, Mapping):
        raise ConfigError(
            "model.inputs must map inputs of forward to descriptions such as x: {shape: [1024]},"
            f" got {inputs!r}"
        )
    return {str(name): _parse_input(str(name), node) for name, node in inputs.items()}


def _parse_input(name: str, node: Any) -> InputSpec:
    where = f"model.inputs.{name}"
    if not isinstance(node, Mapping):
        raise ConfigError(
            f"{where} must be a mapping such as {{shape: [1024]}}, got {node!r}. Keys:"
            f" {', '.join(KEYS)}"
        )
    for key in node:
        if key not in KEYS:
            raise ConfigError(
                f"{where}.{key} is not a setting{suggest(str(key), KEYS)}; allowed:"
                f" {', '.join(KEYS)}"
            )
    shape: Any = node.get("shape")
    is_list = isinstance(shape, list | tuple)
    if not is_list or not all(_is_int(size) and size > 0 for size in shape):
        raise ConfigError(
            f"{where}.shape: expected a list of positive integers, without the batch dimension,"
            f" got {shape!r}. Example: {where}.shape=[3,224,224]"
        )
    spec = InputSpec(**{**node, "shape": tuple(shape)})
    _check_layout(where, spec)
    _check_values(where, spec)
    return spec


def _check_layout(where: str, spec: InputSpec) -> None:
    if spec.dtype not in DTYPES:
        near = suggest(str(spec.dtype), DTYPES)
        raise ConfigError(
            f"{where}.dtype has the unknown value {spec.dtype!r}{near}; allowed:"
            f" {', '.join(DTYPES)}"
        )
    if not isinstance(spec.keyword, bool):
        raise ConfigError(
            f"{where}.keyword must be false (positional) or true (by name), got {spec.keyword!r}"
        )
    dim, dims = spec.batch_dim, len(spec.shape)
    if dim is not None and not (_is_int(dim) and 0 <= dim <= dims):
        raise ConfigError(f"{where}.batch_dim must be between 0 and {dims}, or null, got {dim!r}")


def _check_values(where: str, spec: InputSpec) -> None:
    """Raise ConfigError unless the dtype allows these values."""
    _check_choice(where, spec)
    for key in ("value", "low", "high"):
        _check_number(
            where,
            key,
            getattr(spec, key),
            spec.dtype,
        )
    limits = spec.limits
    if limits and limits[0] >= limits[1]:
        raise ConfigError(
            f"{where}: low must be below high (values in [low, high)), got low={spec.low} and"
            f" high={spec.high}"
        )


def _check_choice(where: str, spec: InputSpec) -> None:
    """Raise ConfigError unless the values are either a constant, or a range, or random."""
    limits = spec.limits
    if limits and spec.value is not None:
        raise ConfigError(f"{where}: value excludes low and high; give a constant or a range")
    if limits and spec.dtype == "bool":
        raise ConfigError(
            f"{where}: bool does not allow low and high; omit them (random values), or give value"
        )
    if len(limits) == 1 or (spec.is_integer and not limits and spec.value is None):
        raise ConfigError(
            f"{where}: {spec.dtype} requires low and high (values in [low, high)), or value for a"
            " constant"
        )


def _check_number(
    where: str,
    key: str,
    value: Any,
    dtype: str,
) -> None:
    """Raise ConfigError unless an input of this dtype can have this value, if there is one."""
    if value is None:
        return
    if dtype == "bool":
        fits = value in (False, True)
        allowed = "true or false"
    elif dtype in INTEGERS:
        least, most = INTEGERS[dtype]
        if key == "high":  # which is exclusive
            most += 1
        fits = _is_int(value) and least <= value <= most
        allowed = f"an integer from {least} to {most}"
    else:
        fits = _is_int(value) or (isinstance(value, float) and math.isfinite(value))
        allowed = "a finite number"
    if not fits:
        raise ConfigError(f"{where}.{key} must be {allowed} for {dtype}, got {value!r}")


def length_dims(specs: Mapping[str, InputSpec], dim: int, largest: int) -> dict[str, int | None]:
    """Return which dimension of each input a stream of lengths up to `largest` varies: `dim`,
    counted with the batch, of the first input that has it and of others that are as long there;
    None for the rest. Raises ConfigError."""
    lengths = {
        name: spec.full_shape(0)[dim]
        for name, spec in specs.items()
        if spec.batch_dim not in (None, dim) and dim <= len(spec.shape)
    }
    if not lengths:
        raise ConfigError(f"stream.dim={dim}: no input has this dimension besides its batch")
    first, length = next(iter(lengths.items()))
    if largest > length:
        raise ConfigError(
            f"stream.dim={dim}: the largest size {largest} exceeds dimension {dim} of the input"
            f" {first}, which is {length}; set stream.high={length}"
        )
    return {name: dim if lengths.get(name) == length else None for name in specs}


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
