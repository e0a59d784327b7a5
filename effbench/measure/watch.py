"""Disturbances of timing on a GPU: lowered clocks, foreign processes, a busy host.

A disturbed run of samples is discarded and timed again, three times; after that it is kept, and the trial is noisy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from effbench.measure import timing
from effbench.measure.telemetry import Telemetry

#: Clocks events by which hardware or driver slow a working GPU down. A power cap (`sw_power_cap`) is the GPU's normal
#: speed under load and only recorded.
SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
RETRIES = 3
#: Memory of foreign processes below this is noise of the driver's bookkeeping.
FOREIGN_BYTES = 256 * 2**20
POLL_S = 0.25
#: Maximum ratio of enqueue time to period. Undisturbed it is 1.2 at most.
ENQUEUE_PERIODS = 1.5
#: Longest interval over which a driver averages its utilization.
SAMPLING_S = 1.0


@dataclass
class GpuWatch(timing.Watch):
    """The watch of one trial. `discarded`: why runs of samples were discarded; `noisy`: why one was kept
    nevertheless."""

    gpu: Telemetry
    device: torch.device
    discarded: list[str] = field(default_factory=list)
    noisy: str | None = None
    shared: bool = False  # a foreign process held memory before the trial
    known_pids: frozenset[int] = frozenset()
    baseline_bytes: int | None = None
    retries: int = RETRIES
    since: float = 0.0

    def begin(self) -> None:
        """Before a timer: a process that starts now disturbs; one that is already here does if it works."""
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
        """Return what disturbs the GPU now, or did so since it was last polled; None if nothing does."""
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
        """After the last timer. If others are here and NVML cannot tell whose the work is, rest for as long as
        utilization is averaged over: the utilization that remains is theirs."""
        if self.noisy or not (self.shared or self.known_pids):
            return
        working = self.gpu.working_pids(self.since)
        if working is not None:  # NVML may report work late
            if here := (self.gpu.foreign_pids() or set()) & working:
                self.noisy = f"another process works on this GPU ({pids(here)})"
            return
        torch.cuda.synchronize(self.device)
        sleep(2 * SAMPLING_S)
        if self.gpu.utilization():
            self.noisy = "another process kept this GPU busy: it still was when the timing had ended"

    def others_bytes(self) -> int | None:
        """Return the memory in use beyond torch's: contexts, libraries and other processes."""
        used = self.gpu.used_bytes()
        return None if used is None else used - torch.cuda.memory_reserved(self.device)


def busy_host(enqueue_ms: float, period_ms: float) -> str | None:
    """Return how something slowed the host down while latencies were timed, or None.

    Back-to-back calls cannot follow each other faster than the host enqueues them.
    """
    if enqueue_ms <= ENQUEUE_PERIODS * period_ms:
        return None
    return (
        f"the host was busy while latencies were timed: it took {enqueue_ms:.3g} ms to enqueue a call, and "
        f"{period_ms:.3g} ms for a whole call back to back"
    )


def pids(found: set[int]) -> str:
    return f"pid {', '.join(map(str, sorted(found)))}"


def is_shared(gpu: Telemetry) -> bool:
    """Return whether a process holds memory on the GPU, before this one has touched it."""
    return (gpu.used_bytes() or 0) >= FOREIGN_BYTES


def busy_foreign_process(gpu: Telemetry, wait_s: float, sleep=time.sleep) -> str | None:
    """Return how another process works on the GPU, before this one has touched it, or None if it is free or unknown.

    Waits up to `wait_s` for it to stop. Memory that a process only holds does not disturb.
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
