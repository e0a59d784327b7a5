"""How long do the first and a second compilation take at real layer counts, and how much memory do they need?

B batch, T sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from effbench.experiments._tools import call_ms, fresh_compile_cache

from effbench.experiments import Claim, Found, Pivot, between, geomean, highest, relative, where
from effbench.experiments.checks import COMPILER, Facts, check
from effbench.models.llama import LlamaPrefill

GPU_SECONDS = 200
NEEDS = "cuda"
SWEEPS = {
    "layers": [
        "model=llama-1b-prefill,llama-7b-prefill",
        "bs=1",
        "mode=eager,default",
        "protocol.rounds=2",
        "protocol.budget_s=1",
        "timeout_s=1200",
    ]
}
TABLES = [Pivot("Compile time, cold (s)", "compile_cold_s"), Pivot("Compile time, warm (s)", "compile_warm_s")]

#: Settings of `dynamic`, and how many batch sizes to try: with static sizes the third adds nothing to the second.
VARIANTS = {"dynamic": (None, None), "static": (False, 2)}


@check(needs=(COMPILER,))
def recompiling(
    device: torch.device, batches: Sequence[int] = (2, 4, 8), seq: int = 512, dtype: str = "bfloat16", **dimensions: Any
) -> Facts:
    """Time the compilation of a Llama for its first and for later batch sizes, with dynamic None and False, in s. The
    compile cache is empty at first. `dimensions`: of LlamaPrefill (default: Llama 3.2 1B)."""
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
    """Return tokens [B, T]."""
    return torch.randint(module.tokens.num_embeddings, (batch, seq), device=device)


def compile_s(step: Any, x: torch.Tensor, device: torch.device) -> float:
    """Return by how many seconds the first call with this shape is slower than the second."""
    first, second = (call_ms(step, x, device=device) for _ in range(2))
    return max(0.0, first - second) / 1e3


@Claim("P8", "The first compilation takes 30 s (1B), 2 min (7B), 10 min (70B), a recompilation about 5 s.", unit="s")
def p8(rows, recompiling):
    small, large = (where(rows, model=f"llama-{size}-prefill") for size in ("1b", "7b"))
    cold_1b, cold_7b = highest(small.compile_cold_s), highest(large.compile_cold_s)
    again = recompiling.static.second_s
    holds = {
        "1B: 15 to 60 s": between(cold_1b, 15, 60),
        "7B: 1 to 4 min": between(cold_7b, 60, 240),
        "1B again, for another shape: 2.5 to 10 s": between(again, 2.5, 10),
    }
    also = {
        "1B, cold (s)": cold_1b,
        "1B again, for another batch size (s)": again,
        "1B again, for any batch size from now on (s)": recompiling.dynamic.second_s,
        "1B, warm cache (s)": highest(small.compile_warm_s),
        "7B, cold (s)": cold_7b,
        "70B by its 80 layers, extrapolated from 1B and 7B by the layer, not measured (s)": (
            cold_7b + 48 * (cold_7b - cold_1b) / 16
        ),
    }
    return Found(holds, cold_7b, also)


@Claim("P9", "The first compilation takes tens of seconds to minutes, and much memory.", unit="s", each="model")
def p9(rows):
    compiled = where(rows, mode="default")
    seconds = geomean(compiled.first_call_s)
    memory = 1 / relative(compiled, "prepare_peak_allocated_bytes", "mode", "eager")
    holds = {"tens of seconds": seconds >= 10, "a tenth more memory on the device": geomean(memory) >= 1.1}
    also = {
        "1B (s)": highest(where(compiled, model="llama-1b-prefill").first_call_s),
        "7B (s)": highest(where(compiled, model="llama-7b-prefill").first_call_s),
        "device memory while preparing, compared with eager": highest(memory),
    }
    return Found(holds, seconds, also)
