"""The state of a module that its calls change: save, restore and compare it."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from effbench.measure import work
from effbench.measure.accuracy import PLAIN


def places(module: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the dictionary and the key of every parameter, buffer and attribute, by names like
    `buffer norm.mean`."""
    return {
        f"{kind} {prefix}{'.' if prefix else ''}{key}": (held, key)
        for prefix, part in module.named_modules()
        for kind, held in held_by(part).items()
        for key, value in held.items()
    }


def held_by(part: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the parameters, buffers and attributes of a module by name."""
    if not isinstance(part, torch.jit.RecursiveScriptModule):
        return {"parameter": part._parameters, "buffer": part._buffers, "attribute": vars(part)}
    held = {
        "parameter": dict(part.named_parameters(recurse=False)),
        "buffer": dict(part.named_buffers(recurse=False)),
    }
    others = (
        part._concrete_type.get_attributes().keys()
        - held["parameter"].keys()
        - held["buffer"].keys()
    )
    held["attribute"] = {name: getattr(part, name) for name in others}
    return {kind: Scripted(part, values) for kind, values in held.items()}


class Scripted(dict[str, Any]):
    """Values of a scripted module by name, which keeps them itself."""

    def __init__(self, part: nn.Module, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.part = part

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.part, name, value)


def marks(module: nn.Module, names: Container[str]) -> dict[str, Any]:
    """Return what differs once a value was written or replaced: version and address of a tensor, or
    a plain value."""
    now = {name: held[key] for name, (held, key) in places(module).items() if name in names}
    tensors = {
        name: (it._version, it.data_ptr())
        for name, it in now.items()
        if is_dense(it) and not it.is_inference()
    }
    return {name: value for name, value in now.items() if isinstance(value, PLAIN)} | tensors


def is_dense(value: Any) -> bool:
    """Return whether the value is a tensor that can be copied and compared; not every operator
    supports others."""
    is_plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided
    return is_plain and not (value.is_nested or value.is_quantized)


def is_expanded(value: Tensor) -> bool:
    """Return whether elements share memory, so that torch cannot write to the tensor; it can only
    be replaced."""
    return any(
        size > 1 and not step for size, step in zip(value.shape, value.stride(), strict=True)
    )


def save(module: nn.Module, names: Container[str]) -> dict[str, Any]:
    """Return copies in host memory of the dense tensors and plain values with these names, not of
    lists or objects."""
    now = {name: held[key] for name, (held, key) in places(module).items() if name in names}
    return on_host(
        {name: value for name, value in now.items() if isinstance(value, PLAIN) or is_dense(value)}
    )


def make_ordinary(module: nn.Module) -> None:
    """Replace inference tensors in buffers and attributes by ordinary copies."""
    with torch.inference_mode(False):
        for held, key in places(module).values():
            if is_dense(held[key]) and held[key].is_inference():
                held[key] = held[key].clone()


def restore(module: nn.Module, saved: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `save` returned. Tensors keep their addresses, which CUDA graphs use."""
    now = places(module)
    with torch.no_grad():
        for name, value in saved.items():
            held, key = now.get(name, ({}, name))
            current = held.get(key)
            is_alike = (
                isinstance(value, Tensor)
                and isinstance(current, Tensor)
                and current.shape == value.shape
            )
            is_frozen = (
                is_alike and current.is_inference() and not torch.is_inference_mode_enabled()
            )
            if is_alike and not is_expanded(current) and not is_frozen:
                current.copy_(value)
            elif is_alike and not is_frozen and torch.equal(current, value.to(current)):
                continue
            else:
                # a copy, because the module may write to it
                held[key] = value.to(device, copy=True) if isinstance(value, Tensor) else value


def digest(module: nn.Module) -> str:
    """Return a hash of the parameters, buffers, and tensors and plain values in attributes.

    Processes with the same hash may share what was compiled for the module."""
    found = hashlib.sha256()
    for name, (held, key) in sorted(places(module).items()):
        value = held[key]
        if isinstance(value, Tensor):
            for part in work.parts(value):
                found.update(f"{name} {part.dtype} {tuple(part.shape)} ".encode())
                if is_dense(part):
                    found.update(bytes_of(part))
        elif isinstance(value, PLAIN):
            found.update(f"{name} {value!r} ".encode())
    return found.hexdigest()


def bytes_of(value: Tensor) -> memoryview:
    """Return the values of a dense tensor as bytes, in the order of its elements."""
    flat = value.detach().resolve_conj().resolve_neg().to("cpu").contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (torch.equal(a, b) if isinstance(a, Tensor) else a == b)


def on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with tensors copied to host memory."""
    copied = {
        name: value.detach().to("cpu", copy=True)
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    return {**values, **copied}
