"""The state of a module that its calls change: save, restore and compare it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Container, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from effbench.measure.accuracy import PLAIN

Name = TypeVar("Name")
StateKind = Literal["parameter", "buffer", "attribute"]
#: Kind of state -> the attribute of a module that holds it by key.
HOLDERS: dict[StateKind, str] = {
    "parameter": "_parameters",
    "buffer": "_buffers",
    "attribute": "__dict__",
}


class StateName(NamedTuple):
    """The name of a parameter, buffer or attribute, such as `buffer norm.mean`. `part`: the
    submodule that holds it; `key`: its name there."""

    kind: StateKind
    part: str
    key: str

    @property
    def path(self) -> str:
        """The name without its kind, as torch has it."""
        return f"{self.part}.{self.key}".lstrip(".")

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


#: Parameters, buffers and attributes of a module, or what is known of each.
State = dict[StateName, Any]


def read(module: nn.Module, names: Container[StateName] | None = None) -> State:
    """Return the module's parameters, buffers and attributes. `names`: only these; None: all."""
    state: State = {}
    for path, part in module.named_modules():
        for kind, holder in HOLDERS.items():
            for key, value in getattr(part, holder).items():
                name = StateName(kind, path, key)
                if names is None or name in names:
                    state[name] = value
    return state


def replace(module: nn.Module, name: StateName, value: Any) -> None:
    """Set a parameter, buffer or attribute without a check of its type."""
    getattr(module.get_submodule(name.part), HOLDERS[name.kind])[name.key] = value


def mark(value: Any) -> Any:
    """Return what differs once a value was written or replaced: version and address of a tensor, or
    a plain value. None if this cannot be told."""
    value = local(value)
    if is_dense(value) and not value.is_inference():
        return (value._version, value.data_ptr())
    return value if isinstance(value, PLAIN) else None


class Watch:
    """Tells what changes in the state of a module from now on. `names`: only this state; None: all.
    `state`: what it is now."""

    def __init__(self, module: nn.Module, names: Container[StateName] | None = None) -> None:
        self.module = module
        # held, because the address of a freed tensor may be that of the next one, which would then
        # pass for unchanged
        self.state = read(module, names)
        self.marks = {name: mark(value) for name, value in self.state.items()}

    def changed(self, names: Collection[StateName]) -> set[StateName]:
        """Return which of these have been written, replaced or created."""
        now = read(self.module, names)
        return {name for name in names if mark(now.get(name)) != self.marks.get(name)}

    def restore(self, saved: State, device: torch.device) -> None:
        """Restore those `saved` values that have changed."""
        restore(self.module, {name: saved[name] for name in self.changed(saved)}, device)


def is_split(value: Any) -> bool:
    """Return whether the value is a DTensor, which the ranks of the process group share."""
    return hasattr(value, "full_tensor")


def local(value: Any) -> Any:
    """Return this rank's part of a DTensor, or any other value itself."""
    return value.to_local() if is_split(value) else value


def is_dense(value: Any) -> bool:
    """Return whether the value is a tensor that can be copied and compared; not every operator
    supports others."""
    if is_split(value):
        return True
    if type(value) not in (Tensor, nn.Parameter):
        return False
    return value.layout is torch.strided and not (value.is_nested or value.is_quantized)


def save(module: nn.Module, names: Container[StateName] | None = None) -> State:
    """Return copies in host memory of the dense tensors and plain values with these names (None:
    all), not of lists or objects. Tensors that ranks share are whole."""
    return on_host(whole(read(module, names)))


def whole(current: State) -> State:
    """Return the dense tensors and plain values of this state, not lists or objects. Tensors that
    ranks share are whole, to which all ranks contribute; others are not copied."""
    values = {}
    for name, value in current.items():
        if isinstance(value, PLAIN):
            values[name] = value
        elif is_split(value):
            values[name] = value.detach().full_tensor()
        elif is_dense(value):
            values[name] = value.detach()
    return values


def make_ordinary(module: nn.Module) -> None:
    """Replace inference tensors in buffers and attributes by ordinary copies."""
    with torch.inference_mode(False):
        for name, value in read(module).items():
            if is_dense(value) and value.is_inference():
                replace(module, name, value.clone())


def restore(module: nn.Module, saved: State, device: torch.device) -> None:
    """Restore what `save` returned. Tensors keep their addresses, which CUDA graphs use."""
    with torch.no_grad():
        for name, current in read(module, saved).items():
            value = saved[name]
            if is_restored(current, value):
                continue
            if isinstance(value, Tensor):  # a copy, because the module may write to it
                value = value.to(device, copy=True)
            replace(module, name, value)


def is_restored(current: Any, value: Any) -> bool:
    """Restore the saved `value` in the `current` one. Return False if only replacing it does."""
    if not (isinstance(value, Tensor) and isinstance(current, Tensor)):
        return False
    if current.shape != value.shape:
        return False
    if is_split(current):
        value = split_like(value, current)
    try:
        current.copy_(value)
    except RuntimeError:  # its elements share memory, or it is an inference tensor
        return bool(torch.equal(current, value.to(current)))
    return True


def digest(module: nn.Module) -> str:
    """Return a hash of the parameters, buffers, and tensors and plain values in attributes.

    Processes with the same hash may share what was compiled for the module."""
    hashed = hashlib.sha256()
    for name, value in read(module).items():
        if isinstance(value, PLAIN):
            hashed.update(f"{name} {value!r} ".encode())
        elif isinstance(value, Tensor):
            stream = io.BytesIO()
            torch.save((str(name), value.detach().cpu()), stream)
            hashed.update(stream.getbuffer())
    return hashed.hexdigest()


def same(a: Any, b: Any) -> bool:
    """Return whether values are the same, wherever tensors are."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a.to(b.device), b))
    if type(a) is not type(b):
        return False
    return bool(a == b)


def split_like(value: Tensor, current: Any) -> Tensor:
    """Return the whole `value` split as the `current` one is."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(
        value.to(current.device),
        current.device_mesh,
        current.placements,
        src_data_rank=None,  # each rank has the whole value
    )


def part_of_rank(value: Any, current: Any) -> Any:
    """Return the part of the whole `value` that this rank has in place of the `current` one. A
    value that is no tensor, or has the same shape, stays as it is."""
    if isinstance(value, Tensor) and isinstance(current, Tensor):
        rank = torch.distributed.get_rank()
        for dim, size in enumerate(current.shape):
            if value.shape[dim] != size:
                value = value.narrow(dim, rank * size, size)
    return value


def on_host(values: Mapping[Name, Any]) -> dict[Name, Any]:
    """Return the values with tensors copied to host memory. Tensors that ranks share become
    whole, to which all ranks contribute."""
    copied = {}
    for name, value in values.items():
        if is_split(value):
            value = value.detach().full_tensor()
        if isinstance(value, Tensor):
            value = value.detach().to("cpu", copy=True)
        copied[name] = value
    return copied
