"""The mode graphed-callables: CUDA graphs of a module or of submodules by
torch.cuda.make_graphed_callables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError
from effbench.models.inputs import Args, Kwargs, Step, as_arguments
from effbench.modes.base import Count, Mode, Prepared, needs_cuda
from effbench.modes.selective import Parts, matching, patterns, shared_weight_copy


@dataclass(frozen=True)
class Call:
    """A call of a module."""

    module: nn.Module
    args: Args
    kwargs: Kwargs


class Positional(nn.Module):
    """A wrapper of a module that accepts tensors by position only, first the positional ones of a
    call, then the named ones. Other values are constants, taken from the example inputs. `hooks`:
    whether to run the module's hooks."""

    def __init__(self, module: nn.Module, args: Args, kwargs: Kwargs, hooks: bool) -> None:
        super().__init__()
        self.inner, self.hooks = module, hooks
        self.names = list(kwargs)
        #: The arguments of a call, and which of them are tensors.
        self.example = [*args, *kwargs.values()]
        self.places = []
        for place, value in enumerate(self.example):
            if isinstance(value, Tensor):
                self.places.append(place)
                self.example[place] = None
        self.train(module.training)

    def tensors(self, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
        """Return the tensors of a call in the order of `forward`'s arguments."""
        values = (*args, *(kwargs[name] for name in self.names))
        return tuple(values[place] for place in self.places)

    def forward(self, *tensors: Tensor) -> Any:
        values = list(self.example)
        for place, tensor in zip(self.places, tensors, strict=True):
            values[place] = tensor
        args, kwargs = as_arguments(values, self.names)
        call = self.inner if self.hooks else self.inner.forward
        return call(*args, **kwargs)

    def calling(self, function: Step) -> Step:
        """Return a step with the wrapped module's arguments that calls `function` with this
        wrapper's. If the two are the same, return `function` itself."""
        if not self.names and len(self.places) == len(self.example):
            return function

        def step(*args: Any, **kwargs: Any) -> Any:
            return function(*self.tensors(args, kwargs))

        return step


@dataclass
class GraphedCallables(Mode):
    """CUDA graphs by torch.cuda.make_graphed_callables.

    `num_warmup_iters`: calls before capture. `only`: patterns of submodules to capture, each in its
    own graph, with the rest in eager mode; null: the whole module. `share_pool`: whether the graphs
    share one memory pool. In inference mode no output needs a gradient, so torch captures only the
    forward.
    """

    num_warmup_iters: Count = 3
    only: str | Sequence[str] | None = None
    share_pool: bool = True

    static_shape = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.only = patterns(self.only)

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "make_graphed_callables")

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        if not self.only:
            (step,) = self.graph([Call(module, args, kwargs)], hooks=True)
            return Prepared(step, facts={"graphs": 1})
        copy = shared_weight_copy(module)
        parts = matching(copy, self.only)
        calls = calls_of(copy, parts, args, kwargs)
        # the graph of a part replaces its forward, so that its hooks run around the graph
        for call, step in zip(calls, self.graph(calls, hooks=False), strict=True):
            # a bound method, because assigning a module would register a submodule
            call.module.forward = step.__call__  # type: ignore[operator]
        facts = {"graphs": len(calls), "graphed_modules": list(parts)}
        return Prepared(copy, facts=facts, module=copy)

    def graph(self, calls: Sequence[Call], hooks: bool) -> list[Step]:
        """Return a step that replays a graph for each call, in the order in which they run.
        `hooks`: whether a graph contains the module's hooks.

        torch replaces `forward` of its argument, which is a wrapper here so that the module is
        unchanged. It uses the example tensors as static inputs, hence the copies.
        """
        wrappers = []
        inputs = []
        for call in calls:
            wrapper = Positional(call.module, call.args, call.kwargs, hooks)
            tensors = wrapper.tensors(call.args, call.kwargs)
            wrappers.append(wrapper)
            inputs.append(tuple(tensor.clone() for tensor in tensors))
        make: Any = torch.cuda.make_graphed_callables
        if self.share_pool:
            graphed = make(tuple(wrappers), tuple(inputs), self.num_warmup_iters)
        else:
            graphed = [
                make(wrapper, tensors, self.num_warmup_iters)
                for wrapper, tensors in zip(wrappers, inputs, strict=True)
            ]
        return [wrapper.calling(replay) for wrapper, replay in zip(wrappers, graphed, strict=True)]


def calls_of(module: nn.Module, parts: Parts, args: Args, kwargs: Kwargs) -> list[Call]:
    """Run `module` and return its calls of `parts` in order. Raises ConfigError for a part not
    called exactly once."""
    calls: list[Call] = []

    def note(part: nn.Module, args: Args, kwargs: Kwargs) -> None:
        calls.append(Call(part, args, kwargs))

    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts.values()]
    try:
        module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    for name, part in parts.items():
        times = sum(call.module is part for call in calls)
        if times != 1:
            raise ConfigError(
                f"mode.only: {name} is called {times} times per call of the module, but a graph"
                " supports one call; choose parts that are called once"
            )
    return calls
