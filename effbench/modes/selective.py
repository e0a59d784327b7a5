"""Compile parts of a module: those that match name patterns, all but some parts, or a repeated
block.

The parts are compiled in a copy of the module that shares its parameters and buffers. Thus the
module itself, which computes eager references, is unchanged, and weights are not duplicated.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, UnsupportedError, suggest
from effbench.models.inputs import Step
from effbench.modes.base import Facts, Prepared

#: Lists of modules, which have no forward.
NOT_CALLED = (nn.ModuleList, nn.ModuleDict)
#: Containers of other modules; they do not count as blocks, even if they are repeated.
HOLDERS = (*NOT_CALLED, nn.Sequential)
#: Submodules by name.
Parts = dict[str, nn.Module]


class PartSelection:
    """Which parts of a module to compile. `only`: patterns (fnmatch, on names in
    `named_modules()`), of which only the outermost matches count; `regional`: the blocks of the
    class with this name, or true to choose the class."""

    def __init__(
        self, only: str | Sequence[str] | None = None, regional: bool | str = False
    ) -> None:
        self.only = patterns(only)
        self.regional = regional
        if not isinstance(regional, bool | str):
            raise ConfigError(
                f"mode.regional must be true, false or the name of a module class, got {regional!r}"
            )
        if self.only and regional:
            raise ConfigError("mode.only and mode.regional exclude each other; choose one of them")

    def apply(self, module: nn.Module, **settings: Any) -> Prepared:
        """Return what replaces `module`. `settings`: arguments of torch.compile."""
        if not (self.only or self.regional):
            return Prepared(torch.compile(module, **settings), module=module)
        copied = shared_weight_copy(module)
        facts: Facts = {}
        if self.only:
            chosen = matching(copied, self.only)
        else:
            facts["region"], chosen = blocks_of(copied, self.regional)
        compile_parts(chosen, share=bool(self.regional), **settings)
        facts["compiled_modules"] = list(chosen)
        return Prepared(copied, facts=facts, module=copied)


def compile_parts(parts: Parts, share: bool, **settings: Any) -> None:
    """Compile each part's forward in place. `share`: all parts use one code object, so that Dynamo
    recompiles only differences; otherwise each part has its own code object, compilation and static
    shapes.

    Dynamo caches by code object and does not start in torch's own code, such as nn.Linear's
    forward, so each forward is wrapped in a function.
    """
    shared_code = None
    for name, part in parts.items():
        title = type(part).__name__ if share else name.replace(".", "_")
        function = own_function(part.forward, f"{title}_forward")
        if share:
            shared_code = shared_code or function.__code__
            function.__code__ = shared_code
        part.forward = torch.compile(function, **settings)


def own_function(forward: Step, name: str) -> Any:
    """Return a function that calls `forward`, with this name and a code object of its own. Dynamo
    keeps what it compiles by code object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def patterns(given: Any) -> tuple[str, ...]:
    """Return the patterns of `mode.only`. Raises ConfigError for anything else."""
    if given is None:
        return ()
    patterns = []
    for pattern in given if isinstance(given, list | tuple) else [given]:
        # the names inside nn.Sequential are numbers, which a command line gives as such
        text = str(pattern) if type(pattern) is int else pattern
        if not isinstance(text, str) or not text:
            raise ConfigError(
                f"mode.only must be patterns of module names such as [layers.*.mlp], got {given!r}"
            )
        patterns.append(text)
    return tuple(patterns)


def shared_weight_copy(module: nn.Module) -> nn.Module:
    """Return a copy of `module` that shares its parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared | results_in(module))


def results_in(module: nn.Module) -> dict[int, Tensor]:
    """Return tensors in attributes that a call computed with gradients, by id. They cannot be
    copied; examples are an auxiliary loss, and the weight of torch.nn.utils.weight_norm."""
    results = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                results[id(value)] = value
    return results


def matching(module: nn.Module, patterns: Sequence[str]) -> Parts:
    """Return the outermost submodules that match a pattern, by name. Raises ConfigError for a
    pattern without match."""
    named = {
        name: part
        for name, part in module.named_modules()
        if name and not isinstance(part, NOT_CALLED)
    }
    matched: set[str] = set()
    for pattern in patterns:
        names = [name for name in named if fnmatchcase(name, pattern)]
        if not names:
            first = ", ".join(list(named)[:5]) or "no modules"
            advice = suggest(pattern, named, before="") or f"it contains: {first}"
            raise ConfigError(
                f"mode.only: no module inside {type(module).__name__} matches {pattern!r}; {advice}"
            )
        matched.update(names)
    return outermost({name: part for name, part in named.items() if name in matched})


def outermost(named: Parts) -> Parts:
    """Return the modules that are not inside another one. `named` must list parents first, like
    `named_modules()`."""
    kept: Parts = {}
    for name, part in named.items():
        if not any(name.startswith(f"{parent}.") for parent in kept):
            kept[name] = part
    return kept


class Region(NamedTuple):
    """The blocks of a class, by name."""

    kind: str
    blocks: Parts


def blocks_of(module: nn.Module, regional: bool | str) -> Region:
    """Return the outermost modules of a class of blocks. `regional`: the name of the class.

    `regional` is true: choose the class whose siblings (modules of one class with the same parent,
    such as layers of a stack) have the most weights. Siblings with submodules precede others; on a
    tie, fewer blocks win. Raises UnsupportedError if there are none, and ConfigError for an unknown
    name.
    """
    by_class: dict[str, Parts] = defaultdict(dict)
    siblings: dict[tuple[str, str], list[nn.Module]] = defaultdict(list)
    for name, part in module.named_modules():
        if name and not isinstance(part, HOLDERS):
            kind = type(part).__name__
            by_class[kind][name] = part
            siblings[name.rpartition(".")[0], kind].append(part)
    contains = f"it contains: {', '.join(sorted(by_class)) or 'no modules'}"
    if isinstance(regional, str):
        if regional not in by_class:
            raise ConfigError(
                f"mode.regional={regional}: {type(module).__name__} contains no such module;"
                f" {contains}"
            )
        return Region(regional, outermost(by_class[regional]))
    repeated = [parts for parts in siblings.values() if len(parts) > 1 and weights_in(parts)]
    if not repeated:
        raise UnsupportedError(
            f"mode.regional=true: {type(module).__name__} contains no repeated siblings with"
            " weights (nn.Sequential does not count); mode.only compiles parts by name;"
            f" {contains}"
        )
    kind = type(max(repeated, key=rank)[0]).__name__
    return Region(kind, outermost(by_class[kind]))


def rank(siblings: Sequence[nn.Module]) -> tuple[bool, int, int]:
    return bool(siblings[0]._modules), weights_in(siblings), -len(siblings)


def weights_in(parts: Sequence[nn.Module]) -> int:
    """Return the number of elements in all parameters of these modules."""
    return sum(parameter.numel() for part in parts for parameter in part.parameters())
