"""The mode bucketed-graph: CUDA graphs for some batch sizes, with each batch padded to the next
larger one, as servers do. The runner does not depend on CUDA: the `capture` function decides what
is replayed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map, tree_map_only

from effbench.core.buckets import bucket_of, capture_sizes, usage
from effbench.core.errors import UnsupportedError
from effbench.measure.timing import no_garbage_collection
from effbench.models.inputs import Inputs, as_arguments
from effbench.modes.base import AtLeast0, Example, Facts, Mode, Prepared, needs_cuda
from effbench.modes.compiled import Compiled
from effbench.modes.graphs import Capture, Captured, GraphCapture

#: Each captured size is a compilation, and Dynamo gives up after 8 of a function by default.
COMPILATIONS = {"recompile_limit": 10_000, "accumulated_recompile_limit": 10_000}


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

    splits = False
    writes_state = False  # padding also writes to rows beyond the batch

    def __post_init__(self) -> None:
        super().__post_init__()
        capture_sizes(self.buckets, [1])  # raises for an unknown preset before anything is built
        self.compiled = Compiled(self.inner, dynamic=False)
        self.compiles = self.torch_compile_max_bs > 0
        self.autotunes = self.compiles and self.compiled.autotunes
        if self.compiles:
            self.compiler_modules = self.compiled.compiler_modules

    def missing(self, device: torch.device) -> str | None:
        if self.compiles:
            return self.compiled.missing_in_graph(device)
        return needs_cuda(device, "a CUDA graph")

    def capturer(self) -> Capture:
        """Return what captures the graphs; tests have one without CUDA."""
        return GraphCapture(self.warmups, self.pool == "shared")

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        capture = self.capturer()
        sizes = capture_sizes(self.buckets, example.batch.sizes)
        inputs = StaticInputs(example, sizes[-1])
        graphs: dict[int, Captured] = {}
        seconds: dict[str, float] = {}
        few = [size for size in sizes if size <= self.torch_compile_max_bs]
        compiled = self.compiled.compile(module).step if few else module
        # a collection during capture may free memory, which CUDA does not allow then
        with no_garbage_collection(), torch._dynamo.config.patch(COMPILATIONS):
            for size in sorted(sizes, reverse=self.order == "largest-first"):
                began = time.perf_counter()
                function = compiled if size in few else module
                graphs[size] = capture(function, *inputs.arguments(size))
                seconds[str(size)] = time.perf_counter() - began
        a_pass = usage(sizes, example.batch.sizes)
        facts: Facts = {
            "buckets": sizes,
            "compiled_buckets": few,
            "capture_s": sum(seconds.values()),
            "capture_seconds": seconds,  # by captured size
            "static_input_bytes": sum(static.buffer.nbytes for static in inputs.each),
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
        runner = BucketRunner(
            module,
            inputs,
            graphs,
            zero=self.padding == "zero",
            clone=self.outputs == "clone",
        )
        return Prepared(
            runner,
            runner.copy_inputs,
            degraded,
            facts=facts,
        )


@dataclass(frozen=True)
class StaticInput:
    """An input of graphs, with valid rows of the largest size from the start, and its batch
    dimension, or None."""

    buffer: Tensor
    dim: int | None

    @classmethod
    def like(cls, value: Tensor, dim: int | None, size: int) -> StaticInput:
        """Return a copy with `size` rows, which repeat those of `value`."""
        if dim is not None:
            repeats = -(-size // value.size(dim))
            value = torch.cat([value] * repeats, dim).narrow(dim, 0, size)
        return cls(value.clone(), dim)  # which keeps the memory format

    def rows(self, start: int, stop: int) -> Tensor:
        """Return a view of these rows; of all without a batch dimension."""
        if self.dim is None:
            return self.buffer
        return self.buffer.narrow(self.dim, start, stop - start)


class StaticInputs:
    """The inputs that all graphs read: those by position, then those by name. `size`: the largest
    captured one. `carrier`: the first input with a batch dimension, `carrier_dim`. Raises
    UnsupportedError if none has one."""

    def __init__(self, example: Example, size: int) -> None:
        self.names = list(example.kwargs)
        self.each = [StaticInput.like(value, dim, size) for value, dim in example.with_dims()]
        batched = [(place, dim) for place, dim in enumerate(example.batch.dims) if dim is not None]
        if not batched:
            raise UnsupportedError(
                "no input of this model has a batch dimension, which bucketed-graph requires"
            )
        self.carrier, self.carrier_dim = batched[0]

    def rows(self, size: int) -> list[Tensor]:
        """Return views of the first `size` rows of each input."""
        return [static.rows(0, size) for static in self.each]

    def arguments(self, size: int) -> Inputs:
        """Return the arguments of a call with `size` rows, as views of the buffers."""
        return as_arguments(self.rows(size), self.names)


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
    """A step that replays captured `graphs`, by their sizes. A call uses the smallest graph that
    holds its rows, with padding; a call that is larger than all graphs runs the module (`eager`).

    `zero`: set the padding to zero; `clone`: return copies of the outputs.
    """

    eager: nn.Module
    inputs: StaticInputs
    graphs: Mapping[int, Captured]
    zero: bool
    clone: bool

    def __post_init__(self) -> None:
        self.plan = functools.cache(self.make_plan)

    def make_plan(self, raw: int) -> ReplayPlan | None:
        """Return the plan of a call with `raw` rows; None if it is larger than all graphs. The
        first call of a size that needs padding runs the module, too: its outputs show the
        shapes."""
        size = bucket_of(sorted(self.graphs), raw)
        if size is None:
            return None
        graph = self.graphs[size]
        outputs = graph.outputs
        padding = []
        if raw < size:
            args, kwargs = self.inputs.arguments(raw)
            outputs = tree_map(cut_like, outputs, self.eager(*args, **kwargs))
            if self.zero:
                padding = [
                    static.rows(raw, size) for static in self.inputs.each if static.dim is not None
                ]
        return ReplayPlan(
            graph.replay,
            self.inputs.rows(raw),
            padding,
            outputs,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        plan = self.plan(values[self.inputs.carrier].size(self.inputs.carrier_dim))
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
        plan = self.plan(values[self.inputs.carrier].size(self.inputs.carrier_dim))
        if plan is not None:
            plan.fill(values)


def cut_like(output: Any, other: Any) -> Any:
    """Return a view of the beginning of an output, in the shape of the other; all of it if it is no
    tensor."""
    if not isinstance(output, Tensor):
        return output
    return output[tuple(map(slice, other.shape))]
