"""Experiments that are really run on the CPU: what is measured, what is taken from before, what is judged and kept."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from effbench.analysis.claims import Verdict
from effbench.errors import ConfigError, UsageError
from effbench.reproduce import run as running
from effbench.reproduce.experiment import load
from effbench.reproduce.run import Machine, reproduce
from effbench.store import Store
from effbench.sweep.client import ForkServer

OWN = """
import torch
from effbench.errors import UnsupportedError
from effbench.modes.base import Prepared

class Repeated:
    compiles = False
    settling_calls = 1

    def __init__(self, times=40):
        self.times = times

    def missing(self, device):
        return None

    def prepare(self, module, args, kwargs):
        def step(*args, **kwargs):
            for _ in range(self.times):
                found = module(*args, **kwargs)
            return found
        return Prepared(step, facts={"times": self.times, "kind": "loop"})

def counted(device, start=0):
    return {"numbers": [start, start + 1], "none": None, "inner": {"a": {"x": 1}, "b": {"x": 2}}}

def only_cuda(device):
    raise UnsupportedError("it needs CUDA")

def broken(device):
    raise ValueError("no such luck")
"""
MODE = "name: repeated\ndescription: calls it again and again\n_target_: {module}.Repeated\ntimes: 400\n"
QUICK = ["protocol.budget_s=0.02", "protocol.min_time_s=0", "protocol.warmup_s=0.01", "device=cpu"]
EXPERIMENT = """
question: What does repeating cost?
gpu_seconds: 1
names: {{times: mode.times}}
sweeps:
  main: ["--config-dir=own_conf", model=tiny, "bs=1,2", "mode=eager,repeated", protocol.rounds=3]
evidence:
  counted: {{_target_: {module}.counted, start: 3}}
  cuda: {{_target_: {module}.only_cuda}}
  broken: {{_target_: {module}.broken}}
tables:
  - {{title: Speedup, value: speedup, unit: ×}}
claims:
  slower: {{text: Repeating is slower, each: bs, value: "geomean(speedup[mode == 'repeated'])", holds: value < 0.9,
    also: {{all of them: speedup, times: "fact('times')[mode == 'repeated']", kind: "fact('kind')[bs == 1]"}}}}
  faster: {{text: Repeating is faster, holds: "all(speedup[mode == 'repeated'] > 1)"}}
  graphs: {{text: Graphs are faster, holds: "all(speedup[mode == 'cuda-graph'] > 1)"}}
  counts: {{text: It counts, value: "sum(evidence.counted.numbers)", holds: value == 7,
    also: {{x: "values(evidence.counted.inner, 'x')", none: evidence.counted.none}}}}
  cuda: {{text: CUDA, holds: evidence.cuda.works}}
  broken: {{text: Broken, holds: evidence.broken.works}}
  about: {{text: Words, not_measurable: it is about words}}
  typo: {{text: Mistaken, holds: evidence.counted.nubmers == 7}}
  gpu: {{text: Of GPUs, needs: cuda, holds: all(speedup > 0)}}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A folder with an own mode, own evidence and `mine.yaml` as the working directory; one fork server for all."""
    folder = tmp_path_factory.mktemp("own")
    module = "effbench_test_own_pieces"
    (folder / f"{module}.py").write_text(OWN, encoding="utf-8")
    (folder / "own_conf" / "mode").mkdir(parents=True)
    (folder / "own_conf" / "mode" / "repeated.yaml").write_text(MODE.format(module=module), encoding="utf-8")
    (folder / "mine.yaml").write_text(EXPERIMENT.format(module=module), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(tempfile, "tempdir", str(folder))  # locks: no other effbench keeps us waiting
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("PYTHONPATH", f"{folder}:{sys.path[0]}")
        server = ForkServer()
        try:
            yield Machine.learn(server, "cpu")
        finally:
            server.close()


@pytest.fixture
def db(tmp_path):
    return str(tmp_path / "x.db")


@pytest.fixture(scope="module")
def mine(machine):
    return load(Path("mine.yaml"))


@pytest.fixture(scope="module")
def bare(mine):
    """Without evidence and with one claim."""
    return dataclasses.replace(mine, evidence={}, claims=mine.claims[:1])


@pytest.fixture
def go(machine, db):
    def run(experiment, *overrides, fresh=False):
        return reproduce(experiment, machine, db, [*QUICK, *overrides], fresh, quiet=True)

    return run


def stored(db):
    with Store.open(db) as store:
        return {row["claim"]: row for row in store.verdicts()}, store.sweeps()


def test_all_kinds_of_claims(go, db, mine):
    done = go(mine)
    found = {judgement.claim: judgement for judgement in done.judgements}
    assert {name: str(one.verdict) for name, one in found.items()} == {
        "slower": "confirmed", "faster": "refuted", "graphs": "not measured yet", "counts": "confirmed",
        "cuda": "not measurable here", "broken": "not measured yet", "about": "not measurable here",
        "typo": "not measured yet", "gpu": "not measurable here",
    }  # fmt: skip
    assert found["slower"].reason == "holds for bs=1, bs=2"
    assert 0 < found["slower"].value.low <= found["slower"].value.value < 0.9
    assert "no such luck" in found["broken"].reason
    assert found["gpu"].reason == running.NO_CUDA
    assert "it has numbers, none, inner" in found["typo"].reason
    (mistake,) = done.mistakes
    assert mistake.startswith("claim typo of mine.yaml: ")

    rows, (sweep,) = stored(db)
    assert {name: row["verdict"] for name, row in rows.items()} == {n: str(one.verdict) for n, one in found.items()}
    assert rows["slower"]["sweep_id"] == sweep.id
    assert sweep.name == "mine"
    measured = rows["slower"]["measured"]
    assert measured["value"] == found["slower"].value.value
    assert [part["label"] for part in measured["parts"]] == ["bs=1", "bs=2"]
    assert all(part["holds"] is True for part in measured["parts"])
    assert len(measured["also"]["all of them"]) == 4
    assert measured["also"]["times"] == [400, 400]
    assert measured["also"]["kind"] == [None, "loop"]
    assert measured["sweeps"] == [sweep.id]
    assert measured["evidence"] == {}
    assert rows["counts"]["sweep_id"] is None, "it rests on evidence alone"
    assert rows["counts"]["measured"]["sweeps"] == []
    assert rows["counts"]["measured"]["also"] == {"x": [1, 2], "none": None}
    assert list(rows["counts"]["measured"]["evidence"]) == ["counted"]
    assert rows["cuda"]["measured"]["evidence"]["cuda"]["status"] == "unsupported"


def test_the_second_run_measures_nothing(go, db, bare):
    first = go(bare)
    second = go(bare)
    assert (first.swept["main"].reused, second.swept["main"].reused) == (0, 4)
    assert len(stored(db)[1]) == 1
    assert second.judgements == first.judgements
    assert second.swept["main"].facts == first.swept["main"].facts
    third = go(bare, fresh=True)
    assert third.swept["main"].reused == 0
    assert len(stored(db)[1]) == 2


@pytest.mark.slow
def test_only_whole_cases_are_reused(go, db, bare):
    go(bare, "bs=1")
    go(bare, "bs=2", "mode=eager")
    done = go(bare)
    assert done.swept["main"].reused == 2
    assert [(row["bs"], row["mode"]) for row in done.swept["main"].rows] == [
        (1, "eager"), (1, "repeated"), (2, "eager"), (2, "repeated"),
    ]  # fmt: skip
    newest = stored(db)[1][0]
    assert newest.cells == 2, "the case that lacked a mode is measured whole"
    assert done.judgements[0].verdict == Verdict.CONFIRMED
    assert len(done.swept["main"].sweep_ids) == 2


@pytest.mark.parametrize(
    "override",
    ["protocol.rounds=2", "protocol.budget_s=0.03", "baseline_mode=repeated", "model.module.width=16"],
)
@pytest.mark.slow
def test_what_was_measured_otherwise_is_not_reused(go, db, bare, override):
    go(bare)
    assert go(bare, override).swept["main"].reused == 0
    assert len(stored(db)[1]) == 2


@pytest.mark.slow
def test_another_environment_is_not_reused(go, db, bare):
    done = go(bare)
    engine = sa.create_engine(f"sqlite:///{db}")
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        for table in ("trial", "result"):
            connection.exec_driver_sql(f"UPDATE {table} SET environment_id = 'other'")
        connection.exec_driver_sql("CREATE TABLE other AS SELECT * FROM environment")
        connection.exec_driver_sql("UPDATE other SET id = 'other'")
        connection.exec_driver_sql("INSERT INTO environment SELECT * FROM other")
        connection.exec_driver_sql("DROP TABLE other")
    engine.dispose()
    assert done.swept["main"].reused == 0
    assert go(bare).swept["main"].reused == 0


@pytest.mark.slow
def test_whole_cases_of_an_interrupted_sweep_are_reused(go, db, bare):
    go(bare)
    engine = sa.create_engine(f"sqlite:///{db}")
    with engine.begin() as connection:  # as if it had been stopped before the last trial of bs=2
        connection.exec_driver_sql("UPDATE sweep SET state = 'interrupted'")
        key = connection.exec_driver_sql("SELECT key FROM cell WHERE bs = 2 AND mode = 'eager'").scalar()
        connection.execute(sa.text("UPDATE result SET trials = 1 WHERE cell_key = :key"), {"key": key})
    engine.dispose()
    done = go(bare)
    assert done.swept["main"].reused == 2
    assert {row["bs"] for row in done.swept["main"].rows[:2]} == {1}


def test_ctrl_c_judges_nothing(go, db, bare, monkeypatch):
    def stopped(configs, command, server, progress, stop, extend=None):
        stop.set()
        return original(configs, command, server, progress, stop, extend)

    original = running.conduct
    monkeypatch.setattr(running, "conduct", stopped)
    done = go(bare)
    assert done.interrupted
    assert done.judgements == []
    monkeypatch.undo()
    assert stored(db)[0] == {}


def test_what_needs_cuda_is_skipped_and_kept(go, db, bare):
    done = go(dataclasses.replace(bare, needs="cuda"))
    assert done.skipped == running.NO_CUDA
    assert done.swept == {}
    rows, sweeps = stored(db)
    assert (rows["slower"]["verdict"], rows["slower"]["reason"]) == ("not measurable here", running.NO_CUDA)
    assert sweeps == []


@pytest.mark.slow
def test_sweeps_that_only_serve_claims_about_gpus_are_skipped(go, bare):
    claim = dataclasses.replace(bare.claims[0], needs="cuda")
    done = go(dataclasses.replace(bare, claims=(claim,)))
    assert done.swept == {}
    assert done.judgements[0].verdict == Verdict.NOT_MEASURABLE
    assert go(dataclasses.replace(bare, claims=())).swept.keys() == {"main"}, "for its tables"


def test_what_cannot_be_run_is_said_before_anything_is_measured(go, db, bare):
    with pytest.raises(ConfigError, match="unknown model"):
        go(bare, "model=tinny")
    with pytest.raises(UsageError, match="leave resume out"):
        go(bare, "resume=last")
