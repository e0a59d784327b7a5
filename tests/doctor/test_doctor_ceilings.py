"""The ceilings of the GPUs, as `effbench doctor` reports them."""

from unittest.mock import Mock

import pytest

from effbench.core.cell import Environment
from effbench.doctor import ceilings
from effbench.store.store import Store

RATES = {
    "copy_bytes_per_s": 4.02e12,
    "flops_per_s": {"bfloat16": 7.45e14, "float64": None},
    "launch_ms": 0.0041,
    "graph_replay_ms": 0.0062,
}


def test_ceilings_as_text():
    text = "copies 4.02 TB/s, bfloat16 745 TFLOP/s, a launch 4.1 µs, a graph replay 6.2 µs"
    assert ceilings.ceilings_text(RATES) == text
    assert ceilings.ceilings_text({}) == ""


@pytest.fixture
def db(tmp_path, answer):
    path = str(tmp_path / "a.db")
    with Store.open(path, mode="write") as store:
        store.add_environment(Environment(**answer["environment"]), {})
    return path


def report(machine):
    return [(finding.level, finding.what) for finding in ceilings.report(machine)]


def test_a_machine_without_a_gpu_has_no_ceilings(machine, db, cpu_answer):
    assert report(machine(db=db, probe=cpu_answer)) == []


def test_the_report(machine, db, answer):
    assert report(machine(db=db)) == [("note", "ceilings are not measured yet")]
    with Store.open(db, mode="write") as store:
        environment_id = Environment(**answer["environment"]).id
        store.add_calibration(environment_id, "GPU-1", ceilings=RATES)
    ((level, what),) = report(machine(db=db))
    assert level == "good"
    assert what.startswith("ceilings: copies 4.02 TB/s")


def test_measured_on_every_gpu(machine, db, answer, monkeypatch):
    answer["gpus"].append({**answer["gpus"][0], "index": 1, "uuid": "GPU-other"})
    measure = Mock(side_effect=["too little free device memory", None])
    monkeypatch.setattr(ceilings.pool, "measure_ceilings", measure)
    (finding,) = ceilings.measure(None, machine(db=db))
    slots = [call.args[-1].uuid for call in measure.mock_calls]
    assert slots == ["GPU-other", answer["gpus"][0]["uuid"]], "the newest row counts"
    assert finding.what == (
        "GPU 1: its ceilings could not be measured: too little free device memory"
    )
