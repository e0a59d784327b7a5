"""The calibration: which sweeps run, what their trials give, and how it is reported."""

from __future__ import annotations

import copy
import math
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from made_sweeps import Made

import effbench
from effbench.cell import Cell, Environment
from effbench.doctor import calibration
from effbench.errors import WorkerError
from effbench.stats.significance import smallest_slowdown
from effbench.store.store import Store


def make_cell(name="mlp", bs=1, mode="eager", width=64):
    model = {"name": name, "module": {"_target_": "x.Y", "width": width}, "inputs": []}
    return Cell(model, bs, {"name": mode, "_target_": "m"}, "bfloat16", "inference", "cuda", {}, {})


def rows(cell, values, metric="latency_ms", status="ok"):
    return [
        {"cell_key": cell.key, "round": round, "attempt": 0, "status": status, "reason": None, metric: value}
        for round, value in enumerate(values)
    ]


def judged(values, cell=None, metric="latency_ms", trials=None):
    cell = cell or make_cell()
    return calibration.cell_noise(cell, {cell.key: "the cell"}, trials or rows(cell, values, metric), metric, "s")


def test_the_spread_is_that_of_the_logarithms():
    found = judged([1.0, 2.0, 1.0, 2.0])
    assert found.sd == pytest.approx(math.log(2) / math.sqrt(3))
    assert found.median_ms == pytest.approx(math.sqrt(2))
    assert found.statuses == {"ok": 4}


def test_odd_rounds_against_even():
    found = judged([1.1, 1.0, 1.1001, 1.0, 1.1, 1.0001])
    assert found.ratio == pytest.approx(1.1, rel=1e-3)
    assert 1 < found.ratio_low < found.ratio < found.ratio_high
    quiet = judged([1.0, 1.01, 1.01, 1.0, 1.0, 1.01])
    assert quiet.ratio_low < 1 < quiet.ratio_high


def test_the_last_attempt_counts_and_only_ok():
    cell = make_cell()
    trials = rows(cell, [1.0] * 6)
    trials[2]["status"], trials[2]["reason"] = "noisy", "throttled"
    again = {**trials[3], "attempt": 1, "latency_ms": 1.5}
    found = judged(None, cell, trials=[*trials, again, *rows(make_cell(bs=2), [9.0] * 6)])
    assert found.trials == 5
    assert found.statuses == {"ok": 5, "noisy": 1}
    assert found.reason == "throttled"
    assert found.median_ms == pytest.approx(1.5 ** (1 / 5))
    (finding,) = calibration.failed(found)
    assert (finding.level, "1 noisy (throttled)" in finding.what) == ("warning", True)
    assert list(calibration.failed(judged([1.0, 1.1] * 3))) == []


def test_too_few_trials():
    for values in ([1.0, 1.0, 1.0], [1.0, None, 1.0, None, 1.0, 1.0], []):
        assert judged(values).sd is None
        assert calibration.kind_noise([judged(values)]) is None


def test_a_kind_is_as_noisy_as_its_noisiest_cell():
    kind = calibration.kind_noise([judged([1.0, 1.1, 1.0, 1.1]), judged([1.0, 1.5, 1.0, 1.5]), judged([])])
    assert kind["sd"] == pytest.approx(math.log(1.5) / math.sqrt(3))
    assert kind["smallest_slowdown"] == pytest.approx(smallest_slowdown(kind["sd"], 5))
    assert len(kind["cells"]) == 3


# --- with a made-up sweep() that records what it is told to ----------------------------------------------------------


@pytest.fixture
def sweeps(monkeypatch, tmp_path, answer):
    """`effbench.sweep` writes trials whose figures spread by 10 % (latency) or 0.1 % (period)."""
    ran = []
    state = SimpleNamespace(ran=ran, status="ok", end="completed", db=str(tmp_path / "a,b=c.db"))

    def sweep(overrides, quiet=True):
        settings = dict(word.split("=", 1) for word in overrides)
        ran.append(settings)
        width, rounds = int(settings.get("model.module.width", 64)), int(settings["protocol.rounds"])
        turns = [number // 2 % 2 for number in range(rounds)]
        figures = {
            "status": state.status,
            "latency_ms": [1 + 0.1 * turn for turn in turns],
            "period_ms": [1 + 0.001 * turn for turn in turns],
        }
        cells = [
            make_cell(name, int(bs), settings["mode"], width)
            for name in settings["model"].split(",")
            for bs in settings["bs"].split(",")
        ]
        sweep_id = Made(state.db).sweep(
            dict.fromkeys(cells, figures), env=Environment(**answer["environment"]), rounds=rounds, state=state.end
        )
        return effbench.Sweep(sweep_id, state.db, state.end)

    monkeypatch.setattr(effbench, "sweep", sweep, raising=False)
    return state


def test_on_a_gpu(sweeps, answer):
    found, failures = calibration.measure_noise(sweeps.db, answer, quick=False, quiet=True)
    assert failures == []
    assert [settings["mode"] for settings in sweeps.ran] == ["eager", "cuda-graph", "cuda-graph"]
    assert all(settings["db"] == f'"{sweeps.db}"' for settings in sweeps.ran)
    assert {settings["sweep.name"] for settings in sweeps.ran} == {"calibration"}
    assert {settings["protocol.rounds"] for settings in sweeps.ran} == {"10"}
    launch, gpu = found["launch_bound"], found["gpu_bound"]
    assert [cell["metric"] for cell in (*launch["cells"], *gpu["cells"])] == ["latency_ms"] * 2 + ["period_ms"] * 2
    assert gpu["sd"] < 0.001 < 0.04 < launch["sd"] < 0.06
    assert gpu["smallest_slowdown"] < 0.03 < launch["smallest_slowdown"]
    assert len({cell["cell"] for cell in (*launch["cells"], *gpu["cells"])}) == 4, "names tell the cells apart"
    with Store.open(sweeps.db) as store:
        stored = store.calibration(Environment(**answer["environment"]).id)
    assert stored["noise"] == found
    assert stored["gpu_uuid"] == answer["gpus"][0]["uuid"]
    answer["gpus"].append({**answer["gpus"][0], "index": 1, "uuid": "GPU-other"})
    calibration.measure_noise(sweeps.db, answer, quick=True, quiet=True)
    with Store.open(sweeps.db) as store:
        stored = store.calibration(Environment(**answer["environment"]).id)
    assert (stored["gpu_uuid"], stored["noise"]["rounds"]) == (None, 4), "several GPUs are no single one"


@pytest.mark.parametrize(("end", "status"), [("interrupted", "ok"), ("completed", "error")])
def test_a_failed_calibration_stores_nothing(sweeps, answer, end, status):
    sweeps.end, sweeps.status = end, status
    if end == "interrupted":
        with pytest.raises(calibration.Interrupted):
            calibration.measure_noise(sweeps.db, answer, quick=False, quiet=True)
    else:
        noise, failures = calibration.measure_noise(sweeps.db, answer, quick=False, quiet=True)
        assert noise["launch_bound"] is None
        assert {finding.level for finding in failures} == {"problem"}
        assert "10 error" in failures[0].what
    with Store.open(sweeps.db) as store:
        assert store.calibration(Environment(**answer["environment"]).id) is None


@pytest.mark.parametrize("outcome", [None, "too little free device memory", "died"])
def test_ceilings_of_each_gpu(monkeypatch, tmp_path, answer, outcome):
    asked = []

    def measure_missing(server, store, environment_id, gpus, again=False):
        asked.append((gpus, again))
        assert environment_id == Environment(**answer["environment"]).id
        if outcome == "died":
            raise WorkerError("died")
        return outcome

    monkeypatch.setattr(calibration.pool, "measure_ceilings", measure_missing)
    found = list(calibration.measure_ceilings(None, str(tmp_path / "a.db"), answer))
    assert asked == [(answer["gpus"], True)]
    assert [finding.level for finding in found] == (["problem"] if outcome else [])


# --- how it is reported ---------------------------------------------------------------------------------------------


def stored_cell(name, metric, sd, low=0.95, high=1.06):
    return {"cell": name, "metric": metric, "sweep_id": "s", "statuses": {"ok": 10}, "trials": 10, "median_ms": 0.25,
            "sd": sd, "ratio": 1.004, "ratio_low": low, "ratio_high": high, "reason": None}  # fmt: skip


LAUNCH = {"sd": 0.19, "smallest_slowdown": 0.44, "cells": [stored_cell("mlp bs=1 eager", "latency_ms", 0.19)]}
GPU = {"sd": 0.002, "smallest_slowdown": 0.0208, "cells": [stored_cell("lin3 bs=512", "period_ms", 0.002)]}
NOISE = {"protocol": "standard", "trials": 5, "rounds": 10, "device": "cuda", "sweep_id": "s",
         "sweep_ids": ["s", "t", "u"], "launch_bound": LAUNCH, "gpu_bound": GPU}  # fmt: skip
CEILINGS = {
    "copy_bytes_per_s": 4.02e12,
    "flops_per_s": {"bfloat16": 7.45e14, "float32": 5.1e13, "float64": None},
    "launch_ms": 0.0041,
    "graph_replay_ms": 0.0062,
}


@pytest.fixture
def reported(monkeypatch, machine):
    """The findings for a calibration with these parts."""

    def report(noise=NOISE, ceilings=CEILINGS, days=0, answer=None):
        known = {"measured_at": datetime.now(UTC) - timedelta(days=days, minutes=1), "noise": copy.deepcopy(noise),
                 "ceilings": ceilings}  # fmt: skip
        monkeypatch.setattr(calibration, "load", lambda machine: known)
        return list(calibration.stored(machine(probe=answer) if answer else machine()))

    return report


def test_never_calibrated(machine, tmp_path):
    (finding,) = calibration.stored(machine(db=str(tmp_path / "none.db")))
    assert (finding.level, "--calibrate" in finding.fix) == ("note", True)


def test_calibrated(reported, cpu_answer):
    found = reported()
    assert [finding.level for finding in found] == ["good", "note"]
    assert "launch-bound cells from 44 % on, of GPU-bound cells from 2.1 % on" in found[0].what
    assert "copies 4.02 TB/s, bfloat16 745 TFLOP/s, float32 51.0 TFLOP/s, a launch 4.1 µs" in found[1].what
    (finding,) = reported({**NOISE, "device": "cpu", "gpu_bound": None}, None, answer=cpu_answer)
    assert "small cells on the CPU from 44 % on" in finding.what


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise": None}, "noise has not been measured"),
        ({"ceilings": None}, "ceilings have not been measured"),
        ({"days": 45}, "45 days old"),
        ({"noise": {**NOISE, "protocol": "quick", "rounds": 4}}, "a quick run (4 rounds)"),
        ({"noise": {**NOISE, "gpu_bound": {**GPU, "cells": [stored_cell("x", "period_ms", 0.1, 1.001, 1.016)]}}},
         "odd and even rounds of the same cell differ (1.004 [1.001, 1.016])"),
        ({"noise": {**NOISE, "launch_bound": {**LAUNCH, "smallest_slowdown": 1.5}}}, "launch-bound cells from 2.5× on"),
    ],
)  # fmt: skip
def test_what_is_missing_or_rough(reported, settings, words):
    (finding,) = [finding for finding in reported(**settings) if finding.fix]
    assert words in finding.what
