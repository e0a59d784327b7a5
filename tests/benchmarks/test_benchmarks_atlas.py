"""Sweeps of the atlas join a reference database, whose other cells stay."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest
from made_sweeps import A100, DEFAULT, EAGER, GRAPH, a_cell, copied, faults
from whole_sweeps import contents

from effbench.store import Store

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
atlas = importlib.import_module("atlas")


@pytest.fixture
def measured(empty_db, tmp_path):
    """A database with two complete sweeps of the atlas and an interrupted one."""
    made = copied(empty_db, tmp_path / "atlas.db")
    words = ["dtype=bfloat16", "db=x.db"]
    log = {"traceback": "Traceback", "kept": 1}
    reason = "/home/user/lib/python3.12/site-packages/torch/x.py failed"
    default = {"latency_ms": 0.5, "reason": reason, "extra": log}
    facts = {"label": None, "overrides": [*words, "bs=8"]}
    made.sweep({EAGER: {}, DEFAULT: default}, name="atlas-a", rounds=2, **facts)
    facts["overrides"] = [*words, "bs=64"]
    made.sweep({GRAPH: {"latency_ms": 0.25}}, name="atlas-b", rounds=2, **facts)
    made.sweep({GRAPH: {}}, name="atlas-c", rounds=2, state="interrupted")
    return str(made.path)


@pytest.fixture
def reference(empty_db, tmp_path):
    return copied(empty_db, tmp_path / "reference.db")


def speedups(path):
    """Return mode -> speedup of each result, in the order of the plan."""
    with Store.open(path) as store:
        (sweep,) = store.sweeps()
        return {result.mode: result.speedup for result in store.results(sweep.id)}


def test_a_new_sweep_joins_what_is_complete(measured, reference):
    atlas.join(measured, str(reference.path), "atlas")
    assert speedups(reference.path) == pytest.approx({"eager": 1, "default": 2, "cuda-graph": 4})
    with Store.open(reference.path) as store:
        (sweep,) = store.sweeps()
        trials = store.trials(sweep.id)
    assert (sweep.name, sweep.overrides) == ("atlas", ["dtype=bfloat16"])
    assert {trial.reason for trial in trials} == {None, "torch/x.py failed"}
    assert not any("traceback" in trial.extra for trial in trials)
    assert faults(reference.path) == []


def test_a_known_sweep_keeps_its_other_cells(measured, reference):
    other = a_cell("eager", model="other")
    known = reference.sweep({EAGER: {"latency_ms": 9.0}, other: {}}, name="atlas", rounds=3)
    atlas.join(measured, str(reference.path), "atlas")
    with Store.open(reference.path) as store:
        assert [sweep.id for sweep in store.sweeps()] == [known]
        assert store.planned(known) == [other, EAGER, DEFAULT, GRAPH]
        trials = Counter(trial.cell_key for trial in store.trials(known))
    assert [trials[cell.key] for cell in (other, EAGER, DEFAULT, GRAPH)] == [3, 2, 2, 2]
    assert speedups(reference.path)["default"] == pytest.approx(2), "eager's times are the new ones"
    assert faults(reference.path) == []


def test_a_sweep_of_several_gpus_is_refused(measured, reference):
    reference.sweep([a_cell("eager", model="other")], name="atlas", rounds=1, env=A100)
    before = contents(reference.path)
    with pytest.raises(SystemExit, match="NVIDIA A100, NVIDIA H200; give another --name"):
        atlas.join(measured, str(reference.path), "atlas")
    assert contents(reference.path) == before


def test_a_database_without_a_complete_sweep(reference, empty_db):
    with pytest.raises(SystemExit, match="no complete sweep whose name begins with atlas-"):
        atlas.join(str(empty_db), str(reference.path), "atlas")
