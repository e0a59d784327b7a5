"""Stale weights: a graph replays the addresses that it was captured with, whatever the module holds by now.

Weights that are updated in place keep their addresses and are seen by the next replay. A parameter or buffer that was
rebound, moved or cast is not: the graph goes on with the old one. A fingerprint taken at capture tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from effbench.errors import ConfigError
from effbench.modes.base import Prepared

POLICIES = (None, "refuse", "recapture")


class StaleWeightsError(RuntimeError):
    """A weight is no longer the one that the graph was captured with; the message names it."""


class Fingerprint:
    """Addresses, dtypes and shapes of all parameters and buffers of `module`, as they are when it is taken.

    `changed()` is made for every call: it compares objects and addresses, one pass over the module's tensors and
    submodules (about 0.1 µs each), and looks at dtypes and shapes where one of them differs.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.renew()

    def renew(self) -> None:
        """Take it anew: what the module holds now is right."""
        #: (the dictionary that holds it, its key there, what it holds, its full name)
        self.children: list[tuple[dict[str, Any], str, nn.Module, str]] = []
        self.tensors: list[tuple[dict[str, Any], str, torch.Tensor, str]] = []
        for prefix, owner in self.module.named_modules():
            inside = f"{prefix}." if prefix else ""
            for name, child in owner._modules.items():
                if child is not None:
                    self.children.append((owner._modules, name, child, inside + name))
            for held in (owner._parameters, owner._buffers):
                self.tensors += [(held, name, t, inside + name) for name, t in held.items() if t is not None]
        self.addresses = [tensor.data_ptr() for _, _, tensor, _ in self.tensors]
        self.details = [describe(tensor) for _, _, tensor, _ in self.tensors]

    def changed(self) -> str | None:
        """What differs, as `weight layers.0.weight: another address`; None where a replay is right."""
        for held, key, child, name in self.children:
            if held.get(key) is not child:
                return f"module {name}: {'replaced' if key in held else 'removed'}"
        for (held, key, tensor, name), address, details in zip(self.tensors, self.addresses, self.details, strict=True):
            now = held.get(key)
            if now is tensor and now.data_ptr() == address and now.dtype is details[0]:
                continue
            if now is None:
                return f"weight {name}: removed"
            if (found := difference(describe(now), details)) or now.data_ptr() != address:
                return f"weight {name}: {found or 'another address'}"
        return None


def describe(tensor: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...], torch.device]:
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.device


def difference(now: tuple, before: tuple) -> str | None:
    for what, new, old in zip(("dtype", "shape", "strides", "device"), now, before, strict=True):
        if new != old:
            return f"{what} {new}, captured as {old}"
    return None


def check_policy(policy: str | None) -> str | None:
    if policy not in POLICIES:
        raise ConfigError(f"mode.guard is {policy!r}; allowed: null, refuse, recapture")
    return policy


def guarded(
    module: nn.Module,
    policy: str | None,
    capture: Callable[[tuple, dict[str, Any]], Prepared],
    args: tuple,
    kwargs: dict[str, Any],
) -> Prepared:
    """A captured step that looks at the weights before each replay.

    `capture` makes a step of inputs and is called again, with those of the call at hand, where the policy is
    `recapture` and a weight has changed; `refuse` raises StaleWeightsError instead. None replays without a look.
    """
    current = capture(args, kwargs)
    if policy is None:
        return current
    fingerprint = Fingerprint(module)
    facts = {**current.facts, "guard": policy, "guarded_tensors": len(fingerprint.tensors), "recaptures": 0}
    inner: Prepared | None = current
    del current

    def fresh(args: tuple, kwargs: dict[str, Any]) -> Prepared:
        nonlocal inner
        if (found := fingerprint.changed()) is not None:
            if policy == "refuse":
                raise StaleWeightsError(f"{found}: the graph holds the old one; capture again, or update in place")
            inner = None  # its memory is free for the next
        if inner is None:
            inner = capture(args, kwargs)
            fingerprint.renew()
            facts["recaptures"] += 1
        return inner

    def step(*args: Any, **kwargs: Any) -> Any:
        return fresh(args, kwargs).step(*args, **kwargs)

    def copy_inputs(*args: Any, **kwargs: Any) -> None:
        copy = fresh(args, kwargs).copy_inputs
        if copy is not None:
            copy(*args, **kwargs)

    return Prepared(step, copy_inputs=copy_inputs, facts=facts)
