"""CUDA graphs for a few batch sizes, and every batch padded to the next: how servers run batches that change with each
call."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from effbench.buckets import capture_sizes, usage
from effbench.errors import ConfigError
from effbench.measure.memory import graph_pool_bytes
from effbench.measure.timing import no_garbage_collection
from effbench.models.batch import Batch
from effbench.modes.base import Prepared, needs_compiler, needs_cuda, whole_number
from effbench.modes.compiled import Compiled
from effbench.modes.guard import Fingerprint
from effbench.modes.runner import OUTPUTS, PADDINGS, SHORT_LIVED, BucketRunner, Capture, Captured, StaticInputs

POOLS = ("shared", "private")
ORDERS = ("largest-first", "smallest-first")
GUARDS = (None, "refuse")


class GraphCapture:
    """Captures on one side stream, after `warmups` calls on it, into one memory pool for all graphs or one for each."""

    def __init__(self, shared: bool, warmups: int) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle() if shared else None
        self.warmups = warmups

    def __call__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Captured:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            for _ in range(self.warmups):
                function(*args, **kwargs)
        current.wait_stream(self.stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            outputs = function(*args, **kwargs)
        return Captured(graph.replay, outputs)


class BucketedGraph:
    """Settings: docs/streams.md. Sizes up to `torch_compile_max_bs` are captured from the module compiled with `inner`,
    one compilation for each size; the others, and calls without a graph, are eager."""

    settling_calls = 1

    def __init__(
        self,
        buckets: str | Sequence[int] = "sglang",
        padding: str = "keep",
        pool: str = "shared",
        order: str = "largest-first",
        outputs: str = SHORT_LIVED,
        warmups: int = 2,
        torch_compile_max_bs: int = 0,
        inner: str = "max-autotune-no-cudagraphs",
        guard: str | None = None,
    ) -> None:
        for name, value, allowed in (
            ("padding", padding, PADDINGS), ("pool", pool, POOLS), ("order", order, ORDERS),
            ("outputs", outputs, OUTPUTS), ("guard", guard, GUARDS),
        ):  # fmt: skip
            if value not in allowed:
                choices = ", ".join("null" if choice is None else choice for choice in allowed)
                raise ConfigError(f"mode.{name}={value} is not allowed; choose one of {choices}")
        capture_sizes(buckets, [1])  # what is no preset is known before anything is built
        self.buckets, self.padding, self.pool, self.order = buckets, padding, pool, order
        self.outputs, self.guard = outputs, guard
        self.warmups = whole_number("warmups", warmups)
        self.torch_compile_max_bs = whole_number("torch_compile_max_bs", torch_compile_max_bs)
        self.compiled = Compiled(inner, dynamic=False)
        self.batch: Batch | None = None

    @property
    def compiles(self) -> bool:
        return self.torch_compile_max_bs > 0

    def missing(self, device: torch.device) -> str | None:
        if self.compiles and self.compiled.uses_cuda_graphs:
            inner = self.compiled.mode
            return f"the inner mode {inner} has CUDA graphs of its own: choose max-autotune-no-cudagraphs or default"
        return needs_cuda(device, "a CUDA graph") or (needs_compiler(device) if self.compiles else None)

    def expect(self, batch: Batch) -> None:
        """What will be called; before `prepare`."""
        self.batch = batch

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        return self.prepare_with(GraphCapture(self.pool == "shared", self.warmups), module, args, kwargs, device)

    def prepare_with(
        self, capture: Capture, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], device: torch.device
    ) -> Prepared:
        """`prepare`, with what captures."""
        assert self.batch is not None, "expect(batch) comes before prepare"
        sizes = capture_sizes(self.buckets, self.batch.sizes)
        static = StaticInputs(self.batch, args, kwargs, max(sizes))
        guard = Fingerprint(module).refuse_stale if self.guard else None
        runner = BucketRunner(module, static, self.padding, self.outputs, guard)
        runner.find_outputs()
        seconds: dict[str, float] = {}
        pool_bytes: dict[str, int] = {}
        held = graph_pool_bytes(device) or 0
        few = [size for size in sizes if size <= self.torch_compile_max_bs]
        compiled = self.compiled.compile(module)[0] if few else None
        # a collection while capturing may free memory at a moment when CUDA does not allow it
        with no_garbage_collection(), room_for(len(few)):
            for size in sorted(sizes, reverse=self.order == "largest-first"):
                began = time.perf_counter()
                runner.capture(size, compiled if compiled is not None and size in few else module, capture)
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
            degraded = f"no call has a graph: all are above the largest captured size, {sizes[-1]}"
        return Prepared(runner, runner.copy_inputs, degraded, facts=facts, late_facts=lambda: counted(runner))


def counted(runner: BucketRunner) -> dict[str, Any]:
    """What all calls since the preparation did, checks and warm-up included."""
    found = usage(runner.sizes, runner.calls)
    return {
        "calls": found.calls,
        "fallbacks": found.fallbacks,
        "rows": found.rows,
        "padded_rows": found.padded_rows,
        "calls_by_bucket": {str(size): calls for size, calls in found.by_bucket.items()},
    }


@contextmanager
def room_for(compilations: int) -> Iterator[None]:
    """Dynamo gives up on a function after 8 compilations; here one for each size is meant."""
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
