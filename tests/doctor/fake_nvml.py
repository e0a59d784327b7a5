"""NVML with the answers of one real machine: an H200 passed through to a virtual machine, asked
from a container."""

from types import SimpleNamespace
from typing import Any

UUID = "GPU-11111111-2222-3333-4444-555555555555"
H200 = {
    "nvmlInit": None,
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByUUID": {UUID: "handle"},
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1,
    "nvmlDeviceGetComputeRunningProcesses": [],
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=0),
}


class NVMLError(Exception):
    """Not Supported."""


class FakeNvml:
    """In the place of the module pynvml. A change is the new answer: NVMLError raises it, None
    takes the function away.

    A dict answers by the last argument; what it does not hold raises NVMLError.
    """

    NVMLError = NVMLError

    def __init__(self, **changes: Any) -> None:
        self.answers = {**H200, **changes}
        for name in [name for name, answer in changes.items() if answer is None]:
            del self.answers[name]

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def function(*args: Any) -> Any:
            answer = self.answers[name]
            if isinstance(answer, dict):
                answer = answer.get(args[-1], NVMLError)
            if answer is NVMLError or isinstance(answer, NVMLError):
                raise answer
            return answer

        return function


def process(pid: int, used: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)
