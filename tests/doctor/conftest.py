"""A made-up machine for the doctor: NVML and a probe's answer."""

import copy
import dataclasses
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import fake_nvml
import pytest
from made_sweeps import environment

from effbench.run.probe import ProbedMachine, describe_machine

H200 = environment(cuda_version="13.0")
ANSWER: dict[str, Any] = {
    "gpus": [
        {
            "index": 0,
            "uuid": fake_nvml.UUID,
            "visible": "0",
            "name": "NVIDIA H200",
            "memory_bytes": 150_000_000_000,
            "near_cores": None,
        }
    ],
    "environment": dataclasses.asdict(H200),
    "details": {
        "packages": {
            "numpy": "2.4.6",
            "timm": "1.0.31",
            "torchvision": "0.28.0",
            "transformers": "5.23.0",
        },
        "compilers": {"gcc": True, "g++": True, "clang": False, "nvcc": True},
    },
}


@pytest.fixture
def answer() -> dict[str, Any]:
    """What the probe says on a machine with one H200; to be changed at will."""
    return copy.deepcopy(ANSWER)


@pytest.fixture
def cpu_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """The same without a GPU, and with a torch that is built for none."""
    answer["gpus"] = []
    none = ("gpu_name", "gpu_memory_bytes", "driver_version", "cuda_version", "triton_version")
    answer["environment"] |= dict.fromkeys(none) | {"torch_version": "2.13.0+cpu"}
    return answer


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> Callable[..., ProbedMachine]:
    """What the probe found on a machine with one H200, with these changes to NVML's answers."""

    def make(probe: Any = answer, **changes: Any) -> ProbedMachine:
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml.FakeNvml(**changes))
        return describe_machine(SimpleNamespace(call=lambda *_: probe))

    return make
