"""Split a module over the ranks of the process group: tensor parallel, or with FSDP.

Each rank has built the same module, so that no weights are sent. A tensor parallel plan maps names
of submodules, in which `*` stands for any name, to styles of `torch.distributed.tensor.parallel`
or their names in transformers (`STYLES`). It comes from the method `tensor_parallel_plan` of a
module and of its parts, and from networks of transformers.

B batch, S slots of a cache, D width, H heads, G key-value heads, K width of a head.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from effbench.core.errors import UnsupportedError
from effbench.core.parallel import Parallel, ParallelKind

#: Name of a submodule -> how it is split.
Plan = dict[str, ParallelStyle | str]
#: The method of a module that returns its plan.
METHOD = "tensor_parallel_plan"
#: Torch's styles by their names in transformers. None: nothing is split.
STYLES: dict[str, Callable[[], ParallelStyle] | None] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "rowwise_split_input": partial(RowwiseParallel, input_layouts=Replicate()),
    "embedding_rowwise": partial(RowwiseParallel, input_layouts=Replicate()),
    "replicate": None,
    "replicated_with_grad_allreduce": None,
}


def split(module: nn.Module, parallel: Parallel, device: torch.device) -> None:
    """Split the module in place over all ranks, each of which has a device of this type; with data
    parallel it stays whole. Raises UnsupportedError if it cannot be split."""
    if parallel.kind is ParallelKind.DATA:
        return
    mesh = init_device_mesh(device.type, (parallel.size,))
    if parallel.kind is ParallelKind.TENSOR:
        split_layers(module, mesh)
        return
    for block in repeated_blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


# --- data parallel


def repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules with parameters of which an nn.ModuleList or nn.Sequential has several of
    the same class, without those inside another one."""
    counts = Counter(type(child) for child in module.children())
    for child in module.children():
        is_repeated = isinstance(module, nn.ModuleList | nn.Sequential) and counts[type(child)] > 1
        if is_repeated and next(child.parameters(), None) is not None:
            yield child
        else:
            yield from repeated_blocks(child)


def data_parallel(
    module: nn.Module, device: torch.device, has_unused: bool
) -> DistributedDataParallel:
    """Return the module with averaged gradients. `has_unused`: whether some parameters get no
    gradient."""
    if device.type == "cpu":
        return DistributedDataParallel(module, find_unused_parameters=has_unused)
    # a stream of its own, or a CUDA graph could not capture the step
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        wrapped = DistributedDataParallel(
            module,
            device_ids=[torch.cuda.current_device()],
            find_unused_parameters=has_unused,
        )
    torch.cuda.current_stream(device).wait_stream(stream)
    return wrapped


# --- tensor parallel


class Communication(TorchDispatchMode):
    """Notes whether collectives are called in this context. `seen`: whether any was."""

    seen = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.namespace in ("c10d", "_c10d_functional"):
            self.seen = True
        return func(*args, **(kwargs or {}))


def has_parts(module: nn.Module) -> bool:
    """Return whether a rank has only a part of some parameter."""
    return any(isinstance(parameter, DTensor) for parameter in module.parameters())


def split_layers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Split the layers that the module's plan names. It then returns full tensors, the same ones on
    all ranks."""
    groups = tied_weights(module)
    for pattern, named in plan_of(module).items():
        style = style_of(named)
        for name, layer in matching(module, pattern):
            if style is None:
                continue
            refuse_uneven(name, layer, style, mesh.size())
            parallelize_module(layer, mesh, style, src_data_rank=None)
    for group in groups:
        tie(module, group)
    module.register_forward_hook(wait_for_outputs)


def plan_of(module: nn.Module) -> Plan:
    """Return the plans of the module and its parts. Raises UnsupportedError without a plan."""
    plan: Plan = {}
    transformers: str | None = None
    for name, part in module.named_modules():
        of_part: Plan = {}
        if hasattr(part, METHOD):
            of_part = getattr(part, METHOD)()
        elif hasattr(part, "tp_plan") and transformers is None:  # an outer one has those of parts
            transformers = str(part.config.model_type)
            of_part = plan_of_transformers(part)
        for key, style in of_part.items():
            plan[f"{name}.{key}".lstrip(".")] = style
    if plan:
        return plan
    if transformers is not None:
        raise UnsupportedError(f"transformers has no tensor parallel plan for {transformers}")
    raise UnsupportedError(
        f"{type(module).__name__} has no tensor parallel plan: give it a method {METHOD}() that"
        " returns styles of torch.distributed.tensor.parallel by names of submodules"
    )


def plan_of_transformers(model: Any) -> Plan:
    """Return the plan of a network of transformers; empty if it only has one for its head."""
    if not any("*" in name for name in model.tp_plan):
        return {}
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    by_heads = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
    plan: Plan = dict(model.tp_plan)
    for name, style in model.tp_plan.items():
        layer = name.rpartition(".")[2]
        if style == "colwise" and layer in by_heads:
            plan[name] = HeadColumns(by_heads[layer])
    return plan


def style_of(style: ParallelStyle | str) -> ParallelStyle | None:
    """Return the style, which may be given by its name, or None if nothing is split. Raises
    UnsupportedError for a name of transformers that stands for none of torch's styles."""
    if isinstance(style, ParallelStyle):
        return style
    if style not in STYLES:
        raise UnsupportedError(
            f"the tensor parallel plan has the style {style!r}, which torch lacks; supported:"
            f" {', '.join(STYLES)}"
        )
    make = STYLES[style]
    return None if make is None else make()


def matching(module: nn.Module, pattern: str) -> list[tuple[str, nn.Module]]:
    """Return the submodules whose names match the pattern, in which `*` stands for any name."""
    names = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [(name, part) for name, part in module.named_modules() if names.fullmatch(name)]


def refuse_uneven(name: str, layer: nn.Module, style: ParallelStyle, ranks: int) -> None:
    """Raise UnsupportedError if the ranks cannot have equal parts of a layer's weight."""
    if not isinstance(layer, nn.Linear | nn.Embedding):
        return
    if not isinstance(style, ColwiseParallel | RowwiseParallel):
        return
    dim = 1
    if isinstance(style, ColwiseParallel) is isinstance(layer, nn.Linear):
        dim = 0
    shape = list(layer.weight.shape)
    if shape[dim] % ranks:
        raise UnsupportedError(
            f"the weight {shape} of {name} cannot be split into {ranks} equal parts in dimension"
            f" {dim}"
        )


def tied_weights(module: nn.Module) -> list[list[str]]:
    """Return the names of parameters by groups that are the same tensor."""
    names = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    return [group for group in names.values() if len(group) > 1]


def tie(module: nn.Module, names: list[str]) -> None:
    """Make these parameters the same tensor again, as far as they are split in the same way."""
    first, *others = names
    weight = module.get_parameter(first)
    for name in others:
        other = module.get_parameter(name)
        are_split = isinstance(weight, DTensor) and isinstance(other, DTensor)
        if are_split and weight.placements == other.placements:
            path, _, key = name.rpartition(".")
            module.get_submodule(path).register_parameter(key, weight)


def wait_for_outputs(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    """Return the outputs once the collectives that make them are in the current stream."""
    if torch.compiler.is_compiling():
        return outputs
    return tree_map_only(AsyncCollectiveTensor, AsyncCollectiveTensor.wait, outputs)


# --- styles of layers with heads


def share(heads: int, ranks: int) -> int:
    """Return how many heads each rank has. Raises UnsupportedError unless they have equally
    many."""
    if heads % ranks:
        raise UnsupportedError(f"{ranks} ranks cannot have equally many of {heads} heads")
    return heads // ranks


class HeadColumns(ColwiseParallel):
    """A projection to `heads` heads, of which each rank has some: [H * K, D]."""

    def __init__(self, heads: int):
        super().__init__()
        self.heads = heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        share(self.heads, device_mesh.size())
        return super()._apply(module, device_mesh)


class FusedHeadColumns(HeadColumns):
    """A projection to queries, keys and values of `heads` heads each: [3 * H * K, D]. Its rows are
    reordered, so that each rank has some heads of all three."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        ranks = device_mesh.size()
        share(self.heads, ranks)
        with torch.no_grad():
            for parameter in module.parameters():
                parts = parameter.view(3, ranks, -1, *parameter.shape[1:])
                parameter.copy_(parts.transpose(0, 1).reshape(parameter.shape))
        return super()._apply(module, device_mesh)


class CacheHeads(ParallelStyle):
    """A key-value cache, whose buffers [B, G, S, K] hold the heads of this rank only."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        rank = device_mesh.get_local_rank()
        for name, cache in list(module.named_buffers(recurse=False)):
            heads = share(cache.shape[1], device_mesh.size())
            own = cache.narrow(1, rank * heads, heads)
            setattr(module, name, own.clone(memory_format=torch.contiguous_format))
        return module
