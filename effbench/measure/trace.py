"""Trace synchronised calls: what ran in a call, in order, and where the rest of its time went.

On a GPU two traces are taken. The first one records only what CUDA does, because each recorded
activity delays the host: it gives the times. The second one also records operators: it tells which
of them launched a kernel, and what the host did. On the CPU one trace of the operators gives both.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from effbench.core.errors import UnsupportedError
from effbench.core.labels import grouped
from effbench.core.trace import DIGITS, KERNEL_TIMES, MOST_KERNELS, Kernel, Trace
from effbench.measure.led_step import LedStep
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
    CALL: "Python",
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
#: Names of kernels and operators that compute attention, or its softmax alone.
ATTENTION_NAME = re.compile(r"attention|flash|fmha|sdpa|softmax", re.IGNORECASE)
#: Names of kernels of collectives.
COLLECTIVE = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
#: Beginning of the names of collectives on the CPU, which run in another thread.
GLOO = "gloo:"
#: The same of operators that start a collective or wait for one.
COMMUNICATION = ("c10d::", "_c10d_functional::", "record_param_comms")
#: The part of kineto's metadata that belongs to the kernel; the rest varies, such as streams.
LAUNCH = re.compile(r'"(grid|block|shared memory)": (\[[^]]*\]|\d+)')
OPERATORS = "operators"
ATTENTION = "scaled_dot_product_attention"


@dataclass(eq=False)
class Event:
    """Something that the profiler recorded. Times in ns. `id`: of the host's call, or of the one
    that launched a kernel. `launch`: the kernel's shapes and others, as kineto writes them.
    `parent`: the event of the host in which this one happened; `inner`: the part of its time that
    such events inside it take."""

    name: str
    start: int
    end: int
    id: int = 0
    launch: str = ""
    parent: Event | None = None
    inner: int = 0

    @property
    def own(self) -> int:
        return self.end - self.start - self.inner

    @property
    def lineage(self) -> Iterator[Event]:
        """This event and those around it, the outermost one last."""
        event: Event | None = self
        while event is not None:
            yield event
            event = event.parent


@dataclass(frozen=True)
class Call:
    """What was recorded during a call: on the host, and on the GPU, in order of their start."""

    whole: Event
    host: Sequence[Event] = ()
    gpu: Sequence[Event] = ()


@dataclass(frozen=True)
class RecordedCalls:
    """What was recorded in synchronised calls. `timed`: the calls that give the times; `named`:
    those in which operators were recorded, too."""

    device: str
    timed: Sequence[Call]
    named: Sequence[Call]


def trace_of(recorded: RecordedCalls) -> Trace:
    """Return what ran in a call. Raises UnsupportedError."""
    trace = averaged([traced(call, recorded.device) for call in recorded.timed])
    return replace(with_launchers(trace, recorded.named[-1]), host=host_work(recorded.named))


# --- recording


def record_calls(
    step: Step, inputs: Sequence[Inputs], device: torch.device, latency_ms: float
) -> RecordedCalls:
    """Record some synchronised calls. `latency_ms`: about how long one takes. Raises
    UnsupportedError, and what the step or the profiler raises."""
    calls = round(1000 * TRACED_S / latency_ms)
    calls = max(FEWEST_CALLS, min(MOST_CALLS, calls))
    if device.type == "cuda":
        timed = record(step, inputs, calls, ProfilerActivity.CUDA)
        named = record(step, inputs, FEWEST_CALLS, ProfilerActivity.CPU, ProfilerActivity.CUDA)
    else:
        timed = named = record(step, inputs, calls, ProfilerActivity.CPU)
    return RecordedCalls(device.type, timed, named)


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
                if isinstance(step, LedStep):  # the next call begins when all ranks are ready
                    step.sample(0.0)
        events = trace.profiler.kineto_results.events()
    has_operators = ProfilerActivity.CPU in activities
    return split_calls(events, calls + 1, has_operators)[1:]


def split_calls(events: Iterable[Any], calls: int, has_operators: bool) -> list[Call]:
    """Return what the profiler recorded in each call, from its events in any order. `calls`: their
    number; `has_operators`: whether it recorded operators, too. Raises UnsupportedError."""
    host, gpu = [], []
    for event in events:
        if event.device_type() == DeviceType.CUDA:
            gpu.append(gpu_event(event, event.linked_correlation_id()))
        else:
            end = event.start_ns() + event.duration_ns()
            host.append(Event(event.name(), event.start_ns(), end, event.correlation_id()))
    host.sort(key=lambda event: (event.start, -event.end))
    gpu.sort(key=attrgetter("start"))
    nest(host)
    if has_operators:
        wholes = [event for event in host if event.name == CALL]
    else:
        wholes = synchronised_calls(host, calls)
    recorded = []
    for whole in wholes:
        inside = [event for event in during(whole, host) if event is not whole]
        recorded.append(Call(whole, inside, during(whole, gpu)))
    return recorded


def gpu_event(event: Any, id: int) -> Event:
    """Return kineto's event of a kernel or copy. `id`: of the call of the host that launched it."""
    end = event.start_ns() + event.duration_ns()
    return Event(event.name(), event.start_ns(), end, id, event.metadata_json())


def synchronised_calls(host: Sequence[Event], calls: int) -> list[Event]:
    """Return each call, from the end of a synchronisation to the end of another one. The profiler
    adds one when it stops. Raises UnsupportedError if the step has more of them."""
    ends = [event.end for event in host if event.name == SYNCHRONISE]
    if len(ends) not in (2 * calls, 2 * calls + 1):
        raise UnsupportedError("the step synchronises the device itself")
    return [Event(CALL, ends[2 * number], ends[2 * number + 1]) for number in range(calls)]


def during(whole: Event, events: Iterable[Event]) -> list[Event]:
    """Return the events that start in this one."""
    return [event for event in events if whole.start <= event.start < whole.end]


def nest(events: Iterable[Event]) -> None:
    """Set the parent of each event of the host, the newest one before it that has not ended, and
    the part of the parent's time that it takes."""
    parent: Event | None = None
    for event in events:
        while parent is not None and parent.end <= event.start:
            parent = parent.parent
        event.parent = parent
        if parent is not None:
            parent.inner += min(event.end, parent.end) - event.start
        parent = event


def host_work(calls: Sequence[Call]) -> dict[str, float]:
    """Return ms per call by what the host did, longest first."""
    spent_ns: Counter[str] = Counter()
    for call in calls:
        for event in (call.whole, *call.host):
            spent_ns[work_of(event)] += event.own
    return {name: round(ns / len(calls) / 1e6, DIGITS) for name, ns in spent_ns.most_common()}


def work_of(event: Event) -> str:
    for beginning, work in HOST_WORK.items():
        if event.name.startswith(beginning):
            return work
    return OPERATORS


# --- what ran


def is_operator(event: Event) -> bool:
    """Return whether the model's work on the CPU is done in this event itself."""
    return work_of(event) == OPERATORS or event.name.startswith(COMPILED_GRAPH)


def traced(call: Call, device: str) -> Trace:
    """Return the trace of a single call, without what the host did. The times of operators on the
    CPU are without those that they call."""
    events = call.gpu
    if device == "cpu":
        events = list(filter(is_operator, call.host))
    start, end = call.whole.start, call.whole.end
    if events:
        start = end = events[0].start
    kernels = []
    for event in events:
        gap = max(0, event.start - end)
        added = max(0, event.end - max(event.start, end))
        operator = None
        if device == "cpu":
            added = event.own
            *_, outermost = filter(is_operator, event.lineage)
            operator = kernel_name(outermost)
        end = max(end, event.end)
        launch = ", ".join(f"{what} {size}" for what, size in LAUNCH.findall(event.launch))
        times_ms = event.own / 1e6, added / 1e6, gap / 1e6
        kernels.append(Kernel(kernel_name(event), launch, operator, *times_ms))
    return Trace(
        device=device,
        calls=1,
        latency_ms=(call.whole.end - call.whole.start) / 1e6,
        before_ms=(start - call.whole.start) / 1e6,
        after_ms=max(0, call.whole.end - end) / 1e6,
        events=len(call.host) + len(call.gpu),
        kernels=tuple(kernels),
        host={},
    )


def kernel_name(event: Event) -> str:
    return FUSED_LOOPS if event.name.startswith(COMPILED_GRAPH) else event.name


def with_launchers(trace: Trace, named: Call) -> Trace:
    """Return the trace with the operators that launched its kernels, if a call in which operators
    were recorded launched the same ones. They are unknown in CUDA graphs."""
    if [event.name for event in named.gpu] != [kernel.name for kernel in trace.kernels]:
        return trace
    operators = {
        event.id: launcher_of(event) for event in named.host if work_of(event) == OPERATORS
    }
    kernels = []
    for kernel, event in zip(trace.kernels, named.gpu, strict=True):
        kernels.append(replace(kernel, operator=operators.get(event.id)))
    return replace(trace, kernels=tuple(kernels))


def launcher_of(operator: Event) -> str:
    """Return the name of an operator, or of the attention that it is a part of: without its own
    kernel, attention consists of matrix products and others."""
    for event in operator.lineage:
        if ATTENTION in event.name:
            return event.name
    return operator.name


# --- collectives


@dataclass(frozen=True)
class CollectiveTimes:
    """How long collectives run in a call, in ms. `exposed_ms`: the part in which nothing else runs
    on the device."""

    ms: float
    exposed_ms: float


def collective_times(recorded: RecordedCalls) -> CollectiveTimes:
    """Return the median times of the collectives in these calls."""
    spent_ns: list[int] = []
    exposed_ns: list[int] = []
    for call in recorded.timed:
        collectives: list[Event] = []
        others: list[Event] = []
        if recorded.device == "cpu":
            collectives = [event for event in call.host if event.name.startswith(GLOO)]
            others = computing(call.host)
        else:
            for event in call.gpu:
                kind = collectives if COLLECTIVE.search(event.name) else others
                kind.append(event)
        spent_ns.append(running_ns(collectives))
        exposed_ns.append(running_ns(collectives + others) - running_ns(others))
    return CollectiveTimes(statistics.median(spent_ns) / 1e6, statistics.median(exposed_ns) / 1e6)


def computing(host: Sequence[Event]) -> list[Event]:
    """Return the operators on the CPU that neither communicate nor contain one that does."""
    others: set[Event] = set()
    for event in host:
        if event.name.startswith(GLOO):  # in another thread, whatever it seems to be a part of
            others.add(event)
        elif event.name.startswith(COMMUNICATION):
            others.update(event.lineage)
    return [event for event in host if is_operator(event) and event not in others]


def running_ns(events: Iterable[Event]) -> int:
    """Return the ns in which any of these events ran."""
    spent = end = 0
    for event in sorted(events, key=attrgetter("start")):
        spent += max(0, event.end - max(event.start, end))
        end = max(end, event.end)
    return spent


Item = TypeVar("Item", Kernel, Trace)


def averaged(calls: Sequence[Trace]) -> Trace:
    """Return the mean of the faster half of the calls with the most usual kernels. Raises
    UnsupportedError."""
    by_names = grouped(calls, lambda call: tuple(kernel.name for kernel in call.kernels))
    names, alike = max(by_names.items(), key=lambda item: len(item[1]))
    if not names:
        raise UnsupportedError("the profiler recorded nothing")
    if len(names) > MOST_KERNELS:
        raise UnsupportedError(f"a call runs more than {MOST_KERNELS:,} kernels")
    alike.sort(key=attrgetter("latency_ms"))
    faster = alike[: math.ceil(len(alike) / 2)]
    kernels = []
    for same in zip(*(call.kernels for call in faster), strict=True):
        kernels.append(with_means(same, *KERNEL_TIMES))
    mean = with_means(faster, "latency_ms", "before_ms", "after_ms", "events")
    return replace(mean, calls=len(calls), events=round(mean.events), kernels=tuple(kernels))


def with_means(items: Sequence[Item], *fields: str) -> Item:
    """Return the first item with the mean of these fields."""
    means: dict[str, Any] = {}
    for field in fields:
        means[field] = round(statistics.fmean(map(attrgetter(field), items)), DIGITS)
    return replace(items[0], **means)


def attention_kernels(trace: Trace) -> list[str]:
    """Return the distinct names of kernels that computed attention, without C++ arguments."""
    names: set[str] = set()
    for kernel in trace.kernels:
        text = kernel.name
        if kernel.launch:  # a product on a GPU may belong to an attention
            text += f" {kernel.operator}"
        if ATTENTION_NAME.search(text):
            name, _, _ = kernel.name.partition("<")
            names.add(name.removeprefix("void "))
    return sorted(names)
