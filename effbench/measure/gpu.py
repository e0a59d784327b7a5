"""Query a GPU through NVML: clocks, temperature, power, clocks-event reasons, memory, processes.

This is the only module that imports pynvml. It does not import torch, so the doctor can use it.
docs/reference/extending.md tells how to add a metric.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from effbench.core import processes

#: Bits of nvmlClocksEventReasons and their names in NVIDIA's documentation.
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
SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
#: Pauses before NVML is asked again, because it may be unavailable for a moment.
PAUSES_S = (0.05, 0.2, 0.0)


@dataclass(frozen=True)
class GpuState:
    """The state of a GPU at a moment. Unknown values are None."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    clocks_event_reasons: list[str] = field(default_factory=list)


class Nvml:
    """NVML of this machine. Queries return None without it, or if the driver does not support
    them."""

    def __init__(self) -> None:
        self.module: Any = None
        with suppress(Exception):  # no binding, or an error of the binding: no driver
            import pynvml

            pynvml.nvmlInit()
            self.module = pynvml

    def ask(self, function: str, *args: Any) -> Any:
        if self.module is None:
            return None
        try:
            return getattr(self.module, function)(*args)
        # TypeError: an older binding accepts fewer arguments
        except (self.module.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def handle(self, uuid: str) -> Any:
        """Return the handle of the GPU or MIG instance with this UUID, whose prefix torch does not
        distinguish; None if unknown."""
        number = uuid.removeprefix("GPU-").removeprefix("MIG-")
        handle = self.ask("nvmlDeviceGetHandleByUUID", f"GPU-{number}")
        return handle or self.ask("nvmlDeviceGetHandleByUUID", f"MIG-{number}")


@dataclass
class Gpu:
    """A GPU or MIG instance. All queries return None without NVML (`handle` is None)."""

    nvml: Nvml | None = None
    handle: Any = None
    name: str = "GPU"

    @classmethod
    def open(cls, uuid: str | None) -> Gpu:
        """Return the GPU with this UUID. Without a UUID or NVML, all its queries return None."""
        if uuid is None:
            return cls()
        for pause_s in PAUSES_S:
            nvml = Nvml()
            handle = nvml.handle(uuid)
            if handle is not None:
                return cls(nvml, handle)
            time.sleep(pause_s)
        return cls()

    def ask(self, function: str, *args: Any) -> Any:
        """Return the answer to an NVML query about this GPU, or None if the driver does not support
        it."""
        if self.nvml is None or self.handle is None:
            return None
        return self.nvml.ask(function, self.handle, *args)

    def state(self) -> GpuState:
        """Return the state now, with the names of the clocks events."""
        power_mw = self.ask("nvmlDeviceGetPowerUsage")
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return GpuState(
            sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", SM_CLOCK),
            memory_clock_mhz=self.ask("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            temperature_c=self.ask("nvmlDeviceGetTemperature", 0),
            power_w=None if power_mw is None else power_mw / 1000,
            clocks_event_reasons=[name for bit, name in CLOCKS_EVENTS.items() if bits & bit],
        )

    def used_bytes(self) -> int | None:
        """Return the device memory used by all processes, without the driver's reserve; None if
        unknown."""
        memory = self.ask("nvmlDeviceGetMemoryInfo", MEMORY_V2)
        return None if memory is None else int(memory.used)

    def utilization(self) -> int | None:
        """Return the percentage of the driver's last sampling interval in which any kernel ran;
        None if unknown."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def processes(self) -> dict[int, int | None] | None:
        """Return pid -> bytes of the processes that compute on this GPU. Return None if this
        process is not listed, because NVML numbers processes differently in a container."""
        listed = self.ask("nvmlDeviceGetComputeRunningProcesses") or ()
        bytes_by_pid = {process.pid: process.usedGpuMemory for process in listed}
        if os.getpid() not in bytes_by_pid:
            return None
        return bytes_by_pid

    def foreign_pids(self) -> set[int]:
        """Return the processes of others that compute on this GPU, as far as they are known."""
        others = set(self.processes() or ()) - {os.getpid()}
        if others:
            others -= processes.siblings(others)
        return others

    def working_pids(self, since: float) -> set[int] | None:
        """Return the processes, including this one, that ran a kernel after `since` (seconds since
        the epoch). Return None if the driver does not report it, or numbers processes differently
        (in a container)."""
        since_us = since * 1e6
        samples = self.ask("nvmlDeviceGetProcessUtilization", int(since_us)) or ()
        if os.getpid() not in {sample.pid for sample in samples}:
            return None
        return {sample.pid for sample in samples if sample.smUtil and sample.timeStamp >= since_us}
