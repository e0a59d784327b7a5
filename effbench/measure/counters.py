"""Dynamo's and Inductor's own counters, the reasons that they only log, and the parts of CUDA graphs."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from unittest import mock

import torch
import torch._dynamo.utils as dynamo

#: A frame of the stack trace below Inductor's reasons, with its line of code.
FRAME = re.compile(r'File "(?P<file>[^"\n]*)", line (?P<line>\d+), in .*(?:\n(?!\s*File ")\s*(?P<code>\S.*))?')


@dataclass(frozen=True)
class Counters:
    """A reading since the process began."""

    graphs: int
    graph_breaks: int
    recompiles: int
    cudagraph_skips: int
    cache_hits: int
    cache_misses: int
    break_reasons: dict[str, int] = field(default_factory=dict)


def read() -> Counters:
    counters = dynamo.counters
    inductor, aot = counters["inductor"], counters["aot_autograd"]
    breaks = {str(reason).split("\n")[0]: int(count) for reason, count in counters["graph_break"].items()}
    metrics = dynamo.get_compilation_metrics()
    # a branch on data in the outermost frame splits the graph and is not counted: what goes on after it is a frame
    resumed = {(metric.co_name, metric.co_filename, metric.co_firstlineno) for metric in metrics if is_resumed(metric)}
    uncounted = len(resumed) - sum(breaks.values())
    if uncounted > 0:
        breaks["a branch on data, or another break that Dynamo does not count"] = uncounted
    return Counters(
        graphs=int(counters["stats"]["unique_graphs"]),
        graph_breaks=sum(breaks.values()),
        recompiles=sum(1 for metric in metrics if metric.recompile_reason),
        cudagraph_skips=int(inductor["cudagraph_skips"]),
        # a hit in AOTAutograd's cache never asks the FX graph cache below it, hence the sum
        cache_hits=int(inductor["fxgraph_cache_hit"] + aot["autograd_cache_hit"]),
        cache_misses=int(inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]),
        break_reasons=breaks,
    )


def is_resumed(metric: Any) -> bool:
    """Return whether it is the compilation of the rest of a function, after a graph break."""
    return (metric.co_name or "").startswith("torch_dynamo_resume_in_")


def cache_state(counters: Counters) -> str | None:
    """Return `cold` if anything had to be compiled, `warm` if all came from the cache, None if nothing was compiled."""
    if counters.cache_misses:
        return "cold"
    return "warm" if counters.cache_hits else None


class LogReasons(logging.Handler):
    """Collects what torch says only in its log: why CUDA graphs were skipped, why Dynamo gave up.

    Use as a context manager around preparation and calls.
    """

    LOGGERS = (
        "torch._inductor.cudagraph_utils.__cudagraphs",  # torch >= 2.12
        "torch._inductor.cudagraph_utils.__perf_hints",  # torch 2.11
        "torch._dynamo.convert_frame",
    )

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.cudagraph_skips: list[str] = []
        self.fallbacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = with_place(record.getMessage())
        if "cudagraph" in message and message not in self.cudagraph_skips:
            self.cudagraph_skips.append(message)
        elif "recompile_limit" in message and message not in self.fallbacks:
            self.fallbacks.append(message)

    def __enter__(self) -> LogReasons:
        import torch._inductor.cudagraph_utils  # noqa: F401 - creates its loggers

        self.undo: list[Any] = []
        for name in self.LOGGERS:
            logger = logging.getLogger(name)
            self.undo.append((logger, logger.level))
            # an artifact logger that nobody enabled may sit above WARNING
            if logger.getEffectiveLevel() > logging.WARNING:
                logger.setLevel(logging.WARNING)
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for logger, level in self.undo:
            logger.removeHandler(self)
            logger.setLevel(level)


def with_place(message: str) -> str:
    """Return the first line of torch's message, and the place in the code if a stack trace follows."""
    text, _, trace = message.strip().partition("Found from")
    first = text.split("\n")[0].strip()
    frames = list(FRAME.finditer(trace))
    if not frames:
        return first
    inner = frames[-1]
    code = f": {inner['code'].strip()}" if inner["code"] else ""
    return f"{first.rstrip('.')}, at {PurePath(inner['file']).name}:{inner['line']}{code}"


def degraded_reason(counters: Counters, reasons: LogReasons, compiles: bool, device: torch.device) -> str | None:
    """Return why a mode that ran is not what its name says, or None."""
    if compiles and counters.graphs == 0:
        return "Dynamo compiled no graph: the module ran in eager"
    if reasons.fallbacks:
        return reasons.fallbacks[0]
    if counters.cudagraph_skips and device.type == "cuda":
        why = "; ".join(reasons.cudagraph_skips) or "Inductor gave no reason"
        return f"{counters.cudagraph_skips} graph(s) ran without a CUDA graph: {why}"
    return None


class Partitions:
    """Counts, while it is entered, the parts that Inductor left out of the CUDA graph of a graph that it cut (torch >=
    2.9). Such a graph counts as no skip and logs no warning, so its parts are counted where Inductor wraps them, which
    it also does for a graph out of its cache.

    `parts`: of all graphs that were to run as CUDA graphs; `captured`: those that do; `reasons`: Inductor's, which
    it names only while it compiles, so that they stay empty for a graph out of the cache.
    """

    def __init__(self) -> None:
        self.parts = 0
        self.captured = 0
        self.reasons: list[str] = []

    def __enter__(self) -> Partitions:
        # heavy, and useless for a mode that does not compile
        import torch._inductor.output_code as output_code
        from torch._inductor.scheduler import Scheduler

        wrap, should_partition = output_code.cudagraph_partition_post_compile, Scheduler.should_partition

        def wrap_and_count(example_inputs: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
            self.count(graph)
            return wrap(example_inputs, graph, *args, **kwargs)

        def should_partition_and_why(scheduler: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
            reason = should_partition(scheduler, node, *args, **kwargs)
            # without CUDA graphs every node is "outside": no reason then
            if isinstance(reason, str) and "disabled" not in reason and reason not in self.reasons:
                self.reasons.append(reason)
            return reason

        self.patches = [
            mock.patch.object(output_code, "cudagraph_partition_post_compile", wrap_and_count),
            mock.patch.object(Scheduler, "should_partition", should_partition_and_why),
        ]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patch in self.patches:
            patch.stop()

    def count(self, graph: Any) -> None:
        """`graph`: a CompiledFxGraph about to be wrapped in CUDA graphs."""
        if "cuda" not in graph.device_types:
            return
        refused = graph.cudagraph_info is not None and graph.cudagraph_info.cudagraph_fail_reasons
        captured = 0 if refused else len(graph.partition_maps or ())
        # Inductor counts the parts of a graph only where there are several
        self.parts += max(int(graph.counter_deltas.get("cudagraph_partitions", 0)), captured, 1)
        self.captured += captured
        for reason in refused or ():
            if str(reason) not in self.reasons:
                self.reasons.append(str(reason))

    def to_json(self) -> dict[str, Any]:
        """Return a trial's extra facts; empty if no CUDA graph was to be made of parts."""
        return {"cudagraph_parts": {"all": self.parts, "captured": self.captured}} if self.parts else {}

    def degraded_reason(self, logged: Sequence[str] = ()) -> str | None:
        """Return why not all ran as CUDA graphs, or None. `logged`: what Inductor logged on CUDA graphs meanwhile;
        torch < 2.12 gives its reasons only there."""
        if self.captured == self.parts:
            return None
        reasons = self.reasons or logged
        why = f": {'; '.join(reasons)}" if reasons else ""
        return f"{self.parts - self.captured} of {self.parts} parts ran outside a CUDA graph{why}"
