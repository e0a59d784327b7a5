"""Read torch's compilation counters, the reasons that torch only logs, and the parts of CUDA
graphs."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch._dynamo.utils as dynamo

from effbench.core.printable import first_line

#: Its package has an operator of the same name.
flex_attention = importlib.import_module("torch._higher_order_ops.flex_attention")
LOGGERS = (
    "torch._inductor.cudagraph_utils.__cudagraphs",  # torch >= 2.12
    "torch._inductor.cudagraph_utils.__perf_hints",  # torch 2.11
    "torch._dynamo.convert_frame",
)

#: How Inductor's reasons for leaving out operators begin if it was asked to.
WANTED = "custom partition op"


@dataclass(frozen=True)
class Counters:
    """torch's counters since the process began."""

    graphs: int
    graph_breaks: int
    recompiles: int
    cudagraph_skips: int
    cache_hits: int
    cache_misses: int
    break_reasons: dict[str, int] = field(default_factory=dict)
    recompile_reason: str | None = None  # of the last one

    @property
    def cache_state(self) -> str | None:
        """`cold` if anything was compiled, `warm` if everything came from the cache, None without
        compilation. If the cache is off, torch counts neither hits nor misses."""
        if self.cache_misses or (self.graphs and not self.cache_hits):
            return "cold"
        if self.cache_hits:
            return "warm"
        return None


def read() -> Counters:
    """Return torch's counters now."""
    counters = dynamo.counters
    inductor, aot = counters["inductor"], counters["aot_autograd"]
    breaks = {first_line(str(reason)): count for reason, count in counters["graph_break"].items()}
    # torch lists but does not count the graph break of a branch on data in the outermost frame
    listed = dynamo.graph_break_reasons
    jumps = sum(graph_break.reason.startswith("generic_jump") for graph_break in listed)
    if jumps:
        breaks["a branch on data"] = jumps
    compilations = dynamo.get_compilation_metrics()
    recompiled = [entry.recompile_reason for entry in compilations if entry.recompile_reason]
    return Counters(
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(breaks.values()),
        recompiles=len(recompiled),
        cudagraph_skips=inductor["cudagraph_skips"],
        # after a hit in AOTAutograd's cache torch does not query the FX graph cache, hence the sum
        cache_hits=inductor["fxgraph_cache_hit"] + aot["autograd_cache_hit"],
        cache_misses=inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"],
        break_reasons=breaks,
        recompile_reason=guard_of(recompiled[-1]) if recompiled else None,
    )


class Observer(logging.Handler):
    """Context manager that collects why CUDA graphs were skipped and why Dynamo gave up, which
    torch only logs.

    With `dynamo` it also counts the parts of graphs that should run as CUDA graphs, and the
    `captured` ones among them. A mode may leave parts out on purpose (`leaves_parts`), such as
    `partition_ops`. If Inductor splits a graph (torch >= 2.9), it neither counts a skip nor logs a
    warning, so the parts are counted where Inductor wraps them, also for cached graphs.
    `part_reasons` are only known if Inductor compiles. `flex`: whether the cell asks for
    FlexAttention; `unfused`: whether it ran without a kernel while `watching_flex`.
    """

    def __init__(
        self,
        dynamo: bool = True,
        flex: bool = False,
        leaves_parts: bool = False,
        partition_ops: Sequence[str] = (),
    ) -> None:
        super().__init__(logging.WARNING)
        self.dynamo = dynamo
        self.flex = flex
        self.leaves_parts = leaves_parts
        self.partition_ops = partition_ops
        self.parts = self.captured = 0
        self.fallback: str | None = None
        self.unfused = False
        # distinct texts in order
        self.cudagraph_skips: dict[str, None] = {}
        self.part_reasons: dict[str, None] = {}

    def __enter__(self) -> Observer:
        import torch._inductor.cudagraph_utils  # noqa: F401 - creates its loggers

        # a private name; by default Dynamo forgets all but the newest 64 compilations
        with suppress(AttributeError):
            dynamo.set_compilation_metrics_limit(10_000)

        self.undo = ExitStack()
        for name in LOGGERS:
            logger = logging.getLogger(name)
            self.undo.callback(logger.setLevel, logger.level)
            # the level of an artifact logger may be above WARNING if it is not enabled
            logger.setLevel(min(logger.getEffectiveLevel(), logging.WARNING))
            logger.addHandler(self)
            self.undo.callback(logger.removeHandler, self)
        if self.dynamo:  # importing these modules is slow, and other modes do not need them
            self.watch_partitions()
        return self

    def __exit__(self, *_: object) -> None:
        self.undo.close()

    def emit(self, record: logging.LogRecord) -> None:
        # a stack trace may follow
        message, _, _ = first_line(record.getMessage()).partition(" Found from")
        if "cudagraph" in message:
            self.cudagraph_skips[message] = None
        elif "recompile_limit" in message:
            _, _, last = record.getMessage().partition("last reason: ")
            self.fallback = f"{message}: {guard_of(last)}"

    @contextmanager
    def watching_flex(self) -> Iterator[None]:
        """Detect FlexAttention that nothing compiles, or no longer: torch then computes all scores
        in memory, and warns once in a process."""
        compute = flex_attention.math_attention

        def compute_and_note(*args: Any, **kwargs: Any) -> Any:
            self.unfused = True
            return compute(*args, **kwargs)

        with mock.patch.object(flex_attention, "math_attention", compute_and_note):
            yield

    def watch_partitions(self) -> None:
        import torch._inductor.output_code as output_code
        from torch._inductor.scheduler import Scheduler

        wrap = output_code.cudagraph_partition_post_compile
        should_partition = Scheduler.should_partition

        def wrap_and_count(example_inputs: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count(graph)
            return wrap(
                example_inputs,
                graph,
                *args,
                **kwargs,
            )

        def should_partition_and_why(scheduler: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
            reason = should_partition(
                scheduler,
                node,
                *args,
                **kwargs,
            )
            # without CUDA graphs Inductor gives a reason for every node
            if isinstance(reason, str) and "disabled" not in reason:
                self.part_reasons[reason] = None
            return reason

        patch = mock.patch.object
        self.undo.enter_context(
            patch(output_code, "cudagraph_partition_post_compile", wrap_and_count)
        )
        self.undo.enter_context(patch(Scheduler, "should_partition", should_partition_and_why))

    def count(self, graph: Any) -> None:
        """Count the parts of a CompiledFxGraph before it is wrapped in CUDA graphs."""
        if "cuda" not in graph.device_types:
            return
        info = graph.cudagraph_info
        reasons = [] if info is None else info.cudagraph_fail_reasons
        captured = len(graph.partition_maps or ())
        if reasons:
            captured = 0
        # Inductor counts the parts of a graph only if there are several
        self.parts += max(int(graph.counter_deltas.get("cudagraph_partitions", 0)), captured, 1)
        self.captured += captured
        self.part_reasons |= dict.fromkeys(map(str, reasons))

    def degraded_reason(self, counters: Counters, device: torch.device) -> str | None:
        """Return why the mode did not run as its name promises, or None if it did."""
        if self.dynamo and counters.graphs == 0:
            text = "Dynamo compiled no graph: the module ran in eager mode"
            return with_reasons(text, counters.break_reasons)
        if self.fallback is not None:
            return self.fallback
        if self.unfused and (self.dynamo or self.flex):
            return "FlexAttention ran unfused: torch.compile did not compile its call"
        if counters.cudagraph_skips and device.type == "cuda":
            text = f"{counters.cudagraph_skips} graph(s) ran without a CUDA graph"
            return with_reasons(text, self.cudagraph_skips)
        return self.uncaptured_reason()

    def uncaptured_reason(self) -> str | None:
        """Return why parts of graphs ran outside CUDA graphs that should not, or None."""
        left_out = self.parts - self.captured
        if self.partition_ops and self.parts and left_out == 0:
            return (
                "no CUDA graph was split: Inductor calls none of the operators"
                f" {', '.join(self.partition_ops)} by themselves"
            )
        unexpected = [reason for reason in self.part_reasons if not reason.startswith(WANTED)]
        if self.leaves_parts and self.captured and not unexpected:
            return None
        if left_out > 0:
            text = f"{left_out} of {self.parts} parts ran outside a CUDA graph"
            # torch < 2.12 only logs them
            return with_reasons(text, self.part_reasons or self.cudagraph_skips)
        return None


def with_reasons(text: str, reasons: Iterable[str]) -> str:
    listed = "; ".join(reasons)
    return f"{text}: {listed}" if listed else text


def guard_of(reason: str) -> str:
    """Return which guard failed, from torch's reason for compiling again, such as `0/1: self.n == 1
    # self.n += 1  # my/net.py:6 in forward (HINT: …)`."""
    guard, _, _ = first_line(reason).partition("  # ")
    return "failed guard: " + re.sub(r"^\d+/\d+: ", "", guard).strip()
