"""Modes that use torch.compile with a backend other than Inductor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from effbench.modes.base import Prepared, needs_cuda
from effbench.modes.compiled import Dynamic, TracedMode


@dataclass
class CudaGraphsBackend(TracedMode):
    """torch.compile(backend="cudagraphs"): Dynamo's graphs in cudagraph trees, with eager
    operators.

    If a graph cannot run as a CUDA graph (because of a tensor on the CPU, or an operator that
    cannot be captured), torch counts and logs a skip, as with Inductor, and the result is
    `degraded`.
    """

    fullgraph: bool = False
    dynamic: Dynamic = None

    uses_cuda_graphs = True
    settling_calls = 3

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "torch.compile's backend cudagraphs")

    def compile(self, module: nn.Module) -> Prepared:
        step = torch.compile(module, backend="cudagraphs", **self.tracing())
        # this backend has no cache
        return Prepared(step, compile_cache="cold")
