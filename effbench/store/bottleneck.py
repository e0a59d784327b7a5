"""What bounds a call, and why, in a sentence: launches, memory, arithmetic, or kernels too small to reach any ceiling.

After the roofline model (Williams, Waterman, Patterson 2009), with ceilings measured on the machine itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from effbench.metrics import METRICS, format_bytes, percent, significant

#: From here on the GPU is idle so much between kernels that launching them decides, not what they do.
LAUNCH_IDLE = 0.2
#: Below this share of a ceiling while busy, neither memory nor arithmetic explains the time.
NEAR_A_CEILING = 0.25
#: From here on a call's enqueueing fills its period: the host is the bottleneck.
HOST_SHARE = 0.7
_ms = METRICS["period_ms"].format


class Floors(NamedTuple):
    """Least milliseconds of a call: its FLOPs at the matrix rate, its least bytes at the copy bandwidth."""

    compute: float | None
    memory: float | None


def idle_fraction(busy_ms: float | None, period_ms: float | None) -> float | None:
    """Return the share of the period (0 to 1) in which no kernel runs; None if either is unknown. Busy and period come
    from different runs: noise may make busy the longer one, which counts as 0."""
    if not busy_ms or not period_ms:
        return None
    return max(0.0, 1.0 - busy_ms / period_ms)


def bound(busy_ms: float | None, period_ms: float | None, floors: Floors) -> str | None:
    """Return what most of the period goes into; None if that is not known.

    `launch`: the GPU is idle for a fifth of the time or more, waiting for kernels to be launched. `memory`, `compute`:
    it is busy, and that floor is the larger one. `latency`: it is busy, but kernels are too small or too inefficient to
    come near a ceiling: the larger floor is under a quarter of its busy time.
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
    """Return the larger floor ÷ period: 1 is as fast as this machine can. Above 1 the bytes come from a cache."""
    largest = max(floors.compute or 0.0, floors.memory or 0.0)
    return largest / period_ms if largest and period_ms else None


def why(row: Mapping[str, Any]) -> str | None:
    """Return the reason behind the time of a row of the view `results`; None if it has no profile or no period."""
    busy, period, idle = row.get("gpu_busy_ms"), row.get("period_ms"), row.get("gpu_idle_fraction")
    if busy is None or period is None or idle is None:
        return None
    number, near, bottleneck = row.get("kernels"), row.get("roofline_fraction"), row.get("bound")
    kernels = "its kernels" if number is None else f"{int(number)} kernel{'' if number == 1 else 's'}"
    # imported rows may lack the figures of a ceiling
    ceiling = None
    if bottleneck == "memory" and near is not None and row.get("min_bytes") is not None:
        ceiling = f"the copy bandwidth ({format_bytes(row['min_bytes'])} at least)"
    elif bottleneck == "compute" and near is not None and row.get("flops") is not None:
        ceiling = f"the matrix rate ({_si(row['flops'])}FLOP)"
    if ceiling:
        return f"{percent(near)} of {ceiling} in {_ms(period)}; {kernels}, the GPU is idle {percent(idle)}"
    if bottleneck == "latency":
        each = f"{kernels} of {significant(1e3 * busy / max(1, number or 1), 2)} µs on average"
        busy_at = f"the GPU is busy {percent(1 - idle)} of the time, but at {percent(near or 0.0)}"
        return f"{busy_at} of its nearest ceiling: {each}"
    verb = "takes" if number == 1 else "take"
    text = f"the GPU is idle {percent(idle)} of the time: {kernels} {verb} {significant(busy, 3)} of {_ms(period)}"
    if bottleneck != "launch":
        return text
    enqueue = row.get("enqueue_ms")
    if enqueue is not None and enqueue >= HOST_SHARE * period:
        return f"{text}; the host needs {_ms(enqueue)} to enqueue them"
    return f"{text}; the rest is gaps between kernels"


def _si(value: float) -> str:
    """Return a number with the prefix that leaves one to three digits: `3.4e11` is `340 G`."""
    power = min(4, int(math.log10(value) // 3)) if value >= 1000 else 0
    return f"{significant(value / 1000**power, 3)} {' kMGT'[power]}" if power else f"{value:.0f} "
