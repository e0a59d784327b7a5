"""A separate profiled pass: kernels of a call, busy time of the GPU, and kernels in CUDA graphs.

Never while timing: tracing delays the launches. The kernels themselves take as long as otherwise.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from effbench.measure.timing import Inputs, play

CALLS = 12
TOP = 10
NAME_LENGTH = 160
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass(frozen=True)
class Activity:
    """A kernel or copy on the GPU. Times in ns; `correlation` identifies the host's call that launched it."""

    name: str
    start: int
    duration: int
    correlation: int


@dataclass(frozen=True)
class Profile:
    """The profile of one call. `facts`: calls that were traced, kernels in CUDA graphs, and the largest kernels by
    name, with count and busy milliseconds a call and their share of all."""

    busy_ms: float
    kernels: int
    facts: dict[str, Any]


def profile(
    step: Callable, inputs: Sequence[Inputs], calls: int = CALLS, before: Callable[[], None] = lambda: None
) -> Profile:
    """Trace `calls` back-to-back calls on CUDA. `before` runs when the tracer is ready but not yet tracing: the calls
    run at the clocks that it leaves."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on cycles, which are not used here
        trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        trace.prepare_trace()
        before()
        trace.start_trace()
        play(step, itertools.cycle(inputs), calls)
        torch.cuda.synchronize()
        trace.stop_trace()
    activities, graph_launches = [], set()
    for event in trace.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            activities.append(Activity(event.name(), event.start_ns(), event.duration_ns(), event.correlation_id()))
        elif event.name().startswith(GRAPH_LAUNCHES):
            graph_launches.add(event.correlation_id())
    return summarise(activities, graph_launches, calls)


def summarise(activities: Sequence[Activity], graph_launches: set[int], calls: int) -> Profile:
    """Return the profile of one call from the activities of `calls` calls. `graph_launches`: their correlations."""
    durations: dict[str, list[int]] = {}
    for activity in activities:
        durations.setdefault(activity.name, []).append(activity.duration)
    total = sum(activity.duration for activity in activities)
    largest = sorted(durations.items(), key=lambda item: -sum(item[1]))[:TOP]
    top = [
        {
            "name": name[:NAME_LENGTH],
            "count": len(ns) / calls,
            "ms": sum(ns) / calls / 1e6,
            "share": sum(ns) / total if total else 0.0,
        }
        for name, ns in largest
    ]
    in_graphs = round(sum(activity.correlation in graph_launches for activity in activities) / calls)
    facts = {"calls": calls, "kernels_in_graphs": in_graphs, "top": top}
    return Profile(union_ns(activities) / calls / 1e6, round(len(activities) / calls), facts)


def union_ns(activities: Iterable[Activity]) -> int:
    """Return the nanoseconds in which anything ran: kernels that overlap count once."""
    busy = end = 0
    for activity in sorted(activities, key=lambda item: item.start):
        finish = activity.start + activity.duration
        if finish > end:
            busy += finish - max(activity.start, end)
            end = finish
    return busy
