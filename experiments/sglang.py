"""How does SGLang compile a model that has custom operators?

T tokens, D width, N experts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from effbench.claims._tools import Counting, attempt, close
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check

GPU_SECONDS = 20

#: Calls of the custom operators' kernels, which Dynamo does not trace.
KERNEL_CALLS: Counter[str] = Counter()


@torch.library.custom_op("effbench_experiment::scaled_silu", mutates_args=())
def scaled_silu(x: torch.Tensor, scale: float) -> torch.Tensor:
    KERNEL_CALLS["activation"] += 1
    return F.silu(x) * scale


@torch.library.custom_op("effbench_experiment::mix_experts", mutates_args=())
def mix_experts(x: torch.Tensor, weight: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    KERNEL_CALLS["experts"] += 1
    return torch.einsum("td,nde,tn->te", x, weight, scores)


@scaled_silu.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


@mix_experts.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


class TwoPaths(nn.Module, ABC):
    """A layer with a custom operator and equivalent native code. `native_up_to_tokens`: the largest
    number of tokens for which the native code is compiled (None: any)."""

    native_up_to_tokens: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.native = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward_native(x) if self.native else self.forward_custom(x)

    @abstractmethod
    def forward_custom(self, x: torch.Tensor) -> torch.Tensor: ...

    @abstractmethod
    def forward_native(self, x: torch.Tensor) -> torch.Tensor: ...


class Activation(TwoPaths):
    """(T, D) -> (T, D)"""

    def forward_custom(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_silu(x, 2.0)

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x) * 2.0


class Experts(TwoPaths):
    """(T, D) -> (T, D); a fused mixture of N experts, whose native code pays off only for a single
    token."""

    native_up_to_tokens = 1

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.weight = nn.Parameter(torch.randn(experts, width, width) / width)

    def forward_custom(self, x: torch.Tensor) -> torch.Tensor:
        return mix_experts(x, self.weight, self.router(x).softmax(-1))

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        outputs = torch.einsum("td,nde->tne", x, self.weight)
        return (outputs * self.router(x).softmax(-1).unsqueeze(-1)).sum(1)


class Block(nn.Module):
    """(T, D) -> (T, D)"""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.experts = Experts(width, experts)
        self.activation = Activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.experts(x))


@contextmanager
def native_while_compiling(module: nn.Module, tokens: int) -> Iterator[None]:
    """Switch the layers below `module` to native code; restore them afterwards, also after an
    exception."""
    swapped = [
        layer
        for layer in module.modules()
        if isinstance(layer, TwoPaths)
        and (layer.native_up_to_tokens is None or tokens <= layer.native_up_to_tokens)
    ]
    before = [layer.native for layer in swapped]
    try:
        for layer in swapped:
            layer.native = True
        yield
    finally:
        for layer, native in zip(swapped, before, strict=True):
            layer.native = native


@check()
def swap(device: torch.device, width: int = 8, experts: int = 2) -> Facts:
    """Report which path of a layer with a custom operator and native code ran: in eager, compiled
    with the native code swapped in (for one and two tokens), and afterwards, also after a failed
    compilation."""
    module = Block(width, experts).to(device).requires_grad_(False)
    one, two = (torch.randn(tokens, width, device=device) for tokens in (1, 2))
    facts: Facts = {"eager_before": paths(module, one)}
    torch._dynamo.reset()
    facts["compiled_without_a_swap"] = paths(
        torch.compile(module, backend=Counting(), fullgraph=True), one
    )
    for name, x in (("one_token", one), ("two_tokens", two)):
        torch._dynamo.reset()
        backend = Counting()
        compiled = torch.compile(module, backend=backend, fullgraph=True)
        with native_while_compiling(module, x.shape[0]):
            facts[f"compiled_for_{name}"] = paths(compiled, x)
            output = compiled(x)
        graphs = len(backend.graphs)
        facts[f"eager_after_{name}"] = paths(module, x)
        facts[f"output_for_{name}_equals_eager"] = close(output, module(x))
        # Dynamo guards the switch, so this call compiles again
        facts[f"compiled_code_called_after_{name}"] = paths(compiled, x)
        facts[f"compiled_again_after_{name}"] = len(backend.graphs) > graphs

    def fails(graph: Any, example_inputs: Any) -> Any:
        raise RuntimeError("this backend always fails")

    def compile_and_fail() -> None:
        with native_while_compiling(module, 1):
            torch.compile(module, backend=fails, fullgraph=True)(one)

    torch._dynamo.reset()
    facts["compiling_failed"] = not attempt(compile_and_fail).succeeded
    facts["eager_after_failure"] = paths(module, one)
    facts["restored_after_failure"] = facts["eager_after_failure"] == facts["eager_before"]
    facts["restored_after_compiling"] = all(
        facts[f"eager_after_{name}"] == facts["eager_before"]
        for name in ("one_token", "two_tokens")
    )
    return facts


def paths(function: Callable[..., Any], x: torch.Tensor) -> dict[str, str]:
    """Return for each layer `custom` if its operator ran in this call, else `native`."""
    before = KERNEL_CALLS.copy()
    function(x)
    return {
        name: "custom" if KERNEL_CALLS[name] > before[name] else "native"
        for name in ("activation", "experts")
    }


s13 = Claim(
    "S13",
    "SGLang compiles with dynamic=True and reduce-overhead.",
    not_measurable=(
        "it is a statement about SGLang's code, not about a speed: its graph runner calls"
        " torch.compile with max-autotune-no-cudagraphs and leaves dynamic off unless told"
        " otherwise"
    ),
)


@Claim(
    "S18",
    "SGLang swaps custom operators for native code while compiling, and back afterwards (fused MoE"
    " only at one token).",
)
def s18(swap):
    one, two, later = (
        swap.compiled_for_one_token,
        swap.compiled_for_two_tokens,
        swap.eager_after_two_tokens,
    )
    right = [swap.output_for_one_token_equals_eager, swap.output_for_two_tokens_equals_eager]
    holds = (
        one.activation == "native"
        and one.experts == "native"
        and two.experts == "custom"
        and later.activation == "custom"
        and swap.restored_after_failure
        and all(right)
    )
    return Answer(holds, also={"outputs equal eager": right})
