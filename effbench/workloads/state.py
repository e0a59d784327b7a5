"""The state of a module that its calls change: save, restore and compare it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from effbench.measure.accuracy import PLAIN

Name = TypeVar("Name")
StateKind = Literal["parameter", "buffer", "attribute"]


class StateName(NamedTuple):
    """The name of a parameter, buffer or attribute, such as `buffer norm.mean`. `path`: from the
    module."""

    kind: StateKind
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


@dataclass(slots=True)  # not frozen, because large modules have 100,000 of them
class StatePlace:
    """Where a module holds a parameter, buffer or attribute: a dictionary, and the key in it."""

    held: dict[str, Any]
    key: str

    @property
    def value(self) -> Any:
        return self.held[self.key]


def places(
    module: nn.Module, names: Container[StateName] | None = None
) -> dict[StateName, StatePlace]:
    """Return where the module holds its parameters, buffers and attributes. `names`: only these;
    None: all."""
    by_name = {}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        kinds: dict[StateKind, dict[str, Any]] = {
            "parameter": part._parameters,
            "buffer": part._buffers,
            "attribute": vars(part),
        }
        for kind, held in kinds.items():
            for key in held:
                name = StateName(kind, f"{prefix}{key}")
                if names is None or name in names:
                    by_name[name] = StatePlace(held, key)
    return by_name


def marks(module: nn.Module, names: Container[StateName] | None = None) -> dict[StateName, Any]:
    """Return what differs once a value was written or replaced: version and address of a tensor, or
    a plain value. `names`: as in `places`."""
    by_name = {}
    for name, place in places(module, names).items():
        value = place.value
        if isinstance(value, PLAIN):
            by_name[name] = value
        elif is_dense(value) and not value.is_inference():
            by_name[name] = (value._version, value.data_ptr())
    return by_name


class Watch:
    """Tells what changes in the state of a module from now on."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        everything = places(module)
        self.names = set(everything)
        # the address of a freed tensor may be that of the next one, which would then pass for
        # unchanged
        self.alive = [place.value for place in everything.values()]
        self.marks = marks(module)

    def changed(self, names: Collection[StateName]) -> set[StateName]:
        """Return which of these have been written, replaced or created."""
        now = marks(self.module, names)
        before = self.marks
        return {name for name in names if now.get(name) != before.get(name)}


def is_dense(value: Any) -> bool:
    """Return whether the value is a tensor that can be copied and compared; not every operator
    supports others."""
    if type(value) not in (Tensor, nn.Parameter):
        return False
    if value.layout is not torch.strided:
        return False
    return not (value.is_nested or value.is_quantized)


def save(module: nn.Module, names: Container[StateName]) -> dict[StateName, Any]:
    """Return copies in host memory of the dense tensors and plain values with these names, not of
    lists or objects."""
    saved = {}
    for name, place in places(module, names).items():
        value = place.value
        if isinstance(value, PLAIN) or is_dense(value):
            saved[name] = value
    return on_host(saved)


def make_ordinary(module: nn.Module) -> None:
    """Replace inference tensors in buffers and attributes by ordinary copies."""
    with torch.inference_mode(False):
        for place in places(module).values():
            value = place.value
            if is_dense(value) and value.is_inference():
                place.held[place.key] = value.clone()


def restore(
    module: nn.Module,
    saved: Mapping[StateName, Any],
    device: torch.device,
) -> None:
    """Restore what `save` returned. Tensors keep their addresses, which CUDA graphs use."""
    now = places(module)
    with torch.no_grad():
        for name, value in saved.items():
            place = now.get(name)
            if place is None or is_restored(place.value, value):
                continue
            if isinstance(value, Tensor):  # a copy, because the module may write to it
                value = value.to(device, copy=True)
            place.held[place.key] = value


def is_restored(current: Any, value: Any) -> bool:
    """Restore the saved `value` in the `current` one. Return False if only replacing it does."""
    if not (isinstance(value, Tensor) and isinstance(current, Tensor)):
        return False
    if current.shape != value.shape:
        return False
    try:
        current.copy_(value)
    except RuntimeError:  # its elements share memory, or it is an inference tensor
        return bool(torch.equal(current, value.to(current)))
    return True


def digest(module: nn.Module) -> str:
    """Return a hash of the parameters, buffers, and tensors and plain values in attributes.

    Processes with the same hash may share what was compiled for the module."""
    hashed = hashlib.sha256()
    for name, place in sorted(places(module).items()):
        value = place.value
        if isinstance(value, Tensor):
            for part in parts(value):
                shape = tuple(part.shape)
                description = f"{name} {part.dtype} {shape} "
                hashed.update(description.encode())
                if is_dense(part):
                    plain = part.detach().resolve_conj().resolve_neg()
                    flat = plain.cpu().contiguous().reshape(-1)
                    hashed.update(flat.view(torch.uint8).numpy())
        elif isinstance(value, PLAIN):
            hashed.update(f"{name} {value!r} ".encode())
    return hashed.hexdigest()


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the tensor; in place of a quantized one, those that hold its data."""
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    inner: list[Tensor] = []
    for name in names:
        inner += parts(getattr(tensor, name))
    return inner


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return bool(torch.equal(a, b))
    return bool(a == b)


def on_host(values: Mapping[Name, Any]) -> dict[Name, Any]:
    """Return the values with tensors copied to host memory."""
    copied = {}
    for name, value in values.items():
        if isinstance(value, Tensor):
            value = value.detach().to("cpu", copy=True)
        copied[name] = value
    return copied
