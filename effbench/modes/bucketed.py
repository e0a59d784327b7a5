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
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from effbench.core.buckets import bucket_of, capture_sizes, usage
from effbench.core.errors import UnsupportedError
from effbench.measure.accuracy import PLAIN
from effbench.measure.memory import graph_pool_bytes
from effbench.measure.timing import no_garbage_collection
from effbench.models.inputs import Args, Batch, Inputs, Kwargs, Step, as_arguments
from effbench.modes.base import AtLeast0, Facts, Mode, Prepared, needs_compiler, needs_cuda
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import Captured, GraphCapture

#: Captures a function with static inputs, like GraphCapture.
Capture = Callable[[Step, Args, Kwargs], Captured]


@dataclass
class BucketedGraph(Mode):
    """CUDA graphs for a list of batch sizes (settings: docs/how-to/serve.md). Sizes up to
    `torch_compile_max_bs` are captured from the module compiled with `inner`, larger ones from the
    eager module, which also runs other calls."""

    buckets: str | Sequence[int] = "sglang"
    padding: Literal["keep", "zero"] = "keep"
    pool: Literal["shared", "private"] = "shared"
    order: Literal["largest-first", "smallest-first"] = "largest-first"
    outputs: Literal["short-lived", "clone"] = "short-lived"
    warmups: AtLeast0 = 2
    torch_compile_max_bs: AtLeast0 = 0
    inner: str = "max-autotune-no-cudagraphs"
    #: Of an earlier version; it stays so that the keys of older cells stay valid.
    guard: Literal[None] = None

    static_lengths = True
    writes_state = False  # padding also writes to rows beyond the batch

    def __post_init__(self) -> None:
        super().__post_init__()
        capture_sizes(self.buckets, [1])  # raises for an unknown preset before anything is built
        self.compiled = Compiled(self.inner, dynamic=False)
        self.compiles = self.torch_compile_max_bs > 0
        self.autotunes = self.compiles and self.compiled.autotunes

    def missing(self, device: torch.device) -> str | None:
        reason = needs_cuda(device, "a CUDA graph")
        if not self.compiles:
            return reason
        return self.compiled.captures_itself() or reason or needs_compiler(device)

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        capture = GraphCapture(self.warmups, self.pool == "shared")
        return self.prepare_with(
            capture,
            module,
            args,
            kwargs,
        )

    def prepare_with(
        self,
        capture: Capture,
        module: nn.Module,
        args: Args,
        kwargs: Kwargs,
    ) -> Prepared:
        sizes = capture_sizes(self.buckets, self.batch.sizes)
        static = StaticInputs(
            self.batch,
            args,
            kwargs,
            max(sizes),
        )
        runner = BucketRunner(
            module,
            static,
            self.padding,
            self.outputs,
            sizes,
        )
        device = static.buffers[0].device
        seconds: dict[str, float] = {}
        pool_bytes: dict[str, int] = {}
        held = graph_pool_bytes(device) or 0
        few = [size for size in sizes if size <= self.torch_compile_max_bs]
        compiled = self.compiled.compile(module).step if few else module
        # a collection during capture may free memory, which CUDA does not allow then
        with no_garbage_collection(), recompile_limit(len(few)):
            for size in sorted(sizes, reverse=self.order == "largest-first"):
                began = time.perf_counter()
                inputs, named = static.of(size)
                function = compiled if size in few else module
                runner.graphs[size] = capture(function, inputs, named)
                seconds[str(size)] = time.perf_counter() - began
                before, held = held, graph_pool_bytes(device) or 0
                pool_bytes[str(size)] = held - before
        a_pass = usage(sizes, Counter(self.batch.sizes))
        facts: Facts = {
            "buckets": sizes,
            "compiled_buckets": few,
            "capture_s": sum(seconds.values()),
            # by captured size
            "capture_seconds": seconds,
            "pool_bytes": pool_bytes,
            "static_input_bytes": sum(buffer.nbytes for buffer in static.buffers),
            # of a pass over the stream, or of a call
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
        return Prepared(
            runner,
            runner.copy_inputs,
            degraded,
            facts=facts,
            late_facts=runner.facts,
        )


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


class StaticInputs:
    """Buffers of the largest size for all inputs, at fixed addresses and with valid rows from the
    start: those by position, then those by name. `dims`: the batch dimension of each, or None."""

    def __init__(
        self,
        batch: Batch,
        args: Args,
        kwargs: Kwargs,
        size: int,
    ) -> None:
        self.size = size
        self.names = list(kwargs)
        self.dims = batch.dims
        values = zip((*args, *kwargs.values()), self.dims, strict=True)
        self.buffers = [repeated(value, dim, size) for value, dim in values]
        batched = [(place, dim) for place, dim in enumerate(self.dims) if dim is not None]
        if not batched:
            raise UnsupportedError(
                "no input of this model has a batch dimension, which bucketed-graph requires"
            )
        self.carrier, self.carrier_dim = batched[0]

    def values(self, args: Args, kwargs: Kwargs) -> list[Tensor]:
        """Return the inputs of a call in the order of the buffers."""
        return [*args, *(kwargs[name] for name in self.names)]

    def raw_size(self, values: Sequence[Tensor]) -> int:
        """Return the number of rows of a call."""
        rows: int = values[self.carrier].size(self.carrier_dim)
        return rows

    def rows(self, size: int) -> list[Tensor]:
        """Return views of the first `size` rows, or all of a buffer without a batch dimension."""
        views = []
        for buffer, dim in zip(self.buffers, self.dims, strict=True):
            views.append(buffer if dim is None else buffer.narrow(dim, 0, size))
        return views

    def padding(self, raw: int, size: int) -> list[Tensor]:
        """Return views of the rows from `raw` up to `size`."""
        views = []
        for buffer, dim in zip(self.buffers, self.dims, strict=True):
            if dim is not None:
                views.append(buffer.narrow(dim, raw, size - raw))
        return views

    def of(self, size: int) -> Inputs:
        """Return the arguments of a call with `size` rows, as views of the buffers."""
        return as_arguments(self.rows(size), self.names)


def repeated(value: Tensor, dim: int | None, size: int) -> Tensor:
    """Return a copy with `size` rows, which repeat those of `value`. `dim`: its batch dimension."""
    if dim is None:
        return value.clone()
    repeats = -(-size // value.size(dim))
    rows = torch.cat([value] * repeats, dim).narrow(dim, 0, size)
    return rows.clone()  # which keeps the memory format


@dataclass(frozen=True)
class ReplayPlan:
    """How to run a call of a given size. `inputs`: the rows to copy each input to; `padding`: rows
    to set to zero; `outputs`: views of the graph's outputs, cut to the call's size."""

    replay: Callable[[], None]
    inputs: list[Tensor]
    padding: list[Tensor]
    outputs: Any

    def fill(self, values: Sequence[Tensor]) -> None:
        """Copy the inputs of a call, and fill the padding."""
        for rows, value in zip(self.inputs, values, strict=True):
            rows.copy_(value)
        for rows in self.padding:
            rows.fill_(0)


@dataclass(eq=False)
class BucketRunner:
    """A step that replays captured graphs, one for each of `sizes` (ascending). A call uses the
    smallest graph that holds its rows, with padding; a call that is larger than all graphs runs
    `eager`. `calls`: size -> number of calls so far.

    `short-lived` outputs are views of the graph's outputs, which the next call may overwrite. The
    constructor calls `eager` to find the outputs' batch dimensions.
    """

    eager: Step
    static: StaticInputs
    padding: str
    outputs: str
    sizes: Sequence[int]

    def __post_init__(self) -> None:
        self.graphs: dict[int, Captured] = {}
        self.batch_dims = batch_dims(self.eager, self.static)
        self.plans: dict[int, ReplayPlan | None] = {}
        self.calls: Counter[int] = Counter()

    def plan(self, raw: int) -> ReplayPlan | None:
        """Return the cached plan of a call with `raw` rows; None if it is larger than all
        graphs."""
        if raw not in self.plans:
            self.plans[raw] = self.make_plan(raw)
        return self.plans[raw]

    def make_plan(self, raw: int) -> ReplayPlan | None:
        size = bucket_of(self.sizes, raw)
        if size is None:
            return None
        graph = self.graphs[size]
        padding = []
        if raw < size and self.padding == "zero":
            padding = self.static.padding(raw, size)
        leaves, structure = tree_flatten(graph.outputs)
        views = [
            cut_output(leaf, batch_dim, raw)
            for leaf, batch_dim in zip(leaves, self.batch_dims, strict=True)
        ]
        outputs = tree_unflatten(views, structure)
        return ReplayPlan(
            graph.replay,
            self.static.rows(raw),
            padding,
            outputs,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self.static.values(args, kwargs)
        raw = self.static.raw_size(values)
        self.calls[raw] += 1
        plan = self.plan(raw)
        if plan is None:
            return self.eager(*args, **kwargs)
        plan.fill(values)
        plan.replay()
        if self.outputs == "clone":
            return tree_map_only(Tensor, torch.clone, plan.outputs)
        return plan.outputs

    def copy_inputs(self, *args: Any, **kwargs: Any) -> None:
        """Do only the copies and the padding of a call; a call without a graph has none."""
        values = self.static.values(args, kwargs)
        plan = self.plan(self.static.raw_size(values))
        if plan is not None:
            plan.fill(values)

    def facts(self) -> Facts:
        """Return the counts of all calls until now, including checks and warm-up."""
        used = usage(self.sizes, self.calls)
        return {
            "calls": used.calls,
            "fallbacks": used.fallbacks,
            "rows": used.rows,
            "padded_rows": used.padded_rows,
            "calls_by_bucket": {str(size): calls for size, calls in used.by_bucket.items()},
        }


@dataclass(frozen=True)
class OutputBatch:
    """The batch dimension of an output, and its rows per row of the batch (T for [B * T, V])."""

    dim: int
    each: int


def cut_output(leaf: Any, batch: OutputBatch | None, raw: int) -> Any:
    """Return the output without the rows of padding. `raw`: the call's size."""
    if batch is None:
        return leaf
    return leaf.narrow(batch.dim, 0, raw * batch.each)


def batch_dims(function: Step, static: StaticInputs) -> list[OutputBatch | None]:
    """Return the batch of each leaf of the output, or None if its shape does not depend on it. If
    the largest size is 1, all are None, because nothing is cut off.

    Raises UnsupportedError if a shape depends on the batch in another way, and for an object that
    may contain tensors.
    """
    sizes = (static.size, max(1, static.size - 1))
    large, small = (output_shapes(function, static, size) for size in sizes)
    if len(large) != len(small):
        raise UnsupportedError(
            f"{len(large)} outputs for {sizes[0]} rows, but {len(small)} for {sizes[1]}"
        )
    return [batch_dim(*shapes, sizes) for shapes in zip(large, small, strict=True)]


#: The shape of a leaf of an output; None if it is no tensor.
Shape = tuple[int, ...] | None


def output_shapes(function: Step, static: StaticInputs, size: int) -> list[Shape]:
    args, kwargs = static.of(size)
    leaves, _ = tree_flatten(function(*args, **kwargs))
    shapes: list[Shape] = []
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *PLAIN)):
            raise UnsupportedError(
                f"the output contains the type {type(leaf).__name__}, whose padding cannot be cut"
                " off; return tensors, tuples, lists or dicts"
            )
        shapes.append(tuple(leaf.shape) if isinstance(leaf, Tensor) else None)
    return shapes


def batch_dim(large: Shape, small: Shape, sizes: tuple[int, int]) -> OutputBatch | None:
    if large == small:
        return None
    if large is not None and small is not None and len(large) == len(small):
        differing = [dim for dim in range(len(large)) if large[dim] != small[dim]]
        dim = differing[0]
        each, rest = divmod(large[dim], sizes[0])
        if len(differing) == 1 and not rest and small[dim] == each * sizes[1]:
            return OutputBatch(dim, each)
    raise UnsupportedError(
        f"an output has shape {large} for {sizes[0]} rows and {small} for {sizes[1]}: no single"
        " dimension is proportional to the batch size, so padding cannot be removed"
    )
