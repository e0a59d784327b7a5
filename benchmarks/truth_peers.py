"""Other timers on the same callables as ours. Used by benchmarks/truth.py; times in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any

import torch

from effbench.measure import timing
from effbench.measure.telemetry import Telemetry
from effbench.modes.graphs import capture
from effbench.worker import ceilings

DEVICE = "cuda"
NO_INPUTS: list[timing.Inputs] = [((), {})]
FLUSH_BYTES = 256 * 2**20  # triton's
LONG_BLOCK_MS = 100.0
SHORT_S = 0.1
UNROLLED_MS = 20.0  # the length of triton's graph
CYCLES_A_MS = 2_000_000  # about; for spins whose length does not matter much

Call = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """`capturable`: the same work for a peer that captures a graph itself, since a replay cannot be captured. `truth`:
    long enough on the GPU to be held against CUPTI."""

    name: str
    call: Call
    capturable: Call
    graph: bool = False
    truth: bool = False


@dataclass(frozen=True)
class Answer:
    """What a peer found: the figure compared, and the mean where it keeps all its samples."""

    ms: float
    mean_ms: float | None = None


# --- our own timers ---


def rules(seconds: float, min_block_ms: float = ceilings.RULES.min_block_ms) -> timing.Rules:
    """Blocks as long as a sweep's, timed for a fixed time: the interval decides nothing here."""
    return replace(
        ceilings.RULES,
        budget_s=max(1.0, 2 * seconds),
        min_time_s=seconds,
        target_interval=1.0,
        max_samples=1_000_000,
        min_block_ms=min_block_ms,
    )


def warm_up(call: Call, seconds: float) -> None:
    timing.warm_up(call, NO_INPUTS, torch.device(DEVICE), rules(seconds))


def period(call: Call, seconds: float, min_block_ms: float = ceilings.RULES.min_block_ms) -> timing.Timing:
    chosen = rules(seconds, min_block_ms)
    return timing.time_period(call, NO_INPUTS, chosen, chosen.budget_s)


def latency(call: Call, seconds: float) -> timing.Timing:
    chosen = rules(seconds)
    return timing.time_latency(call, NO_INPUTS, torch.device(DEVICE), chosen, chosen.budget_s)


def events_around(call: Call, before: Call, seconds: float) -> list[float]:
    """Between two events around each call; `before` is queued ahead of each, and the host waits only at the end."""

    def run(count: int) -> list[float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            before()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    run(3)
    began = time.perf_counter()
    run(5)
    one_s = (time.perf_counter() - began) / 5
    return run(max(10, min(1000, int(seconds / one_s))))


def latency_after(call: Call, untimed: int, pause_ms: float, seconds: float) -> list[float]:
    """Of calls after so many untimed ones and a rest of the GPU, in which the host stays busy."""
    samples = []
    began = time.perf_counter()
    while len(samples) < 10 or time.perf_counter() - began < seconds:
        for _ in range(untimed):
            call()
        torch.cuda.synchronize()
        resume = time.perf_counter() + pause_ms / 1e3
        while time.perf_counter() < resume:
            pass
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) * 1e3)
    return samples


def unrolled_ms(call: Call, calls: int, seconds: float) -> float:
    """Period of one call of `calls` in one CUDA graph."""

    def many() -> None:
        for _ in range(calls):
            call()

    step = capture(many, (), {}, warmups=1).step
    return median(period(step, seconds).samples_ms) / calls


def queued_ms(call: Call, calls: int) -> float:
    """What a call costs the GPU where none waits for the host: queued behind a spin of 10 ms, which is to be longer
    than queueing them takes; no more launches than the queue holds, about a thousand."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(7):
        torch.cuda._sleep(10 * CYCLES_A_MS)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / calls)
    return median(found)


def replay_gap_ms(seconds: float) -> float:
    """What a replay costs the GPU beyond its kernels: a copy and a graph of one tiny kernel, against the same two in a
    graph of many."""
    tiny = torch.zeros(1, device=DEVICE)
    static = tiny.clone()
    step = capture(torch.neg, (tiny,), {}, warmups=3).step
    return queued_ms(partial(step, tiny), 250) - unrolled_ms(lambda: torch.neg(static.copy_(tiny)), 250, seconds)


def clock_mhz(call: Call, before: Call, one_ms: float, gpu: Telemetry) -> int | None:
    """The SM clock while the GPU works through queued calls of `one_ms` each."""
    count = max(1, min(300, int(200 / one_ms)))
    torch.cuda.synchronize()
    for _ in range(count):
        before()
        call()
    time.sleep(count * one_ms / 2e3)
    found = gpu.read().sm_clock_mhz
    torch.cuda.synchronize()
    return found


def nothing() -> None:
    """An empty call."""


# --- the peers ---


def by_do_bench(call: Call, seconds: float) -> Answer:
    from triton.testing import do_bench

    samples = do_bench(call, return_mode="all")
    return Answer(median(samples), fmean(samples))


def by_do_bench_cudagraph(call: Call, seconds: float) -> Answer:
    from triton.testing import do_bench_cudagraph

    samples = do_bench_cudagraph(call, return_mode="all")
    return Answer(median(samples), fmean(samples))


def by_blocked_autorange(call: Call, seconds: float) -> Answer:
    from torch.utils.benchmark import Timer

    found = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds)
    return Answer(found.median * 1e3, found.mean * 1e3)


def by_timeit(call: Call, seconds: float) -> Answer:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call})
    samples = []
    began = time.perf_counter()
    while len(samples) < 10 or time.perf_counter() - began < seconds:
        samples.append(timer.timeit(1).median * 1e3)
    return Answer(median(samples), fmean(samples))


def timeit_s(call: Call, times: int = 20) -> float:
    """What one `timeit(1)` takes altogether."""
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call})
    timer.timeit(1)
    began = time.perf_counter()
    for _ in range(times):
        timer.timeit(1)
    return (time.perf_counter() - began) / times


def by_inductor(call: Call, seconds: float) -> Answer:
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    return Answer(float(InductorBenchmarker().benchmark_gpu(call)))


@dataclass(frozen=True)
class Peer:
    """`asks`: which of our timers asks the same question; `rules`: what may explain a disagreement, likeliest first."""

    name: str
    run: Callable[[Call, float], Answer]
    asks: str
    rules: tuple[str, ...]
    captures: bool = False


AGAINST_INDUCTOR = ("least", "least spin", "least flush", "short least", "rested", "turns", "hidden", "clock")
PEERS = (
    Peer("triton do_bench", by_do_bench, "period", ("spin", "flush", "rested", "turns", "hidden", "clock")),
    Peer(
        "triton do_bench_cudagraph",
        by_do_bench_cudagraph,
        "period",
        ("unrolled", "one graph", "blocks", "rested", "turns", "clock"),
        captures=True,
    ),
    Peer("torch Timer, blocked_autorange", by_blocked_autorange, "period", ("mean", "blocks", "turns", "clock")),
    Peer("torch Timer, timeit(1)", by_timeit, "latency", ("mean", "empty call", "paused", "turns", "clock")),
    Peer(
        "Inductor's benchmarker",
        by_inductor,
        "period",
        AGAINST_INDUCTOR,
    ),
)
