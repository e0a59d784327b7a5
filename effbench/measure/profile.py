"""Profile some calls: kernels per call, busy time of the GPU, and kernels in CUDA graphs.

This is separate from timing, because tracing delays launches. It does not affect the duration of
kernels.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from effbench.core.cell import digest
from effbench.measure.timing import load, play
from effbench.measure.trace import LAUNCH, Event, gpu_event, running_ns
from effbench.models.inputs import Inputs, Step
from effbench.stats.intervals import TUNED

CALLS = 12
TOP = 10
NAME_LENGTH = 160
GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")
#: Names of activities that are not kernels.
TRANSFERS = ("Memcpy", "Memset")


@dataclass(frozen=True)
class Profile:
    """The average profile of a call. `facts`: number of traced calls, kernels in CUDA graphs, and
    the longest kernels by name, with count and ms per call and their fraction (`share`) of all
    kernel time. `fingerprint`: hash of the kernels, None without any."""

    busy_ms: float
    kernels: int
    facts: dict[str, Any]
    fingerprint: str | None


def profile(
    step: Step,
    inputs: Sequence[Inputs],
    calls: int = CALLS,
    load_s: float = 0.0,
    calls_per_block: int = 1,
) -> Profile:
    """Trace `calls` back-to-back calls on CUDA and return their profile. Blocks of other calls run
    for `load_s` seconds immediately before tracing begins, which bring the clocks to their state
    under load."""
    torch.cuda.synchronize()
    # private, but without it the launch shapes require an exported trace
    config = torch._C._profiler._ExperimentalConfig(expose_kineto_event_metadata=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about profiler cycles, which are not used
        trace = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CUDA], experimental_config=config
        )
        trace.prepare_trace()
        load(step, itertools.cycle(inputs), calls_per_block, load_s)
        trace.start_trace()
        play(step, itertools.cycle(inputs), calls)
        torch.cuda.synchronize()
        trace.stop_trace()
    activities: list[Event] = []
    graph_launches: set[int] = set()
    for event in trace.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            activities.append(gpu_event(event, event.correlation_id()))
        elif event.name().startswith(GRAPH_LAUNCHES):
            graph_launches.add(event.correlation_id())
    return summarise(activities, graph_launches, calls)


def summarise(activities: Sequence[Event], graph_launches: set[int], calls: int) -> Profile:
    """Return the average profile of a call from the activities of `calls` calls. `graph_launches`:
    correlations of the launches of CUDA graphs."""
    counts = Counter(activity.name for activity in activities)
    kernel_ns: Counter[str] = Counter()
    for activity in activities:
        kernel_ns[activity.name] += activity.own
    total_ns = kernel_ns.total()
    top = []
    for name, spent_ns in kernel_ns.most_common(TOP):
        top.append(
            {
                "name": name[:NAME_LENGTH],
                "count": counts[name] / calls,
                "ms": spent_ns / calls / 1e6,
                "share": spent_ns / total_ns if total_ns else 0.0,
            }
        )
    in_graphs = sum(activity.id in graph_launches for activity in activities)
    return Profile(
        busy_ms=running_ns(activities) / calls / 1e6,
        kernels=round(len(activities) / calls),
        facts={"calls": calls, "kernels_in_graphs": round(in_graphs / calls), "top": top},
        fingerprint=fingerprint(activities),
    )


def fingerprint(activities: Iterable[Event]) -> str | None:
    """Return a hash of the different kernels, without their order and number: names, grids, blocks
    and shared memory. Processes that run the same kernels have the same fingerprint. It ends with
    TUNED if some are Triton templates, as only autotuning chooses these. None without kernels."""
    kernels = {
        (re.sub("0x[0-9a-f]+", "", activity.name), *LAUNCH.findall(activity.launch))
        for activity in activities
        if not activity.name.startswith(TRANSFERS)
    }
    if not kernels:
        return None
    is_tuned = any(name.startswith("triton_tem_") for name, *_ in kernels)
    return digest(sorted(kernels))[:16] + (TUNED if is_tuned else "")
