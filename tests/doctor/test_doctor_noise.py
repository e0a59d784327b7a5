"""A against A: which sweeps run, and what is made of their trials."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

import effbench
from effbench.analysis.verdicts import smallest_slowdown
from effbench.cell import Cell, Environment, Status, Trial
from effbench.doctor import calibrate, noise
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
    return noise.cell_noise(cell, {cell.key: "the cell"}, trials or rows(cell, values, metric), metric, "s")


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


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [1.0, None, 1.0, None, 1.0, 1.0], []])
def test_too_few_trials(values):
    found = judged(values)
    assert not found.is_known
    assert noise.kind_noise([found]) is None


def test_a_kind_is_as_noisy_as_its_noisiest_cell():
    kind = noise.kind_noise([judged([1.0, 1.1, 1.0, 1.1]), judged([1.0, 1.5, 1.0, 1.5]), judged([])])
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
        width = int(settings.get("model.module.width", 64))
        cells = [
            make_cell(name, int(bs), settings["mode"], width)
            for name in settings["model"].split(",")
            for bs in settings["bs"].split(",")
        ]
        with Store.open(state.db, mode="write") as store:
            environment = store.add_environment(Environment(**answer["environment"]), {})
            sweep_id = store.begin_sweep(
                name=settings["sweep.name"], label=None, command=[], overrides=list(overrides), protocol={},
                baseline_mode="eager", seed=0, git_revision=None, host={}, plan=cells,
                rounds=int(settings["protocol.rounds"]),
            )  # fmt: skip
            for round in range(int(settings["protocol.rounds"])):
                for cell in cells:
                    period = 1 + 0.001 * (round // 2 % 2)
                    trial = Trial(
                        cell.key, round, Status(state.status), latency_ms=1 + 0.1 * (round // 2 % 2), period_ms=period
                    )
                    store.record(sweep_id, environment, trial)
            store.finish_sweep(sweep_id, state.end)
        return effbench.Sweep(sweep_id, state.db, state.end)

    monkeypatch.setattr(effbench, "sweep", sweep, raising=False)
    return state


def test_on_a_gpu(sweeps, answer):
    found, failures = calibrate.measure_noise(sweeps.db, answer, quick=False, quiet=True)
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


def test_several_gpus_are_no_single_one(sweeps, answer):
    answer["gpus"].append({**answer["gpus"][0], "index": 1, "uuid": "GPU-other"})
    calibrate.measure_noise(sweeps.db, answer, quick=True, quiet=True)
    with Store.open(sweeps.db) as store:
        stored = store.calibration(Environment(**answer["environment"]).id)
    assert stored["gpu_uuid"] is None
    assert (stored["noise"]["protocol"], stored["noise"]["rounds"]) == ("quick", 4)


def test_an_interrupted_sweep_stores_nothing(sweeps, answer):
    sweeps.end = "interrupted"
    with pytest.raises(noise.Interrupted):
        calibrate.measure_noise(sweeps.db, answer, quick=False, quiet=True)
    with Store.open(sweeps.db) as store:
        assert store.calibration(Environment(**answer["environment"]).id) is None


def test_failed_cells_are_problems(sweeps, answer):
    sweeps.status = "error"
    found, failures = calibrate.measure_noise(sweeps.db, answer, quick=False, quiet=True)
    assert found["launch_bound"] is None
    assert {finding.level for finding in failures} == {"problem"}
    assert "10 error" in failures[0].what
    with Store.open(sweeps.db) as store:
        assert store.calibration(Environment(**answer["environment"]).id) is None


def test_some_failed_trials_are_a_warning():
    cell = make_cell()
    trials = rows(cell, [1.0, 1.1] * 3)
    trials[5]["status"], trials[5]["reason"] = "noisy", "thermal slowdown"
    (finding,) = calibrate.failed([judged(None, cell, trials=trials), judged([1.0, 1.1] * 3)])
    assert finding.level == "warning"
    assert finding.what == "calibration cell the cell: 1 noisy (thermal slowdown)"


@pytest.mark.parametrize("outcome", [None, "too little free device memory", "died"])
def test_ceilings_of_each_gpu(monkeypatch, tmp_path, answer, outcome):
    asked = []

    def measure_missing(server, store, environment_id, gpus, again=False):
        asked.append((gpus, again))
        assert environment_id == Environment(**answer["environment"]).id
        if outcome == "died":
            raise effbench.WorkerError("died")
        return outcome

    monkeypatch.setattr(calibrate.pool, "measure_ceilings", measure_missing)
    found = list(calibrate.measure_ceilings(None, str(tmp_path / "a.db"), answer))
    assert asked == [(answer["gpus"], True)]
    assert [finding.level for finding in found] == (["problem"] if outcome else [])
    answer["gpus"] = []
    assert list(calibrate.measure_ceilings(None, str(tmp_path / "a.db"), answer)) == []
    assert len(asked) == 1
