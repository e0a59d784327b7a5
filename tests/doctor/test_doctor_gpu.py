"""The GPU's checks: each condition as it should be, and as it should not."""

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import UUID, FakeNvml, NVMLError, process

from effbench.doctor import gpu
from effbench.doctor.checks import CHECKS
from effbench.measure.gpu import Gpu, Nvml

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
LIMIT = "nvmlDeviceGetEnforcedPowerLimit"
GIB = 2**30
ATTENTION = ("warning", "problem")


MEMORY, BUSY = "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"


@pytest.mark.parametrize(
    ("check", "changes", "words"),
    [
        (gpu.partition, {"nvmlDeviceGetMigMode": [1, 1]}, "sweeps measure an instance"),
        # an instance's own handle does not know the mode, but it has a parent
        (
            gpu.partition,
            {
                "nvmlDeviceGetMigMode": NVMLError,
                "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "parent",
            },
            "sweeps measure an instance",
        ),
        (
            gpu.processes,
            {COMPUTE: [process(12), process(13), process(os.getpid())]},
            "other processes on it: 12 python, 13",
        ),
        (gpu.processes, {MEMORY: SimpleNamespace(used=3 * GIB)}, "3.00 GiB of its memory"),
        (gpu.processes, {BUSY: SimpleNamespace(gpu=97)}, "busy 97 %"),
        (gpu.clocks, {REASONS: 0x20}, "slowed down now: sw_thermal_slowdown"),
        (
            gpu.clocks,
            {REASONS: None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40},
            "hw_thermal",
        ),
        (gpu.power, {LIMIT: 600_000}, "power limit 600 W, below the default 700 W"),
    ],
)
def test_conditions(machine, check, changes, words):
    (finding,) = check(machine(files={"proc/12/comm": "python"}, **changes))
    assert finding.level == "warning"
    assert finding.fix
    assert finding.what.startswith("GPU 0: ")
    assert words in finding.what


def test_a_little_memory_and_work_are_no_processes(machine):
    used, busy = SimpleNamespace(used=GIB // 10), SimpleNamespace(gpu=3)
    assert list(gpu.processes(machine(**{MEMORY: used, BUSY: busy}))) == []


NAMES = [
    name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet") and "UUID" not in name
]


@pytest.mark.parametrize("changes", [{}, *({name: NVMLError} for name in NAMES)])
def test_any_query_may_fail(machine, changes):
    found = [finding for check in CHECKS["GPU"] for finding in check(machine(**changes))]
    assert not any(finding.level in ATTENTION for finding in found)


def test_without_nvml(monkeypatch, answer, machine):
    silent = machine(nvmlInit=NVMLError("Driver Not Loaded"))
    assert silent.gpus == []
    assert [finding.level for finding in gpu.nvml(silent)] == ["warning"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in Nvml().error


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
    found = machine(nvmlDeviceGetHandleByUUID={instance: "part"}).gpus
    assert [(gpu.handle, gpu.name) for gpu in found] == [("part", "GPU 0")]


@pytest.mark.parametrize(
    ("environ", "changes", "level", "fix"),
    [
        ({}, {"nvmlInit": NVMLError}, "note", "use a machine with an NVIDIA GPU"),
        ({}, {}, "problem", "torch.cuda.init()"),
        ({"CUDA_VISIBLE_DEVICES": ""}, {}, "note", "unset CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_torch_does_not_see(machine, cpu_answer, environ, changes, level, fix):
    (finding,) = gpu.visible(machine(probe=cpu_answer, environ=environ, **changes))
    assert finding.level == level
    assert fix in finding.fix
