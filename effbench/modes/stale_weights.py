"""Detect stale weights: a graph uses the addresses that it was captured with, even if the module's
weights change.

Weights that are updated in place keep their addresses, so the next replay uses them. If a parameter
or buffer is replaced, moved or cast, the graph keeps using the old one. A fingerprint taken at
capture detects this.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch import nn

from effbench.modes.base import Prepared


class StaleWeightsError(RuntimeError):
    """A weight is no longer the one that the graph was captured with. The message names it."""


class Fingerprint:
    """Addresses, dtypes and shapes of all parameters and buffers of `module` at the time of
    construction or `renew()`.

    `changed()` is fast enough for every call: if no tensor, address or dtype has changed, it takes
    about 0.1 µs per tensor and submodule (15 to 25 µs for 12 blocks of 8 tensors). Otherwise it
    also compares shapes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.renew()

    def renew(self) -> None:
        """Take the fingerprint of the module's current weights."""
        children: list[tuple[Slot, nn.Module, str]] = []
        tensors: list[tuple[Slot, torch.Tensor, str]] = []
        for prefix, owner in self.module.named_modules():
            inside = f"{prefix}." if prefix else ""
            children += [
                ((owner._modules, key), c, inside + key)
                for key, c in owner._modules.items()
                if c is not None
            ]
            for held in (owner._parameters, owner._buffers):
                tensors += [
                    ((held, key), t, inside + key) for key, t in held.items() if t is not None
                ]
        self.child_slots, self.children = (
            [slot for slot, _, _ in children],
            [child for _, child, _ in children],
        )
        self.child_names = [name for _, _, name in children]
        self.slots, self.names = [slot for slot, _, _ in tensors], [name for _, _, name in tensors]
        self.addresses = [tensor.data_ptr() for _, tensor, _ in tensors]
        self.dtypes = [tensor.dtype for _, tensor, _ in tensors]
        self.details = [describe(tensor) for _, tensor, _ in tensors]
        self.ids = [id(tensor) for _, tensor, _ in tensors]

    def changed(self) -> str | None:
        """Return the difference, such as `weight layers.0.weight: different address`; None if a
        replay is valid."""
        try:
            now = [held[key] for held, key in self.slots]
            same = (
                all(map(is_, [held[key] for held, key in self.child_slots], self.children))
                and list(map(torch.Tensor.data_ptr, now)) == self.addresses
                and [tensor.dtype for tensor in now] == self.dtypes
                and list(map(id, now)) == self.ids
            )
        except (KeyError, TypeError, AttributeError):  # a weight was removed, or replaced by None
            same = False
        return None if same else self.difference()

    def refuse_stale(self) -> None:
        """Raise StaleWeightsError if the graph would not use the module's current weights."""
        if (difference := self.changed()) is not None:
            raise StaleWeightsError(
                f"{difference}; the graph uses the old one: capture again, or update in place"
            )

    def difference(self) -> str | None:
        for (held, key), child, name in zip(
            self.child_slots, self.children, self.child_names, strict=True
        ):
            if held.get(key) is not child:
                return f"module {name}: {'replaced' if key in held else 'removed'}"
        for (held, key), address, details, name in zip(
            self.slots, self.addresses, self.details, self.names, strict=True
        ):
            tensor = held.get(key)
            if tensor is None:
                return f"weight {name}: removed"
            for what, new, old in zip(DETAILS, describe(tensor), details, strict=True):
                if new != old:
                    return f"weight {name}: {what} {new}, but captured as {old}"
            if tensor.data_ptr() != address:
                return f"weight {name}: different address"
        return None


#: One of a module's dictionaries of submodules, parameters or buffers, and a key in it.
Slot = tuple[dict[str, Any], str]
DETAILS = ("dtype", "shape", "strides", "device")


def describe(
    tensor: torch.Tensor,
) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], torch.device]:
    """Return the properties of a tensor, in the order of `DETAILS`."""
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device


def guarded(
    module: nn.Module,
    policy: str | None,
    capture: Callable[[tuple, dict[str, Any]], Prepared],
    args: tuple,
    kwargs: dict[str, Any],
) -> Prepared:
    """Return a captured step that checks the weights before each replay.

    `capture` makes a step from inputs. If a weight has changed, the policy `recapture` calls
    `capture` again with the inputs of that call, and `refuse` raises StaleWeightsError. With None
    there is no check.
    """
    current = capture(args, kwargs)
    if policy is None:
        return current
    fingerprint = Fingerprint(module)
    facts = {
        **current.facts,
        "guard": policy,
        "guarded_tensors": len(fingerprint.slots),
        "recaptures": 0,
    }
    inner: Prepared | None = current
    ran = current.module
    del current

    def fresh(args: tuple, kwargs: dict[str, Any]) -> Prepared:
        nonlocal inner
        if policy == "refuse":
            fingerprint.refuse_stale()
        elif fingerprint.changed() is not None:
            inner = None  # frees its memory for the next graph
        if inner is None:
            inner = capture(args, kwargs)
            fingerprint.renew()
            facts["recaptures"] += 1
        return inner

    def step(*args: Any, **kwargs: Any) -> Any:
        return fresh(args, kwargs).step(*args, **kwargs)

    def copy_inputs(*args: Any, **kwargs: Any) -> None:
        fresh(args, kwargs).copy_inputs(*args, **kwargs)

    return Prepared(step, copy_inputs=copy_inputs, facts=facts, module=ran)
