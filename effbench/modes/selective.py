"""Compile the repeated blocks of a module instead of the whole module.

The blocks are compiled in a copy of the module that shares its parameters and buffers. Thus the
module itself, which computes eager references, is unchanged, and weights are not duplicated.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.models.inputs import Step
from effbench.modes.base import Prepared

#: Containers of other modules; they do not count as blocks, even if they are repeated.
HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
#: Submodules by name.
Parts = dict[str, nn.Module]


def compile_blocks(module: nn.Module, regional: bool | str, **settings: Any) -> Prepared:
    """Return a copy of `module` whose blocks are compiled. `regional`: the name of their class, or
    true to choose the classes; `settings`: arguments of torch.compile. Raises ConfigError for an
    unknown name, UnsupportedError if there are no blocks."""
    copied = shared_weight_copy(module)
    kinds = [regional] if isinstance(regional, str) else classes_of_blocks(copied)
    compiled: list[str] = []
    for kind in kinds:
        blocks = blocks_of(copied, kind)
        compile_forwards(list(blocks.values()), kind, settings)
        compiled += blocks
    return Prepared(
        copied,
        facts={"region": ", ".join(kinds), "compiled_modules": compiled},
        module=copied,
    )


def compile_forwards(blocks: Sequence[nn.Module], kind: str, settings: dict[str, Any]) -> None:
    """Compile the forwards of modules of the class `kind` in place, without their hooks.

    All blocks share one code object, so that Dynamo recompiles only differences. It caches by code
    object and does not start in torch's own code, such as nn.Linear's forward, so each forward is
    wrapped in a function.
    """
    functions = [own_function(block.forward, f"{kind}_forward") for block in blocks]
    for block, function in zip(blocks, functions, strict=True):
        function.__code__ = functions[0].__code__
        block.forward = torch.compile(function, **settings)  # type: ignore[method-assign]


def sharded_parts(module: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules whose weights FSDP gathers and frees in hooks, by class."""
    parts = defaultdict(list)
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FSDPModule

        for part in module.modules():
            if isinstance(part, FSDPModule):
                parts[type(part).__name__].append(part)
    return parts


def own_function(forward: Step, name: str) -> Any:
    """Return a function that calls `forward`, with this name and a code object of its own. Dynamo
    keeps what it compiles by code object."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_name=name)
    return call


def shared_weight_copy(module: nn.Module) -> nn.Module:
    """Return a copy of `module` that shares its parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared | results_in(module))


def separately_compiled_copy(module: nn.Module, name: str) -> nn.Module:
    """Return a copy of `module` that shares its parameters and buffers, whose forward has this
    name. Dynamo compiles it separately, so that no call checks what is compiled for the other."""
    copied = shared_weight_copy(module)
    copied.forward = own_function(copied.forward, name)  # type: ignore[method-assign]
    return copied


def results_in(module: nn.Module) -> dict[int, Tensor]:
    """Return tensors in attributes that a call computed with gradients, by id. They cannot be
    copied; examples are an auxiliary loss, and the weight of torch.nn.utils.weight_norm."""
    results = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                results[id(value)] = value
    return results


def parts_of(module: nn.Module) -> Parts:
    """Return the submodules by name, parents first, without containers."""
    named = module.named_modules()
    return {name: part for name, part in named if name and not isinstance(part, HOLDERS)}


def blocks_of(module: nn.Module, kind: str) -> Parts:
    """Return the submodules of the class with this name, without those inside another one. Raises
    ConfigError if there are none."""
    parts = parts_of(module)
    blocks: Parts = {}
    for name, part in parts.items():
        is_inside = any(name.startswith(f"{block}.") for block in blocks)
        if type(part).__name__ == kind and not is_inside:
            blocks[name] = part
    if not blocks:
        known = {type(part).__name__ for part in parts.values()}
        raise ConfigError(
            f"mode.regional={kind}: {type(module).__name__} contains no such module; it contains:"
            f" {', '.join(sorted(known))}"
        )
    return blocks


def classes_of_blocks(module: nn.Module) -> list[str]:
    """Return the names of the classes that a network of diffusers declares as its repeated blocks,
    as far as it contains them, else that of `class_of_blocks`."""
    present = {type(part).__name__ for part in module.modules()}
    for part in module.modules():
        declared = [name for name in getattr(part, "_repeated_blocks", ()) if name in present]
        if declared:
            return declared
    return [class_of_blocks(module)]


def class_of_blocks(module: nn.Module) -> str:
    """Return the name of the class whose siblings (modules with the same parent, such as layers of
    a stack) have the most weights. Siblings with submodules precede others. Raises UnsupportedError
    if there are no siblings with weights."""
    siblings: dict[tuple[str, str], list[nn.Module]] = defaultdict(list)
    for name, part in parts_of(module).items():
        siblings[name.rpartition(".")[0], type(part).__name__].append(part)
    repeated = [parts for parts in siblings.values() if len(parts) > 1 and weights_in(parts)]
    if not repeated:
        raise UnsupportedError(
            f"mode.regional=true: {type(module).__name__} contains no repeated siblings with"
            " weights (nn.Sequential does not count)"
        )
    largest = max(repeated, key=lambda parts: (bool(parts[0]._modules), weights_in(parts)))
    return type(largest[0]).__name__


def weights_in(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for parameter in nn.ModuleList(modules).parameters())
