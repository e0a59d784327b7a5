"""Count the work of one eager call: floating-point operations, and the minimum bytes to move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

#: Operators that read only the indexed rows of a table.
LOOKUPS = {"embedding", "index_select", "gather", "index", "take", "take_along_dim"}
#: Operators that write only part of their argument: as many bytes as their last tensor has.
SCATTERS = {"index_copy_", "index_put_", "_index_put_impl_", "scatter_", "index_add_", "index_fill_", "masked_fill_"}

Shape = Sequence[int]


@dataclass(frozen=True)
class Work:
    """The work of a call. `flops` is 0 if torch's counter knows none of the module's operators."""

    flops: int
    min_bytes: int


def count(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Work:
    """Run `module` once in eager mode and return its work. The module may change the inputs.

    FLOPs are those of torch's FlopCounterMode. Bytes are a lower bound: the parts of weights, buffers and inputs that
    are read (each once), the parts that are written, and the outputs, but no intermediate tensors.
    """
    outer = tensors(([*module.parameters(), *module.buffers()], args, kwargs))
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators are unknown to the counter
    try:
        with torch.inference_mode(False), torch.no_grad():
            work, outputs = observe(outer, lambda: module(*args, **kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    known = {pointer(tensor) for tensor in outer}
    written = {pointer(tensor): tensor.nbytes for tensor in tensors(outputs) if pointer(tensor) not in known}
    return Work(work.flops, work.min_bytes + sum(written.values()))


def observe(outer: Iterable[torch.Tensor], call: Callable[[], Any]) -> tuple[Work, Any]:
    """Return the work of a call and its result. The bytes are those that it reads and writes of the tensors `outer`."""
    from torch.utils.flop_counter import FlopCounterMode

    traffic, flops = Traffic(outer), FlopCounterMode(display=False, custom_mapping=attention_formulas())
    with flops, traffic:
        result = call()
    return Work(flops.get_total_flops(), traffic.bytes()), result


def attention_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas of attention for any number of key and value heads: those of torch 2.11 refuse fewer
    heads than the queries have, as in grouped-query attention."""
    found = {}
    for kind in ("efficient", "flash", "cudnn"):
        name = f"_scaled_dot_product_{kind}_attention"
        found[getattr(torch.ops.aten, name)] = attention_flops
        found[getattr(torch.ops.aten, f"{name}_backward")] = attention_backward_flops
    return found


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Two matrix products: scores and output."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (width + value[3])


def attention_backward_flops(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Five matrix products: scores again, and the gradients of scores, values, queries and keys."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (3 * width + 2 * value[3])


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in `value`; in place of a quantized one, those that hold its data."""
    return [part for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) for part in parts(leaf)]


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in parts(getattr(tensor, name))]


def pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Traffic(TorchDispatchMode):
    """Records which parts of the memory of `outer` tensors are read and written."""

    def __init__(self, outer: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.sizes = {pointer(tensor): tensor.untyped_storage().nbytes() for tensor in outer}
        self.spans: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self.scattered: dict[int, int] = defaultdict(int)
        self.written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not getattr(func, "is_view", False) and (tensors(result) or func._schema.is_mutable):
            self.look(func, args, kwargs, result)
        return result

    def look(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        arguments = func._schema.arguments
        bound = [*zip(arguments, args, strict=False), *((arg, kwargs.get(arg.name)) for arg in arguments[len(args) :])]
        given = [(argument, value) for argument, value in bound if tensors(value)]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors(value):
                if pointer(tensor) not in self.sizes:
                    continue
                if written and name in SCATTERS:
                    self.written += min(tensor.nbytes, tensors(given[-1][1])[-1].nbytes)
                elif written:
                    self.written += tensor.nbytes
                    if name not in ("copy_", "fill_", "zero_"):
                        self.read(tensor)
                elif name in LOOKUPS and tensor.is_floating_point():
                    rows = sum(out.nbytes for out in tensors(result))
                    self.scattered[pointer(tensor)] += min(distinct(given, rows), tensor.nbytes)
                else:
                    self.read(tensor)

    def read(self, tensor: torch.Tensor) -> None:
        if tensor.numel() == 0:
            return
        start = tensor.storage_offset() * tensor.element_size()
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        # a strided or expanded view reads at most its extent, and at most its elements
        span = min(reach * tensor.element_size(), tensor.nbytes)
        self.spans[pointer(tensor)].add((start, start + span))

    def bytes(self) -> int:
        """Return the number of bytes that were read (each once) and written."""
        read = 0
        for storage, size in self.sizes.items():
            covered = end = 0
            for start, stop in sorted(self.spans[storage]):
                covered += max(0, stop - max(start, end))
                end = max(end, stop)
            read += min(size, covered + self.scattered[storage])
        return read + self.written


def distinct(given: list[tuple[Any, Any]], result_bytes: int) -> int:
    """Return the bytes of a lookup's result, counting repeated rows once."""
    indices = [tensor for _, value in given for tensor in tensors(value) if not tensor.is_floating_point()]
    if len(indices) != 1 or not indices[0].numel():
        return result_bytes if not indices else 0
    return result_bytes * indices[0].unique().numel() // indices[0].numel()
