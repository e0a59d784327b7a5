"""The mode graphed-callables: CUDA graphs of a module or of submodules by
torch.cuda.make_graphed_callables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from effbench.errors import ConfigError
from effbench.modes.base import Count, Mode, Positional, Prepared, needs_cuda
from effbench.modes.selective import matching, patterns, shared_weight_copy


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
        self.only = patterns("only", self.only)

    def missing(self, device: torch.device) -> str | None:
        return needs_cuda(device, "make_graphed_callables")

    def prepare(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        if not self.only:
            (step,) = self.graphed([(module, args, kwargs)])
            return Prepared(step, facts={"graphs": 1})
        copy = shared_weight_copy(module)
        parts = matching(copy, "only", self.only)
        calls = calls_of(copy, parts, args, kwargs)
        for (part, _, _), step in zip(calls, self.graphed(calls), strict=True):
            # a bound method, because assigning a module would register a submodule
            part.forward = step.__call__
        return Prepared(
            copy, facts={"graphs": len(calls), "graphed_modules": list(parts)}, module=copy
        )

    def graphed(
        self, calls: Sequence[tuple[nn.Module, tuple, dict[str, Any]]]
    ) -> list[Callable[..., Any]]:
        """Return a step that replays a graph for each (module, example inputs), in the order in
        which they run.

        torch replaces `forward` of its argument, which is a wrapper here so that the module is
        unchanged. It uses the example tensors as static inputs, hence the copies.
        """
        # the graph of a part replaces its forward, so that its hooks run around the graph
        wrapped = [
            Positional(module, args, kwargs, hooks=not self.only) for module, args, kwargs in calls
        ]
        inputs = [
            tuple(tensor.clone() for tensor in wrapper.tensors(args, kwargs))
            for wrapper, (_, args, kwargs) in zip(wrapped, calls, strict=True)
        ]
        if self.share_pool:
            done = torch.cuda.make_graphed_callables(
                tuple(wrapped), tuple(inputs), self.num_warmup_iters
            )
        else:
            done = [
                torch.cuda.make_graphed_callables(wrapper, given, self.num_warmup_iters)
                for wrapper, given in zip(wrapped, inputs, strict=True)
            ]
        return [wrapper.calling(graphed) for wrapper, graphed in zip(wrapped, done, strict=True)]


def calls_of(
    module: nn.Module, parts: dict[str, nn.Module], args: tuple, kwargs: dict[str, Any]
) -> list[tuple[nn.Module, tuple, dict[str, Any]]]:
    """Run `module` and return its calls of `parts` in order. Raises ConfigError for a part not
    called exactly once."""
    calls: list[tuple[nn.Module, tuple, dict[str, Any]]] = []

    def note(part: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        calls.append((part, args, kwargs))

    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts.values()]
    try:
        module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    for name, part in parts.items():
        times = sum(called is part for called, _, _ in calls)
        if times != 1:
            raise ConfigError(
                f"mode.only: {name} is called {times} times per call of the module, but a graph"
                " supports one call; choose parts that are called once"
            )
    return calls
