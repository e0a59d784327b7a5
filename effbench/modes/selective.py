"""Compile parts of a module: those that match name patterns, all but some parts, or a repeated
block.

The parts are compiled in a copy of the module that shares its parameters and buffers. Thus the
module itself, which computes eager references, is unchanged, and weights are not duplicated.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from effbench.errors import ConfigError, UnsupportedError, suggest

#: Lists of modules, which have no forward.
NOT_CALLED = (nn.ModuleList, nn.ModuleDict)
#: Containers of other modules; they do not count as blocks, even if they are repeated.
HOLDERS = (*NOT_CALLED, nn.Sequential)


class Selection:
    """Which parts of a module to compile. `only`: patterns (fnmatch, on names in `named_modules()`)
    of parts to compile; `skip`: patterns of parts to keep eager; `regional`: compile the blocks of
    the class with this name, or true to choose the class. Of nested matches, only the outermost
    count."""

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
            raise ConfigError(
                f"mode.regional must be true, false or the name of a module class, got {regional!r}"
            )
        if self.only and regional:
            raise ConfigError("mode.only and mode.regional exclude each other; choose one of them")

    def __bool__(self) -> bool:
        return bool(self.only or self.skip or self.regional)

    def apply(
        self, module: nn.Module, **settings: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return the callable that replaces `module`, and facts. `settings`: arguments of
        torch.compile."""
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
    """Compile each part's forward in place. `share`: all parts use one code object, so that Dynamo
    recompiles only differences; otherwise each part has its own code object, compilation and static
    shapes.

    Dynamo caches by code object and does not start in torch's own code, such as nn.Linear's
    forward, so each forward is wrapped in a function.
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
    listed = (
        tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    )
    # the names inside nn.Sequential are numbers, which a command line gives as such
    listed = () if given is None else tuple(str(it) if type(it) is int else it for it in listed)
    if not all(isinstance(pattern, str) and pattern for pattern in listed):
        raise ConfigError(
            f"mode.{name} must be patterns of module names such as [layers.*.mlp], got {given!r}"
        )
    return listed


def shared_weight_copy(module: nn.Module) -> nn.Module:
    """Return a copy of `module` that shares its parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared | results_in(module))


def results_in(module: nn.Module) -> dict[int, torch.Tensor]:
    """Return tensors in attributes that a call computed with gradients, by id. They cannot be
    copied; examples are an auxiliary loss, and the weight of torch.nn.utils.weight_norm."""
    held = (value for part in module.modules() for value in vars(part).values())
    return {
        id(value): value for value in held if isinstance(value, torch.Tensor) and not value.is_leaf
    }


def matching(module: nn.Module, setting: str, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the outermost submodules that match a pattern, by name. Raises ConfigError for a
    pattern without match."""
    named = {
        name: part
        for name, part in module.named_modules()
        if name and not isinstance(part, NOT_CALLED)
    }
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            has = (
                suggest(pattern, named, before="")
                or f"it contains: {', '.join(list(named)[:5]) or 'no modules'}"
            )
            raise ConfigError(
                f"mode.{setting}: no module inside {type(module).__name__} matches {pattern!r};"
                f" {has}"
            )
    return outermost(
        {
            n: part
            for n, part in named.items()
            if any(fnmatchcase(n, pattern) for pattern in patterns)
        }
    )


def outermost(named: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the modules that are not inside another one. `named` must list parents first, like
    `named_modules()`."""
    kept: dict[str, nn.Module] = {}
    for name, part in named.items():
        parents = name.split(".")
        if not any(".".join(parents[:i]) in kept for i in range(1, len(parents))):
            kept[name] = part
    return kept


def blocks_of(module: nn.Module, regional: bool | str) -> tuple[str, dict[str, nn.Module]]:
    """Return the name of a class of blocks, and its outermost modules by name. `regional`: the name
    of the class.

    `regional` is true: choose the class whose siblings (modules of one class with the same parent,
    such as layers of a stack) have the most weights. Siblings with submodules precede others; on a
    tie, fewer blocks win. Raises UnsupportedError if there are none, and ConfigError for an unknown
    name.
    """
    by_class: dict[str, dict[str, nn.Module]] = defaultdict(dict)
    siblings: dict[tuple[str, str], list[nn.Module]] = defaultdict(list)
    for name, part in module.named_modules():
        if name and not isinstance(part, HOLDERS):
            kind = type(part).__name__
            by_class[kind][name] = part
            siblings[name.rpartition(".")[0], kind].append(part)
    has = f"it contains: {', '.join(sorted(by_class)) or 'no modules'}"
    if isinstance(regional, str):
        if regional not in by_class:
            raise ConfigError(
                f"mode.regional={regional}: {type(module).__name__} contains no such module; {has}"
            )
        return regional, outermost(by_class[regional])
    repeated = {
        where: parts for where, parts in siblings.items() if len(parts) > 1 and weights_in(parts)
    }
    if not repeated:
        raise UnsupportedError(
            f"mode.regional=true: {type(module).__name__} contains no repeated siblings with"
            f" weights (nn.Sequential does not count); mode.only compiles parts by name; {has}"
        )

    def rank(where: tuple[str, str]) -> tuple[bool, int, int]:
        parts = repeated[where]
        return bool(parts[0]._modules), weights_in(parts), -len(parts)

    _, kind = max(repeated, key=rank)
    return kind, outermost(by_class[kind])


def weights_in(parts: Sequence[nn.Module]) -> int:
    """Return the number of elements in all parameters of these modules."""
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
