"""Compiling a part of a module: by name pattern, without some of its parts, or one repeated block for all its places.

The parts are compiled on a copy of the module's structure that shares its parameters and buffers, so that the module
itself, which eager references come from, stays as it is and no weight is held twice.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from effbench.errors import ConfigError, nearest

#: Lists of modules, which have no forward.
NOT_CALLED = (nn.ModuleList, nn.ModuleDict)
#: Holders of other modules; they are no blocks, however often they are repeated.
HOLDERS = (*NOT_CALLED, nn.Sequential)


class Selection:
    """`only`: patterns (fnmatch, over `named_modules()`) of what is compiled; `skip`: of what stays eager; `regional`:
    true, or a class's name, for the blocks of one class. The outermost matching modules count."""

    def __init__(
        self,
        only: str | Sequence[str] | None = None,
        skip: str | Sequence[str] | None = None,
        regional: bool | str = False,
    ) -> None:
        self.only = patterns("only", only)
        self.skip = patterns("skip", skip)
        self.regional = regional
        if not isinstance(regional, bool | str):
            raise ConfigError(f"mode.regional is {regional!r}; allowed: true, false or the name of a class of modules")
        if self.only and regional:
            raise ConfigError("mode.only and mode.regional both say what is compiled: choose one of them")

    def __bool__(self) -> bool:
        return bool(self.only or self.skip or self.regional)

    def apply(self, module: nn.Module, **settings: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return what is called instead of `module`, and facts; `settings` are torch.compile's."""
        if not self:
            return torch.compile(module, **settings), {}
        copied = shared_weight_copy(module)
        facts: dict[str, Any] = {}
        if self.skip:
            kept = matching(copied, "skip", self.skip)
            for part in kept.values():
                part.forward = torch.compiler.disable(part.forward)
            facts["eager_modules"] = list(kept)
        if not (self.only or self.regional):
            return torch.compile(copied, **settings), facts
        if self.only:
            chosen = matching(copied, "only", self.only)
        else:
            facts["region"], chosen = blocks_of(copied, self.regional)
        compile_parts(chosen, share=bool(self.regional), **settings)
        return copied, {**facts, "compiled_modules": list(chosen)}


def compile_parts(parts: dict[str, nn.Module], share: bool, **settings: Any) -> None:
    """Compile each part's forward in its place. `share`: they have one code object, so that Dynamo compiles anew only
    what differs; else each has its own, and with it a compilation and static shapes of its own.

    Dynamo keeps what it compiled by code object, and does not begin in torch's own code, such as nn.Linear's forward:
    hence a function of ours around it.
    """
    code = None
    for name, part in parts.items():
        function = calling(part.forward)
        if code is None or not share:
            label = type(part).__name__ if share else name.replace(".", "_")
            code = function.__code__.replace(co_name=f"{label}_forward")
        function.__code__ = code
        part.forward = torch.compile(function, **settings)


def calling(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return call


def patterns(name: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    found = () if given is None else found
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise ConfigError(f"mode.{name} is {given!r}; allowed: patterns of module names, as mode.{name}=[layers.*.mlp]")
    return found


def shared_weight_copy(module: nn.Module) -> nn.Module:
    """Return a copy of `module` with the same tensors as parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared)


def matching(module: nn.Module, setting: str, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the outermost modules below `module` that match any pattern, by name; each pattern must match one."""
    named = {name: part for name, part in module.named_modules() if name and not isinstance(part, NOT_CALLED)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            near = nearest(pattern, named, cutoff=0.5)
            has = f"did you mean {near}?" if near else f"it has: {', '.join(list(named)[:5]) or 'no modules inside'}"
            raise ConfigError(f"mode.{setting}: no module inside {type(module).__name__} matches {pattern!r}; {has}")
    return outermost({n: part for n, part in named.items() if any(fnmatchcase(n, pattern) for pattern in patterns)})


def outermost(named: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return those that are not inside another of them. Names come in the order of `named_modules()`: parents first."""
    kept: dict[str, nn.Module] = {}
    for name, part in named.items():
        parents = name.split(".")
        if not any(".".join(parents[:i]) in kept for i in range(1, len(parents))):
            kept[name] = part
    return kept


def blocks_of(module: nn.Module, regional: bool | str) -> tuple[str, dict[str, nn.Module]]:
    """Return the name of the class, and its outermost modules by name.

    `regional` true: the class of the siblings (modules of one class in one place, as the layers of a stack) that hold
    most of the weights. Siblings with modules inside go before others; among equals the class of fewer blocks counts.
    """
    by_class: dict[str, dict[str, nn.Module]] = defaultdict(dict)
    siblings: dict[tuple[str, str], list[nn.Module]] = defaultdict(list)
    for name, part in module.named_modules():
        if name and not isinstance(part, HOLDERS):
            kind = type(part).__name__
            by_class[kind][name] = part
            siblings[name.rpartition(".")[0], kind].append(part)
    has = f"it has: {', '.join(sorted(by_class)) or 'no modules inside'}"
    if isinstance(regional, str):
        if regional not in by_class:
            raise ConfigError(f"mode.regional={regional}: no module inside {type(module).__name__} is one; {has}")
        return regional, outermost(by_class[regional])
    repeated = {where: parts for where, parts in siblings.items() if len(parts) > 1 and weights_in(parts)}
    if not repeated:
        raise ConfigError(
            f"mode.regional=true: no class with weights is repeated side by side in {type(module).__name__}; {has}"
        )

    def rank(where: tuple[str, str]) -> tuple[bool, int, int]:
        parts = repeated[where]
        return bool(parts[0]._modules), weights_in(parts), -len(parts)

    _, kind = max(repeated, key=rank)
    return kind, outermost(by_class[kind])


def weights_in(parts: Sequence[nn.Module]) -> int:
    """Return the number of elements of all their parameters."""
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
