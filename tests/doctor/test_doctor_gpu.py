"""A GPU's own state: each condition as it should be, and as it should not."""

from __future__ import annotations

import sys

import pytest
from fake_nvml import UUID, FakeNvml, NVMLError

from effbench.doctor import gpu as looks
from effbench.doctor.nvml import Nvml, devices

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


def said(findings):
    return {finding.what.removeprefix("GPU 0: "): finding for finding in findings}


def one(findings):
    found = list(findings)
    assert len(found) == 1, [finding.what for finding in found]
    return found[0]


def test_a_sound_gpu_needs_no_attention(gpu):
    found = said(looks.findings(gpu()))
    assert [what for what, finding in found.items() if finding.needs_attention] == []
    assert "SM clock 345 of 1980 MHz, memory clock 3201 of 3201 MHz (idle)" in found
    assert {"ECC is on", "persistence mode is on", "power limit 700 W, the default"} <= found.keys()
    assert "PCIe generation 5, 16 lanes" in found


@pytest.mark.parametrize("unknown", [NVMLError, None], ids=["raises", "missing"])
def test_nothing_known_is_no_crash(gpu, unknown):
    names = [name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet") and "UUID" not in name]
    found = list(looks.findings(gpu(**dict.fromkeys(names, unknown))))
    assert {finding.level for finding in found} <= {"note"}
    assert "cannot be read" in found[0].what


@pytest.mark.parametrize("name", [name for name in FakeNvml().answers if name.startswith("nvmlDeviceGet")])
def test_any_single_query_may_fail(nvml, answer, name):
    for device in devices(nvml(**{name: NVMLError}), answer["gpus"]):
        assert list(looks.findings(device))


def test_application_clock_below_the_maximum_holds_it(gpu):
    held = looks.clocks(gpu(nvmlDeviceGetApplicationsClock={1: 1200}))
    assert any("application clock 1200 of 1980 MHz" in finding.what for finding in held)


def test_locked_clocks_show_in_the_reasons(gpu):
    assert any("held by a setting" in finding.what for finding in looks.clocks(gpu(**{REASONS: 0x2})))
    free = list(looks.clocks(gpu(**{REASONS: 0x0})))
    assert any("not locked" in finding.what for finding in free)
    assert not any("(idle)" in finding.what for finding in free)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x20, ["thermal slowdown (by the driver) now"]),
        (0x48, ["thermal slowdown (by the hardware) now"]),
        (0x88, ["power brake: the supply asks for less now"]),
        (0x08, ["hardware slowdown now"]),
        (0xC8, ["thermal slowdown (by the hardware) now", "power brake: the supply asks for less now"]),
        (0x10, ["its clocks are tied to another GPU's (sync boost)"]),
        (0x100, ["its clocks are held by a display"]),
    ],
)
def test_what_slows_it_down(gpu, bits, words):
    warned = [finding.what for finding in looks.slowdowns(gpu(**{REASONS: bits})) if finding.level == "warning"]
    assert warned == words


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2])
def test_idle_and_settings_are_no_slowdown(gpu, bits):
    assert one(looks.slowdowns(gpu(**{REASONS: bits}))).level == "good"


def test_a_power_cap_is_apart_from_slowdowns(gpu):
    capped = said(looks.slowdowns(gpu(**{REASONS: 0x4})))
    levels = {finding.level for finding in capped.values()}
    assert levels == {"note", "good"}
    assert any("power cap" in what for what in capped)


def test_the_older_name_of_the_reasons(gpu):
    old = {REASONS: None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x40}
    assert "by the hardware" in one(looks.slowdowns(gpu(**old))).what


@pytest.mark.parametrize(
    ("limit", "level"), [(600_000, "warning"), (700_000, "good"), (800_000, "note"), (NVMLError, "note")]
)
def test_power_limit(gpu, limit, level):
    finding = one(looks.power(gpu(nvmlDeviceGetEnforcedPowerLimit=limit)))
    assert finding.level == level
    if level == "warning":
        assert finding.mend.endswith("nvidia-smi -pl 700")


@pytest.mark.parametrize(
    ("celsius", "threshold", "level"),
    [(60, {1: 90}, "good"), (83, {1: 90}, "warning"), (83, {}, "good"), (85, {}, "warning")],
)
def test_temperature(gpu, celsius, threshold, level):
    changed = gpu(nvmlDeviceGetTemperature=celsius, nvmlDeviceGetTemperatureThreshold=threshold)
    assert one(looks.temperature(changed)).level == level


def test_ecc(gpu):
    assert "none with HBM" in one(looks.ecc(gpu())).effect
    assert one(looks.ecc(gpu(nvmlDeviceGetEccMode=[0, 0], nvmlDeviceGetTotalEccErrors=3))).what == "ECC is off"
    assert list(looks.ecc(gpu(nvmlDeviceGetEccMode=NVMLError))) == []
    changing = [finding.what for finding in looks.ecc(gpu(nvmlDeviceGetEccMode=[1, 0]))]
    assert changing == ["ECC is on", "ECC will be off after the next reset"]


def test_uncorrected_errors(gpu):
    fresh = list(looks.ecc(gpu(nvmlDeviceGetTotalEccErrors={0: 1, 1: 4})))[1]
    assert (fresh.level, fresh.what) == ("warning", "1 uncorrected memory error since the driver was loaded")
    old = list(looks.ecc(gpu(nvmlDeviceGetTotalEccErrors={0: 0, 1: 4})))[1]
    assert (old.level, old.what) == ("note", "4 uncorrected memory errors in its life, none since the driver loaded")


@pytest.mark.parametrize(("rows", "word"), [((1, 0, 1, 0), "wait for"), ((1, 0, 0, 1), "could not be")])
def test_rows_to_be_remapped(gpu, rows, word):
    found = list(looks.ecc(gpu(nvmlDeviceGetRemappedRows=rows)))[1]
    assert found.level == "warning"
    assert word in found.what


def test_pcie(gpu):
    narrow = one(looks.pcie(gpu(nvmlDeviceGetCurrPcieLinkWidth=8)))
    assert (narrow.level, narrow.what) == ("warning", "PCIe generation 5, 8 lanes of 16")
    assert one(looks.pcie(gpu(nvmlDeviceGetCurrPcieLinkGeneration=1))).level == "note"  # idle
    assert one(looks.pcie(gpu(nvmlDeviceGetCurrPcieLinkGeneration=1, **{REASONS: 0}))).level == "warning"
    assert list(looks.pcie(gpu(nvmlDeviceGetCurrPcieLinkGeneration=NVMLError))) == []


@pytest.mark.parametrize(("mode", "level"), [(0, "note"), (1, "good")])
def test_persistence(gpu, mode, level):
    finding = one(looks.persistence(gpu(nvmlDeviceGetPersistenceMode=mode)))
    assert finding.level == level
    assert bool(finding.mend) == (mode == 0)


def test_without_a_driver_or_pynvml(monkeypatch, answer):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=NVMLError("NVML Shared Library Not Found")))
    assert Nvml().why == "NVML Shared Library Not Found"
    assert devices(Nvml(), answer["gpus"]) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pynvml" in Nvml().why


def test_a_mig_instance_is_found_by_its_own_name(nvml, answer):
    instance = UUID.replace("GPU-", "MIG-")
    assert [
        device.handle for device in devices(nvml(nvmlDeviceGetHandleByUUID={instance: "part"}), answer["gpus"])
    ] == ["part"]
