"""The GPU while a step is timed: its clocks, power and energy, and what disturbs it (lowered clocks, other processes).

A disturbed run of samples is discarded and timed again, three times; after that it is kept, and the trial is noisy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from effbench.measure.telemetry import Gpu

#: Clocks events by which hardware or driver slow a working GPU down. A power cap (`sw_power_cap`) is the GPU's normal
#: speed under load and only recorded.
SLOWDOWNS = frozenset({"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"})
RETRIES = 3
#: Memory of foreign processes below this is noise of the driver's bookkeeping.
FOREIGN_BYTES = 256 * 2**20
FREE_POLL_S = 0.25
POLL_S = 0.02  # a poll idles the GPU for some tens of microseconds
MIN_ENERGY_S = 0.3
#: Maximum ratio of enqueue time to period. Undisturbed it is 1.2 at most.
ENQUEUE_PERIODS = 1.5
#: Longest interval over which a driver averages its utilization.
SAMPLING_S = 1.0


class GpuWatch:
    """The watch of one trial; it sees nothing without NVML.

    `discarded`: why runs of samples were discarded; `noisy`: what disturbed the trial nevertheless, or None.
    `shared`: a foreign process held memory before the trial.
    """

    def __init__(self, gpu: Gpu, device: torch.device, shared: bool = False) -> None:
        self.gpu, self.device, self.shared = gpu, device, shared
        self.discarded: list[str] = []
        self.noisy: str | None = None
        self.readings: list[dict[str, Any]] = []
        self.marks: list[tuple[int, int, float]] = []  # at each change of the energy counter: mJ, calls, seconds
        self.events: set[str] = set()  # clocks events since the last look
        self.next_poll = self.next_reading = 0.0

    def wait_until_free(self, wait_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Before this process touches the GPU: wait up to `wait_s` for others to stop working; `noisy` if they do not.
        Memory that a process only holds does not disturb."""
        # utilization is averaged over a while, in which this sweep's own last trial may have run
        deadline = time.monotonic() + max(wait_s, SAMPLING_S)
        while True:
            used = self.gpu.used_bytes() or 0
            self.shared = used >= FOREIGN_BYTES
            if not self.shared or not self.gpu.utilization():
                return
            if time.monotonic() >= deadline:
                self.noisy = f"another process keeps this GPU busy ({used / 2**20:.0f} MiB in use before the trial)"
                return
            sleep(FREE_POLL_S)

    def begin(self) -> None:
        """Before a timer: a process that starts now disturbs; one that is already here does if it works."""
        self.since = time.time()
        self.known_pids = frozenset(self.gpu.foreign_pids() or ())
        self.baseline_bytes = self.others_bytes()
        self.retries = RETRIES

    def poll(self, calls: int) -> None:
        """Between blocks of back-to-back calls: record changes of the energy counter, and the state while busy."""
        now = time.perf_counter()
        if self.gpu.handle is None or now < self.next_poll:
            return
        self.next_poll = now + POLL_S
        energy = self.gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None and (not self.marks or energy != self.marks[-1][0]):
            self.marks.append((energy, calls, now))
        if now >= self.next_reading:
            self.next_reading = now + 10 * POLL_S
            reading = self.gpu.read()
            self.readings.append(reading)
            self.events.update(reading["clocks_event_reasons"])

    def disturbed(self) -> bool:
        """After each run of samples: return whether it must be discarded."""
        reason = self.disturbance()
        if reason and self.retries:
            self.retries -= 1
            self.discarded.append(reason)
            return True
        if reason:
            self.noisy = self.noisy or f"while timing, on every try: {reason}"
        return False

    def disturbance(self) -> str | None:
        """Return what disturbs the GPU now, or did so since the last look; None if nothing does."""
        seen, self.events = self.events.union(self.gpu.read()["clocks_event_reasons"]), set()
        if slow := sorted(SLOWDOWNS & seen):
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
        if working is None:
            torch.cuda.synchronize(self.device)
            sleep(2 * SAMPLING_S)
            if self.gpu.utilization():
                self.noisy = "another process kept this GPU busy: it still was when the timing had ended"
        elif here := (self.gpu.foreign_pids() or set()) & working:  # NVML may report work late
            self.noisy = f"another process works on this GPU ({pids(here)})"

    def others_bytes(self) -> int | None:
        """Return the memory in use beyond torch's: contexts, libraries and other processes."""
        used = self.gpu.used_bytes()
        return None if used is None else used - torch.cuda.memory_reserved(self.device)

    def energy_per_call_mj(self) -> float | None:
        """Return the energy a call from the first to the last change of the counter; None if the run was too short. The
        first mark is omitted: polling began there, the counter did not change."""
        marks = self.marks[1:]
        if len(marks) < 3 or marks[-1][2] - marks[0][2] < MIN_ENERGY_S:
            return None
        return (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])

    def facts(self) -> dict[str, Any]:
        """Return fields of the trial: medians of the readings while busy, the clocks events among them, energy."""
        found: dict[str, Any] = {"energy_mj": self.energy_per_call_mj()}
        for name in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"):
            values = [reading[name] for reading in self.readings if reading[name] is not None]
            middle = median(values) if values else None
            found[name] = middle if middle is None or name == "power_w" else int(middle)
        reasons = dict.fromkeys(name for reading in self.readings for name in reading["clocks_event_reasons"])
        return {**found, "clocks_event_reasons": ",".join(reasons) or None}


def busy_host(enqueue_ms: float, period_ms: float) -> str | None:
    """Return how something slowed the host down while latencies were timed, or None: back-to-back calls cannot follow
    each other faster than the host enqueues them."""
    if enqueue_ms <= ENQUEUE_PERIODS * period_ms:
        return None
    took = f"it took {enqueue_ms:.3g} ms to enqueue a call, and {period_ms:.3g} ms for a whole call back to back"
    return f"the host was busy while latencies were timed: {took}"


def pids(found: set[int]) -> str:
    return f"pid {', '.join(map(str, sorted(found)))}"
