"""After how many calls is each mode steady?

B batch, D width.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from effbench.experiments._tools import call_ms, fresh_compile_cache
from torch import nn

from effbench.experiments import Claim, Found, figures, highest
from effbench.experiments.checks import Facts, attempt, check, error_facts
from effbench.modes.base import Mode
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager

GPU_SECONDS = 120

STEADY_CALLS = 50
#: A call is steady if it takes at most this much longer than the median of the later calls.
WITHIN = 0.10


@check()
def calls(
    device: torch.device, calls: int = 10, width: int = 256, depth: int = 3, modes: Sequence[str] | None = None
) -> Facts:
    """Time calls 1 to 10 of each mode in ms, and find the first one that is within 10 % of steady."""
    if modes is None:
        compiled = ("default", "reduce-overhead", "max-autotune") if device.type == "cuda" else ("default",)
        modes = ("eager", *compiled)
    facts = {}
    for name in modes:
        mode: Mode = Eager() if name == "eager" else Compiled(name)
        if reason := mode.missing(device):
            facts[name] = {"ran": False, "reason": reason}
            continue
        torch._dynamo.reset()
        module = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth)))
        module = module.to(device).eval()
        x = torch.randn(8, width, device=device)
        # a mode must not reuse the compiled code of the previous mode
        with fresh_compile_cache(), torch.inference_mode():
            timed = attempt(
                lambda m=mode, module=module, x=x: samples(m.prepare(module, (x,), {}).step, x, calls, device)
            )
        facts[name] = {"ran": False, **error_facts(timed.raised)} if timed.raised else judge(*timed.value)
    return {"within_fraction": WITHIN, "modes": facts}


def samples(
    step: Callable[..., Any], x: torch.Tensor, calls: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Return the times of the first `calls` calls and of the later calls, in ms."""
    times = [call_ms(step, x, device=device) for _ in range(calls + STEADY_CALLS)]
    return times[:calls], times[calls:]


def judge(first_ms: list[float], later_ms: list[float]) -> Facts:
    """Judge the calls after three warm-up calls by their median, because single calls are noisy."""
    steady = statistics.median(later_ms)
    bound = steady * (1 + WITHIN)
    after_three = statistics.median(first_ms[3:] or later_ms)
    return {
        "ran": True,
        "calls_ms": first_ms,
        "steady_ms": steady,
        "first_steady_call": next((i for i, ms in enumerate(first_ms, start=1) if ms <= bound), None),
        "median_after_three_calls_ms": after_three,
        "steady_after_three_calls": after_three <= bound,
        "slowest_after_three_calls_ms": max(first_ms[3:], default=None),
    }


@Claim("S15", "Three warm-up calls are enough.", unit="warm-ups")
def s15(calls):
    steady_from, steady_ms = calls.modes.each("first_steady_call"), calls.modes.each("steady_ms")
    value = highest(steady_from) - 1
    also = {
        "median of calls 4 to 10 is within 10 % of steady, by mode": calls.modes.each("steady_after_three_calls"),
        "median of calls 4 to 10, by mode (ms)": calls.modes.each("median_after_three_calls_ms"),
        "steady, by mode (ms)": steady_ms,
        "first call within 10 % of steady, by mode": steady_from,
    }
    return Found((value <= 3) & (len(figures(steady_from)) == len(figures(steady_ms))), value, also)
