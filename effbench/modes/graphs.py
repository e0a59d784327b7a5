"""Manual CUDA graphs: captured on a side stream after warm-up, replayed after a copy into static
input buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from effbench.models.inputs import Args, Kwargs, Step
from effbench.modes.base import AtLeast0, Example, Mode, Prepared, needs_cuda
from effbench.modes.compiled import INDUCTOR_MODULES, Compiled


@dataclass(frozen=True)
class Captured:
    """A captured graph. `replay` reads the static buffers it was captured with and writes the
    result to `outputs`."""

    replay: Callable[[], None]
    outputs: Any


#: Captures a function with static inputs, like GraphCapture.
Capture = Callable[[Step, Args, Kwargs], Captured]


class GraphCapture:
    """Captures graphs on a side stream, after `warmups` calls on it. In the first call, libraries
    such as cuBLAS allocate workspaces, which is not allowed during capture. `share_pool`: all
    graphs share one memory pool."""

    def __init__(self, warmups: int, share_pool: bool = False) -> None:
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle() if share_pool else None
        self.warmups = warmups

    def __call__(self, function: Step, args: Args, kwargs: Kwargs) -> Captured:
        """Return the captured graph of a call with these static inputs."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(self.warmups):
                function(*args, **kwargs)
        graph = torch.cuda.CUDAGraph()
        # this synchronizes with the device first
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            outputs = function(*args, **kwargs)
        return Captured(graph.replay, outputs)


@dataclass
class CudaGraph(Mode):
    """The eager module in one CUDA graph. `warmups`: calls on the side stream before capture."""

    warmups: AtLeast0 = 3

    static_shape = True
    phases = ("inference", "generate", "training")
    captures_step = True

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "a CUDA graph")

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        # the step is the forward itself
        return self.prepare_step(self.prepare_forward(module, example), example)

    def prepare_forward(self, module: nn.Module, example: Example) -> Prepared:
        """Return what to capture in place of the module."""
        return Prepared(module, module=module)

    def prepare_step(self, prepared: Prepared, example: Example) -> Prepared:
        """Return the step in one graph; in training forward, loss, backward and optimizer."""
        captured = capture(
            prepared.step,
            example.args,
            example.kwargs,
            self.warmups,
        )
        facts = captured.facts | prepared.facts
        return replace(captured, facts=facts, module=prepared.module)


@dataclass
class CompiledCudaGraph(CudaGraph):
    """A CUDA graph of the module compiled with `inner`, one of torch.compile's modes without CUDA
    graphs. The other settings are those of `CudaGraph` and `Compiled`."""

    inner: str = "max-autotune-no-cudagraphs"
    fullgraph: bool = False
    dynamic: Literal[None, True, False] = None
    options: dict[str, Any] | None = None
    regional: bool | str = False

    compiles = True
    compiler_modules = INDUCTOR_MODULES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compiled = Compiled(
            self.inner,
            self.fullgraph,
            self.dynamic,
            self.options,
            self.regional,
        )
        self.autotunes = self.compiled.autotunes

    def missing(self, device: torch.device) -> str | None:
        return self.compiled.missing_in_graph(device)

    def prepare_forward(self, module: nn.Module, example: Example) -> Prepared:
        return self.compiled.compile(module)


def capture(function: Step, args: Args, kwargs: Kwargs, warmups: int) -> Prepared:
    """Capture `function` and return a step that copies its inputs into static buffers and replays
    the graph.

    The step returns the graph's static outputs, which the next call overwrites.
    """
    static_args, static_kwargs = tree_map(torch.clone, (args, kwargs))
    captured = GraphCapture(warmups)(function, static_args, static_kwargs)
    copy_inputs = input_copier(static_args, static_kwargs)
    replay, outputs = captured.replay, captured.outputs

    def step(*args: Any, **kwargs: Any) -> Any:
        copy_inputs(*args, **kwargs)
        replay()
        return outputs

    nbytes = sum(value.nbytes for value in (*static_args, *static_kwargs.values()))
    return Prepared(step, copy_inputs, facts={"static_input_bytes": nbytes})


def input_copier(static_args: Args, static_kwargs: Kwargs) -> Callable[..., None]:
    """Return a function that copies its arguments into the static buffers, with one launch per
    input."""
    if len(static_args) == 1 and not static_kwargs:
        copy = static_args[0].copy_

        # the common case, without a loop in the timed call
        def copy_only_input(value: Tensor) -> None:
            copy(value)

        return copy_only_input

    def copy_all(*args: Any, **kwargs: Any) -> None:
        for static, value in zip(static_args, args, strict=True):
            static.copy_(value)
        for name, static in static_kwargs.items():
            static.copy_(kwargs[name])

    return copy_all
