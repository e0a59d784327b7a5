"""Count the work of one eager call: floating-point operations, and the minimum bytes to move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from effbench.measure.gradients import outside_inference_mode
from effbench.models.inputs import Args, Kwargs

#: Operators that read, or write to, only the part of their first tensor that their second one
#: selects.
INDEXED = {
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "_index_put_impl_",
    "embedding",
    "gather",
    "index",
    "index_add_",
    "index_copy_",
    "index_fill_",
    "index_put_",
    "index_reduce_",
    "index_select",
    "masked_fill_",
    "masked_scatter_",
    "masked_select",
    "put_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
    "take",
}
#: Operators that write to all of their first tensor without reading it.
OVERWRITING = ("copy_", "fill_", "zero_")

Shape = Sequence[int]


@dataclass(frozen=True)
class Work:
    """The work of a call. `flops` is 0 if torch's counter knows none of the module's operators."""

    flops: int
    min_bytes: int


def count(module: nn.Module, args: Args, kwargs: Kwargs) -> Work:
    """Run `module` once in eager mode and return its work. The module may change the inputs.

    FLOPs are those of torch's FlopCounterMode. Bytes are a lower bound: the parts of weights,
    buffers and inputs that are read or written (each once), and the outputs, but no intermediate
    tensors.
    """
    outer = tensors(([*module.parameters(), *module.buffers()], args, kwargs))
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its fused operators are unknown to the counter
    try:
        # in which some releases do not show what an operator consists of
        with outside_inference_mode():
            work, outputs = observe(outer, lambda: module(*args, **kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)
    known = {pointer(tensor) for tensor in outer}
    # an expanded output is larger than its memory
    written = {
        pointer(tensor): min(tensor.nbytes, tensor.untyped_storage().nbytes())
        for tensor in tensors(outputs)
        if pointer(tensor) not in known
    }
    return Work(work.flops, work.min_bytes + sum(written.values()))


def observe(outer: Iterable[Tensor], call: Callable[[], Any]) -> tuple[Work, Any]:
    """Return the work of a call and its result. The bytes are those that it reads and writes of the
    tensors `outer`."""
    from torch.utils.flop_counter import FlopCounterMode

    traffic = Traffic(outer)
    flops = FlopCounterMode(display=False, custom_mapping=attention_formulas())
    with flops, traffic:
        result = call()
    return Work(flops.get_total_flops(), traffic.bytes()), result


def attention_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas of attention for any number of key and value heads: those of torch
    2.11 refuse fewer heads than the queries have, as in grouped-query attention."""
    formulas: dict[Any, Callable[..., int]] = {}
    for kind in ("efficient", "flash", "cudnn"):
        name = f"_scaled_dot_product_{kind}_attention"
        formulas[getattr(torch.ops.aten, name)] = attention_flops
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = attention_backward_flops
    return formulas


def attention_flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """Two matrix products: scores and output."""
    batch, heads, length, width = query
    scores = batch * heads * length * key[2]
    return 2 * scores * (width + value[3])


def attention_backward_flops(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Five matrix products: scores again, and the gradients of scores, values, queries and keys."""
    batch, heads, length, width = query
    scores = batch * heads * length * key[2]
    return 2 * scores * (3 * width + 2 * value[3])


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors in `value`; in place of a quantized one, those that hold its data."""
    inner: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            inner += parts(leaf)
    return inner


def parts(tensor: Tensor) -> list[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    inner: list[Tensor] = []
    for name in names:
        inner += parts(getattr(tensor, name))
    return inner


def pointer(tensor: Tensor) -> int:
    address: int = tensor.untyped_storage().data_ptr()
    return address


@dataclass(frozen=True)
class Operand:
    """An argument of an operator that contains tensors."""

    tensors: list[Tensor]
    is_written: bool


class Traffic(TorchDispatchMode):
    """Records which parts of the memory of `outer` tensors are read and written."""

    def __init__(self, outer: Iterable[Tensor]) -> None:
        super().__init__()
        self.sizes = {pointer(tensor): tensor.untyped_storage().nbytes() for tensor in outer}
        # by pointer, and whether it is written: spans of bytes, and the bytes that each index
        # selects
        self.spans: dict[tuple[int, bool], set[tuple[int, int]]] = defaultdict(set)
        self.selected: dict[tuple[int, bool], dict[int, int]] = defaultdict(dict)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not getattr(func, "is_view", False) and (tensors(result) or func._schema.is_mutable):
            self.look(
                func,
                args,
                kwargs,
                result,
            )
        return result

    def look(
        self,
        func: Any,
        args: Args,
        kwargs: Kwargs,
        result: Any,
    ) -> None:
        name = func._schema.name.partition("::")[2]
        if name.startswith("new_") or name.endswith("_like"):  # they only take the shape
            return
        operands = operands_of(func, args, kwargs)
        for number, operand in enumerate(operands):
            is_part = name in INDEXED and number == 0 and len(operands) > 1
            for tensor in operand.tensors:
                if pointer(tensor) not in self.sizes:
                    continue
                if is_part:
                    # by what selects it, as the same part counts once
                    index = pointer(operands[1].tensors[0])
                    known = self.selected[pointer(tensor), operand.is_written]
                    nbytes = selected_bytes(
                        name,
                        tensor,
                        operands,
                        result,
                    )
                    known[index] = max(known.get(index, 0), nbytes)
                    continue
                self.touch(tensor, operand.is_written)
                if operand.is_written and name not in OVERWRITING:
                    self.touch(tensor, False)

    def touch(self, tensor: Tensor, written: bool) -> None:
        if tensor.numel() == 0:
            return
        start = tensor.storage_offset() * tensor.element_size()
        last = 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            last += (size - 1) * stride
        # a strided or expanded view touches at most its extent, and at most its elements
        span = min((last + 1) * tensor.element_size(), tensor.nbytes)
        self.spans[pointer(tensor), written].add((start, start + span))

    def bytes(self) -> int:
        """Return the number of bytes that were read, and of those that were written, each once."""
        total = 0
        for (storage, size), written in product(self.sizes.items(), (False, True)):
            covered = end = 0
            for start, stop in sorted(self.spans[storage, written]):
                covered += max(0, stop - max(start, end))
                end = max(end, stop)
            total += min(size, covered + sum(self.selected[storage, written].values()))
        return total


def operands_of(func: Any, args: Args, kwargs: Kwargs) -> list[Operand]:
    """Return the arguments of a call that contain tensors, in the order of the schema."""
    arguments = func._schema.arguments
    named = [kwargs.get(argument.name) for argument in arguments[len(args) :]]
    operands = []
    for argument, value in zip(arguments, (*args, *named), strict=False):
        inner = tensors(value)
        if inner:
            alias = argument.alias_info
            operands.append(Operand(inner, alias is not None and alias.is_write))
    return operands


def selected_bytes(name: str, tensor: Tensor, operands: list[Operand], result: Any) -> int:
    """Return the bytes of `tensor` that an operator of `INDEXED` reads or writes, at most; repeated
    ones count once."""
    indices = operands[1].tensors
    size: int = tensor.nbytes
    if any(index.dtype == torch.bool for index in indices):
        if len(indices) > 1:  # masks with further indices
            return 0
        (mask,) = indices
        return size * int(mask.count_nonzero()) // max(1, int(mask.numel()))
    flat = [index.to(tensor.device).flatten() for index in torch.broadcast_tensors(*indices)]
    places = torch.stack(flat)
    count: int = places.shape[1]
    nbytes: int
    if "embedding" in name:
        nbytes = tensor[:1].nbytes * count
    elif not name.endswith("_"):
        nbytes = sum(part.nbytes for part in tensors(result))
    elif len(operands) == 2:  # a number is written to at least each place
        nbytes = tensor.element_size() * count
    else:
        nbytes = sum(part.nbytes for part in operands[-1].tensors)
    distinct = int(places.unique(dim=1).shape[1])
    return min(size, nbytes * distinct // max(1, count))
