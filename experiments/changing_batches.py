"""What do CUDA graphs gain if the batch size changes with each call, and who pays for the captures?

B batch, D width, T sequence.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from effbench.claims._processes import in_fork
from effbench.claims._timing import figure, in_turn, paired_ratio
from effbench.claims._tools import attempt, fresh_compile_cache, record
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import COMPILER, CUDA, Facts, check
from effbench.models.attention import AttentionBlock
from effbench.models.inputs import Batch
from effbench.models.mlp import MLP
from effbench.modes.base import Example, Mode
from effbench.modes.bucketed import BucketedGraph
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager

GPU_SECONDS = 80

#: Strategy -> mode. `exact, captured lazily` is not a mode of effbench.
STRATEGIES: dict[str, Callable[[], Mode]] = {
    "eager": Eager,
    "buckets, captured in advance": lambda: BucketedGraph(buckets="sglang"),
    "exact graphs, captured in advance": lambda: BucketedGraph(buckets="exact"),
    "reduce-overhead, dynamic=true": lambda: Compiled("reduce-overhead", dynamic=True),
    "reduce-overhead, dynamic=null": lambda: Compiled("reduce-overhead"),
}
LAZY = "exact graphs, captured lazily"
#: Cold runs of each strategy: a compilation takes seconds.
COLD_RUNS, COLD_RUNS_COMPILED = 7, 2

Step = Callable[[torch.Tensor], Any]


@check(needs=(CUDA, COMPILER))
def streams(device: torch.device, length: int = 256, largest: int = 64, rounds: int = 20) -> Facts:
    """Serve a stream of random batch sizes with each strategy: from nothing, with all compilations
    and captures, and once all sizes are known. Each runs in a process of its own, in turn with
    eager."""
    sizes = random.Random(0).choices(range(1, largest + 1), k=length)
    facts: Facts = {}
    for model in ("mlp", "attention"):
        served = {
            name: attempt(in_fork, partial(serve, name, model, sizes, rounds, device))
            for name in (*STRATEGIES, LAZY)
        }
        strategies = {name: tried.value or tried.facts() for name, tried in served.items()}
        facts[model] = {"calls": length, "sizes": len(set(sizes)), "strategies": strategies}
    return facts


def serve(name: str, model: str, sizes: Sequence[int], rounds: int, device: torch.device) -> Facts:
    module, shape = (
        (MLP(1024, 8), (1024,)) if model == "mlp" else (AttentionBlock(64, 1024), (64, 1024))
    )
    module = module.to(device, torch.bfloat16).eval().requires_grad_(False)
    inputs = {
        size: torch.randn(size, *shape, device=device, dtype=torch.bfloat16)
        for size in sorted(set(sizes))
    }
    stream = [inputs[size] for size in sizes]
    with torch.inference_mode():
        from_nothing("eager", module, stream, sizes)  # libraries load their kernels
        runs = COLD_RUNS_COMPILED if name.startswith("reduce") else COLD_RUNS
        cold = {
            each: [from_nothing(each, module, stream, sizes) for _ in range(runs)]
            for each in {"eager", name}
        }
        torch._dynamo.reset()
        passes = {each: pass_ms(prepared(each, module, stream, sizes), stream) for each in cold}
        for measure in passes.values():  # cudagraph trees warm up, record and replay each size
            measure()
            measure()
        steady = in_turn(passes, rounds)
    return {
        "steady_ms": figure(steady[name]),
        "steady_speedup": paired_ratio(steady["eager"], steady[name]),
        "cold_s": figure(cold[name]),
        "calls_to_pay": calls_to_pay(cold, steady, name, len(sizes)),
    }


def from_nothing(
    name: str, module: nn.Module, stream: Sequence[torch.Tensor], sizes: Sequence[int]
) -> float:
    """Return the seconds in which a new step is prepared and serves a whole stream."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()
    with fresh_compile_cache():
        began = time.perf_counter()
        prepared(name, module, stream, sizes)
        return time.perf_counter() - began


def prepared(
    name: str, module: nn.Module, stream: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Step:
    """Return a new step that has served the stream."""
    if name == LAZY:
        step = lazy_graphs(module)
    else:
        mode = STRATEGIES[name]()
        example = Example((stream[0],), batch=Batch(tuple(sizes), (0,)))
        step = mode.prepare(module, example).step
    for x in stream:
        step(x)
    torch.cuda.synchronize()
    return step


def lazy_graphs(module: nn.Module) -> Step:
    """Return a step that captures a graph when a size occurs for the first time, and replays it
    afterwards."""
    graphs: dict[int, Any] = {}

    def step(x: torch.Tensor) -> Any:
        size = x.shape[0]
        if size not in graphs:
            graphs[size] = record(module, x.clone())
        graphs[size].inputs[0].copy_(x)
        return graphs[size].replay()

    return step


def pass_ms(step: Step, stream: Sequence[torch.Tensor]) -> Callable[[], float]:
    """Return a measurement of the time per call over the whole stream, back to back, in ms."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure() -> float:
        start.record()
        for x in stream:
            step(x)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / len(stream)

    return measure


def calls_to_pay(
    cold: dict[str, list[float]], steady: dict[str, list[float]], name: str, length: int
) -> float | None:
    """Return after how many calls the strategy has been as fast as eager from the start; None if
    never."""
    own, eager = figure(steady[name])["value"], figure(steady["eager"])["value"]
    lost_ms = 1e3 * figure(cold[name])["value"] - eager * length
    return None if own >= eager else max(0.0, length + lost_ms / (eager - own))


@Claim("P15", "CUDA graphs suit highly dynamic batches badly.", unit="×")
def p15(streams):
    holds, also = {}, {}
    for model in streams:
        strategies = streams[model].strategies
        eager = strategies.eager
        for name in strategies:
            if name == "eager":
                continue
            facts = strategies[name]
            holds[f"{model}, {name}, sizes known"] = facts.steady_speedup.below(1)
            holds[f"{model}, {name}, first calls with all captures"] = facts.cold_s.above(
                eager.cold_s
            )
            also[f"{model}, {name}: period, eager ÷ this, sizes known"] = facts.steady_speedup
            also[f"{model}, {name}: seconds of the first calls"] = facts.cold_s
            also[f"{model}, {name}: calls until it has paid for itself"] = facts.calls_to_pay
        also[f"{model}, eager: seconds of the first calls"] = eager.cold_s
    return Answer(
        holds, streams.mlp.strategies["buckets, captured in advance"].steady_speedup, also
    )
