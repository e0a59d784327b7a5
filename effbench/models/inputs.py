"""Inputs of a model: example tensors from a specification and a seed, and their batch dimensions.

The batch dimension cannot be derived from shapes, because a width may equal the batch size by
chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from effbench.models.spec import AUTO, InputSpec

#: Positional and keyword arguments of a call of the user's module, and what is called.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Inputs = tuple[Args, Kwargs]
Step = Callable[..., Any]
#: Inputs with at most this many elements are made on the CPU, so that their values are the same on
#: all devices.
HOST_ELEMENTS = 16 * 2**20


def make_inputs(
    specs: Mapping[str, InputSpec],
    bs: int,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return positional and keyword arguments for `forward`.

    The values depend only on the seed, not on the device (inputs with more than `HOST_ELEMENTS`
    elements also depend on the device). Floats are rounded to their dtype, so that a uniform value
    from [low, high) may round to `high`.
    """
    device = torch.device(device)
    args: list[Tensor] = []
    kwargs: dict[str, Tensor] = {}
    for index, (name, spec) in enumerate(specs.items()):
        tensor = make_input(
            spec,
            bs,
            dtype,
            device,
            seed + index * 1_000_003,
        )
        if spec.keyword:
            kwargs[name] = tensor
        else:
            args.append(tensor)
    return tuple(args), kwargs


def to_channels_last(tensor: Tensor) -> Tensor:
    """Return the tensor in the format channels_last, which only tensors of four dimensions have."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def make_set(
    specs: Mapping[str, InputSpec],
    number: int,
    bs: int,
    dtype: torch.dtype,
    device: torch.device | str,
    numerics: Mapping[str, Any],
) -> Inputs:
    """Return a set of a cell's inputs. `number`: of the set, from 1, on which its values depend."""
    seed = numerics.get("seed", 0) + 7919 * number
    made: Inputs = make_inputs(specs, bs, dtype, device, seed)
    if numerics.get("channels_last"):
        made = tree_map_only(Tensor, to_channels_last, made)
    return made


def make_input(
    spec: InputSpec,
    bs: int,
    cell_dtype: torch.dtype,
    device: torch.device,
    seed: int,
) -> Tensor:
    shape = spec.full_shape(bs)
    dtype = cell_dtype if spec.dtype == AUTO else getattr(torch, spec.dtype)
    if spec.value is not None:
        return torch.full(
            shape,
            spec.value,
            dtype=dtype,
            device=device,
        )
    generator = seeded_generator(math.prod(shape), device, seed)
    where = generator.device
    low, high = spec.low, spec.high
    if dtype == torch.bool:
        low, high = 0, 2
    if low is None or high is None:
        values = torch.randn(shape, generator=generator, device=where)
    elif dtype.is_floating_point:
        values = torch.rand(shape, generator=generator, device=where)
        values = low + (high - low) * values
    else:
        values = torch.randint(
            int(low),
            int(high),
            shape,
            generator=generator,
            dtype=dtype,
            device=where,
        )
    return values.to(device=device, dtype=dtype)


def seeded_generator(elements: int, device: torch.device, seed: int) -> torch.Generator:
    """Return a generator for this many values: on the CPU unless they are more than
    `HOST_ELEMENTS`."""
    where = "cpu" if elements <= HOST_ELEMENTS else device
    return torch.Generator(where).manual_seed(seed)


class KeptInputs:
    """The values that some tensors have now, to restore those that a step writes to. They take no
    device memory."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.values: dict[int, Tensor] = {}  # by the tensor's id
        for tensor in tensors:
            if id(tensor) not in self.values:
                kept = tensor.cpu().pin_memory() if tensor.is_cuda else tensor.clone()
                self.values[id(tensor)] = kept

    def restore(self, given: Inputs) -> None:
        """Restore these inputs, as far as their values are kept."""
        args, kwargs = given
        with torch.no_grad():  # the module may have made an input require gradients
            for tensor in (*args, *kwargs.values()):
                value = self.values.get(id(tensor))
                if value is not None:
                    tensor.copy_(value, non_blocking=True)


def as_arguments(values: Sequence[Any], names: Collection[str]) -> Inputs:
    """Return the arguments of a call. `values`: those by position, then those with these names."""
    count = len(values) - len(names)
    return tuple(values[:count]), dict(zip(names, values[count:], strict=True))


@dataclass(frozen=True)
class Batch:
    """The batch sizes of the calls in order, which are several only for a stream, and the batch
    dimension of each input, or None: first of those by position, then of those by name."""

    sizes: tuple[int, ...]
    dims: tuple[int | None, ...]

    @classmethod
    def of(cls, specs: Mapping[str, InputSpec], sizes: Sequence[int]) -> Batch:
        """Return the batch of these inputs."""
        ordered = sorted(specs.values(), key=lambda spec: spec.keyword)
        return cls(tuple(sizes), tuple(spec.batch_dim for spec in ordered))


def cut(value: Tensor, dim: int | None, size: int) -> Tensor:
    """Return the first `size` of dimension `dim`, laid out like an input made for this size: a copy
    unless it is the first dimension."""
    if dim is None or value.size(dim) == size:
        return value
    rows = value.narrow(dim, 0, size)
    if dim == 0:  # the first rows are dense in any memory format
        return rows
    return rows.clone()  # which keeps the memory format
