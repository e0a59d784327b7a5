"""Name a call's bottleneck (launch, memory, compute or latency) and explain it in a sentence.

This is the roofline model (Williams, Waterman, Patterson 2009) with ceilings measured on the
machine itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from effbench.cell import Cell, Result, Trial
from effbench.metrics import METRICS, format_bytes, percent, significant

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
    fast = (
        cell.numerics.get("tf32") or cell.numerics.get("matmul_precision", "highest") != "highest"
    )
    rate = ceilings["flops_per_s"].get("tf32" if cell.dtype == "float32" and fast else cell.dtype)
    bandwidth = ceilings["copy_bytes_per_s"]
    trial.compute_floor_ms = 1e3 * trial.flops / rate if rate and trial.flops else None
    trial.memory_floor_ms = (
        1e3 * trial.min_bytes / bandwidth if bandwidth and trial.min_bytes else None
    )


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
    compute, memory = floors.compute or 0.0, floors.memory or 0.0
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
    busy, period, idle = result.gpu_busy_ms, result.period_ms, result.gpu_idle_fraction
    latency = result.latency_ms
    if busy and latency and period is None:  # a request that generates tokens
        share = percent(min(1.0, busy / latency))
        return f"the GPU is busy {share} of the latency; requests have no period"
    if busy is None or period is None or idle is None:
        return None
    ceiling = _ceiling(result)
    if ceiling is not None:
        kernels = _kernels(result)
        return f"{ceiling} in {_ms(period)}; {kernels}, the GPU is idle {percent(idle)}"
    if result.bound == "latency":
        return _of_small_kernels(result, busy, idle)
    return _of_launches(result, busy, period, idle)


def _kernels(result: Result) -> str:
    if result.kernels is None:
        return "its kernels"
    return "1 kernel" if result.kernels == 1 else f"{result.kernels} kernels"


def _ceiling(result: Result) -> str | None:
    """Return how near a call comes to the ceiling that explains its time; None without one."""
    near = result.roofline_fraction
    if near is None:
        return None
    if result.bound == "memory" and result.min_bytes is not None:
        size = format_bytes(result.min_bytes)
        return f"{percent(near)} of the copy bandwidth (at least {size})"
    if result.bound == "compute" and result.flops is not None:
        return f"{percent(near)} of the matrix rate ({_si(result.flops)}FLOP)"
    return None


def _of_small_kernels(result: Result, busy: float, idle: float) -> str:
    each = significant(1e3 * busy / max(1, result.kernels or 1), 2)
    near = percent(result.roofline_fraction or 0.0)
    busy_at = f"the GPU is busy {percent(1 - idle)} of the time, but at {near} of its nearest"
    return f"{busy_at} ceiling: {_kernels(result)} of {each} µs on average"


def _of_launches(result: Result, busy: float, period: float, idle: float) -> str:
    verb = "takes" if result.kernels == 1 else "take"
    took = f"{verb} {significant(min(busy, period), 3)} of {_ms(period)}"
    text = f"the GPU is idle {percent(idle)} of the time: {_kernels(result)} {took}"
    if result.bound != "launch":
        return text
    enqueue = result.enqueue_ms
    if enqueue is not None and enqueue >= HOST_SHARE * period:
        return f"{text}; the host needs {_ms(enqueue)} to enqueue them"
    return f"{text}; the rest is gaps between kernels"


def _si(value: float) -> str:
    """Return a number with an SI prefix and one to three digits before the point: `340 G` for
    `3.4e11`."""
    # 999,999 is 1.00 M
    power = min(4, int(math.log10(float(f"{value:.2e}")) // 3)) if value >= 1000 else 0
    return f"{significant(value / 1000**power, 3)} {' kMGT'[power]}" if power else f"{value:.0f} "
