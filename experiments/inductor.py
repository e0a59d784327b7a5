"""Do Inductor's memory options save memory, and does it need Triton?

B batch, D width.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from effbench.claims._processes import in_fresh_process
from effbench.claims._tools import attempt, close, error_facts, fresh_compile_cache
from torch import nn
from torch._inductor.utils import run_and_get_code

from effbench.claims import Answer, Claim
from effbench.claims.checks import COMPILER, CPP_COMPILER, CUDA, Facts, check

GPU_SECONDS = 45


class LongLived(nn.Module):
    """(B, D) -> (B, D). All products are computed first and used one by one later, which keeps all
    of them alive."""

    def __init__(self, width: int, branches: int) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(width, width) for _ in range(branches))
        self.second = nn.ModuleList(nn.Linear(width, width) for _ in range(branches))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [layer(x) for layer in self.first]
        total = torch.zeros_like(x)
        for layer, product in zip(self.second, made, strict=True):
            total = total + layer(product.relu()).tanh()
        return total


#: Options of torch.compile. reorder_for_peak_memory also orders buffers, so reorder_for_locality
#: runs with and without.
VARIANTS: dict[str, dict[str, Any]] = {
    "as_shipped": {},
    "memory_planning": {"memory_planning": True},
    "no_reordering": {"reorder_for_locality": False, "reorder_for_peak_memory": False},
    "locality_alone": {"reorder_for_locality": True, "reorder_for_peak_memory": False},
    "no_locality": {"reorder_for_locality": False, "reorder_for_peak_memory": True},
}


@check(needs=(CUDA, COMPILER))
def memory(
    device: torch.device, batch: int = 4096, width: int = 512, branches: int = 6, layers: int = 2
) -> Facts:
    """Measure the peak memory of compiled calls with memory_planning and reorder_for_locality on
    and off: a module with long-lived buffers, and a transformer's forward and backward."""
    long_lived = LongLived(width, branches).to(device).eval().requires_grad_(False)
    layer = nn.TransformerEncoderLayer(
        width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    x, tokens = (
        torch.randn(batch, width, device=device),
        torch.randn(batch // 256, 256, width, device=device),
    )
    cases = {
        "long-lived buffers": (long_lived, x, False),
        "transformer, forward and backward": (transformer, tokens, True),
    }
    config = torch._inductor.config
    defaults = {
        name: getattr(config, name, None)
        for name in ("memory_planning", *VARIANTS["no_reordering"])
    }
    return {"defaults": defaults, "cases": {name: peaks_of(*case) for name, case in cases.items()}}


def peaks_of(module: nn.Module, x: torch.Tensor, backward: bool) -> Facts:
    """Measure a module in eager and with each variant; `backward`: with the gradients of its
    parameters."""
    variants = {name: peak(module, x, options, backward) for name, options in VARIANTS.items()}
    return {
        "eager_peak_bytes": peak_of_call(module, x, backward),
        "variants": variants,
        **judge({name: facts["peak_bytes"] for name, facts in variants.items() if facts["ran"]}),
    }


def judge(peaks: dict[str, int]) -> Facts:
    """Compare the peak bytes of the variants; None if one of two did not run."""

    def lowers(with_it: str, without: str) -> bool | None:
        return peaks[with_it] < peaks[without] if {with_it, without} <= peaks.keys() else None

    return {
        "memory_planning_lowers_the_peak": lowers("memory_planning", "as_shipped"),
        "reorder_for_locality_lowers_the_peak": lowers("as_shipped", "no_locality"),
        "reorder_for_locality_alone_lowers_the_peak": lowers("locality_alone", "no_reordering"),
    }


def peak(module: nn.Module, x: torch.Tensor, options: dict[str, Any], backward: bool) -> Facts:
    """Measure the peak memory of the compiled module with x."""
    torch._dynamo.reset()
    with fresh_compile_cache():
        compiled = torch.compile(module, options=options)
        tried = attempt(call, compiled, x, backward)
        if not tried.succeeded:
            return {"ran": False, "options": options, **error_facts(tried.raised)}
        right = bool(torch.allclose(tried.value, call(module, x, backward), rtol=1e-3, atol=1e-3))
        del tried
        call(compiled, x, backward)
        peak_bytes = peak_of_call(compiled, x, backward)
        return {
            "ran": True,
            "options": options,
            "peak_bytes": peak_bytes,
            "output_equals_eager": right,
        }


def call(function: Any, x: torch.Tensor, backward: bool) -> torch.Tensor:
    """Return the output; with `backward`, also compute the gradients of the parameters and drop
    them."""
    with torch.set_grad_enabled(backward):
        output = function(x)
        if backward:
            torch.autograd.grad(
                output.square().mean(), [p for p in function.parameters() if p.requires_grad]
            )
    return output.detach()


def peak_of_call(function: Any, x: torch.Tensor, backward: bool) -> int:
    """Return the peak bytes of a call above those allocated before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(x.device)
    torch.cuda.reset_peak_memory_stats(x.device)
    call(function, x, backward)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(x.device) - before


@check(needs=(CPP_COMPILER,))
def triton(device: torch.device, width: int = 16) -> Facts:
    """Run Inductor in interpreters without Triton: its C++ backend on the CPU, and on a GPU also
    CUDA, next to an interpreter with Triton."""
    runs: dict[str, tuple[str, tuple[str, ...]]] = {"cpu": ("cpu", ("triton",))}
    if device.type == "cuda":
        runs |= {"cuda": (str(device), ("triton",)), "cuda_with_triton": (str(device), ())}
    with ThreadPoolExecutor() as pool:  # they measure no time
        answers = {
            name: pool.submit(in_fresh_process, compile_here, where, hide=hide, width=width)
            for name, (where, hide) in runs.items()
        }
    facts = {name: answer.result() for name, answer in answers.items()}
    if device.type != "cuda":
        facts["cuda"] = {
            "unsupported": f"Inductor for a GPU needs CUDA, but this runs on {device.type}"
        }
    return facts


def compile_here(device: torch.device, width: int) -> Facts:
    """Compile a small module in this interpreter, and report the kind of its kernels."""
    from torch.utils._triton import has_triton_package

    module = nn.Sequential(nn.Linear(width, width), nn.GELU()).to(device).requires_grad_(False)
    x = torch.randn(4, width, device=device)
    facts: Facts = {"triton_is_found": has_triton_package()}
    with fresh_compile_cache():
        tried = attempt(run_and_get_code, torch.compile(module), x)
    if not tried.succeeded:
        return {
            **facts,
            "compiles": False,
            **{f"compile_{k}": v for k, v in error_facts(tried.raised).items()},
        }
    output, codes = tried.value
    code = "\n".join(codes)
    return {
        **facts,
        "compiles": True,
        "output_equals_eager": close(output, module(x)),
        "kernels_in_cpp": "async_compile.cpp" in code,
        "kernels_in_triton": "async_compile.triton" in code,
    }


@Claim("S11", "memory_planning and reorder_for_locality cut memory.")
def s11(memory):
    holds, also = {}, {}
    for name in memory.cases:
        facts = memory.cases[name]
        holds[f"memory_planning, {name}"] = facts.memory_planning_lowers_the_peak
        holds[f"reorder_for_locality, {name}"] = facts.reorder_for_locality_lowers_the_peak
        also[f"{name}: eager's peak (bytes)"] = facts.eager_peak_bytes
        for variant in facts.variants:
            if "peak_bytes" not in facts.variants[variant]:
                continue
            also[f"{name}: peak, {variant} (bytes)"] = facts.variants[variant].peak_bytes
    return Answer(holds, also=also)


@Claim("S16", "Inductor does not need Triton.")
def s16(triton):
    holds = {
        "the CPU": triton.cpu.compiles and triton.cpu.output_equals_eager,
        "a GPU": triton.cuda.compiles,
    }
    also = {
        "what it raises for a GPU": triton.cuda.compile_error_type,
        "on the CPU its kernels are C++": triton.cpu.kernels_in_cpp,
    }
    return Answer(holds, also=also)
