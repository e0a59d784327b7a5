"""Are effbench's timers right, and what do other timers print for the same callables?

    python benchmarks/truth.py [--seconds 0.5]

In one process: (1) time a kernel that spins for a known number of SM cycles, while NVML reads the
clock; (2) compare the time of GPU-bound callables with CUPTI's timestamps of their kernels; (3) run
the timers of triton, torch and Inductor on the same callables, interleaved with effbench's. Exits
with 1 if (1) or (2) fails. Needs CUDA and about three minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from effbench.core.table import Column, Table
from effbench.measure import profile, timing
from effbench.measure.gpu import Gpu
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing
from effbench.models.attention import AttentionBlock
from effbench.models.inputs import Inputs
from effbench.models.mlp import MLP, LinearStack
from effbench.modes.base import Example
from effbench.modes.graphs import CudaGraph
from effbench.stats.intervals import log_mean

DEVICE = "cuda"
NO_INPUTS: list[Inputs] = [((), {})]
RELATIVE, ABSOLUTE_MS = 0.01, 0.001  # a right time is within 1 % or 1 µs
CYCLES = (40_000, 200_000, 2_000_000, 20_000_000)  # 0.02, 0.1, 1 and 10 ms at about 2 GHz
LATENCY_FROM_MS = 0.05  # latency includes the host, whose time varies by microseconds
LAUNCHES = 500
MATRIX = 8192
COPY_BYTES = 2**30
ELEMENTS = 2**27  # 256 MiB in bf16
ROUNDS = 5
PASS = "pass"

Call = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """A callable to time. `capturable`: the same work for timers that capture a graph, because a
    replay cannot be captured; `truth`: runs long enough on the GPU for a comparison with CUPTI."""

    name: str
    call: Call
    capturable: Call
    truth: bool = False


# --- effbench's timers, ms ---


def rules(seconds: float) -> Rules:
    """Return rules with the blocks of a sweep and a fixed time, regardless of the interval."""
    return Rules(
        budget_s=max(1.0, 2 * seconds),
        min_time_s=seconds,
        min_samples=10,
        target_interval=1.0,
        max_samples=1_000_000,
        warmup_calls=3,
        warmup_s=0.1,
        load_s=0.1,
    )


def timer(call: Call, seconds: float) -> timing.Timer:
    return timing.Timer(call, NO_INPUTS, torch.device(DEVICE), rules(seconds))


def warm_up(call: Call, seconds: float) -> None:
    timer(call, seconds).warm_up()


def period(call: Call, seconds: float) -> Timing:
    return timer(call, seconds).period(rules(seconds).budget_s)


def latency(call: Call, seconds: float) -> Timing:
    return timer(call, seconds).latency(rules(seconds).budget_s)


def within(measured_ms: float, expected_ms: float) -> bool:
    return abs(measured_ms - expected_ms) <= max(RELATIVE * expected_ms, ABSOLUTE_MS)


# --- 1. spinning for known cycles ---


def clocks_while_spinning(gpu: Gpu) -> list[int]:
    torch.cuda.synchronize()
    torch.cuda._sleep(3 * CYCLES[-1])
    time.sleep(0.005)
    clocks = [gpu.state().sm_clock_mhz for _ in range(2)]
    torch.cuda.synchronize()
    return [clock for clock in clocks if clock]


def launch_ms() -> float:
    """Return the GPU time of a launch in ms, from spins that end at once, queued behind a long
    spin."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES[-1])
    start.record()
    for _ in range(LAUNCHES):
        torch.cuda._sleep(1)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / LAUNCHES


def truth_by_spinning(
    seconds: float, gpu: Gpu
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Time spins of known cycles. Return a row for each length, and one for the slope between two
    lengths, in which launch and synchronisation cancel out; no rows if NVML does not report the
    clock."""
    clocks: dict[int, list[int]] = {cycles: [] for cycles in CYCLES}
    found: dict[str, dict[int, list[float]]] = {
        timer: {cycles: [] for cycles in CYCLES} for timer in ("period", "latency")
    }
    warm_up(partial(torch.cuda._sleep, CYCLES[-1]), seconds)
    launches = [launch_ms()]
    for cycles in (*CYCLES, *CYCLES[::-1]):
        spin = partial(torch.cuda._sleep, cycles)
        clocks[cycles] += clocks_while_spinning(gpu)
        found["period"][cycles].append(median(period(spin, seconds).samples_ms))
        found["latency"][cycles].append(median(latency(spin, seconds / 2).samples_ms))
        clocks[cycles] += clocks_while_spinning(gpu)
    launch = median([*launches, launch_ms()])
    if not all(clocks.values()):
        return [], []
    expected = {cycles: cycles / median(clocks[cycles]) / 1e3 for cycles in CYCLES}
    spins = []
    for cycles in CYCLES:
        measured = median(found["period"][cycles])
        # the period includes the launch of the kernel, which is no error of the timer
        less = "pass, minus a launch" if within(measured - launch, expected[cycles]) else "FAIL"
        verdict = PASS if within(measured, expected[cycles]) else less
        spins.append(
            {
                "cycles": cycles,
                "SM MHz": median(clocks[cycles]),
                "expected ms": expected[cycles],
                "period ms": measured,
                "launch ms": launch,
                "verdict": verdict,
            }
        )
    slopes = []
    for timer, figures in found.items():
        for short, long in pairwise(CYCLES):
            if timer == "period" or expected[short] >= LATENCY_FROM_MS:
                wanted = expected[long] - expected[short]
                measured = median(figures[long]) - median(figures[short])
                slopes.append(
                    {
                        "slope of": timer,
                        "from ms": expected[short],
                        "to ms": expected[long],
                        "expected ms": wanted,
                        "measured ms": measured,
                        "verdict": PASS if within(measured, wanted) else "FAIL",
                    }
                )
    return spins, slopes


# --- 2. CUPTI ---


def traced(call: Call, seconds: float) -> tuple[float, float | None, float | None]:
    """Return the period of effbench's timer while CUPTI traces it, and from CUPTI for the same
    blocks the span from the first start to the last end and the busy time (None if the trace does
    not divide into calls), in ms."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as tracer

    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        call()

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on profiler cycles, which are not used here
        with tracer(activities=[ProfilerActivity.CUDA]) as trace:
            timed = period(counted, seconds)
            torch.cuda.synchronize()
    activities = [
        profile.Activity(
            event.name(), event.start_ns(), event.duration_ns(), event.correlation_id()
        )
        for event in trace.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    each = round(len(activities) / calls)
    blocks = blocks_of(activities, each, timed.calls_per_block, len(timed.samples_ms))
    if not blocks:
        return median(timed.samples_ms), None, None
    scale = timed.calls_per_block * 1e6  # ns per block -> ms per call
    spans = [
        (max(kernel.start + kernel.duration for kernel in block) - block[0].start) / scale
        for block in blocks
    ]
    busy = [profile.union_ns(block) / scale for block in blocks]
    return median(timed.samples_ms[-len(blocks) :]), median(spans), median(busy)


def blocks_of(
    activities: Sequence[profile.Activity], each: int, calls_per_block: int, blocks: int
) -> list[list[profile.Activity]]:
    """Return the activities of the last blocks, at most `blocks`, in order; `each`: activities per
    call. Blocks are counted from the end, because the head of a trace may be lost (pytorch issue
    192021). Empty if the calls differ."""
    size = each * calls_per_block
    if size == 0:
        return []
    tail = sorted(activities, key=lambda activity: activity.start)[
        -size * min(blocks, len(activities) // size) :
    ]
    # overlapping kernels of a call may change their order, but all calls have the same kernels
    kinds = [
        sorted(activity.name for activity in tail[at : at + each])
        for at in range(0, len(tail), each)
    ]
    if len(tail) < size or any(kind != kinds[0] for kind in kinds):
        return []
    return [tail[at : at + size] for at in range(0, len(tail), size)]


def truth_by_cupti(works: Sequence[Workload], seconds: float) -> list[dict[str, Any]]:
    """Measure the period before and after each trace, because clocks drift at the power limit."""
    # before the other traces, because each trace loses more of its head than the previous one
    reported = {work.name: reported_busy_ms(work.call, seconds) for work in works}
    rows = []
    for work in works:
        warm_up(work.call, seconds)
        before = median(period(work.call, seconds).samples_ms)
        under, span, busy = traced(work.call, seconds)
        measured = (before + median(period(work.call, seconds).samples_ms)) / 2
        if span is None:
            verdict = "pass, against busy" if within(measured, reported[work.name]) else "FAIL"
        else:
            # tracing may slow down the calls: then compare with the period of the traced calls
            same = "pass, same calls" if within(under, span) else "FAIL"
            verdict = PASS if within(measured, span) else same
        rows.append(
            {
                "callable": work.name,
                "busy ms": busy,
                "span ms": span,
                "period ms": measured,
                "period traced ms": under,
                "effbench's busy ms": reported[work.name],
                "verdict": verdict,
            }
        )
    return rows


def reported_busy_ms(call: Call, seconds: float) -> float:
    """Return the busy time by effbench's profiler in ms, over more calls than in a sweep, as for
    the other figures."""
    one_ms = median(period(call, seconds).samples_ms)
    return profile.profile(call, NO_INPUTS, max(profile.CALLS, min(500, int(100 / one_ms)))).busy_ms


# --- 3. other timers ---


def by_do_bench(call: Call, seconds: float) -> float:
    from triton.testing import do_bench

    return median(do_bench(call, return_mode="all"))


def by_do_bench_cudagraph(call: Call, seconds: float) -> float:
    from triton.testing import do_bench_cudagraph

    return median(do_bench_cudagraph(call, return_mode="all"))


def by_blocked_autorange(call: Call, seconds: float) -> float:
    from torch.utils.benchmark import Timer

    return (
        Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds).median * 1e3
    )


def by_timeit(call: Call, seconds: float) -> float:
    from torch.utils.benchmark import Timer

    timer, samples, began = Timer("call()", globals={"call": call}), [], time.perf_counter()
    while len(samples) < 10 or time.perf_counter() - began < seconds:
        samples.append(timer.timeit(1).median * 1e3)
    return median(samples)


def by_inductor(call: Call, seconds: float) -> float:
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    return float(InductorBenchmarker().benchmark_gpu(call))


#: Other timer -> its function, the effbench timer that measures the same, and whether it captures a
#: graph.
PEERS: dict[str, tuple[Callable[[Call, float], float], Callable, bool]] = {
    "triton do_bench": (by_do_bench, period, False),
    "triton do_bench_cudagraph": (by_do_bench_cudagraph, period, True),
    "torch Timer, blocked_autorange": (by_blocked_autorange, period, False),
    "torch Timer, timeit(1)": (by_timeit, latency, False),
    "Inductor's benchmarker": (by_inductor, period, False),
}


def against_peers(work: Workload, seconds: float) -> list[dict[str, Any]]:
    """Compare other timers with effbench's, which runs before and after each; return the ratios
    over the rounds."""
    warm_up(work.call, seconds)
    rows = []
    for name, (peer, timer, captures) in PEERS.items():
        ratios, ours, error = [], [], None
        for _ in range(ROUNDS):
            before = median(timer(work.call, seconds / 2).samples_ms)
            try:
                answer = peer(work.capturable if captures else work.call, seconds)
            except Exception as failed:  # the other timers can still be compared
                error = f"{type(failed).__name__}: {failed}".splitlines()[0][:160]
                break
            torch.cuda.synchronize()  # the next timer may use another stream
            ours.append(math.sqrt(before * median(timer(work.call, seconds / 2).samples_ms)))
            ratios.append(answer / ours[-1])
        row: dict[str, Any] = {"callable": work.name, "peer": name, "our timer": timer.__name__}
        if error is None:
            ratio = log_mean(ratios).interval()
            row |= {
                "ours ms": median(ours),
                "its ms": median(ours) * ratio.value,
                "its ÷ ours": f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})",
            }
        else:
            row |= {"ours ms": None, "its ms": None, "its ÷ ours": f"skipped: {error}"}
        rows.append(row)
    return rows


# --- what is timed ---


def of_module(
    name: str,
    build: Callable[[], torch.nn.Module],
    shape: Sequence[int],
    graph: bool = False,
    truth: bool = False,
) -> Workload:
    with torch.device(DEVICE):
        module = build().to(torch.bfloat16).eval()
        x = torch.randn(*shape, dtype=torch.bfloat16)
    if not graph:
        return Workload(name, partial(module, x), partial(module, x), truth)
    static = x.clone()
    step = CudaGraph().prepare(module, Example((x,))).step
    return Workload(name, partial(step, x), lambda: module(static.copy_(x)), truth)


def workloads() -> list[Workload]:
    bf16 = {"device": DEVICE, "dtype": torch.bfloat16}
    a, b = (torch.randn(MATRIX, MATRIX, **bf16) for _ in range(2))
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    x, y = torch.randn(ELEMENTS, **bf16), torch.empty(ELEMENTS, **bf16)
    tiny = torch.zeros(1, device=DEVICE)
    plain = {
        f"matrix product {MATRIX}³": partial(torch.mm, a, b),
        f"copy of {COPY_BYTES / 2**20:.0f} MiB": partial(target.copy_, source),
        f"elementwise, {x.nbytes / 2**20:.0f} MiB": partial(torch.mul, x, 2.0, out=y),
    }
    return [
        *(Workload(name, call, call, truth=True) for name, call in plain.items()),
        of_module("lin3 bs 512, graph", LinearStack, (512, 1000), graph=True, truth=True),
        of_module(
            "mlp 4096 bs 2048, graph",
            partial(MLP, width=4096),
            (2048, 4096),
            graph=True,
            truth=True,
        ),
        of_module("lin3 bs 8, graph", LinearStack, (8, 1000), graph=True, truth=True),
        of_module(
            "attention bs 8, graph",
            partial(AttentionBlock, seq=512),
            (8, 512, 1024),
            graph=True,
            truth=True,
        ),
        of_module("mlp bs 8, graph", MLP, (8, 1024), graph=True),
        of_module("mlp bs 8, eager", MLP, (8, 1024)),
        of_module("attention bs 1, eager", partial(AttentionBlock, seq=128), (1, 128, 1024)),
        Workload("add to one number", partial(tiny.add_, 1), partial(tiny.add_, 1)),
    ]


def shown(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "NVML does not report the SM clock here, so nothing was compared."
    texts = [
        ["–" if v is None else f"{v:.4f}" if isinstance(v, float) else str(v) for v in row.values()]
        for row in rows
    ]
    return Table.of([*map(Column, rows[0])], texts).render("markdown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="time of each timer in s (default: %(default)s)"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    gpu = Gpu.open(str(torch.cuda.get_device_properties(0).uuid))
    with torch.inference_mode(), timing.no_garbage_collection():
        works = workloads()
        # CUPTI last, because launches are slower once it has been attached
        peers = [row for work in works for row in against_peers(work, args.seconds / 2)]
        spins, slopes = truth_by_spinning(args.seconds / 2, gpu)
        cupti = truth_by_cupti([work for work in works if work.truth], args.seconds / 2)
    found = {
        "Spins of known cycles": spins,
        "Slopes between them": slopes,
        "GPU-bound callables against CUPTI": cupti,
        "Other timers on the same callables": peers,
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for title, rows in found.items():
        print(f"\n{title}\n\n{shown(rows)}")
    verdicts = [row["verdict"] for row in (*spins, *slopes, *cupti)]
    passed = sum(verdict.startswith(PASS) for verdict in verdicts)
    print(f"\n{passed} of {len(verdicts)} comparisons with the truth pass.")
    return int(passed < len(verdicts))


if __name__ == "__main__":
    sys.exit(main())
