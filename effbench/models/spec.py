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

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from effbench.core.errors import ConfigError, suggest

AUTO = "auto"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
DTYPES = (AUTO, "float16", "bfloat16", "float32", "float64", *INTEGERS, "bool")


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

    def full_shape(self, bs: int) -> tuple[int, ...]:
        """Return the shape with the batch dimension."""
        shape = list(self.shape)
        if self.batch_dim is not None:
            shape.insert(self.batch_dim, bs)
        return tuple(shape)


KEYS = tuple(field.name for field in fields(InputSpec))
#: Key -> the values that it takes.
EXPECTED = {
    "shape": "a list of positive integers, without the batch dimension, such as [3,224,224]",
    "dtype": f"one of {', '.join(DTYPES)}",
    "low": "a number or null",
    "high": "a number or null",
    "value": "a number, true, false or null",
    "batch_dim": "an integer or null",
    "keyword": "true or false",
}


def parse_inputs(inputs: Mapping[str, Any]) -> dict[str, InputSpec]:
    """Return the specifications in `model.inputs` by name. Raises ConfigError for an invalid
    one."""
    specs = {}
    for name, node in inputs.items():
        if not isinstance(node, Mapping):
            raise ConfigError(
                f"model.inputs.{name} must be a mapping such as {{shape: [1024]}}, got {node!r}."
                f" Keys: {', '.join(KEYS)}"
            )
        specs[str(name)] = parse_input(f"model.inputs.{name}", node)
    return specs


def parse_input(where: str, node: Mapping[str, Any]) -> InputSpec:
    """Return a specification. `where`: its name in a configuration. Raises ConfigError for what
    torch would not refuse, but misunderstand, for wrong types, and for unknown names."""
    for key in node:
        if key not in KEYS:
            raise ConfigError(
                f"{where}.{key} is not a setting{suggest(str(key), KEYS)}; allowed:"
                f" {', '.join(KEYS)}"
            )
    given = {"shape": None, **node}
    for key, value in given.items():
        if not is_valid(key, value):
            near = suggest(str(value), DTYPES) if key == "dtype" else ""
            raise ConfigError(f"{where}.{key}: expected {EXPECTED[key]}, got {value!r}{near}")
    spec = InputSpec(**{**given, "shape": tuple(given["shape"])})
    dims = len(spec.shape)
    if spec.batch_dim not in (None, *range(dims + 1)):
        raise ConfigError(
            f"{where}.batch_dim must be between 0 and {dims}, or null, got {spec.batch_dim!r}"
        )
    absent = (spec.low, spec.high).count(None)
    needs_range = spec.dtype in INTEGERS and spec.value is None
    if absent == 1 or (absent == 2 and needs_range):
        raise ConfigError(
            f"{where}: {spec.dtype} requires low and high (values in [low, high)), or value for a"
            " constant"
        )
    return spec


def is_valid(key: str, value: Any) -> bool:
    """Return whether the key takes this value."""
    if key == "shape":
        return isinstance(value, list | tuple) and all(
            is_integer(size) and size > 0 for size in value
        )
    if key == "dtype":
        return value in DTYPES
    if key == "keyword":
        return isinstance(value, bool)
    if value is None:
        return True
    if key == "batch_dim":
        return is_integer(value)
    if key == "value":
        return isinstance(value, int | float)
    return isinstance(value, float) or is_integer(value)


def is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
