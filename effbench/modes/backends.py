"""Modes that use torch.compile with a backend other than Inductor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from effbench.models.inputs import Args, Kwargs
from effbench.modes.base import Mode, Prepared, needs_cuda
from effbench.modes.compiled import MARKED, Dynamic, are_on_cuda, mark_varied, marking_steps


@dataclass
class CudaGraphsBackend(Mode):
    """torch.compile(backend="cudagraphs"): Dynamo's graphs in cudagraph trees, with eager
    operators.

    If a graph cannot run as a CUDA graph (because of a tensor on the CPU, or an operator that
    cannot be captured), torch counts and logs a skip, as with Inductor, and the result is
    `degraded`.
    """

    fullgraph: bool = False
    dynamic: Dynamic = None

    compiles = True
    settling_calls = 3

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "torch.compile's backend cudagraphs")

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        dynamic = self.dynamic
        if dynamic == MARKED:
            mark_varied(args, kwargs, self.batch)
            dynamic = None
        step = torch.compile(
            module,
            backend="cudagraphs",
            fullgraph=self.fullgraph,
            dynamic=dynamic,
        )
        if are_on_cuda(args, kwargs):
            step = marking_steps(step)
        # this backend has no cache
        return Prepared(step, compile_cache="cold")
