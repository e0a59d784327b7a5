"""The GPU's checks: each condition as it should be, and as it should not."""

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import UUID, FakeNvml, NVMLError, process

from effbench.doctor import checks
from effbench.measure.gpu import Gpu, Nvml

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
MEMORY = "nvmlDeviceGetMemoryInfo"
GIB = 2**30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {COMPUTE: [process(13), process(12), process(os.getpid())]},
            "other processes on it: 12, 13",
        ),
        ({MEMORY: SimpleNamespace(used=3 * GIB)}, "3.00 GiB of its memory"),
        ({REASONS: 0x20}, "slowed down now: sw_thermal_slowdown"),
    ],
)
def test_conditions(machine, changes, words):
    (finding,) = checks.disturbances(machine(**changes))
    assert finding.level == "warning"
    assert finding.fix
    assert finding.what.startswith("GPU 0: ")
    assert words in finding.what


def test_a_little_memory_is_no_process(machine):
    used = SimpleNamespace(used=GIB // 10)
    assert list(checks.disturbances(machine(**{MEMORY: used}))) == []


NAMES = [
    name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet") and "UUID" not in name
]


@pytest.mark.parametrize("changes", [{}, *({name: NVMLError} for name in NAMES)])
def test_any_query_may_fail(machine, changes):
    assert list(checks.disturbances(machine(**changes))) == []


def test_without_nvml(monkeypatch, machine):
    assert list(checks.disturbances(machine(nvmlInit=NVMLError("Driver Not Loaded")))) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().module is None


def test_nvml_that_is_missing_for_a_moment_is_asked_again(monkeypatch):
    fake, waited = FakeNvml(nvmlInit=NVMLError("Unknown Error")), []
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr("effbench.measure.gpu.time.sleep", waited.append)
    assert Gpu.open(UUID).handle is None
    assert len(waited) == 3
    monkeypatch.setattr(
        "effbench.measure.gpu.time.sleep", lambda seconds: fake.answers.update(nvmlInit=None)
    )
    assert Gpu.open(UUID).handle == "handle"


def test_a_mig_instance_is_found_by_its_own_name(machine):
    instance = UUID.replace("GPU-", "MIG-")
    changes = {"nvmlDeviceGetHandleByUUID": {instance: "part"}, REASONS: 0x20}
    assert [finding.level for finding in checks.disturbances(machine(**changes))] == ["warning"]


@pytest.mark.parametrize(
    ("environ", "changes", "level", "fix"),
    [
        ({}, {"nvmlInit": NVMLError}, "note", "use a machine with an NVIDIA GPU"),
        ({}, {}, "problem", "torch.cuda.init()"),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, "note", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_torch_does_not_see(
    machine, monkeypatch, cpu_answer, environ, changes, level, fix
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (finding,) = checks.visible(machine(cpu_answer, **changes))
    assert finding.level == level
    assert fix in finding.fix
