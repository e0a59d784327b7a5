"""Name a call's bottleneck (launch, memory, compute or latency) and explain it in a sentence.

This is the roofline model (Williams, Waterman, Patterson 2009) with ceilings measured on the
machine itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from effbench.core.cell import Cell, Result, Trial
from effbench.core.metrics import METRICS, percent, significant
from effbench.core.printable import count

#: A call is launch-bound if the GPU is idle for this fraction of its period or more.
LAUNCH_IDLE = 0.2
#: If a busy GPU reaches less than this fraction of each ceiling, neither memory nor arithmetic
#: explains the time.
NEAR_A_CEILING = 0.25
#: The host is the bottleneck if enqueueing a call takes this fraction of its period or more.
HOST_SHARE = 0.7
_ms = METRICS["period_ms"].format


class Floors(NamedTuple):
    """Shortest possible time of a call in ms: its FLOPs at the matrix rate, its minimum bytes at
    the copy bandwidth."""

    compute: float | None
    memory: float | None


def set_floors(trial: Trial, cell: Cell, ceilings: Mapping[str, Any]) -> None:
    """Set the floors of a profiled trial from the machine's `ceilings` (see the task
    `ceilings`)."""
    dtype = cell.dtype
    precision = cell.numerics.get("matmul_precision", "highest")
    if dtype == "float32" and (cell.numerics.get("tf32") or precision != "highest"):
        dtype = "tf32"
    rate = ceilings["flops_per_s"].get(dtype)
    bandwidth = ceilings["copy_bytes_per_s"]
    trial.compute_floor_ms = trial.memory_floor_ms = None
    if rate and trial.flops:
        trial.compute_floor_ms = 1e3 * trial.flops / rate
    if bandwidth and trial.min_bytes:
        trial.memory_floor_ms = 1e3 * trial.min_bytes / bandwidth


def idle_fraction(busy_ms: float | None, period_ms: float | None) -> float | None:
    """Return the fraction of the period (0 to 1) in which no kernel runs; None if either time is
    unknown. The two times come from different runs, so noise may make the busy time longer than the
    period; then return 0."""
    if not busy_ms or not period_ms:
        return None
    return max(0.0, 1.0 - busy_ms / period_ms)


def bound(busy_ms: float | None, period_ms: float | None, floors: Floors) -> str | None:
    """Return the bottleneck of a call; None if it is unknown.

    `launch`: the GPU is idle for 20 % of the period or more, waiting for kernel launches. `memory`,
    `compute`: the GPU is busy, and this floor is the larger one. `latency`: the GPU is busy, but
    its kernels are too small or inefficient to come near a ceiling: the larger floor is under 25 %
    of the busy time.
    """
    idle = idle_fraction(busy_ms, period_ms)
    if idle is None:
        return None
    if idle >= LAUNCH_IDLE:
        return "launch"
    if floors.compute is None and floors.memory is None:
        return None
    compute = floors.compute or 0.0
    memory = floors.memory or 0.0
    if busy_ms is None or max(compute, memory) < NEAR_A_CEILING * busy_ms:
        return "latency"
    return "memory" if memory >= compute else "compute"


def roofline_fraction(period_ms: float | None, floors: Floors) -> float | None:
    """Return the larger floor ÷ period: 1 is the fastest this machine can be; above 1, bytes come
    from a cache."""
    largest = max(floors.compute or 0.0, floors.memory or 0.0)
    if not largest or not period_ms:
        return None
    return largest / period_ms


def why(result: Result) -> str | None:
    """Return a sentence that explains the period of a result, or its latency if it has no period;
    None without a profile."""
    busy = result.gpu_busy_ms
    period = result.period_ms
    idle = result.gpu_idle_fraction
    if busy is None:
        return None
    if period is None and result.latency_ms:  # a request that generates tokens
        share = percent(min(1.0, busy / result.latency_ms))
        return f"the GPU is busy {share} of the latency; requests have no period"
    if period is None or idle is None:
        return None
    state = f"busy {percent(1 - idle)}"
    if idle >= LAUNCH_IDLE:
        state = f"idle {percent(idle)}"
    verb = "take"
    if result.kernels == 1:
        verb = "takes"
    kernels = count(result.kernels or 0, "kernel")
    took = significant(min(busy, period), 3)
    text = f"the GPU is {state} of the time: {kernels} {verb} {took} of {_ms(period)}"
    limit = _limit(result, period)
    if limit:
        return f"{text}; {limit}"
    return text


def _limit(result: Result, period: float) -> str:
    """Return how near a call comes to what bounds it; empty if that says nothing."""
    near = percent(result.roofline_fraction or 0.0)
    if result.bound == "memory":
        return f"{near} of the copy bandwidth"
    if result.bound == "compute":
        return f"{near} of the matrix rate"
    if result.bound == "latency":
        return f"{near} of the nearest ceiling: small or inefficient kernels"
    enqueue = result.enqueue_ms
    if result.bound == "launch" and enqueue is not None and enqueue >= HOST_SHARE * period:
        return f"the host needs {_ms(enqueue)} to enqueue them"
    return ""
