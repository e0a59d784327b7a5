"""Count the work of one eager call: floating-point operations, and the minimum bytes to move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from effbench.measure.gradients import outside_inference_mode

#: Operators that read, or write to, only the part of their first tensor that their second one
#: selects.
INDEXED = {
    "embedding",
    "_embedding_bag",
    "_embedding_bag_forward_only",
    "index_select",
    "gather",
    "index",
    "take",
}
INDEXED |= {
    "masked_select",
    "masked_fill_",
    "masked_scatter_",
    "index_copy_",
    "index_put_",
    "_index_put_impl_",
}
INDEXED |= {
    "index_add_",
    "index_fill_",
    "scatter_",
    "scatter_add_",
    "scatter_reduce_",
    "index_reduce_",
    "put_",
}

Shape = Sequence[int]


@dataclass(frozen=True)
class Work:
    """The work of a call. `flops` is 0 if torch's counter knows none of the module's operators."""

    flops: int
    min_bytes: int


def count(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Work:
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
    sizes = {
        pointer(tensor): min(tensor.nbytes, tensor.untyped_storage().nbytes())
        for tensor in tensors(outputs)
    }
    written = {at: size for at, size in sizes.items() if at not in known}
    return Work(work.flops, work.min_bytes + sum(written.values()))


def observe(outer: Iterable[torch.Tensor], call: Callable[[], Any]) -> tuple[Work, Any]:
    """Return the work of a call and its result. The bytes are those that it reads and writes of the
    tensors `outer`."""
    from torch.utils.flop_counter import FlopCounterMode

    traffic, flops = (
        Traffic(outer),
        FlopCounterMode(display=False, custom_mapping=attention_formulas()),
    )
    with flops, traffic:
        result = call()
    return Work(flops.get_total_flops(), traffic.bytes()), result


def attention_formulas() -> dict[Any, Callable[..., int]]:
    """Return torch's formulas of attention for any number of key and value heads: those of torch
    2.11 refuse fewer heads than the queries have, as in grouped-query attention."""
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


def attention_backward_flops(
    gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any
) -> int:
    """Five matrix products: scores again, and the gradients of scores, values, queries and keys."""
    batch, heads, length, width = query
    return 2 * batch * heads * length * key[2] * (3 * width + 2 * value[3])


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in `value`; in place of a quantized one, those that hold its data."""
    return [
        part
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
        for part in parts(leaf)
    ]


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    return [
        part for name in tensor.__tensor_flatten__()[0] for part in parts(getattr(tensor, name))
    ]


def pointer(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Traffic(TorchDispatchMode):
    """Records which parts of the memory of `outer` tensors are read and written."""

    def __init__(self, outer: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.sizes = {pointer(tensor): tensor.untyped_storage().nbytes() for tensor in outer}
        # by pointer, and whether it is written: spans of bytes, and the bytes that each index
        # selects
        self.spans: dict[tuple[int, bool], set[tuple[int, int]]] = defaultdict(set)
        self.selected: dict[tuple[int, bool], dict[int, int]] = defaultdict(dict)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not getattr(func, "is_view", False) and (tensors(result) or func._schema.is_mutable):
            self.look(func, args, kwargs, result)
        return result

    def look(self, func: Any, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if name.startswith("new_") or name.endswith("_like"):  # they only take the shape
            return
        arguments = func._schema.arguments
        bound = [
            *zip(arguments, args, strict=False),
            *((arg, kwargs.get(arg.name)) for arg in arguments[len(args) :]),
        ]
        given = [(argument, value) for argument, value in bound if tensors(value)]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            is_part = name in INDEXED and argument is given[0][0] and len(given) > 1
            for tensor in tensors(value):
                if pointer(tensor) not in self.sizes:
                    continue
                if is_part:
                    index = pointer(tensors(given[1][1])[0])
                    known = self.selected[pointer(tensor), written]
                    known[index] = max(
                        known.get(index, 0), selected_bytes(name, tensor, given, result)
                    )
                    continue
                self.touch(tensor, written)
                if written and name not in ("copy_", "fill_", "zero_"):
                    self.touch(tensor, False)

    def touch(self, tensor: torch.Tensor, written: bool) -> None:
        if tensor.numel() == 0:
            return
        start = tensor.storage_offset() * tensor.element_size()
        reach = (
            sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            + 1
        )
        # a strided or expanded view touches at most its extent, and at most its elements
        span = min(reach * tensor.element_size(), tensor.nbytes)
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


def selected_bytes(
    name: str, tensor: torch.Tensor, given: list[tuple[Any, Any]], result: Any
) -> int:
    """Return the bytes of `tensor` that an operator of `INDEXED` reads or writes, at most; repeated
    ones count once."""
    indices = tensors(given[1][1])
    if any(index.dtype == torch.bool for index in indices):
        mask = indices[0]
        return (
            tensor.nbytes * int(mask.count_nonzero()) // max(1, mask.numel())
            if len(indices) == 1
            else 0
        )
    places = torch.stack(
        [it.to(tensor.device).flatten() for it in torch.broadcast_tensors(*indices)]
    )
    if "embedding" in name:
        nbytes = tensor[:1].nbytes * places.shape[1]
    elif name.endswith("_") and len(given) == 2:  # a number is written to at least each place
        nbytes = tensor.element_size() * places.shape[1]
    else:
        nbytes = sum(
            part.nbytes for part in tensors(given[-1][1] if name.endswith("_") else result)
        )
    return min(tensor.nbytes, nbytes * places.unique(dim=1).shape[1] // max(1, places.shape[1]))
