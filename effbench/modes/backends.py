"""torch.compile with another backend than Inductor."""

from __future__ import annotations

from typing import Any

import torch

from effbench.modes.base import BatchDims, Prepared, needs_cuda, truth
from effbench.modes.compiled import MARKED, args_on_cuda, check_dynamic, mark_batch, marking_steps, told


class CudaGraphsBackend:
    """torch.compile(backend="cudagraphs"): Dynamo's graphs in cudagraph trees, their operators as eager runs them.

    What keeps a graph out of a CUDA graph (a tensor on the CPU, an operator that cannot be captured) is counted and
    logged by torch like Inductor's skips, and makes the result `degraded`.
    """

    compiles = True
    settling_calls = 3
    batch_dims: BatchDims = None

    def __init__(self, fullgraph: bool = False, dynamic: bool | str | None = None) -> None:
        self.fullgraph = truth("fullgraph", fullgraph)
        self.dynamic = check_dynamic(dynamic)

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "torch.compile's backend cudagraphs")

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        if self.dynamic == MARKED:
            mark_batch(args, kwargs, self.batch_dims)
        compiled = torch.compile(module, backend="cudagraphs", fullgraph=self.fullgraph, dynamic=told(self.dynamic))
        step = marking_steps(compiled) if args_on_cuda(args, kwargs) else compiled
        # nothing of this backend's work is cached
        return Prepared(step, compile_cache="cold")
