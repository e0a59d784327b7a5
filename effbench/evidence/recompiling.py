"""P8: seconds of a first compilation and of those that a new shape causes, in one process.

B batch, T sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from effbench.evidence.base import COMPILER, Facts, call_ms, fresh_compile_cache, shows
from effbench.models.llama import LlamaPrefill

#: Without dynamic sizes the third batch size is as the second.
VARIANTS = {"dynamic": (None, None), "static": (False, 2)}


@shows("P8", needs=(COMPILER,))
def recompilation(
    device: torch.device, batches: Sequence[int] = (2, 4, 8), seq: int = 512, dtype: str = "bfloat16", **dimensions: Any
) -> Facts:
    """Seconds of compiling a Llama for its first batch size and for later ones, with dynamic None and False. Compile
    caches are empty at first; `dimensions` are those of LlamaPrefill (default: Llama 3.2 1B)."""
    module = LlamaPrefill(seq, **dimensions).to(device, getattr(torch, dtype)).eval()
    facts: Facts = {"batches": list(batches), "layers": len(module.blocks)}
    for name, (dynamic, most) in VARIANTS.items():
        torch._dynamo.reset()
        compiled = torch.compile(module, dynamic=dynamic)
        with fresh_compile_cache(), torch.inference_mode():
            seconds = [compile_s(compiled, tokens(module, batch, seq, device), device) for batch in batches[:most]]
        facts[name] = {"first_s": seconds[0], "second_s": seconds[1], "later_s": seconds[2:]}
    torch._dynamo.reset()
    return facts


def tokens(module: LlamaPrefill, batch: int, seq: int, device: torch.device) -> torch.Tensor:
    """Tokens [B, T]."""
    return torch.randint(module.tokens.num_embeddings, (batch, seq), device=device)


def compile_s(step: Any, x: torch.Tensor, device: torch.device) -> float:
    """What the first call with this shape takes longer than the second."""
    first, second = (call_ms(step, x, device=device) for _ in range(2))
    return max(0.0, first - second) / 1e3
