"""Driver and CUDA versions, and the GPUs that torch sees or does not."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import FakeNvml, NVMLError

from effbench.doctor import driver
from effbench.doctor.nvml import Nvml


def levels(findings):
    return [finding.level for finding in findings]


def test_an_h200(nvml, answer):
    found = list(driver.findings(nvml(), answer, {}))
    assert levels(found) == ["good", "good"]
    assert found[0].what == "GPU 0: NVIDIA H200, 140 GiB"
    assert found[1].what == "driver 580.95.05, for CUDA up to 13.0; torch is built for CUDA 13.0"


def test_without_any_gpu(monkeypatch, cpu_answer):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=NVMLError("NVML Shared Library Not Found")))
    (finding,) = driver.findings(Nvml(), cpu_answer, {})
    assert finding.level == "note"
    assert finding.what == "torch sees no CUDA device (it is built without CUDA)"
    assert "on the CPU" in finding.effect


def test_a_gpu_that_torch_does_not_see(nvml, cpu_answer):
    found = list(driver.findings(nvml(), cpu_answer, {}))
    assert levels(found) == ["problem", "good"]
    assert "but the driver has 1 GPU" in found[0].what
    assert "install a CUDA build" in found[0].mend
    cpu_answer["environment"]["cuda_version"] = "13.0"
    broken = next(driver.findings(nvml(), cpu_answer, {}))
    assert broken.level == "problem"
    assert "nvidia-smi" in broken.mend


def test_hidden_on_purpose(nvml, cpu_answer):
    cpu_answer["environment"]["cuda_version"] = "13.0"
    found = next(driver.findings(nvml(), cpu_answer, {"CUDA_VISIBLE_DEVICES": ""}))
    assert found.level == "note"
    assert found.mend == "unset CUDA_VISIBLE_DEVICES"


def test_some_gpus_are_left_out(nvml, answer):
    found = list(driver.findings(nvml(nvmlDeviceGetCount=8), answer, {"CUDA_VISIBLE_DEVICES": "3"}))
    assert any(finding.what == "1 of 8 GPUs are used (CUDA_VISIBLE_DEVICES=3)" for finding in found)
    assert len(list(driver.findings(nvml(nvmlDeviceGetCount=1), answer, {"CUDA_VISIBLE_DEVICES": "0"}))) == 2


def test_a_gpu_without_nvml(monkeypatch, answer):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=NVMLError("Driver Not Loaded")))
    found = list(driver.findings(Nvml(), answer, {}))
    assert levels(found) == ["good", "warning"]
    assert found[1].what == "NVML does not answer: Driver Not Loaded"


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
def test_driver_against_torch(nvml, number, cuda, works, level):
    (finding,) = driver.versions(nvml(nvmlSystemGetCudaDriverVersion_v2=number), cuda, works)
    assert finding.level == level
    assert finding.what.startswith("driver 580.95.05")
    assert bool(finding.mend) == (level in ("warning", "problem"))


def test_a_silent_driver(nvml):
    assert list(driver.versions(nvml(nvmlSystemGetDriverVersion=NVMLError), "13.0", True)) == []


@pytest.mark.parametrize(
    ("words", "found"), [("12.8", (12, 8)), ("13.0.1", (13, 0)), ("13", None), (None, None), ("x.y", None)]
)
def test_versions_are_read(words, found):
    assert driver.version(words) == found
