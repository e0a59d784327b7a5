"""The mode bucketed-graph: CUDA graphs for some batch sizes, with each batch padded to the next
larger one, as servers do. The runner does not depend on CUDA: the `capture` function decides what
is replayed."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from effbench.core.buckets import bucket_of, capture_sizes, usage
from effbench.core.errors import UnsupportedError
from effbench.measure.memory import graph_pool_bytes
from effbench.measure.timing import no_garbage_collection
from effbench.models.inputs import Args, Inputs, Kwargs, Step, as_arguments
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

    def capturer(self) -> Capture:
        """Return what captures the graphs; tests have one without CUDA."""
        return GraphCapture(self.warmups, self.pool == "shared")

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        capture = self.capturer()
        runner = BucketRunner(
            self,
            module,
            args,
            kwargs,
        )
        sizes = runner.sizes
        device = runner.buffers[0].device
        seconds: dict[str, float] = {}
        pool_bytes: dict[str, int] = {}
        few = [size for size in sizes if size <= self.torch_compile_max_bs]
        compiled = self.compiled.compile(module).step if few else module
        # a collection during capture may free memory, which CUDA does not allow then
        with no_garbage_collection(), recompile_limit(len(few) + 1):
            for size in sorted(sizes, reverse=self.order == "largest-first"):
                held = graph_pool_bytes(device) or 0
                began = time.perf_counter()
                function = compiled if size in few else module
                runner.graphs[size] = capture(function, *runner.inputs(size))
                seconds[str(size)] = time.perf_counter() - began
                pool_bytes[str(size)] = (graph_pool_bytes(device) or 0) - held
        a_pass = usage(sizes, self.batch.sizes)
        facts: Facts = {
            "buckets": sizes,
            "compiled_buckets": few,
            "capture_s": sum(seconds.values()),
            # by captured size
            "capture_seconds": seconds,
            "pool_bytes": pool_bytes,
            "static_input_bytes": sum(buffer.nbytes for buffer in runner.buffers),
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
        )


def recompile_limit(limit: int) -> AbstractContextManager[None]:
    """Allow this many compilations of a function in a context; Dynamo gives up after 8 by
    default."""
    now = torch._dynamo.config
    patched: AbstractContextManager[None] = now.patch(
        recompile_limit=max(now.recompile_limit, limit),
        accumulated_recompile_limit=max(now.accumulated_recompile_limit, limit),
    )
    return patched


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


class BucketRunner:
    """A step that replays captured graphs, one for each of `sizes` (ascending). A call uses the
    smallest graph that holds its rows, with padding; a call that is larger than all graphs runs the
    module.

    `buffers`: the static inputs, those by position, then those by name, with valid rows of the
    largest size from the start. `dims`: the batch dimension of each, or None. The
    constructor calls the module to find the outputs' batch dimensions. Raises UnsupportedError if
    inputs or outputs have none.
    """

    def __init__(
        self,
        mode: BucketedGraph,
        module: nn.Module,
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        self.eager = module
        self.sizes = capture_sizes(mode.buckets, mode.batch.sizes)
        self.zero = mode.padding == "zero"
        self.clone = mode.outputs == "clone"
        self.names = list(kwargs)
        self.dims = mode.batch.dims
        self.buffers: list[Tensor] = []
        for value, dim in zip((*args, *kwargs.values()), self.dims, strict=True):
            self.buffers.append(repeated(value, dim, self.sizes[-1]))
        batched = [(place, dim) for place, dim in enumerate(self.dims) if dim is not None]
        if not batched:
            raise UnsupportedError(
                "no input of this model has a batch dimension, which bucketed-graph requires"
            )
        self.carrier, self.carrier_dim = batched[0]
        self.graphs: dict[int, Captured] = {}
        self.batches = self.output_batches()
        self.plan = functools.cache(self.make_plan)

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

    def inputs(self, size: int) -> Inputs:
        """Return the arguments of a call with `size` rows, as views of the buffers."""
        return as_arguments(self.rows(size), self.names)

    def output_batches(self) -> list[OutputBatch | None]:
        """Return the batch of each leaf of the output, or None if its shape does not depend on it.
        If the largest size is 1, all are None, because nothing is cut off. Raises UnsupportedError
        if a shape depends on the batch in another way."""
        size = self.sizes[-1]
        larges = self.output_shapes(size)
        smalls = self.output_shapes(max(1, size - 1))
        batches = []
        for large, small in itertools.zip_longest(larges, smalls, fillvalue=()):
            batches.append(output_batch(large, small, size))
        return batches

    def output_shapes(self, size: int) -> list[Shape]:
        args, kwargs = self.inputs(size)
        leaves = tree_leaves(self.eager(*args, **kwargs))
        return [tuple(getattr(leaf, "shape", ())) for leaf in leaves]

    def make_plan(self, raw: int) -> ReplayPlan | None:
        """Return the plan of a call with `raw` rows; None if it is larger than all graphs."""
        size = bucket_of(self.sizes, raw)
        if size is None:
            return None
        graph = self.graphs[size]
        padding = []
        if raw < size and self.zero:
            padding = self.padding(raw, size)
        leaves, structure = tree_flatten(graph.outputs)
        for place, batch in enumerate(self.batches):
            if batch is not None:
                leaves[place] = leaves[place].narrow(batch.dim, 0, raw * batch.each)
        outputs = tree_unflatten(leaves, structure)
        return ReplayPlan(
            graph.replay,
            self.rows(raw),
            padding,
            outputs,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        plan = self.plan(values[self.carrier].size(self.carrier_dim))
        if plan is None:
            return self.eager(*args, **kwargs)
        plan.fill(values)
        plan.replay()
        if self.clone:
            return tree_map_only(Tensor, torch.clone, plan.outputs)
        return plan.outputs

    def copy_inputs(self, *args: Any, **kwargs: Any) -> None:
        """Do only the copies and the padding of a call; a call without a graph has none."""
        values = (*args, *kwargs.values())
        plan = self.plan(values[self.carrier].size(self.carrier_dim))
        if plan is not None:
            plan.fill(values)


@dataclass(frozen=True)
class OutputBatch:
    """The batch dimension of an output, and its rows per row of the batch (T for [B * T, V])."""

    dim: int
    each: int


#: The shape of a leaf of an output; empty if it is no tensor.
Shape = tuple[int, ...]


def output_batch(large: Shape, small: Shape, size: int) -> OutputBatch | None:
    """Return the batch of an output, from its shapes for `size` rows and for one row less."""
    if large == small:
        return None
    common = range(min(len(large), len(small)))
    changed = [dim for dim in common if large[dim] != small[dim]]
    if len(large) == len(small) and len(changed) == 1:
        dim = changed[0]
        each = large[dim] - small[dim]
        if large[dim] == each * size:
            return OutputBatch(dim, each)
    raise UnsupportedError(
        f"an output has shape {large} for {size} rows and {small} for {size - 1}: no single"
        " dimension is proportional to the batch size, so padding cannot be removed"
    )
