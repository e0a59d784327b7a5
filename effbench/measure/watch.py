"""Monitor the GPU during timing: clocks, power, energy, and disturbances (reduced clocks, foreign
processes).

A disturbed series of samples does not count and is taken again, three times for each timer; then
it counts, and the trial is marked. `GpuWatch.record` sets the figures of NVML that belong to the
timing of the period; those of the process are in `RunningTrial.take_facts` (worker/trial.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median

import torch

from effbench.core.cell import Trial
from effbench.core.disturbances import Disturbance, DisturbanceKind, foreign_process
from effbench.measure.gpu import Gpu, GpuState

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
#: Longest interval over which a driver averages its utilization.
SAMPLING_S = 1.0


@dataclass(frozen=True)
class EnergyChange:
    """A change of the GPU's energy counter: its value, and the calls and seconds until then."""

    energy_mj: int
    calls: int
    seconds: float


class GpuWatch:
    """Monitors the GPU of a trial. Without NVML it detects nothing.

    `discarded`: why series of samples were discarded. `disturbance`: one that remained, or None.
    `shared`: whether a foreign process used memory before the trial.
    """

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.shared = False
        self.before_timing: Disturbance | None = None  # a foreign process that did not stop working
        self.restart()
        self.events: set[str] = set()  # clocks events since the last check
        self.since = self.next_poll = self.next_reading = 0.0
        self.known_pids: set[int] = set()
        self.bytes_before: int | None = None
        self.retries = RETRIES

    def wait_until_free(self, wait_s: float) -> None:
        """Wait for foreign processes to stop working, for `wait_s` and at least a second, and set
        `before_timing` if they do not.

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
                self.before_timing = foreign_process(
                    f"keeps this GPU busy ({used / 2**20:.0f} MiB in use before the trial)"
                )
                return
            time.sleep(FREE_POLL_S)

    def restart(self) -> None:
        """Forget what earlier timing found, before timing again."""
        self.discarded: list[Disturbance] = []
        self.disturbance = self.before_timing
        self.states: list[GpuState] = []
        self.energy_changes: list[EnergyChange] = []

    def begin(self) -> None:
        """Begin to monitor a timer. From now on, a new process is a disturbance, and a known one if
        it works."""
        self.since = time.time()
        self.known_pids = self.gpu.foreign_pids()
        self.bytes_before = self.others_bytes()
        self.retries = RETRIES

    def poll(self, calls: int) -> None:
        """Record the energy counter if it has changed, and the GPU's state. Call this between
        back-to-back blocks."""
        now = time.perf_counter()
        if self.gpu.handle is None or now < self.next_poll:
            return
        energy = self.gpu.ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None and (
            not self.energy_changes or energy != self.energy_changes[-1].energy_mj
        ):
            self.energy_changes.append(EnergyChange(energy, calls, now))
        if now >= self.next_reading:
            self.next_reading = now + 10 * POLL_S
            state = self.gpu.state()
            self.states.append(state)
            self.events.update(state.clocks_event_reasons)
        ended = time.perf_counter()
        pause_s = max(POLL_S, 20 * (ended - now))
        self.next_poll = ended + min(pause_s, RARE_POLL_S)

    def look(self) -> None:
        """Record the state of the GPU."""
        if self.gpu.handle is not None:
            self.states.append(self.gpu.state())

    def discard_if_disturbed(self) -> bool:
        """Discard the last series of samples if the GPU was disturbed and retries are left, and
        return whether it was discarded. Call this after each series."""
        reason = self.newest_disturbance()
        if reason and self.retries:
            self.retries -= 1
            self.discarded.append(reason)
            return True
        if reason and self.disturbance is None:
            self.disturbance = replace(
                reason, text=f"during timing, on every attempt: {reason.text}"
            )
        return False

    def newest_disturbance(self) -> Disturbance | None:
        """Return what has disturbed the GPU since the last check, or None."""
        events = self.events.union(self.gpu.state().clocks_event_reasons)
        self.events = set()
        slowdowns = sorted(SLOWDOWNS & events)
        if slowdowns:
            return Disturbance(DisturbanceKind.CLOCKS, f"clocks reduced ({', '.join(slowdowns)})")
        foreign = self.gpu.foreign_pids()
        newcomers = foreign - self.known_pids
        if newcomers:
            return foreign_process(f"started to use this GPU ({pids(newcomers)})")
        if foreign:
            working = foreign & (self.gpu.working_pids(self.since) or set())
            if working:
                self.since = time.time()
                return foreign_process(f"works on this GPU ({pids(working)})")
        now = self.others_bytes()
        if now is None or self.bytes_before is None:
            return None
        allocated = now - self.bytes_before
        if allocated <= FOREIGN_BYTES:
            return None
        return foreign_process(f"allocated {allocated / 2**20:.0f} MiB on this GPU")

    def end(self) -> None:
        """End monitoring after the last timer. If there are foreign processes and NVML cannot
        attribute work to processes, idle for the averaging interval of utilization: the remaining
        utilization is theirs."""
        if self.disturbance or not (self.shared or self.known_pids):
            return
        working = self.gpu.working_pids(self.since)
        if working is None:
            torch.cuda.synchronize()
            time.sleep(2 * SAMPLING_S)
            if self.gpu.utilization():
                self.disturbance = foreign_process(
                    "kept this GPU busy: it was still busy after timing"
                )
            return
        foreign = self.gpu.foreign_pids() & working
        if foreign:  # NVML may report work late
            self.disturbance = foreign_process(f"works on this GPU ({pids(foreign)})")

    def check_and_end(self) -> None:
        """End monitoring after timers that have not checked each series."""
        self.disturbance = self.disturbance or self.newest_disturbance()
        self.end()

    def others_bytes(self) -> int | None:
        """Return the used memory that is not torch's: contexts, libraries and other processes; None
        if unknown."""
        used = self.gpu.used_bytes()
        if used is None:
            return None
        reserved: int = torch.cuda.memory_reserved()
        return used - reserved

    def energy_per_call_mj(self) -> float | None:
        """Return the energy per call, in mJ, between the first and the last change of the counter;
        None if that time is too short. The first entry is omitted, because it is the start
        of polling and not a change."""
        changes = self.energy_changes[1:]
        if len(changes) < 3:
            return None
        first, last = changes[0], changes[-1]
        if last.seconds - first.seconds < MIN_ENERGY_S:
            return None
        return (last.energy_mj - first.energy_mj) / (last.calls - first.calls)

    def record(self, trial: Trial) -> None:
        """Set what the GPU showed under load."""
        states = self.states
        every_reason = chain.from_iterable(state.clocks_event_reasons for state in states)
        reasons = dict.fromkeys(every_reason)  # in the order in which they occurred
        trial.energy_mj = self.energy_per_call_mj()
        trial.sm_clock_mhz = whole_median(state.sm_clock_mhz for state in states)
        trial.memory_clock_mhz = whole_median(state.memory_clock_mhz for state in states)
        trial.temperature_c = whole_median(state.temperature_c for state in states)
        trial.power_w = known_median(state.power_w for state in states)
        trial.clocks_event_reasons = ",".join(reasons) or None


def known_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return median(known)


def whole_median(values: Iterable[int | None]) -> int | None:
    value = known_median(values)
    if value is None:
        return None
    return int(value)


def pids(processes: set[int]) -> str:
    return f"pid {', '.join(map(str, sorted(processes)))}"
