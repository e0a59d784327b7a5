"""Are effbench's timers right, and where they differ from what others print, why?

    python benchmarks/truth.py [--seconds 0.5] [--out truth.json] [--format text|markdown]

One process, one run: (1) a kernel that spins for a known number of SM cycles, at a clock that NVML reads meanwhile;
(2) GPU-bound callables against CUPTI's own timestamps of their kernels; (3) the timers of triton, torch and Inductor
on the same callables, in turns with ours, every disagreement held against a measurement that would explain it (the
rules are in truth_rules.py). Exits with 1 where (1) or (2) fails, or a GPU-bound graph disagrees with a peer by more
than 1 % and nothing explains it. Needs CUDA; about four minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import truth_judge as judge
import truth_peers as peers
import truth_tables as tables
from truth_peers import Workload, latency, period, warm_up

from effbench.measure import profile, timing
from effbench.measure.telemetry import Telemetry
from effbench.models.attention import AttentionBlock
from effbench.models.mlp import MLP, LinearStack
from effbench.modes.graphs import CudaGraph

RELATIVE, ABSOLUTE_MS = 0.01, 0.001  # right: within 1 % or 1 µs
CYCLES = (40_000, 200_000, 2_000_000, 20_000_000)  # 0.02, 0.1, 1 and 10 ms at about 2 GHz
LATENCY_FROM_MS = 0.05  # a latency is the host's as well, and not known to a microsecond
LAUNCHES = 500
MATRIX = 8192
COPY_BYTES = 2**30
ELEMENTS = 2**27  # 256 MiB in bf16
PASS = "pass"


# --- judging, without a GPU ---


def within(measured_ms: float, expected_ms: float) -> bool:
    return abs(measured_ms - expected_ms) <= max(RELATIVE * expected_ms, ABSOLUTE_MS)


def judge_spin(measured_ms: float, expected_ms: float, launch_ms: float) -> str:
    """A kernel costs its launch as well: that is no error of the timer, as far as it was measured by itself."""
    if within(measured_ms, expected_ms):
        return PASS
    return "pass, less a launch" if within(measured_ms - launch_ms, expected_ms) else "FAIL"


def judge_span(period_ms: float, span_ms: float | None, traced_ms: float, busy_ms: float) -> str:
    """Against CUPTI's span; where tracing itself stretches the calls, the period of the very calls that it traced."""
    if span_ms is None:
        return "pass, against busy" if within(period_ms, busy_ms) else "FAIL"
    if within(period_ms, span_ms):
        return PASS
    return "pass, same calls" if within(traced_ms, span_ms) else "FAIL"


# --- 1. spinning for known cycles ---


@dataclass(frozen=True)
class Spin:
    cycles: int
    clock_mhz: float
    expected_ms: float
    period_ms: float
    latency_ms: float
    verdict: str
    cupti_ms: float | None = None


@dataclass(frozen=True)
class Slope:
    """Between two lengths: what a launch and a synchronisation cost is in both and falls out. `clock_mhz`: the clock
    at which the measured difference would be exact."""

    timer: str
    lengths: tuple[float, float]
    expected_ms: float
    measured_ms: float
    clock_mhz: float
    verdict: str


def spin(cycles: int) -> Callable[[], None]:
    return partial(torch.cuda._sleep, cycles)


def clocks_while_spinning(gpu: Telemetry) -> list[int]:
    torch.cuda.synchronize()
    torch.cuda._sleep(3 * CYCLES[-1])
    time.sleep(0.005)
    found = [gpu.read().sm_clock_mhz for _ in range(2)]
    torch.cuda.synchronize()
    return [clock for clock in found if clock]


def launch_ms() -> float:
    """What a launch costs the GPU: of spins that end at once."""
    return peers.queued_ms(spin(1), LAUNCHES)


def kernel_ms(call: Callable, calls: int) -> float | None:
    """CUPTI's duration of the call's one kernel: by those in the trace, since its head may be lost."""
    top = profile.profile(call, peers.NO_INPUTS, calls).top
    return top[0]["ms"] / top[0]["count"] if top else None


def with_cupti(one: Spin) -> Spin:
    return replace(one, cupti_ms=kernel_ms(spin(one.cycles), max(12, min(200, int(100 / one.expected_ms)))))


def truth_by_spinning(seconds: float, gpu: Telemetry) -> tuple[list[Spin], list[Slope], float]:
    """Known cycles are known time. Nothing where NVML does not say the clock."""
    clocks: dict[int, list[int]] = {cycles: [] for cycles in CYCLES}
    periods: dict[int, list[float]] = {cycles: [] for cycles in CYCLES}
    latencies: dict[int, list[float]] = {cycles: [] for cycles in CYCLES}
    warm_up(spin(CYCLES[-1]), seconds)
    launches = [launch_ms()]
    for order in (CYCLES, CYCLES[::-1]):
        for cycles in order:
            clocks[cycles] += clocks_while_spinning(gpu)
            periods[cycles].append(median(period(spin(cycles), seconds).samples_ms))
            latencies[cycles].append(median(latency(spin(cycles), seconds / 2).samples_ms))
            clocks[cycles] += clocks_while_spinning(gpu)
    launches.append(launch_ms())
    launch = median(launches)
    if not all(clocks.values()):
        return [], [], launch
    spins = []
    for cycles in CYCLES:
        clock, measured = median(clocks[cycles]), median(periods[cycles])
        expected = cycles / clock / 1e3
        verdict = judge_spin(measured, expected, launch)
        spins.append(Spin(cycles, clock, expected, measured, median(latencies[cycles]), verdict))
    return spins, slopes(spins), launch


def slopes(spins: Sequence[Spin]) -> list[Slope]:
    found = []
    for timer in ("period", "latency"):
        for short, long in pairwise(spins):
            if timer == "latency" and short.expected_ms < LATENCY_FROM_MS:
                continue
            expected = long.expected_ms - short.expected_ms
            measured = getattr(long, f"{timer}_ms") - getattr(short, f"{timer}_ms")
            clock = (long.cycles - short.cycles) / measured / 1e3 if measured > 0 else 0.0
            verdict = PASS if within(measured, expected) else "FAIL"
            found.append(Slope(timer, (short.expected_ms, long.expected_ms), expected, measured, clock, verdict))
    return found


# --- 2. CUPTI's timestamps ---


@dataclass(frozen=True)
class Traced:
    """The period by effbench's timer while CUPTI traced it, and of the same blocks by CUPTI: the span from the first
    start to the last end, and the busy time (None where the trace does not divide into calls)."""

    period_ms: float
    span_ms: float | None
    busy_ms: float | None
    kernels: int


@dataclass(frozen=True)
class Held:
    """A callable against CUPTI. `profile_ms`: the busy time that effbench reports."""

    callable: str
    profile_ms: float
    traced: Traced
    period_ms: float
    verdict: str


def trace_period(call: Callable, seconds: float) -> Traced:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as tracer

    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        call()

    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on cycles, which this has none of
        with tracer(activities=[ProfilerActivity.CUDA]) as trace:
            timed = period(counted, seconds)
            torch.cuda.synchronize()
    activities = [
        profile.Activity(event.name(), event.start_ns(), event.duration_ns(), event.correlation_id())
        for event in trace.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    return held_against(timed, activities, calls)


def held_against(timed: timing.Timing, activities: Sequence[profile.Activity], calls: int) -> Traced:
    """`calls`: all under the tracer, of which the last are those of the blocks."""
    each = round(len(activities) / calls)
    blocks = blocks_of(activities, each, timed.calls_per_block, len(timed.samples_ms))
    if not blocks:
        return Traced(median(timed.samples_ms), None, None, each)
    measured = median(timed.samples_ms[-len(blocks) :])
    a_call = timed.calls_per_block * 1e6
    spans = [(max(one.start + one.duration for one in block) - block[0].start) / a_call for block in blocks]
    busy = [profile.union_ns(block) / a_call for block in blocks]
    return Traced(measured, median(spans), median(busy), each)


def blocks_of(
    activities: Sequence[profile.Activity], each: int, calls_per_block: int, blocks: int
) -> list[list[profile.Activity]]:
    """The activities of the last blocks, at most `blocks`, in order; `each`: activities of a call. Counted from the
    end, since the head of a trace may be lost (pytorch issue 192021). Empty where the calls are not alike."""
    size = each * calls_per_block
    if size == 0:
        return []
    tail = sorted(activities, key=lambda one: one.start)[-size * min(blocks, len(activities) // size) :]
    # two kernels of a call may overlap and so change places, but each call has the same ones
    kinds = [sorted(one.name for one in tail[at : at + each]) for at in range(0, len(tail), each)]
    if len(tail) < size or any(kind != kinds[0] for kind in kinds):
        return []
    return [tail[at : at + size] for at in range(0, len(tail), size)]


def truth_by_cupti(works: Sequence[Workload], seconds: float) -> list[Held]:
    """Period, trace, period: the clocks of a GPU at its power limit drift."""
    # before the other traces: each loses more of its head than the one before
    reported = {work.name: reported_busy_ms(work.call, seconds) for work in works}
    found = []
    for work in works:
        warm_up(work.call, seconds)
        before = median(period(work.call, seconds).samples_ms)
        traced = trace_period(work.call, seconds)
        measured = (before + median(period(work.call, seconds).samples_ms)) / 2
        verdict = judge_span(measured, traced.span_ms, traced.period_ms, reported[work.name])
        found.append(Held(work.name, reported[work.name], traced, measured, verdict))
    return found


def reported_busy_ms(call: Callable, seconds: float) -> float:
    """Over more calls than a sweep's, so that clocks and trace are those of the other figures here."""
    one_ms = median(period(call, seconds).samples_ms)
    return profile.profile(call, peers.NO_INPUTS, max(profile.CALLS, min(500, int(100 / one_ms)))).busy_ms


# --- what is timed ---


def of_module(
    name: str, build: Callable[[], torch.nn.Module], shape: Sequence[int], graph: bool = False, truth: bool = False
) -> Workload:
    with torch.device(peers.DEVICE):
        module = build().to(torch.bfloat16).eval()
        x = torch.randn(*shape, dtype=torch.bfloat16)
    if not graph:
        return Workload(name, partial(module, x), partial(module, x), truth=truth)
    static = x.clone()
    step = CudaGraph().prepare(module, (x,), {}).step
    return Workload(name, partial(step, x), lambda: module(static.copy_(x)), graph, truth)


def workloads() -> list[Workload]:
    bf16 = {"device": peers.DEVICE, "dtype": torch.bfloat16}
    a, b = (torch.randn(MATRIX, MATRIX, **bf16) for _ in range(2))
    source, target = (torch.empty(COPY_BYTES, dtype=torch.uint8, device=peers.DEVICE) for _ in range(2))
    x, y = torch.randn(ELEMENTS, **bf16), torch.empty(ELEMENTS, **bf16)
    tiny = torch.zeros(1, device=peers.DEVICE)
    plain = {
        f"matrix product {MATRIX}³": partial(torch.mm, a, b),
        f"copy of {COPY_BYTES / 2**20:.0f} MiB": partial(target.copy_, source),
        f"elementwise, {x.nbytes / 2**20:.0f} MiB": partial(torch.mul, x, 2.0, out=y),
    }
    return [
        *(Workload(name, call, call, truth=True) for name, call in plain.items()),
        of_module("lin3 bs 512, graph", LinearStack, (512, 1000), graph=True, truth=True),
        of_module("mlp 4096 bs 2048, graph", partial(MLP, width=4096), (2048, 4096), graph=True, truth=True),
        of_module("lin3 bs 8, graph", LinearStack, (8, 1000), graph=True, truth=True),
        of_module("attention bs 8, graph", partial(AttentionBlock, seq=512), (8, 512, 1024), graph=True, truth=True),
        of_module("mlp bs 8, graph", MLP, (8, 1024), graph=True),
        of_module("mlp bs 8, eager", MLP, (8, 1024)),
        of_module("attention bs 1, eager", partial(AttentionBlock, seq=128), (1, 128, 1024)),
        Workload("add to one number", partial(tiny.add_, 1), partial(tiny.add_, 1)),
    ]


def environment() -> dict[str, Any]:
    try:
        import triton

        version = triton.__version__
    except ImportError:
        version = "none"
    return {"GPU": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": version}


# --- all of it ---


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--seconds", type=float, default=0.5, help="of each timer, over its turns (default: %(default)s)")
    made.add_argument("--out", help="write all figures there as JSON")
    made.add_argument("--format", choices=("text", "markdown"), default="text", help="default: %(default)s")
    return made


def run(seconds: float, markdown: bool) -> tuple[str, dict[str, Any], int]:
    """The text, all figures, and the exit code."""
    gpu = Telemetry.open(str(torch.cuda.get_device_properties(0).uuid))
    began = time.monotonic()
    turn = seconds / 2
    with torch.inference_mode(), timing.no_garbage_collection():
        works = workloads()
        found = []
        # CUPTI last: once it has been attached, launches cost more than before
        for work in works:
            say(f"{work.name}: peers", began)
            found += judge.compare(work, turn / 2, gpu)
        say("spinning", began)
        spins, between, launch = truth_by_spinning(turn, gpu)
        say("CUPTI", began)
        held = truth_by_cupti([work for work in works if work.truth], turn)
        spins = [with_cupti(one) for one in spins]
    say("done", began)
    last, code = tables.summary([one.verdict for one in (*spins, *between, *held)], found)
    parts = {
        "1. A spin of known cycles": tables.spin_tables(spins, between, launch, markdown),
        "2. GPU-bound callables against CUPTI": tables.cupti_table(held, markdown),
        "3. Other timers on the same callables": tables.peer_table(found, markdown),
    }
    figures = {
        "environment": environment(),
        "launch_ms": launch,
        "spins": [asdict(one) for one in spins],
        "slopes": [asdict(one) for one in between],
        "cupti": [asdict(one) for one in held],
        "peers": [{**asdict(row), "difference": row.difference} for row in found],
    }
    return tables.report(parts, environment(), last, markdown), figures, code


def say(what: str, began: float) -> None:
    print(f"{time.monotonic() - began:5.0f} s  {what}", file=sys.stderr)


def main() -> int:
    args = parser().parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    text, figures, code = run(args.seconds, args.format == "markdown")
    print(text)
    if args.out:
        Path(args.out).write_text(json.dumps(figures, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main())
