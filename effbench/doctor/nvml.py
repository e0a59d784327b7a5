"""NVML, where there is one: every query answers None for what a driver or machine does not say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Nvml:
    """`why`: what is missing, None where NVML answers."""

    def __init__(self) -> None:
        self.module: Any = None
        self.why: str | None = None
        try:
            import pynvml
        except ImportError as error:
            self.why = str(error)
            return
        try:
            pynvml.nvmlInit()
            self.module = pynvml
        except pynvml.NVMLError as error:
            self.why = str(error)

    def ask(self, function: str, *args: Any) -> Any:
        if self.module is None:
            return None
        try:
            return getattr(self.module, function)(*args)
        # TypeError: an older binding that takes fewer arguments
        except (self.module.NVMLError, AttributeError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Device:
    """A GPU (or MIG instance) that torch uses, as NVML knows it."""

    nvml: Nvml
    name: str  # "GPU 0", by torch's index
    handle: Any

    def ask(self, function: str, *args: Any) -> Any:
        """The answer to a query of this GPU, None where it is not to be had."""
        return self.nvml.ask(function, self.handle, *args)

    def clocks_events(self) -> int | None:
        """Bits of nvmlClocksEventReasons."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        # the name before driver 535
        return self.ask("nvmlDeviceGetCurrentClocksThrottleReasons") if bits is None else bits


def devices(nvml: Nvml, gpus: Sequence[dict[str, Any]]) -> list[Device]:
    """NVML's handles of the GPUs of a probe's answer; without those that it does not find."""
    found = []
    for gpu in gpus:
        uuid = gpu["uuid"].removeprefix("GPU-").removeprefix("MIG-")
        for prefix in ("GPU-", "MIG-"):
            handle = nvml.ask("nvmlDeviceGetHandleByUUID", prefix + uuid)
            if handle is not None:
                found.append(Device(nvml, f"GPU {gpu['index']}", handle))
                break
    return found
