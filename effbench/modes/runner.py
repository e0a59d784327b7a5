"""Calls of any batch size over graphs of a few: static buffers, padding, choice of the graph, cutting of the outputs.

Nothing here knows CUDA: a `Capture` makes what is replayed, and one that runs the function again will do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from effbench.buckets import bucket_of
from effbench.errors import UnsupportedError
from effbench.models.batch import Batch, BatchInput

KEEP, ZERO, SENTINEL = "keep", "zero", "sentinel"
PADDINGS = (KEEP, ZERO, SENTINEL)
CLONE, SHORT_LIVED = "clone", "short-lived"
OUTPUTS = (CLONE, SHORT_LIVED)


@dataclass(frozen=True)
class Captured:
    """`replay` computes over the static buffers it was captured with and leaves the result in `outputs`."""

    replay: Callable[[], None]
    outputs: Any


class Capture(Protocol):
    def __call__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Captured: ...


@dataclass
class Plan:
    """A call of one raw size: `copies`: input's place or name -> the buffer's rows for it; `tails`: rows to be filled,
    with what; `outputs` are views of the graph's, cut to the raw size."""

    replay: Callable[[], None]
    copies: list[tuple[int | str, Tensor]]
    tails: list[tuple[Tensor, float | bool]]
    outputs: Any


class StaticInputs:
    """Buffers of the largest size for every tensor input; their addresses stay. All start with valid rows."""

    def __init__(self, batch: Batch, args: tuple, kwargs: dict[str, Any], size: int) -> None:
        self.known: dict[int | str, BatchInput] = dict(enumerate(batch.args)) | batch.kwargs
        self.count = len(args)
        given: dict[int | str, Any] = dict(enumerate(args)) | kwargs
        self.buffers = {key: repeated(value, self.known[key].dim, size) for key, value in given.items()}
        carriers = [key for key, value in self.buffers.items() if self.dim(key) is not None and is_tensor(value)]
        if not carriers:
            raise UnsupportedError("no input of this model has a batch dimension: there is nothing to put into buckets")
        self.carrier = carriers[0]

    def dim(self, key: int | str) -> int | None:
        return self.known[key].dim

    def raw_size(self, args: tuple, kwargs: dict[str, Any]) -> int:
        """Rows of a call."""
        key = self.carrier
        value = args[key] if isinstance(key, int) else kwargs[key]
        return value.size(self.known[key].dim)

    def rows(self, key: int | str, start: int, count: int) -> Any:
        """A view of `count` rows of a buffer from `start`; all of it where it has no batch dimension."""
        value, dim = self.buffers[key], self.dim(key)
        return value if dim is None or not is_tensor(value) else value.narrow(dim, start, count)

    def of(self, size: int) -> tuple[tuple, dict[str, Any]]:
        """The arguments of a call of `size` rows: views of the buffers."""
        args = tuple(self.rows(key, 0, size) for key in range(self.count))
        return args, {key: self.rows(key, 0, size) for key in self.buffers if isinstance(key, str)}

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.buffers.values() if is_tensor(value))


class BucketRunner:
    """A step over captured graphs. A call takes the smallest graph that holds its rows and pads them; one that none
    holds runs `eager`, and is counted. `calls`: raw size -> calls so far.

    `short-lived` outputs are views of a graph's own: the next call may overwrite them.
    """

    def __init__(
        self, eager: Callable[..., Any], static: StaticInputs, padding: str, outputs: str,
        check: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self.eager = eager
        self.static = static
        self.padding = padding
        self.outputs = outputs
        self.check = check  # before each replay: raises where graphs are stale
        self.graphs: dict[int, Captured] = {}
        self.sizes: list[int] = []
        self.batch_dims: list[tuple[int, int] | None] = []
        self.plans: dict[int, Plan | None] = {}
        self.calls: Counter[int] = Counter()

    def find_outputs(self) -> None:
        """Learn which dimensions of the outputs follow the batch from two eager calls. Raises UnsupportedError."""
        largest = self.static.buffers[self.static.carrier].size(self.static.dim(self.static.carrier))
        self.batch_dims = batch_dims(self.eager, self.static, largest)

    def capture(self, size: int, function: Callable[..., Any], capture: Capture) -> None:
        """Add the graph of one size."""
        args, kwargs = self.static.of(size)
        self.graphs[size] = capture(function, args, kwargs)
        self.sizes = sorted(self.graphs)
        self.plans.clear()

    def plan(self, raw: int) -> Plan | None:
        """What a call of `raw` rows does, made once; None: no graph holds it."""
        size = bucket_of(self.sizes, raw)
        if size is None:
            self.plans[raw] = None
            return None
        static = self.static
        copies, tails = [], []
        for key, value in static.buffers.items():
            if not is_tensor(value):
                continue
            copies.append((key, static.rows(key, 0, raw)))
            if static.dim(key) is not None and raw < size and self.padding != KEEP:
                filler = static.known[key].filler if self.padding == SENTINEL else 0
                tails.append((static.rows(key, raw, size - raw), filler))
        leaves, shape = tree_flatten(self.graphs[size].outputs)
        views = [cut(leaf, where, raw) for leaf, where in zip(leaves, self.batch_dims, strict=True)]
        self.plans[raw] = Plan(self.graphs[size].replay, copies, tails, tree_unflatten(views, shape))
        return self.plans[raw]

    def plan_of(self, args: tuple, kwargs: dict[str, Any]) -> Plan | None:
        raw = self.static.raw_size(args, kwargs)
        self.calls[raw] += 1
        return self.plans[raw] if raw in self.plans else self.plan(raw)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.plan_of(args, kwargs)
        if plan is None:
            return self.eager(*args, **kwargs)
        if self.check is not None:
            self.check()
        fill(plan, args, kwargs)
        plan.replay()
        return tree_map(clone, plan.outputs) if self.outputs == CLONE else plan.outputs

    def copy_inputs(self, *args: Any, **kwargs: Any) -> None:
        """Only what a call copies and pads; a call without a graph copies nothing."""
        raw = self.static.raw_size(args, kwargs)
        plan = self.plans[raw] if raw in self.plans else self.plan(raw)
        if plan is not None:
            fill(plan, args, kwargs)


def fill(plan: Plan, args: tuple, kwargs: dict[str, Any]) -> None:
    for key, buffer in plan.copies:
        buffer.copy_(args[key] if isinstance(key, int) else kwargs[key])
    for tail, filler in plan.tails:
        tail.fill_(filler)


def clone(leaf: Any) -> Any:
    return leaf.clone() if is_tensor(leaf) else leaf


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def repeated(value: Any, dim: int | None, size: int) -> Any:
    """A copy with `size` rows, those of `value` over and over; one without a batch dimension as it is."""
    if not is_tensor(value) or dim is None:
        return clone(value)
    rows = torch.arange(size, device=value.device) % value.size(dim)
    return value.index_select(dim, rows)


def cut(leaf: Any, where: tuple[int, int] | None, raw: int) -> Any:
    """The rows of an output that belong to the call."""
    if where is None or not is_tensor(leaf):
        return leaf
    dim, each = where
    return leaf.narrow(dim, 0, raw * each) if leaf.size(dim) != raw * each else leaf


def batch_dims(function: Callable[..., Any], static: StaticInputs, largest: int) -> list[tuple[int, int] | None]:
    """For each leaf of the output its batch dimension and how many of its rows one row of the batch makes (T of
    [B * T, V]); None for what does not follow the batch. One row is all: nothing is ever cut off.

    Raises UnsupportedError where a size follows the batch in another way.
    """
    sizes = (largest, max(1, largest - 1))
    shapes = []
    for size in sizes:
        args, kwargs = static.of(size)
        leaves, _ = tree_flatten(function(*args, **kwargs))
        shapes.append([tuple(leaf.shape) if is_tensor(leaf) else None for leaf in leaves])
    if len(shapes[0]) != len(shapes[1]):
        raise UnsupportedError(f"{len(shapes[0])} outputs for {sizes[0]} rows and {len(shapes[1])} for {sizes[1]}")
    return [batch_dim(one, other, sizes) for one, other in zip(*shapes, strict=True)]


def batch_dim(one: Sequence[int] | None, other: Sequence[int] | None, sizes: tuple[int, int]) -> tuple[int, int] | None:
    if one == other:
        return None
    if one is not None and other is not None and len(one) == len(other):
        found = [dim for dim in range(len(one)) if one[dim] != other[dim]]
        each, rest = divmod(one[found[0]], sizes[0])
        if len(found) == 1 and not rest and other[found[0]] == each * sizes[1]:
            return found[0], each
    raise UnsupportedError(
        f"an output is {one} for {sizes[0]} rows and {other} for {sizes[1]}: no one dimension follows the batch, "
        "so the rows of padding cannot be cut off"
    )
