"""After how many calls is each mode steady?

B batch, D width.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from effbench.claims._processes import in_fork
from effbench.claims._timing import figure
from effbench.claims._tools import call_ms
from torch import nn

from effbench.claims import Answer, Claim, highest
from effbench.claims.checks import Facts, check
from effbench.modes.base import Example, Mode
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager

GPU_SECONDS = 45

STEADY_CALLS = 50
#: A call is equivalent to steady if its time is within ± this fraction of the median of the later
#: calls.
WITHIN = 0.10
PROCESSES = 20


@check()
def calls(
    device: torch.device,
    calls: int = 10,
    width: int = 256,
    depth: int = 3,
    processes: int = PROCESSES,
    modes: Sequence[str] | None = None,
) -> Facts:
    """Time calls 1 to 10 of each mode in 20 processes, each forked before CUDA is initialised, and
    compare each call with the steady calls of its process: the ratio, its median and interval over
    the processes.

    The processes share a compile cache, so that only the first compiles with an empty one.
    """
    if modes is None:
        compiled = ("default", "reduce-overhead") if device.type == "cuda" else ("default",)
        modes = ("eager", *compiled)
    # each process waits for its compiler, and threads would compete with other processes
    if device.type == "cpu":
        processes = min(processes, 7)
        torch.set_num_threads(1)
    answers = [
        in_fork(lambda: all_modes(device, calls, width, depth, modes)) for _ in range(processes)
    ]
    return {
        "within_fraction": WITHIN,
        "modes": {name: judge([answer[name] for answer in answers]) for name in modes},
    }


def all_modes(
    device: torch.device, calls: int, width: int, depth: int, modes: Sequence[str]
) -> Facts:
    """Return for each mode the times of the first calls and of the later calls in ms, or why it did
    not run."""
    facts: Facts = {}
    for name in modes:
        mode: Mode = Eager() if name == "eager" else Compiled(name)
        if reason := mode.missing(device):
            facts[name] = {"ran": False, "reason": reason}
            continue
        torch._dynamo.reset()
        module = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(depth))
        )
        module = module.to(device).eval()
        x = torch.randn(8, width, device=device)
        with torch.inference_mode():
            step = mode.prepare(module, Example((x,))).step
            times = [call_ms(step, x, device=device) for _ in range(calls + STEADY_CALLS)]
        facts[name] = {
            "ran": True,
            "first_ms": times[:calls],
            "steady_ms": statistics.median(times[calls:]),
        }
    return facts


def judge(answers: Sequence[Facts]) -> Facts:
    """Judge a mode by the ratio of each call to the steady calls of its process.

    `calls`: number of the call -> the ratio's figure over the processes. A call is equivalent to
    steady if the whole interval is within ± 10 % of 1. `equivalent_within_fraction`: the smallest
    bound within which calls 4 and later are.
    """
    ran = [answer for answer in answers if answer["ran"]]
    if not ran:
        return dict(answers[0])
    ratios = [[ms / answer["steady_ms"] for ms in answer["first_ms"]] for answer in ran]
    by_call = {
        number: figure(column) for number, column in enumerate(zip(*ratios, strict=True), start=1)
    }
    late = [
        bound
        for number, ratio in by_call.items()
        if number > 3
        for bound in (ratio["low"], ratio["high"])
    ]
    return {
        "ran": True,
        "processes": len(ran),
        "calls": {str(number): ratio for number, ratio in by_call.items()},
        "steady_ms": figure([answer["steady_ms"] for answer in ran]),
        "first_steady_call": first_steady(by_call),
        "equivalent_within_fraction": max((abs(bound - 1) for bound in late), default=None),
    }


def first_steady(by_call: dict[int, dict[str, float]]) -> int | None:
    """Return the first call from which on all calls are equivalent to steady; None if the last one
    is not."""
    unsteady = [
        n for n, ratio in by_call.items() if max(ratio["high"] - 1, 1 - ratio["low"]) > WITHIN
    ]
    first = max(unsteady, default=0) + 1
    return first if first <= len(by_call) else None


@Claim("S15", "Three warm-up calls are enough.", unit="warm-ups")
def s15(calls):
    holds, also = {}, {}
    known = {name: calls.modes[name] for name in calls.modes if calls.modes[name].ran}
    for name, facts in known.items():
        fourth = facts.calls["4"]
        # equivalent: the whole interval is within the bounds; different: none of it is
        holds[name] = fourth.within(1 - WITHIN, 1 + WITHIN)
        also[f"{name}: call 4 ÷ steady"] = fourth
        also[f"{name}: calls 4 to 10 are equivalent to steady within ± (fraction)"] = (
            facts.equivalent_within_fraction
        )
        also[f"{name}: first call from which all are within 10 %"] = facts.first_steady_call
        also[f"{name}: processes"] = facts.processes
        also[f"{name}: steady (ms)"] = facts.steady_ms
    first = [facts.first_steady_call for facts in known.values()]
    return Answer(holds, highest(first) - 1, also)
