"""CUDA graphs by hand: captured on a side stream after warm-up, replayed after a copy into static input buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from effbench.modes.base import BatchDims, Prepared, StepOver, needs_compiler, needs_cuda, whole_number
from effbench.modes.compiled import Compiled
from effbench.modes.guard import check_policy, guarded


class CudaGraph:
    """The eager module in one CUDA graph. `warmups`: calls on the side stream before capture (libraries such as cuBLAS
    allocate their workspaces in the first one, which capture does not allow). `guard`: what to do where a weight is no
    longer the captured one: null (not looked at), refuse or recapture."""

    compiles = False
    static_shape = True
    settling_calls = 1
    phases = ("inference", "training")
    captures_step = True

    def __init__(self, warmups: int = 3, guard: str | None = None) -> None:
        self.warmups = whole_number("warmups", warmups)
        self.guard = check_policy(guard)

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "a CUDA graph")

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        def anew(args: tuple, kwargs: dict[str, Any]) -> Prepared:
            return capture(module, args, kwargs, self.warmups)

        return guarded(module, self.guard, anew, args, kwargs)

    def prepare_training(
        self, module: torch.nn.Module, step_over: StepOver, args: tuple, kwargs: dict[str, Any]
    ) -> Prepared:
        """The whole step in one graph: forward, loss, backward, optimizer."""
        return capture(step_over(module), args, kwargs, self.warmups)


class CompiledCudaGraph:
    """A CUDA graph over the module compiled with `inner`, one of torch.compile's modes without CUDA graphs. `only`,
    `skip`, `regional` and `batch_dims` are those of `Compiled`, `guard` that of `CudaGraph`."""

    compiles = True
    static_shape = True
    settling_calls = 1
    batch_dims: BatchDims = None
    phases = ("inference", "training")
    captures_step = True

    def __init__(
        self,
        inner: str = "max-autotune-no-cudagraphs",
        fullgraph: bool = False,
        dynamic: bool | str | None = None,
        options: dict[str, Any] | None = None,
        warmups: int = 3,
        guard: str | None = None,
        only: str | Sequence[str] | None = None,
        skip: str | Sequence[str] | None = None,
        regional: bool | str = False,
    ) -> None:
        self.compiled = Compiled(inner, fullgraph, dynamic, options, only, skip, regional)
        self.warmups = whole_number("warmups", warmups)
        self.guard = check_policy(guard)

    def missing(self, device: torch.device) -> str | None:
        if self.compiled.uses_cuda_graphs:
            inner = self.compiled.mode
            return f"the inner mode {inner} has CUDA graphs of its own: choose max-autotune-no-cudagraphs or default"
        return needs_cuda(device, "a CUDA graph") or needs_compiler(device)

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        self.compiled.batch_dims = self.batch_dims
        facts: dict[str, Any] = {}

        def anew(args: tuple, kwargs: dict[str, Any]) -> Prepared:
            # compiled again with each capture: a part's twin holds the weights that the module had then
            function, found = self.compiled.compile(module)
            facts.update(found)
            return capture(function, args, kwargs, self.warmups, self.compiled.mark)

        prepared = guarded(module, self.guard, anew, args, kwargs)
        prepared.facts.update(facts)
        return prepared

    def prepare_training(
        self, module: torch.nn.Module, step_over: StepOver, args: tuple, kwargs: dict[str, Any]
    ) -> Prepared:
        """The whole step in one graph: forward, loss, backward, optimizer."""
        self.compiled.batch_dims = self.batch_dims
        function, facts = self.compiled.compile(module)
        prepared = capture(step_over(function), args, kwargs, self.warmups, self.compiled.mark)
        prepared.facts.update(facts)
        return prepared


def capture(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    warmups: int,
    mark: Callable[[tuple, dict[str, Any]], None] | None = None,
) -> Prepared:
    """Capture `function` and return a step that copies its inputs in and replays.

    The step returns the graph's static outputs: the next call overwrites them. What is no tensor is baked in. `mark`
    is called with the static inputs before anything else is.
    """
    static_args = tuple(copy_of(value) for value in args)
    static_kwargs = {name: copy_of(value) for name, value in kwargs.items()}
    if mark is not None:
        mark(static_args, static_kwargs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warmups):
            function(*static_args, **static_kwargs)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outputs = function(*static_args, **static_kwargs)
    copy_inputs = input_copier(static_args, static_kwargs)
    replay = graph.replay

    def step(*args: Any, **kwargs: Any) -> Any:
        copy_inputs(*args, **kwargs)
        replay()
        return outputs

    return Prepared(
        step, copy_inputs=copy_inputs, facts={"static_input_bytes": total_bytes(static_args, static_kwargs)}
    )


def input_copier(static_args: tuple, static_kwargs: dict[str, Any]) -> Callable[..., None]:
    """A function that copies its arguments into the static buffers; one launch an input."""
    if len(static_args) == 1 and not static_kwargs and isinstance(static_args[0], torch.Tensor):
        copy = static_args[0].copy_

        def copy_one(value: torch.Tensor) -> None:  # the common case, without a loop in the timed call
            copy(value)

        return copy_one

    def copy_all(*args: Any, **kwargs: Any) -> None:
        for static, value in zip(static_args, args, strict=True):
            if isinstance(static, torch.Tensor):
                static.copy_(value)
        for name, static in static_kwargs.items():
            if isinstance(static, torch.Tensor):
                static.copy_(kwargs[name])

    return copy_all


def copy_of(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def total_bytes(args: tuple, kwargs: dict[str, Any]) -> int:
    return sum(value.nbytes for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
