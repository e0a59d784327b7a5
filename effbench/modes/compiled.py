"""torch.compile through Inductor in its four modes."""

from __future__ import annotations

from typing import Any

import torch

from effbench.modes.base import Prepared, needs_compiler, needs_cuda


class Compiled:
    """`mode` is one of torch.compile's modes or None; `options` are Inductor's, laid over those of the mode
    (torch.compile itself takes only one of the two)."""

    compiles = True
    phases = ("inference", "training")

    def __init__(
        self,
        mode: str | None = "default",
        fullgraph: bool = False,
        dynamic: bool | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.options = {**torch._inductor.list_mode_options(mode or "default"), **(options or {})}

    @property
    def uses_cuda_graphs(self) -> bool:
        return bool(self.options.get("triton.cudagraphs"))

    @property
    def settling_calls(self) -> int:
        return 3 if self.uses_cuda_graphs else 1

    def missing(self, device: torch.device) -> str | None:
        # max-autotune without CUDA graphs is still autotuned; reduce-overhead without them is nothing
        if self.mode == "reduce-overhead" and (reason := needs_cuda(device, "reduce-overhead is CUDA graphs: it")):
            return reason
        return needs_compiler(device)

    def compile(self, module: torch.nn.Module) -> Any:
        return torch.compile(module, fullgraph=self.fullgraph, dynamic=self.dynamic, options=self.options or None)

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        compiled = self.compile(module)
        if not (self.uses_cuda_graphs and args_on_cuda(args, kwargs)):
            return Prepared(compiled)
        new_step = torch.compiler.cudagraph_mark_step_begin

        def step(*args: Any, **kwargs: Any) -> Any:
            # outputs of the step before may be overwritten from here on
            new_step()
            return compiled(*args, **kwargs)

        return Prepared(step)


def args_on_cuda(args: tuple, kwargs: dict[str, Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in (*args, *kwargs.values()))
