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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from effbench.core.table import Column, Table
from effbench.measure import profile, timing
from effbench.measure.gpu import Gpu
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing
from effbench.measure.trace import Event, gpu_event, running_ns
from effbench.models.attention import AttentionBlock
from effbench.models.inputs import Inputs
from effbench.models.mlp import MLP, LinearStack
from effbench.modes.base import Example
from effbench.modes.graphs import CudaGraph
from effbench.stats.intervals import log_mean

DEVICE = "cuda"
NO_INPUTS: list[Inputs] = [((), {})]
#: A right time is within 1 % or 1 µs.
RELATIVE, ABSOLUTE_MS = 0.01, 0.001
#: 0.02, 0.1, 1 and 10 ms at about 2 GHz.
CYCLES = (40_000, 200_000, 2_000_000, 20_000_000)
#: Latency includes the host, whose time varies by microseconds.
LATENCY_FROM_MS = 0.05
LAUNCHES = 500
MATRIX = 8192
COPY_BYTES = 2**30
#: 256 MiB in bf16.
ELEMENTS = 2**27
ROUNDS = 5
PASS, FAIL = "pass", "FAIL"

Call = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """A callable to time. `capturable`: the same work for timers that capture a graph, because a
    replay cannot be captured; `truth`: runs long enough on the GPU for a comparison with CUPTI."""

    name: str
    call: Call
    capturable: Call
    truth: bool = False


@dataclass(frozen=True)
class Comparison:
    """A row of a table: heading -> figure, and how a time compares with the truth."""

    figures: Mapping[str, object]
    verdict: str

    @property
    def passes(self) -> bool:
        return self.verdict.startswith(PASS)

    @property
    def row(self) -> Mapping[str, object]:
        return {**self.figures, "verdict": self.verdict}


def within(measured_ms: float, expected_ms: float) -> bool:
    allowed_ms = max(RELATIVE * expected_ms, ABSOLUTE_MS)
    return abs(measured_ms - expected_ms) <= allowed_ms


# --- effbench's timers


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


def time_period(call: Call, seconds: float) -> Timing:
    return timer(call, seconds).period(rules(seconds).budget_s)


def median_period(call: Call, seconds: float) -> float:
    """Return ms per call, back to back."""
    return median(time_period(call, seconds).samples_ms)


def median_latency(call: Call, seconds: float) -> float:
    """Return the ms of a synchronised call."""
    return median(timer(call, seconds).latency(rules(seconds).budget_s).samples_ms)


# --- 1. spinning for known cycles


@dataclass
class Spin:
    """A kernel that spins for a number of SM cycles, the clocks that NVML read meanwhile (none, if
    it does not report them), and its times."""

    cycles: int
    clocks_mhz: list[int] = field(default_factory=list)
    periods_ms: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def measure(self, seconds: float, gpu: Gpu) -> None:
        spin = partial(torch.cuda._sleep, self.cycles)
        self.clocks_mhz += clocks_while_spinning(gpu)
        self.periods_ms.append(median_period(spin, seconds))
        self.latencies_ms.append(median_latency(spin, seconds / 2))
        self.clocks_mhz += clocks_while_spinning(gpu)

    @property
    def clock_mhz(self) -> float:
        return median(self.clocks_mhz)

    @property
    def expected_ms(self) -> float:
        return self.cycles / self.clock_mhz / 1e3

    @property
    def period_ms(self) -> float:
        return median(self.periods_ms)

    @property
    def latency_ms(self) -> float:
        return median(self.latencies_ms)


def clocks_while_spinning(gpu: Gpu) -> list[int]:
    torch.cuda.synchronize()
    torch.cuda._sleep(3 * CYCLES[-1])
    time.sleep(0.005)
    clocks_mhz = [gpu.state().sm_clock_mhz, gpu.state().sm_clock_mhz]
    torch.cuda.synchronize()
    return [clock_mhz for clock_mhz in clocks_mhz if clock_mhz]


def time_launch() -> float:
    """Return the GPU time of a launch in ms, from spins that end at once, queued behind a long
    spin."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(CYCLES[-1])
    start.record()
    for _ in range(LAUNCHES):
        torch.cuda._sleep(1)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / LAUNCHES


def truth_by_spinning(seconds: float, gpu: Gpu) -> tuple[list[Comparison], list[Comparison]]:
    """Time spins of known cycles. Return a row for each length, and one for the slope between two
    lengths; no rows if NVML does not report the clock."""
    spins = [Spin(cycles) for cycles in CYCLES]
    warm_up(partial(torch.cuda._sleep, CYCLES[-1]), seconds)
    launches_ms = [time_launch()]
    for spin in (*spins, *reversed(spins)):
        spin.measure(seconds, gpu)
    launches_ms.append(time_launch())
    if not all(spin.clocks_mhz for spin in spins):
        return [], []
    launch_ms = median(launches_ms)
    return [compare_spin(spin, launch_ms) for spin in spins], compare_slopes(spins)


def compare_spin(spin: Spin, launch_ms: float) -> Comparison:
    verdict = FAIL
    if within(spin.period_ms, spin.expected_ms):
        verdict = PASS
    elif within(spin.period_ms - launch_ms, spin.expected_ms):
        # the period includes the launch of the kernel, which is no error of the timer
        verdict = "pass, minus a launch"
    figures = {
        "cycles": spin.cycles,
        "SM MHz": spin.clock_mhz,
        "expected ms": spin.expected_ms,
        "period ms": spin.period_ms,
        "launch ms": launch_ms,
    }
    return Comparison(figures, verdict)


def compare_slopes(spins: Sequence[Spin]) -> list[Comparison]:
    """Compare the differences between two lengths, in which launch and synchronisation cancel
    out."""
    slopes = []
    for short, long in pairwise(spins):
        slopes.append(compare_slope("period", short, long, long.period_ms - short.period_ms))
    for short, long in pairwise(spins):
        if short.expected_ms >= LATENCY_FROM_MS:
            slopes.append(compare_slope("latency", short, long, long.latency_ms - short.latency_ms))
    return slopes


def compare_slope(name: str, short: Spin, long: Spin, measured_ms: float) -> Comparison:
    expected_ms = long.expected_ms - short.expected_ms
    figures = {
        "slope of": name,
        "from ms": short.expected_ms,
        "to ms": long.expected_ms,
        "expected ms": expected_ms,
        "measured ms": measured_ms,
    }
    verdict = FAIL
    if within(measured_ms, expected_ms):
        verdict = PASS
    return Comparison(figures, verdict)


# --- 2. CUPTI


@dataclass(frozen=True)
class Traced:
    """The period of effbench's timer while CUPTI traces it, and from CUPTI for the same blocks the
    span from the first start to the last end and the busy time, in ms per call; NaN if the trace
    does not divide into calls."""

    period_ms: float
    span_ms: float = math.nan
    busy_ms: float = math.nan


def trace(call: Call, seconds: float) -> Traced:
    """Time a call while CUPTI traces it."""
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        call()

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on profiler cycles, which are not used here
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as tracer:
            timed = time_period(counted, seconds)
            torch.cuda.synchronize()
    activities = activities_of(tracer)
    of_call = round(len(activities) / calls)
    blocks = last_blocks(activities, of_call, timed)
    if not blocks:
        return Traced(median(timed.samples_ms))
    ns_per_ms = timed.calls_per_block * 1e6
    return Traced(
        period_ms=median(timed.samples_ms[-len(blocks) :]),
        span_ms=median(map(span_ns, blocks)) / ns_per_ms,
        busy_ms=median(map(running_ns, blocks)) / ns_per_ms,
    )


def activities_of(tracer: torch.profiler.profile) -> list[Event]:
    """Return what ran on the GPU, in order."""
    activities = []
    for event in tracer.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            activities.append(gpu_event(event, event.correlation_id()))
    return sorted(activities, key=lambda activity: activity.start)


def last_blocks(activities: Sequence[Event], of_call: int, timed: Timing) -> list[Sequence[Event]]:
    """Return the activities of the last blocks that were timed; none if the calls differ.
    `of_call`: activities per call.

    Blocks are counted from the end, because the head of a trace may be lost (pytorch issue 192021).
    """
    of_block = of_call * timed.calls_per_block
    if of_block == 0:
        return []
    count = min(len(timed.samples_ms), len(activities) // of_block)
    if count == 0:
        return []
    tail = activities[-count * of_block :]
    # overlapping kernels of a call may change their order, but all calls have the same kernels
    kernels = [sorted(names_of(call)) for call in chunks(tail, of_call)]
    if any(names != kernels[0] for names in kernels):
        return []
    return chunks(tail, of_block)


def chunks(activities: Sequence[Event], size: int) -> list[Sequence[Event]]:
    return [activities[start : start + size] for start in range(0, len(activities), size)]


def names_of(activities: Sequence[Event]) -> list[str]:
    return [activity.name for activity in activities]


def span_ns(activities: Sequence[Event]) -> int:
    """Return the time from the first start to the last end."""
    end = max(activity.end for activity in activities)
    return end - activities[0].start


def truth_by_cupti(works: Sequence[Workload], seconds: float) -> list[Comparison]:
    """Compare the period with the span of a call's kernels."""
    # before the other traces, because each trace loses more of its head than the previous one
    reported_ms = [reported_busy_ms(work.call, seconds) for work in works]
    rows = []
    for work, busy_ms in zip(works, reported_ms, strict=True):
        rows.append(compare_span(work, busy_ms, seconds))
    return rows


def compare_span(work: Workload, reported_ms: float, seconds: float) -> Comparison:
    """Measure the period before and after the trace, because clocks drift at the power limit."""
    warm_up(work.call, seconds)
    before_ms = median_period(work.call, seconds)
    traced = trace(work.call, seconds)
    measured_ms = (before_ms + median_period(work.call, seconds)) / 2
    verdict = FAIL
    if within(measured_ms, traced.span_ms):
        verdict = PASS
    elif within(traced.period_ms, traced.span_ms):
        # tracing may slow down the calls: then the traced calls are compared with their own span
        verdict = "pass, same calls"
    figures = {
        "callable": work.name,
        "busy ms": traced.busy_ms,
        "span ms": traced.span_ms,
        "period ms": measured_ms,
        "period traced ms": traced.period_ms,
        "effbench's busy ms": reported_ms,
    }
    return Comparison(figures, verdict)


def reported_busy_ms(call: Call, seconds: float) -> float:
    """Return the busy time by effbench's profiler in ms, over more calls than in a sweep, as for
    the other figures."""
    calls = min(500, int(100 / median_period(call, seconds)))
    profiled = profile.profile(call, NO_INPUTS, max(profile.CALLS, calls))
    return profiled.busy_ms


# --- 3. other timers


def by_do_bench(call: Call, seconds: float) -> float:
    from triton.testing import do_bench

    return median(do_bench(call, return_mode="all"))


def by_do_bench_cudagraph(call: Call, seconds: float) -> float:
    from triton.testing import do_bench_cudagraph

    return median(do_bench_cudagraph(call, return_mode="all"))


def by_blocked_autorange(call: Call, seconds: float) -> float:
    from torch.utils.benchmark import Timer

    measured = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=seconds)
    return 1e3 * measured.median


def by_timeit(call: Call, seconds: float) -> float:
    from torch.utils.benchmark import Timer

    timer = Timer("call()", globals={"call": call})
    samples_ms: list[float] = []
    began_s = time.perf_counter()
    while len(samples_ms) < 10 or time.perf_counter() - began_s < seconds:
        samples_ms.append(1e3 * timer.timeit(1).median)
    return median(samples_ms)


def by_inductor(call: Call, seconds: float) -> float:
    from torch._inductor.runtime.benchmarking import InductorBenchmarker

    return float(InductorBenchmarker().benchmark_gpu(call))


class PeerError(Exception):
    """Another timer failed."""


@dataclass(frozen=True)
class Peer:
    """Another timer. `ours`: effbench's timer that measures the same; `captures`: whether it
    captures a graph."""

    name: str
    function: Callable[[Call, float], float]
    ours: str = "period"
    captures: bool = False

    def time(self, work: Workload, seconds: float) -> float:
        """Return the time that it prints, in ms. Raises PeerError."""
        call = work.call
        if self.captures:
            call = work.capturable
        try:
            return self.function(call, seconds)
        except Exception as failed:
            message = f"{type(failed).__name__}: {failed}".splitlines()[0]
            raise PeerError(message[:160]) from failed

    def time_by_effbench(self, call: Call, seconds: float) -> float:
        if self.ours == "period":
            return median_period(call, seconds)
        return median_latency(call, seconds)


PEERS = (
    Peer("triton do_bench", by_do_bench),
    Peer("triton do_bench_cudagraph", by_do_bench_cudagraph, captures=True),
    Peer("torch Timer, blocked_autorange", by_blocked_autorange),
    Peer("torch Timer, timeit(1)", by_timeit, ours="latency"),
    Peer("Inductor's benchmarker", by_inductor),
)


def against_peers(work: Workload, seconds: float) -> list[Mapping[str, object]]:
    """Compare other timers with effbench's, and return a row for each."""
    warm_up(work.call, seconds)
    rows: list[Mapping[str, object]] = []
    for peer in PEERS:
        row: dict[str, object] = {
            "callable": work.name,
            "peer": peer.name,
            "our timer": peer.ours,
            "ours ms": None,
            "its ms": None,
        }
        try:
            row |= against(peer, work, seconds)
        except PeerError as error:  # the other timers can still be compared
            row["its ÷ ours"] = f"skipped: {error}"
        rows.append(row)
    return rows


def against(peer: Peer, work: Workload, seconds: float) -> dict[str, object]:
    """Return the ratio over the rounds; effbench times before and after the peer in each. Raises
    PeerError."""
    ratios = []
    ours_ms = []
    for _ in range(ROUNDS):
        before_ms = peer.time_by_effbench(work.call, seconds / 2)
        its_ms = peer.time(work, seconds)
        torch.cuda.synchronize()  # the next timer may use another stream
        after_ms = peer.time_by_effbench(work.call, seconds / 2)
        ours_ms.append(math.sqrt(before_ms * after_ms))
        ratios.append(its_ms / ours_ms[-1])
    ratio = log_mean(ratios).interval()
    return {
        "ours ms": median(ours_ms),
        "its ms": median(ours_ms) * ratio.value,
        "its ÷ ours": f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})",
    }


# --- what is timed


def workloads() -> list[Workload]:
    bf16 = {"device": DEVICE, "dtype": torch.bfloat16}
    a = torch.randn(MATRIX, MATRIX, **bf16)
    b = torch.randn(MATRIX, MATRIX, **bf16)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    x = torch.randn(ELEMENTS, **bf16)
    y = torch.empty_like(x)
    one = torch.zeros(1, device=DEVICE)
    plain = {
        f"matrix product {MATRIX}³": partial(torch.mm, a, b),
        f"copy of {COPY_BYTES / 2**20:.0f} MiB": partial(target.copy_, source),
        f"elementwise, {x.nbytes / 2**20:.0f} MiB": partial(torch.mul, x, 2.0, out=y),
    }
    long_attention = partial(AttentionBlock, seq=512)
    short_attention = partial(AttentionBlock, seq=128)
    wide_mlp = partial(MLP, width=4096)
    return [
        *(Workload(name, call, call, truth=True) for name, call in plain.items()),
        graph("lin3 bs 512, graph", LinearStack, (512, 1000), truth=True),
        graph("mlp 4096 bs 2048, graph", wide_mlp, (2048, 4096), truth=True),
        graph("lin3 bs 8, graph", LinearStack, (8, 1000), truth=True),
        graph("attention bs 8, graph", long_attention, (8, 512, 1024), truth=True),
        graph("mlp bs 8, graph", MLP, (8, 1024)),
        eager("mlp bs 8, eager", MLP, (8, 1024)),
        eager("attention bs 1, eager", short_attention, (1, 128, 1024)),
        Workload("add to one number", partial(one.add_, 1), partial(one.add_, 1)),
    ]


def eager(name: str, build: Callable[[], torch.nn.Module], shape: Sequence[int]) -> Workload:
    module, x = module_and_input(build, shape)
    call = partial(module, x)
    return Workload(name, call, call)


def graph(
    name: str, build: Callable[[], torch.nn.Module], shape: Sequence[int], truth: bool = False
) -> Workload:
    module, x = module_and_input(build, shape)
    static = x.clone()
    step = CudaGraph().prepare(module, Example((x,))).step
    return Workload(name, partial(step, x), lambda: module(static.copy_(x)), truth)


def module_and_input(
    build: Callable[[], torch.nn.Module], shape: Sequence[int]
) -> tuple[torch.nn.Module, torch.Tensor]:
    with torch.device(DEVICE):
        module = build().to(torch.bfloat16).eval()
        return module, torch.randn(*shape, dtype=torch.bfloat16)


# --- command line


def print_table(title: str, rows: Sequence[Mapping[str, object]]) -> None:
    print(f"\n{title}\n")
    if not rows:
        print("NVML does not report the SM clock here, so nothing was compared.")
        return
    columns = [Column(heading) for heading in rows[0]]
    texts = [map(text, row.values()) for row in rows]
    print(Table.of(columns, texts).render("markdown"))


def text(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="time of each timer in s (default: %(default)s)"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    gpu = Gpu.open(str(torch.cuda.get_device_properties(0).uuid))
    peers: list[Mapping[str, object]] = []
    with torch.inference_mode(), timing.no_garbage_collection():
        works = workloads()
        # CUPTI last, because launches are slower once it has been attached
        for work in works:
            peers += against_peers(work, args.seconds / 2)
        spins, slopes = truth_by_spinning(args.seconds / 2, gpu)
        cupti = truth_by_cupti([work for work in works if work.truth], args.seconds / 2)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print_table("Spins of known cycles", [spin.row for spin in spins])
    print_table("Slopes between them", [slope.row for slope in slopes])
    print_table("GPU-bound callables against CUPTI", [row.row for row in cupti])
    print_table("Other timers on the same callables", peers)
    compared = [*spins, *slopes, *cupti]
    passed = sum(comparison.passes for comparison in compared)
    print(f"\n{passed} of {len(compared)} comparisons with the truth pass.")
    return int(passed < len(compared))


if __name__ == "__main__":
    sys.exit(main())
