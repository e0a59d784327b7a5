"""Monitor the GPU during timing: clocks, power, energy, and disturbances (reduced clocks, foreign
processes).

A disturbed series of samples is discarded and repeated up to three times; then it is kept, and the
trial is marked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from effbench.measure.telemetry import Gpu

#: Clocks events with which the hardware or driver slows down a busy GPU. A power cap
#: (`sw_power_cap`) is normal under load and only recorded.
SLOWDOWNS = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown"}
)
RETRIES = 3
#: Changes of memory use below this are attributed to the driver, not to foreign processes.
FOREIGN_BYTES = 256 * 2**20
FREE_POLL_S = 0.25
#: Least and most seconds between polls. A poll takes 0.1 ms or, on virtual machines, 3 to 20 ms; in
#: between, timing continues for 20 times as long.
POLL_S, RARE_POLL_S = 0.02, 0.2
MIN_ENERGY_S = 0.3
#: Maximum ratio of enqueue time to period. On an undisturbed host it is at most 1.2.
ENQUEUE_PERIODS = 1.5
# maximum ratio of period to latency if the host is the bottleneck, and not the GPU's clocks
PERIOD_LATENCIES = 1.2
HOST_BOUND = 0.7  # enqueue time ÷ period or latency from which the host is the bottleneck
#: Longest interval over which a driver averages its utilization.
SAMPLING_S = 1.0


class GpuWatch:
    """Monitors the GPU of a trial. Without NVML it detects nothing.

    `discarded`: why series of samples were discarded. `disturbance`: one that remained, or None.
    `shared`: whether a foreign process used memory before the trial.
    """

    def __init__(self, gpu: Gpu, device: torch.device, shared: bool = False) -> None:
        self.gpu, self.device, self.shared = gpu, device, shared
        self.discarded: list[str] = []
        self.disturbance: str | None = None
        self.before_timing: str | None = None  # a foreign process that did not stop working
        self.readings: list[dict[str, Any]] = []
        # at each change of the energy counter: mJ, calls, seconds
        self.marks: list[tuple[int, int, float]] = []
        self.events: set[str] = set()  # clocks events since the last check
        self.next_poll = self.next_reading = 0.0

    def wait_until_free(self, wait_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait up to `wait_s` for foreign processes to stop working, and set `before_timing` if
        they do not.

        Call this before this process uses the GPU. Processes that only occupy memory do not matter.
        """
        # the driver averages utilization over an interval in which this sweep's previous trial may
        # have run
        deadline = time.monotonic() + max(wait_s, SAMPLING_S)
        while True:
            used = self.gpu.used_bytes() or 0
            self.shared = used >= FOREIGN_BYTES
            if not self.shared or not self.gpu.utilization():
                return
            if time.monotonic() >= deadline:
                self.before_timing = (
                    f"another process keeps this GPU busy ({used / 2**20:.0f} MiB in use before the"
                    " trial)"
                )
                return
            sleep(FREE_POLL_S)

    def restart(self) -> None:
        """Forget what earlier timing found, before timing again."""
        self.discarded = []
        self.disturbance = self.before_timing
        self.readings = []
        self.marks = []

    def begin(self) -> None:
        """Begin to monitor a timer. From now on, a new process is a disturbance, and a known one if
        it works."""
        self.since = time.time()
        self.known_pids = frozenset(self.gpu.foreign_pids() or ())
        self.baseline_bytes = self.others_bytes()
        self.retries = RETRIES

    def poll(self, calls: int) -> None:
        """Record the energy counter if it has changed, and the GPU's state. Call this between
        back-to-back blocks."""
        now = time.perf_counter()
        if self.gpu.handle is None or now < self.next_poll:
            return
        energy = self.gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None and (not self.marks or energy != self.marks[-1][0]):
            self.marks.append((energy, calls, now))
        if now >= self.next_reading:
            self.next_reading = now + 10 * POLL_S
            reading = self.gpu.read()
            self.readings.append(reading)
            self.events.update(reading["clocks_event_reasons"])
        ended = time.perf_counter()
        self.next_poll = ended + min(max(POLL_S, 20 * (ended - now)), RARE_POLL_S)

    def disturbed(self) -> bool:
        """Return whether to discard the last series of samples. Call this after each series."""
        reason = self.newest_disturbance()
        if reason and self.retries:
            self.retries -= 1
            self.discarded.append(reason)
            return True
        if reason:
            self.disturbance = self.disturbance or f"during timing, on every attempt: {reason}"
        return False

    def newest_disturbance(self) -> str | None:
        """Return what has disturbed the GPU since the last check, or None."""
        seen, self.events = self.events.union(self.gpu.read()["clocks_event_reasons"]), set()
        if slow := sorted(SLOWDOWNS & seen):
            return f"clocks reduced ({', '.join(slow)})"
        here = self.gpu.foreign_pids() or set()
        if newcomers := here - self.known_pids:
            return f"another process started to use this GPU ({pids(newcomers)})"
        if here and (working := here & (self.gpu.working_pids(self.since) or set())):
            self.since = time.time()
            return f"another process works on this GPU ({pids(working)})"
        now = self.others_bytes()
        if (
            now is not None
            and self.baseline_bytes is not None
            and now - self.baseline_bytes > FOREIGN_BYTES
        ):
            return (
                f"another process allocated {(now - self.baseline_bytes) / 2**20:.0f} MiB on"
                " this GPU"
            )
        return None

    def end(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """End monitoring after the last timer. If there are foreign processes and NVML cannot
        attribute work to processes, idle for the averaging interval of utilization: the remaining
        utilization is theirs."""
        if self.disturbance or not (self.shared or self.known_pids):
            return
        working = self.gpu.working_pids(self.since)
        if working is None:
            torch.cuda.synchronize(self.device)
            sleep(2 * SAMPLING_S)
            if self.gpu.utilization():
                self.disturbance = (
                    "another process kept this GPU busy: it was still busy after timing"
                )
        elif here := (self.gpu.foreign_pids() or set()) & working:  # NVML may report work late
            self.disturbance = f"another process works on this GPU ({pids(here)})"

    def others_bytes(self) -> int | None:
        """Return the used memory that is not torch's: contexts, libraries and other processes; None
        if unknown."""
        used = self.gpu.used_bytes()
        return None if used is None else used - torch.cuda.memory_reserved(self.device)

    def energy_per_call_mj(self) -> float | None:
        """Return the energy per call, in mJ, between the first and the last change of the counter;
        None if that time is too short. The first mark is omitted, because it is the start of
        polling and not a change."""
        marks = self.marks[1:]
        if len(marks) < 3 or marks[-1][2] - marks[0][2] < MIN_ENERGY_S:
            return None
        return (marks[-1][0] - marks[0][0]) / (marks[-1][1] - marks[0][1])

    def facts(self) -> dict[str, Any]:
        """Return fields of the trial: medians of the readings under load, their clocks events, and
        energy per call."""
        facts: dict[str, Any] = {"energy_mj": self.energy_per_call_mj()}
        for name in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w"):
            values = [reading[name] for reading in self.readings if reading[name] is not None]
            middle = median(values) if values else None
            facts[name] = middle if middle is None or name == "power_w" else int(middle)
        reasons = dict.fromkeys(
            name for reading in self.readings for name in reading["clocks_event_reasons"]
        )
        return {**facts, "clocks_event_reasons": ",".join(reasons) or None}


def busy_host(latency_ms: float, enqueue_ms: float, period_ms: float) -> str | None:
    """Return a reason if the host was disturbed while one of the timers ran, else None.
    Undisturbed, enqueueing a call takes hardly longer than its period, because the host has to
    enqueue back-to-back calls as well."""
    if enqueue_ms > ENQUEUE_PERIODS * period_ms:
        took = (
            f"enqueueing a call took {enqueue_ms:.3g} ms, but a whole back-to-back call only"
            f" {period_ms:.3g} ms"
        )
        return f"the host was busy during latency timing: {took}"
    if period_ms > PERIOD_LATENCIES * latency_ms and enqueue_ms > HOST_BOUND * latency_ms:
        took = (
            f"a back-to-back call took {period_ms:.3g} ms, but a synchronised one only"
            f" {latency_ms:.3g} ms"
        )
        return f"the host was busy during period timing: {took}"
    return None


def pids(processes: set[int]) -> str:
    return f"pid {', '.join(map(str, sorted(processes)))}"
