"""What Inductor left out of the CUDA graphs of a graph that it cut into parts (torch >= 2.9).

Such a graph counts as no skip and logs no warning, so its parts are counted where Inductor wraps them, which it does
for a graph out of its cache as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock


class Partitions:
    """Counts parts while it is entered.

    `parts`: of all graphs that were to run as CUDA graphs; `captured`: those that do; `reasons`: Inductor's, which
    it names only while it compiles, so that they stay empty where a graph came out of the cache.
    """

    def __init__(self) -> None:
        self.parts = 0
        self.captured = 0
        self.reasons: list[str] = []

    def __enter__(self) -> Partitions:
        # heavy, and of no use to a mode that does not compile
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
        """For a trial's extra facts; empty where no CUDA graph was to be made of parts."""
        return {"cudagraph_parts": {"all": self.parts, "captured": self.captured}} if self.parts else {}

    def degraded_reason(self, logged: Sequence[str] = ()) -> str | None:
        """Why not all ran as CUDA graphs, or None where all did (or nothing was to). `logged`: what Inductor logged on
        CUDA graphs meanwhile; torch < 2.12 gives its reasons only so."""
        if self.captured == self.parts:
            return None
        reasons = self.reasons or logged
        why = f": {'; '.join(reasons)}" if reasons else ""
        return f"{self.parts - self.captured} of {self.parts} parts ran outside a CUDA graph{why}"
