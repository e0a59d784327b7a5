"""A CUDA graph by hand, as bare as it can be: it reads its input where it lay when it was captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Recorded:
    """`output` is the graph's own buffer: the next replay overwrites it. `inputs` are kept, as their memory is read."""

    graph: torch.cuda.CUDAGraph
    output: Any
    inputs: tuple[Any, ...]

    def replay(self) -> Any:
        self.graph.replay()
        return self.output


def record(function: Callable[..., Any], *args: Any, warmups: int = 3) -> Recorded:
    """Capture `function(*args)` on a stream of its own after `warmups` calls there."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            function(*args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = function(*args)
    torch.cuda.synchronize()
    return Recorded(graph, output, args)
