"""How long do the first and a second compilation take at real layer counts, and how much memory do
they need?

B batch, T sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from effbench.claims._processes import in_fork, tree_memory
from effbench.claims._timing import figure
from effbench.claims._tools import call_ms, fresh_compile_cache
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import COMPILER, CUDA, Facts, check
from effbench.models.llama import LlamaPrefill

GPU_SECONDS = 180
NEEDS = "cuda"

#: Size -> settings of LlamaPrefill, as in Llama 3.2 1B and Llama 2 7B. Compile time depends on the
#: number of layers.
SIZES: dict[str, dict[str, Any]] = {
    "1b": {},
    "7b": {
        "layers": 32,
        "width": 4096,
        "heads": 32,
        "kv_heads": 32,
        "ffn": 11008,
        "vocab": 32000,
        "theta": 10000.0,
        "tied": False,
    },
}
COMPILATIONS = 5


def first_s(step: Any, x: torch.Tensor, device: torch.device) -> float:
    """Return by how many seconds the first call with this shape is slower than the second."""
    first, second = (call_ms(step, x, device=device) for _ in range(2))
    return max(0.0, first - second) / 1e3


@check(needs=(CUDA, COMPILER))
def small(
    device: torch.device, seq: int = 512, count: int = COMPILATIONS, **dimensions: Any
) -> Facts:
    """Compile Llama 1B five times, each in a new process with an empty cache, and once for a second
    batch size."""
    return compilations(device, {**SIZES["1b"], **dimensions}, seq, count, again=1)


@check(needs=(CUDA, COMPILER))
def large(
    device: torch.device, seq: int = 512, count: int = COMPILATIONS, **dimensions: Any
) -> Facts:
    """Compile Llama 7B five times, each in a new process with an empty cache."""
    return compilations(device, {**SIZES["7b"], **dimensions}, seq, count, again=0)


def compilations(
    device: torch.device, dimensions: dict[str, Any], seq: int, count: int, again: int
) -> Facts:
    """Return compile seconds, time to the first output and memory of `count` cold compilations, as
    figures. The first `again` processes also compile for a second batch size, with dynamic=None as
    torch.compile chooses it."""
    answers = [
        in_fork(lambda number=number: compiled_once(device, dimensions, seq, number < again))
        for number in range(count)
    ]
    names = dict.fromkeys(name for answer in answers for name in answer)
    facts = {name: figure([answer[name] for answer in answers if name in answer]) for name in names}
    if again:
        facts["warm_s"] = in_fork(
            lambda: compiled_once(device, dimensions, seq, again=False, cold=False)
        )["compile_s"]
    return {**facts, "compilations": count}


def compiled_once(
    device: torch.device, dimensions: dict[str, Any], seq: int, again: bool, cold: bool = True
) -> dict[str, float]:
    """Build a Llama, compile it in this process and return the figures of the compilation. `cold`:
    with an empty cache; else with one that a compilation in this process has just filled."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:  # the host would need a minute for the weights of 7B
        module = LlamaPrefill(seq, **dimensions).to(dtype).eval().requires_grad_(False)
    x = tokens(module, 1, seq, device)
    with torch.inference_mode():
        module(x)  # libraries load their kernels
        with peaks(device) as eager:
            module(x)
        with fresh_compile_cache():
            if not cold:
                torch.compile(module)(x)
                torch._dynamo.reset()
            compiled = torch.compile(module)
            with peaks(device) as memory:
                seconds = first_s(compiled, x, device)
            result = {
                "compile_s": seconds,
                "tree_bytes": memory["peak_bytes"] - eager["peak_bytes"],
                "processes": memory["processes"],
            }
            if device.type == "cuda":
                result["device_ratio"] = memory["device_bytes"] / eager["device_bytes"]
            if again:
                result["again_s"] = first_s(compiled, tokens(module, 2, seq, device), device)
    return result


@contextmanager
def peaks(device: torch.device) -> Iterator[dict[str, int]]:
    """Sample `tree_memory` in this context; afterwards `device_bytes` is the peak of a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with tree_memory() as memory:
        yield memory
    if device.type == "cuda":
        memory["device_bytes"] = torch.cuda.max_memory_allocated(device)


def tokens(module: nn.Module, batch: int, seq: int, device: torch.device) -> torch.Tensor:
    """Return tokens [B, T]."""
    return torch.randint(module.tokens.num_embeddings, (batch, seq), device=device)


@Claim(
    "P8",
    "The first compilation takes 30 s (1B), 2 min (7B), 10 min (70B), a recompilation about 5 s.",
    unit="s",
)
def p8(small, large):
    cold_1b, cold_7b, again = small.compile_s, large.compile_s, small.again_s
    holds = {
        "1B: 15 to 60 s": cold_1b.within(15, 60),
        "7B: 1 to 4 min": cold_7b.within(60, 240),
        "1B again, for another shape: 2.5 to 10 s": again.within(2.5, 10),
    }
    also = {
        "cold compilations of each": small.compilations,
        "1B, cold (s)": cold_1b,
        "1B again, for any batch size from now on (s)": again,
        "1B, warm cache (s)": small.warm_s,
        "7B, cold (s)": cold_7b,
        "70B by its 80 layers, extrapolated from 1B and 7B by the layer, not measured (s)": (
            cold_7b + 48 * (cold_7b - cold_1b) / 16
        ),
    }
    return Answer(holds, cold_7b, also)


@Claim("P9", "The first compilation takes tens of seconds to minutes, and much memory.", unit="s")
def p9(small, large):
    holds, also = {}, {}
    for name, facts in (("1B", small), ("7B", large)):
        holds[f"{name}: tens of seconds"] = facts.compile_s.above(10)
        holds[f"{name}: a tenth more memory on the device"] = facts.device_ratio.above(1.1)
        holds[f"{name}: more than 1 GiB more memory of the host"] = facts.tree_bytes.above(2**30)
        also[f"{name}: first compilation (s)"] = facts.compile_s
        also[f"{name}: peak device memory, compared with eager"] = facts.device_ratio
        also[f"{name}: memory of the process tree beyond eager's (GiB)"] = facts.tree_bytes / 2**30
        also[f"{name}: processes in the tree"] = facts.processes
    return Answer(holds, large.compile_s, also)
