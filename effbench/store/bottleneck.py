"""Name a call's bottleneck (launch or gpu) and explain it in a sentence."""

from __future__ import annotations

from effbench.core.cell import Result
from effbench.core.metrics import METRICS
from effbench.core.printable import count
from effbench.core.quantities import percent, significant

#: A call is launch-bound if the GPU is idle for this fraction of its period or more.
LAUNCH_IDLE = 0.2
#: The host is the bottleneck if enqueueing a call takes this fraction of its period or more.
HOST_SHARE = 0.7
_ms = METRICS["period_ms"].format


def idle_fraction(busy_ms: float | None, period_ms: float | None) -> float | None:
    """Return the fraction of the period (0 to 1) in which no kernel runs; None if either time is
    unknown. The two times come from different runs, so noise may make the busy time longer than the
    period; then return 0."""
    if not busy_ms or not period_ms:
        return None
    return max(0.0, 1.0 - busy_ms / period_ms)


def bound(idle: float | None) -> str | None:
    """Return the bottleneck of a call whose GPU is idle for this fraction of its period; None if
    that is unknown. `launch`: the GPU waits for kernel launches for 20 % of the period or more;
    `gpu`: it does not."""
    if idle is None:
        return None
    if idle >= LAUNCH_IDLE:
        return "launch"
    return "gpu"


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
    enqueue = result.enqueue_ms
    if result.bound == "launch" and enqueue is not None and enqueue >= HOST_SHARE * period:
        return f"{text}; the host needs {_ms(enqueue)} to enqueue them"
    return text
