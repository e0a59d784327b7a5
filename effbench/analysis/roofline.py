"""Why a call takes as long as it does: launches, memory or arithmetic, or kernels too small to reach any ceiling.

After the roofline model (Williams, Waterman, Patterson 2009), with ceilings measured on the machine itself.
"""

from __future__ import annotations

from typing import NamedTuple

#: From here on the GPU stands idle so much between kernels that launching them decides, not what they do.
LAUNCH_IDLE = 0.2
#: Below this share of a ceiling while busy, neither memory nor arithmetic explains the time.
NEAR_A_CEILING = 0.25


class Floors(NamedTuple):
    """Least milliseconds of a call: its FLOPs at the matrix rate, its least bytes at the copy bandwidth."""

    compute: float | None
    memory: float | None


def idle_fraction(busy_ms: float | None, period_ms: float | None) -> float | None:
    """Share of the period (0 to 1) in which no kernel runs; None where either is unknown.

    Busy and period come from different runs of the same step: where they differ by noise, 0 is meant.
    """
    if not busy_ms or not period_ms:
        return None
    return max(0.0, 1.0 - busy_ms / period_ms)


def bound(busy_ms: float | None, period_ms: float | None, floors: Floors) -> str | None:
    """What most of the period goes into; None where that is not known.

    `launch`: the GPU is idle for a fifth of the time or more, waiting for kernels to be launched. `memory`, `compute`:
    it is busy, and that floor is the larger one. `latency`: it is busy, and the larger floor is under a quarter of its
    busy time: kernels too small (or too inefficient) to come near a ceiling; fewer or larger ones would help.
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
    """The larger floor ÷ period: 1 is as fast as this machine can. Above 1 the bytes come from a cache, not memory."""
    least = max(floors.compute or 0.0, floors.memory or 0.0)
    return least / period_ms if least and period_ms else None
