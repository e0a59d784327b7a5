"""Modes that use torch.compile with Inductor, in each of its four modes."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from effbench.models.inputs import Step
from effbench.modes.base import Example, Mode, Prepared, needs_compiler, needs_cuda
from effbench.modes.inductor import autotunes, mode_options, set_options_of_calls
from effbench.modes.selective import compile_blocks, compile_forwards, sharded_parts

MARKED, UNBACKED = "marked", "unbacked"
#: Inductor's option with operators around which it ends and begins CUDA graphs.
PARTITION_OPS = "custom_should_partition_ops"
#: Inductor's options that keep parts of graphs, or batch sizes, outside CUDA graphs.
LEAVING_OUT = (
    PARTITION_OPS,
    "triton.cudagraph_min_partition_size",
    "triton.cudagraph_capture_sizes",
)
#: Modules that torch.compile imports for Inductor.
INDUCTOR_MODULES = ("torch._dynamo", "torch._inductor.compile_fx")
Dynamic = Literal[None, True, False, "marked", "unbacked"]


class TracedMode(Mode):
    """A mode of torch.compile. `dynamic`: null, true, false, or for the batch `marked` or
    `unbacked`."""

    fullgraph: bool
    dynamic: Dynamic

    compiles = True
    compiler_modules: tuple[str, ...] = ("torch._dynamo",)
    #: Whether it uses cudagraph trees.
    uses_cuda_graphs: bool = False

    def tracing(self) -> dict[str, Any]:
        """Return the settings of Dynamo as arguments of torch.compile."""
        dynamic = self.dynamic
        if dynamic in (MARKED, UNBACKED):
            dynamic = None
        return {"fullgraph": self.fullgraph, "dynamic": dynamic}

    @abstractmethod
    def compile(self, module: nn.Module) -> Prepared:
        """Return the compiled forward, which compiles in its first call."""

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        if self.dynamic == MARKED:
            mark_varied(example)
        elif self.dynamic == UNBACKED:
            mark_unbacked(example)
        prepared = self.compile(module)
        if self.uses_cuda_graphs and torch.cuda.is_initialized():
            return replace(prepared, step=marking_steps(prepared.step))
        return prepared


@dataclass
class Compiled(TracedMode):
    """torch.compile with Inductor. `mode`: one of torch.compile's modes, or None. `options`:
    Inductor's options, which override those of the mode (torch.compile itself accepts only one of
    the two). `regional`: compile only repeated blocks (`compile_blocks`)."""

    mode: str | None = "default"
    fullgraph: bool = False
    dynamic: Dynamic = None
    options: dict[str, Any] | None = None
    regional: bool | str = False

    compiler_modules = INDUCTOR_MODULES
    phases = ("inference", "generate", "training")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.options = mode_options(self.mode, self.options)
        self.autotunes = autotunes(self.options)
        self.uses_cuda_graphs = bool(self.options.get("triton.cudagraphs"))
        if self.uses_cuda_graphs:
            self.settling_calls = 3
            self.leaves_parts = any(self.options.get(name) for name in LEAVING_OUT)
            self.partition_ops = self.options.get(PARTITION_OPS) or ()

    def missing(self, device: torch.device) -> str | None:
        # without CUDA graphs, max-autotune still autotunes, but reduce-overhead has no effect
        if self.mode == "reduce-overhead" and device.type != "cuda":
            return needs_cuda(device, "reduce-overhead uses CUDA graphs: it")
        return needs_compiler(device)

    def missing_in_graph(self, device: torch.device) -> str | None:
        """Return why a manual CUDA graph cannot capture what this mode compiles, or None."""
        if self.uses_cuda_graphs:
            return (
                f"the inner mode {self.mode} already uses CUDA graphs: choose"
                " max-autotune-no-cudagraphs or default"
            )
        return needs_cuda(device, "a CUDA graph") or needs_compiler(device)

    def compile(self, module: nn.Module) -> Prepared:
        set_options_of_calls(self.options or {})
        settings = self.tracing() | {"options": self.options or None}
        if self.regional:
            return compile_blocks(module, self.regional, **settings)
        sharded = sharded_parts(module)
        for kind, parts in sharded.items():  # Dynamo skips modules with FSDP's hooks
            compile_forwards(parts, kind, settings)
        if sharded:
            return Prepared(module, module=module)
        return Prepared(torch.compile(module, **settings), module=module)


def marking_steps(compiled: Step) -> Step:
    """Return a step of cudagraph trees: from its beginning the outputs of the step before may be
    overwritten."""
    new_step = torch.compiler.cudagraph_mark_step_begin

    def step(*args: Any, **kwargs: Any) -> Any:
        new_step()
        return compiled(*args, **kwargs)

    return step


def mark_varied(example: Example) -> None:
    """Mark the varied dimension of each input as dynamic for Dynamo."""
    for value, dim in example.with_dims():
        if dim is not None and value.dim():
            torch._dynamo.mark_dynamic(value, dim)


def mark_unbacked(example: Example) -> None:
    """Mark the varied dimension of each input as unknown to Dynamo, which then compiles for all
    sizes, also 1. Inputs of one batch size share it."""
    for value, dim in example.with_dims():
        if dim is not None and value.dim():
            size = str(value.size(dim))
            torch._dynamo.decorators.mark_unbacked(value, dim, shape_id=size)
