"""The GPU's checks: each condition as it should be, and as it should not."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from fake_nvml import UUID, FakeNvml, NVMLError, process

from effbench.doctor import gpu
from effbench.measure.telemetry import Nvml

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
LIMIT = "nvmlDeviceGetEnforcedPowerLimit"
CHECKS = (gpu.visible, gpu.driver, gpu.exclusive, gpu.processes, gpu.clocks, gpu.power, gpu.memory_errors)
HOST = {"proc/self/ns/pid@": "pid:[4026531836]"}
CONTAINER = {"proc/self/ns/pid@": "pid:[4026532500]"}
GIB = 2**30


def memory(used):
    return {"nvmlDeviceGetMemoryInfo": SimpleNamespace(used=used)}


@pytest.mark.parametrize(
    ("check", "changes", "level", "words"),
    [
        (gpu.exclusive, {}, None, ""),
        (gpu.exclusive, {"nvmlDeviceGetMigMode": [1, 1]}, "warning", "an instance is measured"),
        # an instance's own handle does not know the mode, but it has a parent
        (gpu.exclusive, {"nvmlDeviceGetMigMode": NVMLError, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "parent"},
         "warning", "an instance is measured"),
        (gpu.exclusive, {"nvmlDeviceGetComputeMode": 1}, "note", "exclusive"),
        (gpu.exclusive, {"nvmlDeviceGetComputeMode": 2}, "problem", "prohibited"),
        (gpu.processes, {}, "good", "no other process"),
        (gpu.processes, {COMPUTE: [process(os.getpid())]}, "good", "no other process"),
        (gpu.processes, {COMPUTE: NVMLError}, "note", "cannot be seen"),
        (gpu.processes, {COMPUTE: None}, "note", "cannot be seen"),
        (gpu.processes, {COMPUTE: [process(12, 5 * GIB), process(13), process(14, 2**64 - 1), process(os.getpid())]},
         "warning", "3 other processes on it (pid 12 python, 5.00 GiB; pid 13; pid 14)"),
        (gpu.processes, {"nvmlDeviceGetMPSComputeRunningProcesses": [process(7)]}, "warning", "1 other process"),
        (gpu.processes, {"nvmlDeviceGetGraphicsRunningProcesses": [process(7)]}, "warning", "1 other process"),
        (gpu.processes, memory(3 * GIB), "warning", "3.00 GiB of its memory are in use, but no process"),
        (gpu.processes, {"nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97)}, "warning", "busy 97 %"),
        (gpu.processes, {**memory(100 * 2**20), "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=3)}, "good", ""),
        (gpu.clocks, {}, "note", "not locked"),
        (gpu.clocks, {"nvmlDeviceGetApplicationsClock": {1: 1200}}, "note", "application clock 1200 of 1980 MHz"),
        (gpu.clocks, {REASONS: 0x2}, "note", "held by a setting"),
        (gpu.clocks, {REASONS: 0x4}, "note", "power cap"),
        (gpu.clocks, {REASONS: 0x20}, "warning", "thermal slowdown (by the driver) now"),
        (gpu.clocks, {REASONS: 0x48}, "warning", "thermal slowdown (by the hardware) now"),
        (gpu.clocks, {REASONS: 0x88}, "warning", "power brake"),
        (gpu.clocks, {REASONS: None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40}, "warning", "by the hardware"),
        (gpu.clocks, {REASONS: NVMLError}, "note", "does not report"),
        (gpu.power, {LIMIT: 600_000}, "warning", "power limit 600 W, below the default 700 W"),
        (gpu.power, {}, "good", "the default"),
        (gpu.power, {LIMIT: NVMLError}, None, ""),
        (gpu.power, {"nvmlDeviceGetPersistenceMode": 0}, "note", "persistence mode is off"),
        (gpu.memory_errors, {}, None, ""),
        (gpu.memory_errors, {"nvmlDeviceGetEccMode": [1, 0]}, "note", "off after the next reset"),
        (gpu.memory_errors, {"nvmlDeviceGetEccMode": [0, 0], "nvmlDeviceGetTotalEccErrors": 3}, None, ""),
        (gpu.memory_errors, {"nvmlDeviceGetTotalEccErrors": {0: 1}}, "warning", "1 uncorrected memory error since"),
        (gpu.memory_errors, {"nvmlDeviceGetRemappedRows": (1, 0, 1, 0)}, "warning", "wait for"),
        (gpu.memory_errors, {"nvmlDeviceGetRemappedRows": (1, 0, 0, 1)}, "warning", "could not be"),
    ],
)  # fmt: skip
def test_conditions(machine, kernel_files, check, changes, level, words):
    kernel_files({**HOST, "proc/12/comm": "python"})
    found = list(check(machine(**changes)))
    if level is None:
        assert [finding for finding in found if finding.level in ("warning", "problem")] == found == []
        return
    hit = next(finding for finding in found if words in finding.what and finding.level == level)
    assert hit.what.startswith("GPU 0: ")
    assert bool(hit.fix) or level in ("good", "note")
    others = [finding for finding in found if finding is not hit]
    assert not any(finding.needs_attention for finding in others)


def test_a_container_sees_no_processes_and_says_so(machine, kernel_files):
    kernel_files(CONTAINER)
    (finding,) = gpu.processes(machine())
    assert (finding.level, "cannot be seen" in finding.what) == ("note", True)
    assert [finding.level for finding in gpu.processes(machine(**memory(3 * GIB)))] == ["note", "warning"]


def test_any_query_may_fail(machine):
    names = [name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet") and "UUID" not in name]
    for changes in ({name: NVMLError} for name in names):
        assert all(list(check(machine(**changes))) is not None for check in CHECKS)
    for unknown in (NVMLError, None):
        found = [finding for check in CHECKS for finding in check(machine(**dict.fromkeys(names, unknown)))]
        assert not any(finding.needs_attention for finding in found)


def test_without_nvml(monkeypatch, answer, machine):
    silent = machine(nvmlInit=NVMLError("Driver Not Loaded"))
    assert silent.gpus == []
    assert [finding.level for finding in gpu.driver(silent)] == ["warning"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in Nvml().error


def test_a_mig_instance_is_found_by_its_own_name(machine):
    instance = UUID.replace("GPU-", "MIG-")
    found = machine(nvmlDeviceGetHandleByUUID={instance: "part"}).gpus
    assert [(gpu.handle, gpu.name) for gpu in found] == [("part", "GPU 0")]


def test_gpus_that_torch_sees_or_not(machine, answer, cpu_answer):
    def levels(**settings):
        return [finding.level for finding in gpu.visible(machine(**settings))]

    assert levels(probe=cpu_answer, nvmlInit=NVMLError) == ["note"]
    assert levels(probe=cpu_answer) == ["problem"]
    cpu_answer["environment"]["cuda_version"] = "13.0"
    (broken,) = gpu.visible(machine(probe=cpu_answer))
    assert broken.level == "problem" and "nvidia-smi" in broken.fix
    (hidden,) = gpu.visible(machine(probe=cpu_answer, environ={"CUDA_VISIBLE_DEVICES": ""}))
    assert (hidden.level, hidden.fix) == ("note", "unset CUDA_VISIBLE_DEVICES")


def test_gpus_that_are_left_out(machine, answer):
    answer["gpus"] = [{**answer["gpus"][0], "name": "NVIDIA H200"}]
    for count, chosen, levels in ((8, {"CUDA_VISIBLE_DEVICES": "3"}, ["good", "note"]), (8, {}, ["good"]),
                                  (1, {"CUDA_VISIBLE_DEVICES": "0"}, ["good"])):  # fmt: skip
        found = gpu.visible(machine(environ=chosen, probe=answer, nvmlDeviceGetCount=count))
        assert [finding.level for finding in found] == levels


@pytest.mark.parametrize(
    ("number", "cuda", "works", "level"),
    [
        (13000, "13.0", True, "good"),
        (13010, "13.0", True, "good"),
        (13000, "12.8", True, "good"),
        (12040, "12.8", True, "warning"),  # the same major: CUDA's minor-version compatibility
        (12080, "13.0", False, "problem"),
        (12080, "13.0", True, "warning"),  # the package for forward compatibility is there
        (13000, None, False, "good"),
        (NVMLError, "13.0", True, "good"),
    ],
)
def test_driver_against_torch(machine, answer, number, cuda, works, level):
    answer["environment"]["cuda_version"] = cuda
    answer["gpus"] = answer["gpus"] if works else []
    (finding,) = gpu.driver(machine(probe=answer, nvmlSystemGetCudaDriverVersion_v2=number))
    assert (finding.level, bool(finding.fix)) == (level, level in ("warning", "problem"))
    assert finding.what.startswith("driver 580.95.05")
    assert list(gpu.driver(machine(nvmlSystemGetDriverVersion=NVMLError))) == []
