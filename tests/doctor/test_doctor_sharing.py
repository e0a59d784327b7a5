"""Who else may use a GPU."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from fake_nvml import NVMLError, process

from effbench.doctor import sharing

COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
HOST = {"proc/self/ns/pid@": "pid:[4026531836]"}
CONTAINER = {"proc/self/ns/pid@": "pid:[4026532500]"}
GIB = 2**30


def one(findings):
    found = list(findings)
    assert len(found) == 1, [finding.what for finding in found]
    return found[0]


def test_alone_on_the_host(gpu, machine):
    assert one(sharing.processes(gpu(), machine(HOST))).level == "good"


def test_a_container_sees_no_processes_and_says_so(gpu, machine):
    finding = one(sharing.processes(gpu(), machine(CONTAINER)))
    assert finding.level == "note"
    assert "cannot be seen" in finding.what


@pytest.mark.parametrize("unknown", [NVMLError, None], ids=["raises", "missing"])
def test_nvml_that_does_not_list(gpu, machine, unknown):
    assert "cannot be seen" in one(sharing.processes(gpu(**{COMPUTE: unknown}), machine(HOST))).what


def test_others_are_named(gpu, machine):
    root = machine({**HOST, "proc/12/comm": "python"})
    listed = [process(12, 5 * GIB), process(13), process(14, 2**64 - 1), process(os.getpid(), GIB)]
    finding = one(sharing.processes(gpu(**{COMPUTE: listed}), root))
    assert finding.level == "warning"
    assert finding.what == "3 other processes on it (pid 12 python, 5.00 GiB; pid 13; pid 14)"


def test_one_other_below_mps(gpu, machine):
    finding = one(sharing.processes(gpu(nvmlDeviceGetMPSComputeRunningProcesses=[process(7)]), machine(HOST)))
    assert "1 other process on it (pid 7)" in finding.what


def test_this_process_is_no_other(gpu, machine):
    assert one(sharing.processes(gpu(**{COMPUTE: [process(os.getpid())]}), machine(HOST))).level == "good"


def test_a_display(gpu, machine):
    graphics = gpu(nvmlDeviceGetGraphicsRunningProcesses=[process(5)], nvmlDeviceGetMemoryInfo=memory(GIB))
    found = list(sharing.processes(graphics, machine(HOST)))
    assert [finding.level for finding in found] == ["note", "good"]  # its memory is accounted for
    assert "graphics" in found[0].what


def memory(used):
    return SimpleNamespace(used=used)


@pytest.mark.parametrize(("files", "levels"), [(HOST, ["warning"]), (CONTAINER, ["note", "warning"])])
def test_memory_in_use_without_a_process(gpu, machine, files, levels):
    found = list(sharing.processes(gpu(nvmlDeviceGetMemoryInfo=memory(3 * GIB)), machine(files)))
    assert [finding.level for finding in found] == levels
    assert "3.00 GiB of its memory are in use, though no process is listed" in found[-1].what


def test_a_busy_gpu_without_a_process(gpu, machine):
    found = list(sharing.processes(gpu(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97)), machine(HOST)))
    assert "busy 97 %" in one(found).what


def test_what_the_driver_itself_takes_is_nobodys_work(gpu, machine, monkeypatch):
    quiet = gpu(nvmlDeviceGetMemoryInfo=memory(100 * 2**20), nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=3))
    assert one(sharing.processes(quiet, machine(HOST))).level == "good"
    # without version 2 its reserve is counted in
    old = gpu(nvmlDeviceGetMemoryInfo={"handle": memory(GIB)})
    assert one(sharing.processes(old, machine(HOST))).level == "good"


def test_mig(gpu):
    assert one(sharing.mig(gpu())).level == "good"
    on = one(sharing.mig(gpu(nvmlDeviceGetMigMode=[1, 1])))
    assert on.level == "warning"
    assert "an instance is measured, not the GPU" in on.what
    # an instance's own handle does not know the mode, but it has a parent
    instance = {"nvmlDeviceGetMigMode": NVMLError, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "parent"}
    assert one(sharing.mig(gpu(**instance))).level == "warning"
    assert list(sharing.mig(gpu(nvmlDeviceGetMigMode=NVMLError))) == []


@pytest.mark.parametrize(("mode", "levels"), [(0, []), (1, ["note"]), (2, ["problem"]), (3, ["note"]), (NVMLError, [])])
def test_compute_mode(gpu, mode, levels):
    found = list(sharing.compute_mode(gpu(nvmlDeviceGetComputeMode=mode)))
    assert [finding.level for finding in found] == levels


def test_all_of_it_names_the_gpu(gpu, machine):
    assert all(finding.what.startswith("GPU 0: ") for finding in sharing.findings(gpu(), machine(CONTAINER)))
