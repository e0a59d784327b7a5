"""What may disturb timing on a GPU, seen while it goes on: lowered clocks, other processes, a host that is busy.

A disturbed run of samples is thrown away and timed again, three times; after that it is kept, and the trial is noisy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from effbench.measure import timing
from effbench.measure.telemetry import Telemetry

#: Clocks events by which hardware or driver slow a working GPU down. A power cap (`sw_power_cap`) is this GPU's own
#: speed under load and only recorded.
SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
RETRIES = 3
#: Memory in use that is nobody's own: below this it is noise of the driver's bookkeeping.
FOREIGN_BYTES = 256 * 2**20
POLL_S = 0.25
#: Times the period that the host may take to enqueue a call whose latency is timed. Undisturbed it is 1.2 at most.
ENQUEUE_PERIODS = 1.5
#: Longest interval over which a driver averages its utilization.
SAMPLING_S = 1.0


@dataclass
class GpuWatch(timing.Watch):
    """Of one trial. `discarded`: why runs of samples were thrown away; `noisy`: why one was kept nevertheless."""

    gpu: Telemetry
    device: torch.device
    discarded: list[str] = field(default_factory=list)
    noisy: str | None = None
    shared: bool = False  # was memory of others here before the trial?
    known_pids: frozenset[int] = frozenset()
    baseline_bytes: int | None = None
    retries: int = RETRIES
    since: float = 0.0

    def begin(self) -> None:
        """Before a timer: who comes now disturbs, and who is here already does if it works."""
        self.since = time.time()
        self.known_pids = frozenset(self.gpu.foreign_pids() or ())
        self.baseline_bytes = self.others_bytes()
        self.retries = RETRIES

    def poll(self, calls: int) -> None:
        self.gpu.poll(calls)

    def disturbed(self) -> bool:
        reason = self.disturbance()
        if reason is None:
            return False
        if self.retries == 0:
            self.noisy = self.noisy or f"while timing, on every try: {reason}"
            return False
        self.retries -= 1
        self.discarded.append(reason)
        return True

    def disturbance(self) -> str | None:
        """What disturbs the GPU now, or did so since it was last polled; None for nothing."""
        seen = self.gpu.reasons_since_last()
        if slow := sorted(SLOWDOWNS.intersection(seen)):
            return f"clocks lowered ({', '.join(slow)})"
        here = self.gpu.foreign_pids() or set()
        if newcomers := here - self.known_pids:
            return f"another process began to use this GPU ({pids(newcomers)})"
        if here and (working := here & (self.gpu.working_pids(self.since) or set())):
            self.since = time.time()
            return f"another process works on this GPU ({pids(working)})"
        now = self.others_bytes()
        if now is not None and self.baseline_bytes is not None and now - self.baseline_bytes > FOREIGN_BYTES:
            return f"another process took {(now - self.baseline_bytes) / 2**20:.0f} MiB of this GPU"
        return None

    def end(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """After the last timer. Where others are here and NVML cannot tell whose the work is, this process rests for
        as long as utilization is averaged over, and what is left of it is the others'."""
        if self.noisy or not (self.shared or self.known_pids):
            return
        working = self.gpu.working_pids(self.since)
        if working is not None:  # what NVML reports late is looked at, too
            if here := (self.gpu.foreign_pids() or set()) & working:
                self.noisy = f"another process works on this GPU ({pids(here)})"
            return
        torch.cuda.synchronize(self.device)
        sleep(2 * SAMPLING_S)
        if self.gpu.utilization():
            self.noisy = "another process kept this GPU busy: it still was when the timing had ended"

    def others_bytes(self) -> int | None:
        """Memory in use beyond what torch holds: contexts, libraries and other processes."""
        used = self.gpu.used_bytes()
        return None if used is None else used - torch.cuda.memory_reserved(self.device)


def busy_host(enqueue_ms: float, period_ms: float) -> str | None:
    """Calls back to back cannot follow each other faster than the host enqueues them: where they did, something slowed
    the host down while latencies were timed. None where nothing did."""
    if enqueue_ms <= ENQUEUE_PERIODS * period_ms:
        return None
    return (
        f"the host was busy while latencies were timed: it took {enqueue_ms:.3g} ms to enqueue a call, and "
        f"{period_ms:.3g} ms for a whole call back to back"
    )


def pids(found: set[int]) -> str:
    return f"pid {', '.join(map(str, sorted(found)))}"


def is_shared(gpu: Telemetry) -> bool:
    """Before this process has touched the GPU: does anybody hold memory there?"""
    return (gpu.used_bytes() or 0) >= FOREIGN_BYTES


def busy_foreign_process(gpu: Telemetry, wait_s: float, sleep=time.sleep) -> str | None:
    """Before this process has touched the GPU: does another work on it? Waits up to `wait_s` for it to stop.

    Memory that somebody holds without working does not disturb. None where the GPU is free (or nobody can tell).
    """
    # utilization is averaged over a while, in which this sweep's own last trial may have run
    deadline = time.monotonic() + max(wait_s, SAMPLING_S)
    while True:
        used = gpu.used_bytes()
        if used is None or used < FOREIGN_BYTES or not gpu.utilization():
            return None
        if time.monotonic() >= deadline:
            return f"another process keeps this GPU busy ({used / 2**20:.0f} MiB in use before the trial)"
        sleep(POLL_S)
