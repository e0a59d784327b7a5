"""The mode piecewise-graph: a CUDA graph of each piece between operators that are not captured,
such as attention, as servers do. The recorder does not depend on CUDA: the `capture` function
decides what is replayed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.passes.split_module import split_module
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.measure.timing import no_garbage_collection
from effbench.models.inputs import Step
from effbench.modes.base import AtLeast0, Example, Facts, Mode, Prepared, needs_cuda
from effbench.modes.compiled import INDUCTOR_MODULES, Compiled
from effbench.modes.graphs import Capture, GraphCapture, input_copier

#: Patterns of the names of attention operators, such as scaled_dot_product_attention,
#: flex_attention and flash_attn::_flash_attn_forward.
ATTENTION = ("*attention*", "*attn*")


@dataclass
class PiecewiseGraph(Mode):
    """A CUDA graph of each piece between operators whose names match a pattern of `split_on`. The
    graphs share one memory pool. `inner`: the torch.compile mode that compiles each piece, with
    Inductor's `options`; None captures eager pieces. `warmups`: calls of a piece before its
    capture."""

    split_on: Sequence[str] = ATTENTION
    inner: str | None = None
    options: dict[str, Any] | None = None
    warmups: AtLeast0 = 3

    compiles = True
    compiler_modules: tuple[str, ...] = ("torch._dynamo",)
    static_shape = True
    splits = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.split_on, str) or not self.split_on:
            raise ConfigError(
                f"mode.split_on={self.split_on}: expected a list of operators, such as"
                " mode.split_on=[softmax]"
            )
        self.compiled = None
        if self.inner is not None:
            self.compiled = Compiled(self.inner, options=self.options)
            self.autotunes = self.compiled.autotunes
            self.compiler_modules = INDUCTOR_MODULES
        elif self.options:
            raise ConfigError("mode.options needs mode.inner: eager pieces are not compiled")

    def missing(self, device: torch.device) -> str | None:
        if self.compiled is not None:
            return self.compiled.missing_in_graph(device)
        return needs_cuda(device, "a CUDA graph")

    def capturer(self) -> Capture:
        """Return what captures the graphs; tests have one without CUDA."""
        return GraphCapture(self.warmups, share_pool=True)

    def prepare(self, module: nn.Module, example: Example) -> Prepared:
        args, kwargs = tree_map(torch.clone, (example.args, example.kwargs))
        recording = Recording(self.split_on, self.capturer())
        if self.compiled is not None:
            recording.options = self.compiled.options
        traced = torch.compile(module, backend=recording.backend, fullgraph=True, dynamic=False)
        # a collection during capture may free memory, which CUDA does not allow then
        with no_garbage_collection():
            outputs = traced(*args, **kwargs)
        copy_inputs = input_copier(args, kwargs)
        actions = recording.actions

        def step(*args: Any, **kwargs: Any) -> Any:
            copy_inputs(*args, **kwargs)
            for action in actions:
                action()
            return outputs

        degraded = None
        where = f"mode.split_on={list(self.split_on)}"
        if recording.captured == len(actions):
            degraded = f"no operator of the module matches {where}: it runs in one graph"
        elif not recording.captured:
            degraded = f"all operators of the module match {where}: none runs in a graph"
        compile_cache = None
        if self.compiled is None:  # nothing of the preparation is cached
            compile_cache = "cold"
        facts: Facts = {
            "pieces": len(actions),
            "captured_pieces": recording.captured,
            "static_input_bytes": sum(value.nbytes for value in (*args, *kwargs.values())),
        }
        return Prepared(step, copy_inputs, degraded, compile_cache, facts, module)


@dataclass
class Recording:
    """What a call does, recorded in the first call of a module that Dynamo traces: it replays
    graphs, and calls the operators between them, whose results it copies to fixed addresses. Hence
    later calls need no Dynamo.

    `split_on`: patterns of names; `options`: Inductor's, or None for eager pieces; `actions`: the
    parts of a call in order; `captured`: how many of them replay a graph; `graphs`: what Dynamo
    traced, whose constants the graphs read.
    """

    split_on: Sequence[str]
    capture: Capture
    options: dict[str, Any] | None = None
    actions: list[Callable[[], None]] = field(default_factory=list)
    captured: int = 0
    graphs: list[fx.GraphModule] = field(default_factory=list)

    def backend(self, graph: fx.GraphModule, inputs: Sequence[Tensor]) -> Step:
        """Return what runs the graph for Dynamo and records it."""
        split, between = split_graph(graph, self.split_on)
        self.graphs.append(split)
        run: Step = Recorder(split, between, self).run
        return run


class Recorder(fx.Interpreter):
    """Runs a split graph once, and adds to the recording what its parts do. `between`: names of the
    parts that are not captured. As values are freed after their last use, later graphs reuse their
    memory in the pool."""

    def __init__(self, graph: fx.GraphModule, between: set[str], recording: Recording) -> None:
        super().__init__(graph)
        self.between = between
        self.recording = recording
        self.pooled: set[int] = set()  # addresses of the memory of graphs

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        part = self.fetch_attr(target)
        if target in self.between:
            return self.run_between(part, args)
        return self.run_captured(part, args)

    def run_captured(self, piece: fx.GraphModule, args: tuple[Any, ...]) -> Any:
        """Capture a piece, and return the outputs of its first replay."""
        recording = self.recording
        function: Step = piece
        if recording.options is not None:
            function = self.compile(piece, args)
        captured = recording.capture(function, args, {})
        captured.replay()
        recording.actions.append(captured.replay)
        recording.captured += 1
        for value in tree_leaves(captured.outputs):
            if isinstance(value, Tensor):
                self.pooled.add(value.untyped_storage().data_ptr())
        return captured.outputs

    def compile(self, part: fx.GraphModule, args: tuple[Any, ...]) -> Step:
        step: Step = torch._inductor.compile(part, list(args), options=self.recording.options)
        return step

    def run_between(self, part: fx.GraphModule, args: tuple[Any, ...]) -> Any:
        """Call an operator, and return copies of its outputs, which each call overwrites. Raises
        UnsupportedError if they are no tensors, because later graphs cannot read them."""
        calls = [node for node in part.graph.nodes if node.op.startswith("call")]
        forward: Callable[..., Any] = part.forward
        if isinstance(calls[0].target, HigherOrderOperator):
            forward = self.compile(part, args)  # eager's FlexAttention is a slow reference
        outputs = forward(*args)
        if not all(isinstance(value, Tensor) for value in tree_leaves(outputs)):
            raise UnsupportedError(
                f"mode.split_on: {calls[0].name} returns values that are no tensors"
            )
        static = tree_map(torch.clone, outputs)
        buffers = tree_leaves(static)
        inputs = tree_map_only(Tensor, self.without_ownership, args)

        def action() -> None:
            values = tree_leaves(forward(*inputs))
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)

        self.recording.actions.append(action)
        return static

    def without_ownership(self, value: Tensor) -> Tensor:
        """Return a tensor that does not keep memory of the pool, which later graphs may reuse; for
        others the tensor itself."""
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.pooled:
            return value
        same_memory = torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), value.device, storage.nbytes()
        )
        view = torch.empty(0, dtype=value.dtype, device=value.device)
        return view.set_(same_memory, value.storage_offset(), value.size(), value.stride())


def split_graph(graph: fx.GraphModule, patterns: Sequence[str]) -> tuple[fx.GraphModule, set[str]]:
    """Return a graph that calls its parts as modules, and the names of those parts that are an
    operator which matches a pattern."""
    parts: dict[Any, int] = {}
    between = set()
    part = 0
    for node in graph.graph.nodes:
        if node.target is operator.getitem and parts.get(node.args[0]) in between:
            parts[node] = parts[node.args[0]]  # an output of the operator
        elif node.op.startswith("call") and matches(operator_name(node.target), patterns):
            parts[node] = part + 1
            between.add(part + 1)
            part += 2
        else:
            parts[node] = part
    # in the original order, since operators may write to their inputs
    split = split_module(graph, None, parts.__getitem__, keep_original_order=True)
    return split, {f"submod_{number}" for number in between}


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def operator_name(target: Any) -> str:
    """Return the name of what a node calls: of a method or a function, such as `softmax`, or of a
    custom operator with its namespace, such as `my_lib::op`."""
    if isinstance(target, str):
        return target
    if isinstance(target, OpOverload):
        return str(target._schema.name)
    return getattr(target, "__name__", str(target))
