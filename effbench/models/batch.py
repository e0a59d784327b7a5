"""What a mode may be told of the batch: which inputs carry it and where, and which sizes will come.

Shapes alone do not say it: a width may equal the batch size by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from effbench.models.spec import InputSpec


@dataclass(frozen=True)
class BatchInput:
    """One input. `dim`: its batch dimension, None where it has none. `filler`: a value that its padding may hold
    without being out of range; NaN for floats, so that a row which depends on padding is seen."""

    dim: int | None
    filler: float | bool


@dataclass(frozen=True)
class Batch:
    """`sizes`: what is called, in order: a stream's, else one size. `bs` is the largest of them."""

    sizes: tuple[int, ...]
    args: tuple[BatchInput, ...]
    kwargs: dict[str, BatchInput]

    @property
    def bs(self) -> int:
        return max(self.sizes)

    @classmethod
    def of(cls, specs: Mapping[str, InputSpec], sizes: Sequence[int]) -> Batch:
        inputs = {name: BatchInput(spec.batch_dim, filler(spec)) for name, spec in specs.items()}
        args = tuple(inputs[name] for name, spec in specs.items() if not spec.keyword)
        return cls(tuple(sizes), args, {name: inputs[name] for name, spec in specs.items() if spec.keyword})


def filler(spec: InputSpec) -> float | bool:
    if spec.value is not None:
        return spec.value
    if spec.dtype == "bool":
        return False
    return int(spec.low or 0) if spec.is_integer else float("nan")


def cut(value: Tensor, dim: int | None, size: int) -> Tensor:
    """The first `size` rows. A view where that is contiguous, as a model's input is when it is made for this size."""
    if dim is None or value.size(dim) == size:
        return value
    return value.narrow(dim, 0, size).contiguous()
