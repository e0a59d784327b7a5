"""Why a cell takes as long as it does, in one sentence with the figures that say so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.metrics import format_bytes, significant

#: From here on a call's enqueueing fills its period: the host, not the stream, is what the GPU waits for.
HOST_SHARE = 0.7
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def why(row: Mapping[str, Any]) -> str | None:
    """The reason behind a row of the view `results`; None where it was not profiled or has no period."""
    busy, period, idle = row.get("gpu_busy_ms"), row.get("period_ms"), row.get("gpu_idle_fraction")
    if busy is None or period is None or idle is None:
        return None
    kernels = _count(row.get("kernels"), "kernel")
    match row.get("bound"):
        case "launch":
            return f"the GPU is idle {percent(idle)} of the time: {kernels} {_take(row, busy, period)}; {_waits(row)}"
        case "memory" if _known(row, "min_bytes"):
            speed = (
                f"{percent(row['roofline_fraction'])} of the copy bandwidth ({format_bytes(row['min_bytes'])} at least)"
            )
            return f"{speed} in {_ms(period)}; {kernels}, the GPU is idle {percent(idle)}"
        case "compute" if _known(row, "flops"):
            speed = f"{percent(row['roofline_fraction'])} of the matrix rate ({_si(row['flops'])}FLOP)"
            return f"{speed} in {_ms(period)}; {kernels}, the GPU is idle {percent(idle)}"
        case "latency":
            each = f"{kernels} of {significant(1e3 * busy / max(1, row['kernels'] or 1), 2)} µs on average"
            near = percent(row.get("roofline_fraction") or 0.0)
            return f"the GPU is busy {percent(1 - idle)} of the time, but at {near} of its nearest ceiling: {each}"
    return f"the GPU is idle {percent(idle)} of the time: {kernels} {_take(row, busy, period)}"


def _known(row: Mapping[str, Any], name: str) -> bool:
    """Whether the figures that a ceiling is told by are there; rows that were imported or made up may lack them."""
    return row.get("roofline_fraction") is not None and row.get(name) is not None


def percent(fraction: float) -> str:
    """`0.052` is `5.2 %`, `0.52` is `52 %`."""
    return f"{100 * fraction:.{1 if fraction < 0.0995 else 0}f} %"


def _take(row: Mapping[str, Any], busy: float, period: float) -> str:
    verb = "takes" if row.get("kernels") == 1 else "take"
    return f"{verb} {significant(busy, 3)} of {_ms(period)}"


def _waits(row: Mapping[str, Any]) -> str:
    enqueue = row.get("enqueue_ms")
    if enqueue is not None and enqueue >= HOST_SHARE * row.get("period_ms"):
        return f"the host needs {_ms(enqueue)} to enqueue them"
    return "the rest is gaps between kernels"


def _ms(value: float) -> str:
    return f"{significant(value, 3)} ms"


def _count(number: int | None, what: str) -> str:
    if number is None:
        return f"its {what}s"
    return f"{int(number)} {what}" if number == 1 else f"{int(number)} {what}s"


def _si(value: float) -> str:
    """With the prefix that leaves one to three digits: `3.4e11` is `340 G`."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{significant(value / size, 3)} {prefix}"
    return f"{value:.0f} "
