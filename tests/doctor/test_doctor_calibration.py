"""The calibration: which sweeps run, what their trials give, and how it is reported."""

import math
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from made_sweeps import Made, a_cell

import effbench
from effbench.cell import Environment
from effbench.doctor import calibration
from effbench.errors import StoreError
from effbench.stats.significance import smallest_slowdown
from effbench.store.store import Store


def rows(cell, values):
    known = {
        "cell_key": cell.key,
        "attempt": 0,
        "status": "ok",
        "reason": None,
        "disturbance": None,
    }
    return [{**known, "round": round, "latency_ms": value} for round, value in enumerate(values)]


def judged(values, cell=None, trials=None):
    cell = cell or a_cell()
    return calibration.cell_noise(cell, "the cell", trials or rows(cell, values), "latency_ms", "s")


def test_the_last_attempt_counts_and_only_ok():
    cell = a_cell()
    trials = rows(cell, [1.0] * 6)
    trials[2]["disturbance"] = "throttled"
    again = {**trials[3], "attempt": 1, "latency_ms": 1.5}
    found = judged(None, cell, trials=[*trials, again, *rows(a_cell(bs=2), [9.0] * 6)])
    assert (found.trials, found.reason) == (5, "throttled")
    assert found.sd == pytest.approx(math.log(1.5) / 5**0.5)
    finding = calibration.finding_about(found)
    assert (finding.level, finding.what) == (
        "warning",
        "calibration cell the cell: only 5 trials count (throttled)",
    )
    assert judged([1.0, 1.1] * 3).reason is None


def test_a_kind_is_as_noisy_as_its_noisiest_cell():
    for values in ([1.0, 1.0, 1.0], [1.0, None, 1.0, None, 1.0], []):
        assert judged(values).sd is None
        assert calibration.kind_noise([judged(values)]) is None, "too few trials"
    kind = calibration.kind_noise(
        [judged([1.0, 1.1, 1.0, 1.1]), judged([1.0, 1.5, 1.0, 1.5]), judged([])]
    )
    assert kind["sd"] == pytest.approx(math.log(1.5) / math.sqrt(3))
    assert kind["smallest_slowdown"] == pytest.approx(
        smallest_slowdown(kind["sd"] * math.sqrt(0.4), 8)
    )
    assert len(kind["cells"]) == 3


# --- with a made-up sweep() that records what it is told to ---


@pytest.fixture
def sweeps(monkeypatch, tmp_path, answer):
    """`effbench.sweep` writes trials whose figures spread by 10 % (latency) or 0.1 % (period)."""
    state = SimpleNamespace(ran=[], status="ok", end="completed", db=str(tmp_path / "a,b=c.db"))

    def sweep(overrides, quiet=True):
        settings = dict(word.split("=", 1) for word in overrides)
        state.ran.append(settings)
        width, rounds = (
            int(settings.get("model.module.width", 64)),
            int(settings["protocol.rounds"]),
        )
        figures = {
            name: [1 + part * (number // 2 % 2) for number in range(rounds)]
            for name, part in (("latency_ms", 0.1), ("period_ms", 0.001))
        }
        cells = [
            a_cell(settings["mode"], f"{name} {width}", int(settings["bs"]))
            for name in settings["model"].split(",")
        ]
        planned = dict.fromkeys(cells, figures | {"status": state.status})
        environment = Environment(**answer["environment"])
        sweep_id = Made(state.db).sweep(planned, env=environment, rounds=rounds, state=state.end)
        return effbench.Sweep(sweep_id, state.db, state.end)

    monkeypatch.setattr(effbench, "sweep", sweep, raising=False)
    return state


def stored_noise(sweeps, answer):
    with Store.open(sweeps.db) as store:
        return store.calibration(Environment(**answer["environment"]).id)


def measure(sweeps, answer, quick=False):
    return calibration.measure_noise(sweeps.db, answer, quick, quiet=True, host={})


def test_the_sweeps_on_a_gpu(sweeps, answer):
    assert measure(sweeps, answer) == []
    assert [settings["mode"] for settings in sweeps.ran] == ["eager", "cuda-graph", "cuda-graph"]
    for settings in sweeps.ran:
        shared = [settings[name] for name in ("db", "sweep.name", "protocol.rounds")]
        assert shared == [f'"{sweeps.db}"', "calibration", "10"]


def test_the_noise_on_a_gpu(sweeps, answer):
    measure(sweeps, answer)
    stored = stored_noise(sweeps, answer)
    launch, gpu = stored["noise"]["launch_bound"], stored["noise"]["gpu_bound"]
    assert {cell["metric"] for cell in launch["cells"]} == {"latency_ms"}
    assert {cell["metric"] for cell in gpu["cells"]} == {"period_ms"}
    assert gpu["sd"] < 0.001 < 0.04 < launch["sd"] < 0.06
    assert gpu["smallest_slowdown"] < 0.03 < launch["smallest_slowdown"]
    assert stored["gpu_uuid"] == answer["gpus"][0]["uuid"]


def test_noise_of_several_gpus_belongs_to_no_single_one(sweeps, answer):
    answer["gpus"].append({**answer["gpus"][0], "index": 1, "uuid": "GPU-other"})
    measure(sweeps, answer, quick=True)
    stored = stored_noise(sweeps, answer)
    assert (stored["gpu_uuid"], stored["noise"]["rounds"]) == (None, 4)


def test_a_failed_calibration_stores_nothing(sweeps, answer):
    sweeps.end = "interrupted"
    with pytest.raises(KeyboardInterrupt):
        measure(sweeps, answer)
    sweeps.end, sweeps.status = "completed", "error"
    failures = measure(sweeps, answer)
    assert {finding.level for finding in failures} == {"problem"}
    assert "only 0 trials count" in failures[0].what
    assert stored_noise(sweeps, answer) is None


LAUNCH, GPU = {"smallest_slowdown": 0.44}, {"smallest_slowdown": 0.0208}
NOISE = {
    "protocol": "standard",
    "rounds": 10,
    "device": "cuda",
    "launch_bound": LAUNCH,
    "gpu_bound": GPU,
}
FLOPS = {"bfloat16": 7.45e14, "float32": 5.1e13, "float64": None}
CEILINGS = {
    "copy_bytes_per_s": 4.02e12,
    "flops_per_s": FLOPS,
    "launch_ms": 0.0041,
    "graph_replay_ms": 0.0062,
}


def test_what_is_known(monkeypatch, machine, cpu_answer):
    def report(noise=NOISE, ceilings=CEILINGS, **settings):
        monkeypatch.setattr(
            calibration, "load", lambda machine: {"noise": noise, "ceilings": ceilings}
        )
        return [
            (finding.level, finding.what) for finding in calibration.stored(machine(**settings))
        ]

    noise, ceilings = report()
    assert noise[0] == ceilings[0] == "good"
    assert "from 44 % in launch-bound cells, 2.1 % in GPU-bound cells" in noise[1]
    assert (
        "copies 4.02 TB/s, bfloat16 745 TFLOP/s, float32 51.0 TFLOP/s, a launch 4.1 µs"
        in ceilings[1]
    )
    ((level, what),) = report({**NOISE, "device": "cpu", "gpu_bound": None}, None, probe=cpu_answer)
    assert level == "good" and "GPU-bound" not in what
    assert report(noise=None)[0] == ("note", "not calibrated")
    assert report(noise={**NOISE, "protocol": "quick"})[0][0] == "note"


@pytest.mark.parametrize("name", ["a b,c=d.db", r"back\slash.db", 'qu"ote.db', "end\\"])
def test_the_sweeps_use_the_given_database(answer, monkeypatch, name):
    def sweep(words, quiet):
        raise StoreError(OverridesParser.create().parse_overrides(words)[-1].value())

    monkeypatch.setattr(effbench, "sweep", sweep, raising=False)
    with pytest.raises(StoreError) as caught:
        calibration.measure_noise(name, answer, quick=False, quiet=True, host={})
    assert str(caught.value) == name
