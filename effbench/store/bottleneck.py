"""Name a call's bottleneck (launch, memory, compute or latency) and explain it in a sentence.

This is the roofline model (Williams, Waterman, Patterson 2009) with ceilings measured on the
machine itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from effbench.cell import Cell, Trial
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
    if max(compute, memory) < NEAR_A_CEILING * busy_ms:
        return "latency"
    return "memory" if memory >= compute else "compute"


def roofline_fraction(period_ms: float | None, floors: Floors) -> float | None:
    """Return the larger floor ÷ period: 1 is the fastest this machine can be; above 1, bytes come
    from a cache."""
    largest = max(floors.compute or 0.0, floors.memory or 0.0)
    return largest / period_ms if largest and period_ms else None


def why(row: Mapping[str, Any]) -> str | None:
    """Return a sentence that explains the period of a row of the view `results`, or its latency if
    it has no period; None without a profile."""
    busy, period, idle = row.get("gpu_busy_ms"), row.get("period_ms"), row.get("gpu_idle_fraction")
    latency = row.get("latency_ms")
    if busy and latency and period is None:  # a request that generates tokens
        return (
            f"the GPU is busy {percent(min(1.0, busy / latency))} of the latency; requests have no"
            " period"
        )
    if busy is None or period is None or idle is None:
        return None
    number, near, bottleneck = row.get("kernels"), row.get("roofline_fraction"), row.get("bound")
    kernels = (
        "its kernels" if number is None else f"{int(number)} kernel{'' if number == 1 else 's'}"
    )
    # imported rows may lack figures
    ceiling = None
    if bottleneck == "memory" and near is not None and row.get("min_bytes") is not None:
        ceiling = f"the copy bandwidth (at least {format_bytes(row['min_bytes'])})"
    elif bottleneck == "compute" and near is not None and row.get("flops") is not None:
        ceiling = f"the matrix rate ({_si(row['flops'])}FLOP)"
    if ceiling:
        return (
            f"{percent(near)} of {ceiling} in {_ms(period)}; {kernels}, the GPU is idle"
            f" {percent(idle)}"
        )
    if bottleneck == "latency":
        each = f"{kernels} of {significant(1e3 * busy / max(1, number or 1), 2)} µs on average"
        busy_at = f"the GPU is busy {percent(1 - idle)} of the time, but at {percent(near or 0.0)}"
        return f"{busy_at} of its nearest ceiling: {each}"
    verb = "takes" if number == 1 else "take"
    took = significant(min(busy, period), 3)
    text = f"the GPU is idle {percent(idle)} of the time: {kernels} {verb} {took} of {_ms(period)}"
    if bottleneck != "launch":
        return text
    enqueue = row.get("enqueue_ms")
    if enqueue is not None and enqueue >= HOST_SHARE * period:
        return f"{text}; the host needs {_ms(enqueue)} to enqueue them"
    return f"{text}; the rest is gaps between kernels"


def _si(value: float) -> str:
    """Return a number with an SI prefix and one to three digits before the point: `340 G` for
    `3.4e11`."""
    # 999,999 is 1.00 M
    power = min(4, int(math.log10(float(f"{value:.2e}")) // 3)) if value >= 1000 else 0
    return f"{significant(value / 1000**power, 3)} {' kMGT'[power]}" if power else f"{value:.0f} "
