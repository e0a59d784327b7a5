"""The state of a module that its calls change: copy, restore and compare it."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: Attributes of these types and tensors are restored; containers such as lists are not.
PLAIN = (bool, int, float, complex, str)


def places(module: nn.Module) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the dictionary and the key of every parameter, buffer and attribute, by names like `buffer norm.mean`."""
    return {
        f"{kind} {prefix}{'.' if prefix else ''}{key}": (held, key)
        for prefix, part in module.named_modules()
        for kind, held in (("parameter", part._parameters), ("buffer", part._buffers), ("attribute", vars(part)))
        for key, value in held.items()
    }


def versions(module: nn.Module) -> dict[str, tuple[int, int | None]]:
    """Return for each parameter a value that changes if the parameter is replaced or written."""
    named = module.named_parameters()
    return {f"parameter {name}": (id(value), None if value.is_inference() else value._version) for name, value in named}


def save(module: nn.Module, names: Container[str] = (), every: bool = False) -> dict[str, Any]:
    """Return copies in host memory of the tensors and plain values with these `names`. `every`: of all buffers and
    attributes as well."""
    return on_host(
        {
            name: held[key]
            for name, (held, key) in places(module).items()
            if isinstance(held[key], (Tensor, *PLAIN))
            and (name in names or (every and not name.startswith("parameter ")))
        }
    )


def restore(module: nn.Module, saved: Mapping[str, Any], device: torch.device) -> None:
    """Restore values that `save` returned. Tensors keep their addresses, which CUDA graphs use."""
    now = places(module)
    with torch.no_grad():
        for name, value in saved.items():
            held, key = now.get(name, ({}, name))
            current = held.get(key)
            if isinstance(value, Tensor) and isinstance(current, Tensor) and current.shape == value.shape:
                current.copy_(value)
            else:
                held[key] = value.to(device) if isinstance(value, Tensor) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and a == b


def on_host(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with tensors copied to host memory."""
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }
