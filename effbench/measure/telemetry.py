"""The GPU as NVML sees it: clocks, temperature, power, clocks-event reasons, memory, processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
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


class Nvml:
    """NVML of this machine. A query answers None if the driver does not report it; `error`: why NVML is missing."""

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

    @classmethod
    def open(cls, uuid: str | None) -> Gpu:
        """Return the GPU with this UUID; one that answers None to everything without a UUID or without NVML."""
        if uuid is None:
            return cls()
        nvml = Nvml()
        return cls(nvml, nvml.handle(uuid))

    def ask(self, function: str, *args: Any) -> Any:
        """Return the answer to an NVML query of this GPU, None if the driver does not support it."""
        return None if self.nvml is None or self.handle is None else self.nvml.ask(function, self.handle, *args)

    def clocks_events(self) -> int | None:
        """Return the bits of nvmlClocksEventReasons."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        # the name before driver 535
        return self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits

    def read(self) -> dict[str, Any]:
        """Return clocks (MHz), temperature (°C), power (W) and the names of the clocks events."""
        power, bits = self.ask("nvmlDeviceGetPowerUsage"), self.clocks_events() or 0
        return {
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", 1),
            "memory_clock_mhz": self.ask("nvmlDeviceGetClockInfo", 2),
            "temperature_c": self.ask("nvmlDeviceGetTemperature", 0),
            "power_w": None if power is None else power / 1000,
            "clocks_event_reasons": [name for bit, name in CLOCKS_EVENTS.items() if bits & bit],
        }

    def used_bytes(self) -> int | None:
        """Return the device memory in use by all processes, without the driver's own reserve."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2)
        return None if memory is None else int(memory.used)

    def utilization(self) -> int | None:
        """Return the percentage of the driver's last sampling interval in which any kernel ran."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def processes(self) -> dict[int, int | None] | None:
        """Return the processes that compute on this GPU with the bytes that each holds; None if this one is not listed,
        since NVML numbers processes differently in a container."""
        listed = self.ask("nvmlDeviceGetComputeRunningProcesses") or ()
        found = {process.pid: process.usedGpuMemory for process in listed}
        return found if os.getpid() in found else None

    def foreign_pids(self) -> set[int] | None:
        """Return the other processes that compute on this GPU; None if unknown."""
        found = self.processes()
        return None if found is None else set(found) - {os.getpid()}

    def working_pids(self, since: float) -> set[int] | None:
        """Return the processes that ran a kernel since that time (seconds since the epoch), this one included; None if
        the driver does not report it, or numbers processes differently (a container)."""
        seen = self.ask("nvmlDeviceGetProcessUtilization", int(since * 1e6)) or ()
        working = {sample.pid for sample in seen if sample.smUtil and sample.timeStamp >= since * 1e6}
        return working if os.getpid() in {sample.pid for sample in seen} else None
