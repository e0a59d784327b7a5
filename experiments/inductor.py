"""Do Inductor's memory options save memory, and does it need Triton?

B batch, D width.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from effbench.experiments._tools import close, fresh_compile_cache
from torch import nn
from torch._inductor.utils import run_and_get_code

from effbench.experiments import Claim, Found
from effbench.experiments.checks import COMPILER, CPP_COMPILER, CUDA, Facts, attempt, check, error_facts
from effbench.experiments.fresh import in_fresh_process

GPU_SECONDS = 90


class LongLived(nn.Module):
    """(B, D) -> (B, D). All products are computed first and used one by one later, which keeps all of them alive."""

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


#: Options of torch.compile. reorder_for_peak_memory also orders buffers, so reorder_for_locality runs with and without.
VARIANTS: dict[str, dict[str, Any]] = {
    "as_shipped": {},
    "memory_planning": {"memory_planning": True},
    "no_reordering": {"reorder_for_locality": False, "reorder_for_peak_memory": False},
    "locality_alone": {"reorder_for_locality": True, "reorder_for_peak_memory": False},
    "no_locality": {"reorder_for_locality": False, "reorder_for_peak_memory": True},
}


@check(needs=(CUDA, COMPILER))
def memory(device: torch.device, batch: int = 4096, width: int = 512, branches: int = 6) -> Facts:
    """Measure the peak memory of one compiled call with memory_planning and reorder_for_locality on and off."""
    module = LongLived(width, branches).to(device).eval().requires_grad_(False)
    x = torch.randn(batch, width, device=device)
    variants = {name: peak(module, x, options) for name, options in VARIANTS.items()}
    config = torch._inductor.config
    return {
        "tensor_bytes": x.nbytes,
        "eager_peak_bytes": peak_of_call(module, x),
        "variants": variants,
        "defaults": {name: getattr(config, name, None) for name in ("memory_planning", *VARIANTS["no_reordering"])},
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


def peak(module: nn.Module, x: torch.Tensor, options: dict[str, Any]) -> Facts:
    """Measure the peak memory of the compiled module with x (B, D)."""
    torch._dynamo.reset()
    with torch.no_grad(), fresh_compile_cache():
        compiled = torch.compile(module, options=options)
        tried = attempt(compiled, x)
        if not tried.succeeded:
            return {"ran": False, "options": options, **error_facts(tried.raised)}
        expected = module(x)
        right = bool(torch.allclose(tried.value, expected, rtol=1e-3, atol=1e-3))
        del tried, expected
        compiled(x)
        return {"ran": True, "options": options, "peak_bytes": peak_of_call(compiled, x), "output_equals_eager": right}


def peak_of_call(function: Any, x: torch.Tensor) -> int:
    """Return the peak bytes of a call above those allocated before it."""
    with torch.no_grad():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(x.device)
        torch.cuda.reset_peak_memory_stats(x.device)
        function(x)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(x.device) - before


@check(needs=(CPP_COMPILER,))
def triton(device: torch.device, width: int = 16) -> Facts:
    """Run Inductor in interpreters without Triton: its C++ backend on the CPU, and on a GPU also CUDA, next to an
    interpreter with Triton."""
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
        facts["cuda"] = {"unsupported": f"Inductor for a GPU needs CUDA, but this runs on {device.type}"}
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
        return {**facts, "compiles": False, **{f"compile_{k}": v for k, v in error_facts(tried.raised).items()}}
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
    planning, ordering = memory.memory_planning_lowers_the_peak, memory.reorder_for_locality_lowers_the_peak
    also = {
        "eager's peak (bytes)": memory.eager_peak_bytes,
        "memory_planning lowers the peak": planning,
        "reorder_for_locality lowers the peak": ordering,
    }
    return Found({"memory_planning": planning, "reorder_for_locality": ordering}, also=also)


@Claim("S16", "Inductor does not need Triton.")
def s16(triton):
    holds = {"the CPU": triton.cpu.compiles & triton.cpu.output_equals_eager, "a GPU": triton.cuda.compiles}
    also = {
        "what it raises for a GPU": triton.cuda.compile_error_type,
        "on the CPU its kernels are C++": triton.cpu.kernels_in_cpp,
    }
    return Found(holds, also=also)
