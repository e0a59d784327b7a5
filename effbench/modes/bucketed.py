"""The mode bucketed-graph: CUDA graphs for some batch sizes, with each batch padded to the next
larger one, as servers do. The runner does not depend on CUDA: the `capture` function decides what
is replayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from effbench.buckets import bucket_of, capture_sizes, usage
from effbench.errors import UnsupportedError
from effbench.measure.accuracy import PLAIN
from effbench.measure.memory import graph_pool_bytes
from effbench.measure.timing import no_garbage_collection
from effbench.models.inputs import Batch, BatchInput
from effbench.modes.base import Count, Mode, Prepared, needs_compiler, needs_cuda
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import Captured, GraphCapture, copy_of
from effbench.modes.stale_weights import Fingerprint

#: Captures a function with static inputs, like GraphCapture.
Capture = Callable[[Callable[..., Any], tuple, dict[str, Any]], Captured]


@dataclass
class BucketedGraph(Mode):
    """CUDA graphs for a list of batch sizes (settings: docs/how-to/serve.md). Sizes up to
    `torch_compile_max_bs` are captured from the module compiled with `inner`, larger ones from the
    eager module, which also runs other calls."""

    buckets: str | Sequence[int] = "sglang"
    padding: Literal["keep", "zero", "sentinel"] = "keep"
    pool: Literal["shared", "private"] = "shared"
    order: Literal["largest-first", "smallest-first"] = "largest-first"
    outputs: Literal["short-lived", "clone"] = "short-lived"
    warmups: Count = 2
    torch_compile_max_bs: Count = 0
    inner: str = "max-autotune-no-cudagraphs"
    guard: Literal[None, "refuse"] = None

    static_lengths = True
    writes_state = ()  # padding also writes to rows beyond the batch

    def __post_init__(self) -> None:
        super().__post_init__()
        capture_sizes(self.buckets, [1])  # raises for an unknown preset before anything is built
        self.compiled = Compiled(self.inner, dynamic=False)

    @property
    def compiles(self) -> bool:
        return self.torch_compile_max_bs > 0

    @property
    def autotunes(self) -> bool:
        return self.compiles and self.compiled.autotunes

    def missing(self, device: torch.device) -> str | None:
        if self.compiles and (reason := self.compiled.captures_itself()):
            return reason
        return needs_cuda(device, "a CUDA graph") or (
            needs_compiler(device) if self.compiles else None
        )

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        device = next(
            value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor)
        )
        return self.prepare_with(
            GraphCapture(self.warmups, self.pool == "shared"), module, args, kwargs, device
        )

    def prepare_with(
        self,
        capture: Capture,
        module: torch.nn.Module,
        args: tuple,
        kwargs: dict[str, Any],
        device: torch.device,
    ) -> Prepared:
        sizes = capture_sizes(self.buckets, self.batch.sizes)
        static = StaticInputs(self.batch, args, kwargs, max(sizes))
        check = Fingerprint(module).refuse_stale if self.guard else None
        runner = BucketRunner(module, static, self.padding, self.outputs, check)
        seconds: dict[str, float] = {}
        pool_bytes: dict[str, int] = {}
        held = graph_pool_bytes(device) or 0
        few = [size for size in sizes if size <= self.torch_compile_max_bs]
        compiled = self.compiled.compile(module)[0] if few else None
        # a collection during capture may free memory, which CUDA does not allow then
        with no_garbage_collection(), recompile_limit(len(few)):
            for size in sorted(sizes, reverse=self.order == "largest-first"):
                began = time.perf_counter()
                runner.capture(
                    size, compiled if compiled is not None and size in few else module, capture
                )
                seconds[str(size)] = time.perf_counter() - began
                before, held = held, graph_pool_bytes(device) or 0
                pool_bytes[str(size)] = held - before
        a_pass = usage(runner.sizes, Counter(self.batch.sizes))
        facts = {
            "buckets": sizes,
            "compiled_buckets": few,
            "capture_s": sum(seconds.values()),
            "capture_seconds": seconds,
            "pool_bytes": pool_bytes,
            "static_input_bytes": static.nbytes,
            "padding_waste": a_pass.padding_waste,
            "fallbacks_per_pass": a_pass.fallbacks,
            "calls_per_pass": a_pass.calls,
        }
        degraded = None
        if a_pass.fallbacks == a_pass.calls:
            degraded = (
                "no call has a graph: all batches are larger than the largest captured size,"
                f" {sizes[-1]}"
            )
        return Prepared(runner, runner.copy_inputs, degraded, facts=facts, late_facts=runner.facts)


@contextmanager
def recompile_limit(compilations: int) -> Iterator[None]:
    """Allow this many compilations of a function in this context; Dynamo gives up after 8 by
    default."""
    if not compilations:
        yield
        return
    import torch._dynamo

    now = torch._dynamo.config
    with torch._dynamo.config.patch(
        recompile_limit=max(now.recompile_limit, compilations + 1),
        accumulated_recompile_limit=max(now.accumulated_recompile_limit, compilations + 1),
    ):
        yield


@dataclass
class Plan:
    """How to run a call of a given size. `copies`: position or name of an input, and the buffer
    rows to copy it to; `tails`: rows to fill, and their value; `outputs`: views of the graph's
    outputs, cut to the call's size."""

    replay: Callable[[], None]
    copies: list[tuple[int | str, Tensor]]
    tails: list[tuple[Tensor, float | bool]]
    outputs: Any


class StaticInputs:
    """Buffers of the largest size for all tensor inputs, at fixed addresses and with valid rows
    from the start."""

    def __init__(self, batch: Batch, args: tuple, kwargs: dict[str, Any], size: int) -> None:
        self.count, self.size = len(args), size
        given: dict[int | str, Any] = dict(enumerate(args)) | kwargs
        self.known: dict[int | str, BatchInput] = dict(enumerate(batch.args)) | batch.kwargs
        self.dims = {
            key: self.known[key].dim if is_tensor(value) else None for key, value in given.items()
        }
        self.buffers = {key: repeated(value, self.dims[key], size) for key, value in given.items()}
        self.carrier = next((key for key, dim in self.dims.items() if dim is not None), None)
        if self.carrier is None:
            raise UnsupportedError(
                "no input of this model has a batch dimension, which bucketed-graph requires"
            )

    def raw_size(self, args: tuple, kwargs: dict[str, Any]) -> int:
        """Return the number of rows of a call."""
        key = self.carrier
        value = args[key] if isinstance(key, int) else kwargs[key]
        return value.size(self.dims[key])

    def rows(self, key: int | str, start: int, count: int) -> Any:
        """Return a view of `count` rows of a buffer from row `start`, or the whole buffer without a
        batch dimension."""
        value, dim = self.buffers[key], self.dims[key]
        return value if dim is None else value.narrow(dim, start, count)

    def of(self, size: int) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments of a call with `size` rows, as views of the buffers."""
        args = tuple(self.rows(key, 0, size) for key in range(self.count))
        return args, {key: self.rows(key, 0, size) for key in self.buffers if isinstance(key, str)}

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.buffers.values() if is_tensor(value))


@dataclass(eq=False)
class BucketRunner:
    """A step that replays captured graphs. A call uses the smallest graph that holds its rows, with
    padding; a call that is larger than all graphs runs `eager`. `calls`: size -> number of calls so
    far.

    `short-lived` outputs are views of the graph's outputs, which the next call may overwrite.
    `check` runs before each replay and raises if graphs are stale. The constructor calls `eager` to
    find the outputs' batch dimensions.
    """

    eager: Callable[..., Any]
    static: StaticInputs
    padding: str
    outputs: str
    check: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.graphs: dict[int, Captured] = {}
        self.sizes: list[int] = []
        self.batch_dims = batch_dims(self.eager, self.static)
        self.plans: dict[int, Plan | None] = {}
        self.calls: Counter[int] = Counter()

    def capture(self, size: int, function: Callable[..., Any], capture: Capture) -> None:
        args, kwargs = self.static.of(size)
        self.graphs[size] = capture(function, args, kwargs)
        self.sizes = sorted(self.graphs)
        self.plans.clear()

    def plan(self, raw: int) -> Plan | None:
        """Return the cached plan of a call with `raw` rows; None if it is larger than all
        graphs."""
        if raw in self.plans:
            return self.plans[raw]
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
            if static.dims[key] is not None and raw < size and self.padding != "keep":
                filler = static.known[key].filler if self.padding == "sentinel" else 0
                tails.append((static.rows(key, raw, size - raw), filler))
        leaves, shape = tree_flatten(self.graphs[size].outputs)
        views = [
            cut_output(leaf, where, raw)
            for leaf, where in zip(leaves, self.batch_dims, strict=True)
        ]
        self.plans[raw] = Plan(
            self.graphs[size].replay, copies, tails, tree_unflatten(views, shape)
        )
        return self.plans[raw]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raw = self.static.raw_size(args, kwargs)
        self.calls[raw] += 1
        plan = self.plan(raw)
        if plan is None:
            return self.eager(*args, **kwargs)
        if self.check is not None:
            self.check()
        fill(plan, args, kwargs)
        plan.replay()
        return tree_map(copy_of, plan.outputs) if self.outputs == "clone" else plan.outputs

    def copy_inputs(self, *args: Any, **kwargs: Any) -> None:
        """Do only the copies and the padding of a call; a call without a graph has none."""
        plan = self.plan(self.static.raw_size(args, kwargs))
        if plan is not None:
            fill(plan, args, kwargs)

    def facts(self) -> dict[str, Any]:
        """Return counts of all calls since the preparation, including checks and warm-up."""
        used = usage(self.sizes, self.calls)
        return {
            "calls": used.calls,
            "fallbacks": used.fallbacks,
            "rows": used.rows,
            "padded_rows": used.padded_rows,
            "calls_by_bucket": {str(size): calls for size, calls in used.by_bucket.items()},
        }


def fill(plan: Plan, args: tuple, kwargs: dict[str, Any]) -> None:
    for key, buffer in plan.copies:
        buffer.copy_(args[key] if isinstance(key, int) else kwargs[key])
    for tail, filler in plan.tails:
        tail.fill_(filler)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def repeated(value: Any, dim: int | None, size: int) -> Any:
    """Return a copy with `size` rows that repeats the rows of `value`; a plain copy without a batch
    dimension."""
    if dim is None:
        return copy_of(value)
    repeats = -(-size // value.size(dim))
    return torch.cat([value] * repeats, dim).narrow(dim, 0, size).clone()  # keeps the memory format


def cut_output(leaf: Any, where: tuple[int, int] | None, raw: int) -> Any:
    """Return the output without the rows of padding. `where`: see `batch_dims`; `raw`: the call's
    size."""
    if where is None or not is_tensor(leaf):
        return leaf
    dim, each = where
    return leaf.narrow(dim, 0, raw * each) if leaf.size(dim) != raw * each else leaf


def batch_dims(function: Callable[..., Any], static: StaticInputs) -> list[tuple[int, int] | None]:
    """Return for each leaf of the output its batch dimension and its rows per row of the batch (T
    for [B * T, V]), or None if its shape does not depend on the batch. If the largest size is 1,
    all are None, because nothing is cut off.

    Raises UnsupportedError if a shape depends on the batch in another way, and for an object that
    may contain tensors.
    """
    sizes = (static.size, max(1, static.size - 1))
    shapes = []
    for size in sizes:
        args, kwargs = static.of(size)
        leaves, _ = tree_flatten(function(*args, **kwargs))
        if odd := [leaf for leaf in leaves if not (is_tensor(leaf) or isinstance(leaf, PLAIN))]:
            how = "whose padding cannot be cut off; return tensors, tuples, lists or dicts"
            raise UnsupportedError(f"the output contains the type {type(odd[0]).__name__}, {how}")
        shapes.append([tuple(leaf.shape) if is_tensor(leaf) else None for leaf in leaves])
    if len(shapes[0]) != len(shapes[1]):
        raise UnsupportedError(
            f"{len(shapes[0])} outputs for {sizes[0]} rows, but {len(shapes[1])} for {sizes[1]}"
        )
    return [batch_dim(large, small, sizes) for large, small in zip(*shapes, strict=True)]


def batch_dim(
    large: Sequence | None, small: Sequence | None, sizes: tuple[int, int]
) -> tuple[int, int] | None:
    if large == small:
        return None
    if large is not None and small is not None and len(large) == len(small):
        differing = [dim for dim in range(len(large)) if large[dim] != small[dim]]
        each, rest = divmod(large[differing[0]], sizes[0])
        if len(differing) == 1 and not rest and small[differing[0]] == each * sizes[1]:
            return differing[0], each
    raise UnsupportedError(
        f"an output has shape {large} for {sizes[0]} rows and {small} for {sizes[1]}: no single"
        " dimension is proportional to the batch size, so padding cannot be removed"
    )
