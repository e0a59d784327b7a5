"""The GPU as NVML sees it: clocks, temperature, power, energy, clocks-event reasons, processes."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

#: Bits of nvmlClocksEventReasons, by the names that NVIDIA documents.
CLOCKS_EVENTS = {
    0x0000000000000001: "gpu_idle",
    0x0000000000000002: "applications_clocks_setting",
    0x0000000000000004: "sw_power_cap",
    0x0000000000000008: "hw_slowdown",
    0x0000000000000010: "sync_boost",
    0x0000000000000020: "sw_thermal_slowdown",
    0x0000000000000040: "hw_thermal_slowdown",
    0x0000000000000080: "hw_power_brake_slowdown",
    0x0000000000000100: "display_clock_setting",
}
MEMORY_V2 = 0x02000028  # nvmlMemory_v2, which reports the driver's own reserve separately
POLL_S = 0.02  # a poll idles the GPU for some tens of microseconds
MIN_ENERGY_S = 0.3


@dataclass(frozen=True)
class Reading:
    """One reading. None for what the driver does not report."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    clocks_event_reasons: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "clocks_event_reasons": list(self.clocks_event_reasons)}


@dataclass
class EnergyMark:
    """The energy counter at the moment of a change."""

    energy_mj: int
    calls: int
    time: float


class Nvml:
    """NVML of this machine: a query answers None for what the driver does not report.

    `error` says why NVML is missing, None if it works.
    """

    def __init__(self) -> None:
        self.module: Any = None
        self.error: str | None = None
        try:
            import pynvml
        except ImportError as error:
            self.error = str(error)
            return
        try:
            pynvml.nvmlInit()
            self.module = pynvml
        except pynvml.NVMLError as error:
            self.error = str(error)

    def ask(self, function: str, *args: Any) -> Any:
        if self.module is None:
            return None
        try:
            return getattr(self.module, function)(*args)
        # TypeError: an older binding that takes fewer arguments
        except (self.module.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def handle(self, uuid: str) -> Any:
        """Return the handle of the GPU or MIG instance with this UUID, with or without its prefix."""
        for prefix in ("GPU-", "MIG-"):  # torch does not tell the two apart
            found = self.ask("nvmlDeviceGetHandleByUUID", prefix + uuid.removeprefix("GPU-").removeprefix("MIG-"))
            if found is not None:
                return found
        return None


@dataclass
class Gpu:
    """One GPU or MIG instance. Every query answers None without NVML (`handle` is None)."""

    nvml: Nvml | None = None
    handle: Any = None
    name: str = "GPU"

    def ask(self, function: str, *args: Any) -> Any:
        """Return the answer to an NVML query of this GPU, None if the driver does not support it."""
        return None if self.nvml is None or self.handle is None else self.nvml.ask(function, self.handle, *args)

    def clocks_events(self) -> int | None:
        """Return the bits of nvmlClocksEventReasons."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        # the name before driver 535
        return self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits

    def used_bytes(self) -> int | None:
        """Return the device memory in use by all processes, without the driver's own reserve."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2)
        return None if memory is None else int(memory.used)

    def utilization(self) -> int | None:
        """Return the percentage of the driver's last sampling interval in which any kernel ran."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)


@dataclass
class Telemetry(Gpu):
    """Readings around and during a timed part. All methods are harmless without NVML."""

    readings: list[Reading] = field(default_factory=list)
    marks: list[EnergyMark] = field(default_factory=list)
    next_poll: float = 0.0
    next_reading: float = 0.0
    asked: int = 0

    @classmethod
    def open(cls, uuid: str | None) -> Telemetry:
        """Return the GPU with this UUID; an empty one without a UUID or without NVML."""
        if uuid is None:
            return cls()
        nvml = Nvml()
        return cls(nvml, nvml.handle(uuid))

    def read(self) -> Reading:
        """Return the present state."""
        power = self.ask("nvmlDeviceGetPowerUsage")
        bits = self.clocks_events()
        return Reading(
            sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", 1),
            memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", 2),
            temperature_c=self.ask("nvmlDeviceGetTemperature", 0),
            power_w=None if power is None else power / 1000,
            clocks_event_reasons=tuple(name for bit, name in CLOCKS_EVENTS.items() if (bits or 0) & bit),
        )

    def reasons_since_last(self) -> set[str]:
        """Return the clocks events of now and of the readings since the last call."""
        recent, self.asked = self.readings[self.asked :], len(self.readings)
        return {name for reading in (*recent, self.read()) for name in reading.clocks_event_reasons}

    def poll(self, calls: int) -> None:
        """Record changes of the energy counter and the state while busy; called between timed blocks."""
        now = time.perf_counter()
        if self.handle is None or now < self.next_poll:
            return
        self.next_poll = now + POLL_S
        energy = self.ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy is not None and (not self.marks or energy != self.marks[-1].energy_mj):
            self.marks.append(EnergyMark(energy, calls, now))
        if now >= self.next_reading:
            self.next_reading = now + 10 * POLL_S
            self.readings.append(self.read())

    def energy_per_call_mj(self) -> float | None:
        """Return the energy a call from the first to the last change of the counter; None if the run was too short.

        The first mark is omitted: polling began there, the counter did not change.
        """
        marks = self.marks[1:]
        if len(marks) < 3 or marks[-1].time - marks[0].time < MIN_ENERGY_S:
            return None
        return (marks[-1].energy_mj - marks[0].energy_mj) / (marks[-1].calls - marks[0].calls)

    def busy(self) -> Reading:
        """Return medians of the readings taken while busy."""
        if not self.readings:
            return Reading()

        def middle(name: str) -> Any:
            values = [value for reading in self.readings if (value := getattr(reading, name)) is not None]
            return median(values) if values else None

        clock, memory, temperature = (middle(n) for n in ("sm_clock_mhz", "memory_clock_mhz", "temperature_c"))
        reasons = dict.fromkeys(name for reading in self.readings for name in reading.clocks_event_reasons)
        return Reading(
            None if clock is None else int(clock),
            None if memory is None else int(memory),
            None if temperature is None else int(temperature),
            middle("power_w"),
            tuple(reasons),
        )

    def process_bytes(self) -> int | None:
        """Return the device memory of this process with its context; None if NVML cannot tell (another PID
        namespace)."""
        for process in self.ask("nvmlDeviceGetComputeRunningProcesses") or ():
            if process.pid == os.getpid():
                return process.usedGpuMemory
        return None

    def foreign_pids(self) -> set[int] | None:
        """Return other processes that compute on this GPU; None if NVML does not list even this one (a container)."""
        processes = self.ask("nvmlDeviceGetComputeRunningProcesses")
        if processes is None or all(process.pid != os.getpid() for process in processes):
            return None
        return {process.pid for process in processes} - {os.getpid()}

    def working_pids(self, since: float) -> set[int] | None:
        """Return the processes that ran a kernel since that time (seconds since the epoch), this one included; None if
        the driver does not report it, or numbers processes differently (a container)."""
        seen = self.ask("nvmlDeviceGetProcessUtilization", int(since * 1e6))
        if seen is None:  # not supported, or no samples yet
            return None
        working = {sample.pid for sample in seen if sample.smUtil and sample.timeStamp >= since * 1e6}
        return working if os.getpid() in {sample.pid for sample in seen} else None
