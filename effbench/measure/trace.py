"""Trace synchronised calls: what ran in a call, in order, and where the rest of its time went.

On a GPU two traces are taken. The first one records only what CUDA does, because each recorded
activity delays the host: it gives the times. The second one also records operators: it tells which
of them launched a kernel, and what the host did. On the CPU one trace of the operators gives both.
"""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from effbench.core.errors import UnsupportedError
from effbench.core.trace import MOST_KERNELS, Kernel, Trace
from effbench.measure.profile import LAUNCH
from effbench.models.inputs import Inputs, Step

#: How long all traced calls may take, and how many there are at least and at most.
TRACED_S = 0.05
FEWEST_CALLS, MOST_CALLS = 2, 12
#: Name of the event around a call.
CALL = "effbench: call"
SYNCHRONISE = "cudaDeviceSynchronize"
#: An Inductor graph; on the CPU its own time is that of its fused loops.
COMPILED_GRAPH = "## Call CompiledFxGraph"
FUSED_LOOPS = "fused loops"
#: Beginning of an event's name -> what the host does in it, apart from what it calls.
HOST_WORK = {
    "TorchDynamo Cache Lookup": "guards",
    "Torch-Compiled Region": "compiled wrapper",
    "Pregraph bytecode": "compiled wrapper",
    "AOTDispatcher Runtime Wrapper": "compiled wrapper",
    COMPILED_GRAPH: "compiled wrapper",
    "cudaGraphLaunch": "graph launch",
    "cuGraphLaunch": "graph launch",
    "cudaLaunch": "kernel launches",
    "cuLaunch": "kernel launches",
    "cudaMemcpy": "copies",
    "cudaMemset": "copies",
    "cudaDeviceSynchronize": "waiting for the GPU",
    "cudaStreamSynchronize": "waiting for the GPU",
    "cudaEventSynchronize": "waiting for the GPU",
}
OPERATORS = "operators"
ATTENTION = "scaled_dot_product_attention"
PYTHON = "Python"


@dataclass(frozen=True)
class Event:
    """Something that the profiler recorded. Times in ns. `id`: of the host's call, or of the one
    that launched a kernel."""

    name: str
    start: int
    end: int
    id: int
    launch: str = ""


@dataclass(eq=False)
class Span:
    """An event on the host with those inside it. `inner`: the part of its ns that they take."""

    event: Event
    parent: Span | None = None
    inner: int = 0

    @property
    def own(self) -> int:
        return self.event.end - self.event.start - self.inner


@dataclass(frozen=True)
class Call:
    """What was recorded during a call: on the host, and on the GPU, in order of their start."""

    start: int
    end: int
    host: Sequence[Event] = ()
    gpu: Sequence[Event] = ()

    @property
    def ns(self) -> int:
        return self.end - self.start


def take_trace(
    step: Step, inputs: Sequence[Inputs], device: torch.device, latency_ms: float
) -> Trace:
    """Trace some synchronised calls and return what ran in them. `latency_ms`: about how long one
    takes. Raises UnsupportedError, and what the step or the profiler raises."""
    calls = round(1000 * TRACED_S / latency_ms)
    calls = max(FEWEST_CALLS, min(MOST_CALLS, calls))
    if device.type == "cuda":
        return trace_gpu(step, inputs, calls)
    return trace_cpu(step, inputs, calls)


# --- recording


def record(
    step: Step, inputs: Sequence[Inputs], calls: int, *activities: ProfilerActivity
) -> list[Call]:
    """Return what the profiler records in `calls` calls after one that does not count."""
    on_cuda = ProfilerActivity.CUDA in activities
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about profiler cycles, which are not used
        # private, but without it the launch shapes require an exported trace
        config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=on_cuda)
        trace = torch.profiler.profile(activities=activities, experimental_config=config)
        with trace:
            for args, kwargs in itertools.islice(itertools.cycle(inputs), calls + 1):
                if on_cuda:
                    torch.cuda.synchronize()
                with torch._C._profiler._RecordFunctionFast(CALL):
                    step(*args, **kwargs)
                    if on_cuda:
                        torch.cuda.synchronize()
        recorded = trace.profiler.kineto_results.events()
    host, gpu = [], []
    for event in recorded:
        start = event.start_ns()
        end = start + event.duration_ns()
        if event.device_type() == DeviceType.CUDA:
            name, launch = event.name(), event.metadata_json()
            gpu.append(Event(name, start, end, event.linked_correlation_id(), launch))
        else:
            host.append(Event(event.name(), start, end, event.correlation_id()))
    by_start = sorted(host, key=lambda event: (event.start, -event.end))
    if ProfilerActivity.CPU in activities:
        windows = [(event.start, event.end) for event in by_start if event.name == CALL]
    else:
        windows = synchronised_windows(by_start, calls + 1)
    return sorted_into_calls(windows[1:], by_start, sorted(gpu, key=lambda event: event.start))


def synchronised_windows(host: Sequence[Event], calls: int) -> list[tuple[int, int]]:
    """Return start and end of each call, which are the ends of two synchronisations. The profiler
    adds one when it stops. Raises UnsupportedError if the step has more of them."""
    ends = [event.end for event in host if event.name == SYNCHRONISE]
    if len(ends) not in (2 * calls, 2 * calls + 1):
        raise UnsupportedError("the step synchronises the device itself")
    return [(ends[2 * number], ends[2 * number + 1]) for number in range(calls)]


def sorted_into_calls(
    windows: Iterable[tuple[int, int]], host: Sequence[Event], gpu: Sequence[Event]
) -> list[Call]:
    """Return the events of each window; both kinds are in order of their start."""
    host = [event for event in host if event.name != CALL]
    calls = []
    for start, end in windows:
        calls.append(Call(start, end, between(host, start, end), between(gpu, start, end)))
    return calls


def between(events: Sequence[Event], start: int, end: int) -> Sequence[Event]:
    """Return the events that start in this time."""
    first = bisect_left(events, start, key=attrgetter("start"))
    last = bisect_left(events, end, key=attrgetter("start"))
    return events[first:last]


def spans_of(events: Iterable[Event]) -> list[Span]:
    """Return the events of the host as spans, each inside the newest one that has not ended."""
    spans = []
    parent: Span | None = None
    for event in events:
        while parent is not None and parent.event.end <= event.start:
            parent = parent.parent
        span = Span(event, parent)
        if parent is not None:
            parent.inner += min(event.end, parent.event.end) - event.start
        spans.append(span)
        parent = span
    return spans


def host_work(calls: Sequence[Call]) -> dict[str, float]:
    """Return ms per call by what the host did, longest first."""
    spent_ns: Counter[str] = Counter()
    for call in calls:
        spent_ns[PYTHON] += call.ns
        for span in spans_of(call.host):
            spent_ns[work_of(span.event.name)] += span.own
            if span.parent is None:
                spent_ns[PYTHON] -= span.event.end - span.event.start
    return {name: ns / len(calls) / 1e6 for name, ns in spent_ns.most_common()}


def work_of(name: str) -> str:
    for beginning, work in HOST_WORK.items():
        if name.startswith(beginning):
            return work
    return OPERATORS


# --- what ran


@dataclass(frozen=True)
class TracedCall:
    """What ran in one call; the fields are those of a Trace."""

    latency_ms: float
    before_ms: float
    after_ms: float
    events: int
    kernels: list[Kernel]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self.kernels)


def trace_gpu(step: Step, inputs: Sequence[Inputs], calls: int) -> Trace:
    recorded = record(step, inputs, calls, ProfilerActivity.CUDA)
    named = record(step, inputs, FEWEST_CALLS, ProfilerActivity.CPU, ProfilerActivity.CUDA)
    operators = operators_of(named[-1])
    traced = [gpu_call(call, operators) for call in recorded]
    return averaged("cuda", traced, host_work(named))


def operators_of(call: Call) -> list[tuple[str, str | None]]:
    """Return each kernel's name and the operator that launched it; None in a CUDA graph."""
    by_id: dict[int, str] = {}
    for span in spans_of(call.host):
        if work_of(span.event.name) == OPERATORS:
            by_id[span.event.id] = launcher_of(span)
    return [(event.name, by_id.get(event.id)) for event in call.gpu]


def launcher_of(span: Span) -> str:
    """Return the name of an operator, or of the attention that it is a part of: without its own
    kernel, attention consists of matrix products and others."""
    above: Span | None = span
    while above is not None:
        if ATTENTION in above.event.name:
            return above.event.name
        above = above.parent
    return span.event.name


def gpu_call(call: Call, operators: Sequence[tuple[str, str | None]]) -> TracedCall:
    """Return what ran in a call. `operators`: of the same kernels in a call in which operators were
    recorded; they are unknown if it launched others."""
    names = [event.name for event in call.gpu]
    if names != [name for name, _ in operators]:
        operators = [(name, None) for name in names]
    kernels = []
    end = call.gpu[0].start if call.gpu else call.start
    for event, (_, operator) in zip(call.gpu, operators, strict=True):
        gap = max(0, event.start - end)
        added = max(0, event.end - max(event.start, end))
        end = max(end, event.end)
        launch = ", ".join(f"{what} {size}" for what, size in LAUNCH.findall(event.launch))
        ns = event.end - event.start
        kernels.append(Kernel(event.name, launch, operator, ns / 1e6, added / 1e6, gap / 1e6))
    before = call.gpu[0].start - call.start if call.gpu else 0
    return traced_call(call, before, end, kernels)


def trace_cpu(step: Step, inputs: Sequence[Inputs], calls: int) -> Trace:
    recorded = record(step, inputs, calls, ProfilerActivity.CPU)
    return averaged("cpu", [cpu_call(call) for call in recorded], host_work(recorded))


def cpu_call(call: Call) -> TracedCall:
    """Return the operators of a call, each without the time of those that it calls."""
    spans = [span for span in spans_of(call.host) if is_work_on_cpu(span.event.name)]
    kernels: list[Kernel] = []
    end = call.start
    for span in spans:
        outermost = span
        above = span.parent
        while above is not None:
            if is_work_on_cpu(above.event.name):
                outermost = above
            above = above.parent
        gap = 0
        if outermost is span:
            gap = max(0, span.event.start - end)
            end = max(end, span.event.end)
        name, own = kernel_name(span.event.name), span.own / 1e6
        if not kernels:
            gap = 0  # this is the time before the first one
        kernels.append(Kernel(name, "", kernel_name(outermost.event.name), own, own, gap / 1e6))
    before = spans[0].event.start - call.start if spans else 0
    return traced_call(call, before, end, kernels)


def is_work_on_cpu(name: str) -> bool:
    """Return whether the model's work is done in this event itself."""
    return work_of(name) == OPERATORS or name.startswith(COMPILED_GRAPH)


def kernel_name(event_name: str) -> str:
    return FUSED_LOOPS if event_name.startswith(COMPILED_GRAPH) else event_name


def traced_call(call: Call, before: int, end: int, kernels: list[Kernel]) -> TracedCall:
    """Return a call whose first kernel started `before` ns after it, and whose last one ended at
    `end`."""
    after = max(0, call.end - end)
    events = len(call.host) + len(call.gpu)
    return TracedCall(call.ns / 1e6, before / 1e6, after / 1e6, events, kernels)


def averaged(device: str, calls: Sequence[TracedCall], host: dict[str, float]) -> Trace:
    """Return the mean of the faster half of the calls with the most usual kernels. Raises
    UnsupportedError."""
    ((kinds, _),) = Counter(call.kinds for call in calls).most_common(1)
    if not kinds:
        raise UnsupportedError("the profiler recorded nothing")
    if len(kinds) > MOST_KERNELS:
        raise UnsupportedError(f"a call runs more than {MOST_KERNELS:,} kernels")
    alike = sorted((call for call in calls if call.kinds == kinds), key=attrgetter("latency_ms"))
    faster = alike[: math.ceil(len(alike) / 2)]
    kernels: list[Kernel] = []
    for same in zip(*(call.kernels for call in faster), strict=True):
        kernels.append(
            replace(
                same[0],
                ms=statistics.fmean(kernel.ms for kernel in same),
                added_ms=statistics.fmean(kernel.added_ms for kernel in same),
                gap_ms=statistics.fmean(kernel.gap_ms for kernel in same),
            )
        )
    return Trace(
        device=device,
        calls=len(calls),
        latency_ms=statistics.fmean(call.latency_ms for call in faster),
        before_ms=statistics.fmean(call.before_ms for call in faster),
        after_ms=statistics.fmean(call.after_ms for call in faster),
        events=round(statistics.fmean(call.events for call in faster)),
        kernels=tuple(kernels),
        host=host,
    )
