"""Whole sweeps carried between databases: nothing lost, nothing twice, nothing by halves, contradictions refused."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
import whole_sweeps as whole
from alembic import command
from whole_sweeps import CARRIERS, carried, export, ids_of, outcomes, take

from effbench.cell import Status, Trial
from effbench.errors import SchemaError, UsageError
from effbench.outputs import replacing
from effbench.store import Store
from effbench.store.migrate import config
from effbench.store.schema import REVISIONS, AcknowledgementRow, SweepRow
from effbench.store.sources import found


@pytest.mark.parametrize("carrier", CARRIERS)
def test_nothing_is_lost_and_twice_is_once(carrier, odd, tmp_path, target):
    name = carried(carrier, odd, tmp_path)
    assert outcomes(name, target, baselines=True) == ["imported"] * 3
    before = whole.contents(odd)
    assert all(before.values()), "every table has rows"
    assert whole.contents(target) == before
    assert Store.check(target) == []
    assert outcomes(name, target, baselines=True) == ["present"] * 3
    assert whole.contents(target) == before


def test_random_values_survive_any_chain_of_carriers(tmp_path):
    db = tmp_path / "0.db"
    with Store.open(db, mode="write") as store:
        for seed in range(20, 23):
            whole.sweep(store, seed=seed, rounds=1, name=random.Random(seed).choice(whole.ODD_TEXT))
    before = whole.contents(db)
    for number, carrier in enumerate(("parquet", "lines", "database"), 1):
        following = tmp_path / f"{number}.db"
        folder = tmp_path / carrier
        folder.mkdir()
        take(carried(carrier, db, folder), following)
        assert whole.contents(following) == before, carrier
        db = following


def test_baselines_and_acknowledgements_only_on_request(odd, target):
    take(odd, target)
    found = whole.contents(target)
    assert found["baseline"] == found["acknowledgement"] == []
    assert found["claim_verdict"] and found["calibration"]
    (first, *others) = take(odd, target, baselines=True)
    assert (first.outcome, first.added) == ("completed", {"baselines": 2, "acknowledgements": 1})
    assert [other.outcome for other in others] == ["present", "present"]
    assert whole.contents(target) == whole.contents(odd)


def test_a_baseline_that_is_set_stays(source, target):
    with Store.open(target, mode="write") as store:
        own = whole.sweep(store)
        whole.decide(store, own)
    (first, *_) = take(source, target, baselines=True)
    assert len(first.notes) == 2
    assert all(f"stays on sweep {own}" in note for note in first.notes)
    assert all(own in row for row in whole.contents(target)["baseline"])


def test_without_samples_and_with_them_later(odd, tmp_path, target):
    out = export(odd, tmp_path / "x.jsonl", samples=False)
    assert '"data"' not in out.read_text()
    take(out, target)
    assert whole.contents(target)["sample"] == []
    assert outcomes(out, target) == ["present"] * 3
    assert outcomes(odd, target, samples=False) == ["present"] * 3
    folder = export(odd, tmp_path / "pq", samples=False)
    assert outcomes(folder, target) == ["present"] * 3
    assert outcomes(odd, target) == ["completed", "completed", "present"]
    assert whole.contents(target)["sample"] == whole.contents(odd)["sample"]
    assert outcomes(out, target) == ["present"] * 3, "samples that are there are not missed in a source without them"


@pytest.mark.parametrize("carrier", ["lines", "parquet"])
def test_a_chosen_sweep_brings_its_own_and_nothing_else(carrier, odd, tmp_path, target):
    with Store.open(odd) as store:
        last = store.find_sweep("last").id
        middle = ids_of(store)[1]
        cells, sweeps = len(store.planned(last)), {sweep.id: sweep for sweep in store.sweeps()}
    take(odd, target, sweeps=["last"])
    found = whole.contents(target)
    assert (len(found["sweep"]), len(found["cell"]), len(found["environment"])) == (1, cells, 0)
    export(odd, tmp_path / ("x.jsonl" if carrier == "lines" else "x"), sweeps=[middle])
    take(tmp_path / ("x.jsonl" if carrier == "lines" else "x"), target)
    with Store.open(target) as store:
        assert all(sweep.imported_at for sweep in store.sweeps())
        there = {sweep.id: replace(sweep, imported_at=None) for sweep in store.sweeps()}
        assert there == {key: sweeps[key] for key in (last, middle)}


def test_calibrations_are_newest_by_time_not_by_arrival(odd, tmp_path, target):
    environment = whole.environment()
    take(odd, target)
    judged = {"claim": "P1", "experiment": whole.ODD_TEXT[0], "verdict": "refuted", "measured": {}}
    with Store.open(target, mode="write") as store:
        store.add_calibration(environment.id, "GPU-2", ceilings={"copy": 1})
        store.add_verdicts(environment.id, [judged])
    older = shutil.copy(odd, tmp_path / "older.db")
    with closing(sqlite3.connect(older)) as raw:
        at = "'2020-01-01 00:00:00.000000'"
        assert raw.execute(f"UPDATE calibration SET measured_at = {at}, ceilings = '{{}}'").rowcount
        assert raw.execute(f"UPDATE claim_verdict SET judged_at = {at}").rowcount
        raw.commit()
    take(older, target)
    with Store.open(target) as store:
        assert store.calibration(environment.id)["ceilings"] == {"copy": 1}
        assert [row["verdict"] for row in store.verdicts()] == ["refuted"]
    assert len(whole.contents(target)["claim_verdict"]) == 3


# --- a sweep that went on ---


def grown(path, folder):
    """A running sweep, exported; then it goes on and ends. Gives the export and the id."""
    with Store.open(path, mode="write") as store:
        plan = whole.cells()
        sweep_id = store.begin_sweep(
            name="grown", label=None, command=["-m"], overrides=[], protocol={"name": "quick"}, baseline_mode="eager",
            seed=1, git_revision=None, host={}, plan=plan[:4], rounds=2,
        )  # fmt: skip
        environment_id = store.add_environment(whole.environment(), {})
        for number, cell in enumerate(plan[:4]):
            store.record(sweep_id, environment_id, timed(cell, 0, 1.0 + number))
        out = export(path, folder / "early.jsonl")
        store.extend_sweep(sweep_id, plan)
        for number, cell in enumerate(plan):
            store.record(sweep_id, environment_id, timed(cell, 1, 2.0 + number))
        store.finish_sweep(sweep_id, "completed")
    return out, sweep_id


def timed(cell, turn, latency):
    return Trial(cell.key, turn, Status.OK, latency_ms=latency, samples={"latency_ms": [latency] * 3})


@pytest.mark.parametrize("carrier", ["lines", "parquet", "database"])
def test_a_grown_sweep_is_completed(carrier, source, tmp_path, target):
    early, sweep_id = grown(source, tmp_path)
    take(early, target)
    with Store.open(target) as store:
        assert (store.find_sweep("grown").state, store.find_sweep("grown").trials) == ("running", 4)
    name = carried(carrier, source, tmp_path)
    *others, arrival = take(name, target, baselines=True)
    assert {other.outcome for other in others} <= {"present", "completed"}
    assert (arrival.outcome, arrival.sweep_id) == ("completed", sweep_id)
    assert (arrival.cells, arrival.trials, arrival.total) == (2, 6, 10)
    assert arrival.state == ("running", "completed")
    assert whole.contents(target) == whole.contents(source)
    assert Store.check(target) == []
    # the early file again takes nothing back
    assert outcomes(early, target) == ["present"] * 4
    assert whole.contents(target) == whole.contents(source)


def test_two_halves_make_one(source, tmp_path, target):
    """A sweep resumed on two machines: each has trials that the other lacks."""
    early, sweep_id = grown(source, tmp_path)
    take(early, target)
    with Store.open(target, mode="write") as store:
        environment_id = store.add_environment(whole.environment(torch_version="2.11.0"), {})
        store.record(sweep_id, environment_id, timed(whole.cells()[0], 0, 7.0))
        store.finish_sweep(sweep_id, "interrupted")
    arrival = take(source, target)[-1]
    assert (arrival.outcome, arrival.trials, arrival.total, arrival.state) == (
        "completed", 6, 11, ("interrupted", "completed") if ended_later(source, target, sweep_id) else None
    )  # fmt: skip
    assert Store.check(target) == []


def ended_later(a, b, sweep_id):
    with Store.open(a) as first, Store.open(b) as second:
        return first.find_sweep(sweep_id).finished_at > second.find_sweep(sweep_id).finished_at


def test_the_end_alone_is_news(source, target):
    with Store.open(source, mode="write") as store:
        sweep_id = store.find_sweep("last").id
        take(source, target)
        store.finish_sweep(sweep_id, "interrupted")
    arrival = take(source, target)[-1]
    assert (arrival.outcome, arrival.trials, arrival.state) == ("completed", 0, ("running", "interrupted"))
    assert whole.contents(target)["sweep"] == whole.contents(source)["sweep"]


# --- contradictions ---


def changed(source, statement):
    with closing(sqlite3.connect(source)) as raw:
        assert raw.execute(statement).rowcount == 1
        raw.commit()


THIS = "WHERE id = '{id}'"
ONE = "WHERE id = (SELECT min(id) FROM {})"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE trial SET power_w = 7 " + ONE.format("trial"), ["trial of cell", "power_w", "7.0 in what"]),
        ("UPDATE trial SET extra = '{}' " + ONE.format("trial"), ["trial of cell", "extra"]),
        ("UPDATE trial SET status = 'noisy' " + ONE.format("trial"), ["trial of cell", "status", "noisy"]),
        ("UPDATE sweep SET seed = 7 " + THIS, ["sweep has seed", "7 in what"]),
        ("UPDATE sweep SET protocol = '{}' " + THIS, ["sweep has protocol"]),
        ("UPDATE sweep SET command = '[]' " + THIS, ["sweep has command"]),
        ("UPDATE environment SET driver_version = '1' WHERE torch_version = '2.11.0'", ["driver_version"]),
        ("UPDATE cell SET params = '{}' WHERE key = '{key}'", ["cell", "params"]),
        ("UPDATE sweep_cell SET position = 99 WHERE position = 1 AND sweep_id = '{id}'", ["position", "99 in what"]),
        ("UPDATE sample SET data = (SELECT data FROM sample WHERE trial_id = 9 AND timer = 'latency_ms') "
         "WHERE trial_id = 1 AND timer = 'latency_ms'", ["samples", "latency_ms"]),
    ],
)  # fmt: skip
def test_a_contradiction_is_named_and_nothing_is_written(statement, said, source, tmp_path, target):
    take(source, target, baselines=True)
    before = whole.contents(target)
    with Store.open(source, mode="write") as store:
        first = ids_of(store)[0]
        key = store.planned(first)[1].key
        environment_id = store.add_environment(whole.environment(), {})
        store.record(first, environment_id, timed(whole.cells()[0], 77, 1.0))  # would be news
    changed(source, statement.replace("{id}", first).replace("{key}", key))
    carrier = "lines" if "power_w" in said else "database"
    arrivals = take(carried(carrier, source, tmp_path), target)
    refused = next(arrival for arrival in arrivals if arrival.sweep_id == first)
    assert refused.outcome == "refused"
    for text in [first, str(target), *said]:
        assert text in refused.reason
    assert len(refused.reason.splitlines()) == 1
    assert whole.contents(target) == before


def test_another_cell_at_the_same_place(source, target):
    take(source, target)
    with Store.open(source, mode="write") as here, Store.open(target, mode="write") as there:
        last = here.find_sweep("last").id
        here.extend_sweep(last, whole.cells()[2:3])
        there.extend_sweep(last, whole.cells()[3:4])
    arrival = take(source, target)[-1]
    assert arrival.outcome == "refused"
    assert "plan at position 2" in arrival.reason


def test_a_refused_sweep_does_not_stop_the_next(source, target):
    take(source, target, sweeps=[whole.ODD_TEXT[0]])
    changed(source, "UPDATE sweep SET seed = 7 WHERE id = (SELECT min(id) FROM sweep WHERE name LIKE '<img%')")
    assert outcomes(source, target) == ["refused", "imported", "imported"]


# --- databases as sources, and places ---


@pytest.mark.parametrize("revision", [REVISIONS[0], REVISIONS[-2]])
def test_an_older_database_is_read_through_a_copy(revision, source, target):
    engine = sa.create_engine(f"sqlite:///{source}")
    with engine.begin() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.downgrade(made, revision)
    engine.dispose()
    before = Path(source).read_bytes()
    with pytest.raises(SchemaError, match="older effbench"):
        Store.open(source)
    assert outcomes(source, target) == ["imported"] * 3
    assert Store.check(target) == []
    assert Path(source).read_bytes() == before


def test_a_change_of_a_cell_that_the_sweep_did_not_plan(source, tmp_path, target):
    """It was measured before, and is accepted from this sweep on."""
    with Store.open(source, mode="write") as store, store._writing() as connection:
        sweep_id = connection.scalar(sa.select(SweepRow.id).where(SweepRow.name == "nothing yet"))
        own = {"cell_key": whole.cells()[4].key, "hardware": "CPU", "metric": "latency_ms", "sweep_id": sweep_id}
        at = whole.dt.datetime.now(whole.dt.UTC)
        connection.execute(sa.insert(AcknowledgementRow).values(reason="known", acknowledged_at=at, **own))
    expected = whole.contents(source)
    take(export(source, tmp_path / "x.jsonl"), target, baselines=True)
    assert whole.contents(target) == expected
    take(export(target, tmp_path / "pq"), tmp_path / "other.db", baselines=True)
    assert whole.contents(tmp_path / "other.db") == expected
    take(source, tmp_path / "one.db", sweeps=["last"], baselines=True)
    found = whole.contents(tmp_path / "one.db")
    assert [len(found[name]) for name in ("cell", "sweep_cell", "acknowledgement")] == [3, 2, 1]


def test_a_newer_database_is_refused(source, target):
    changed(source, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match="newer effbench"):
        take(source, target)


def test_into_itself(source):
    with pytest.raises(UsageError, match="the database to import into"):
        take(source, source)


@pytest.fixture
def read_only(odd):
    """A database that nobody may write, in a folder that nobody may write to, read without the rights of root."""
    folder = Path(tempfile.mkdtemp())
    path = Path(shutil.copy(odd, folder / "x.db"))
    path.chmod(0o444)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.setresgid(65534, 65534, 0)
        os.setresuid(65534, 65534, 0)
    yield path
    if root:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_source(odd, read_only):
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "x.db"
        assert outcomes(read_only, target, baselines=True) == ["imported"] * 3
        assert whole.contents(target) == whole.contents(read_only)
    assert [entry.name for entry in read_only.parent.iterdir()] == ["x.db"]


def test_folders(odd, tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("b.jsonl", "a.jsonl.gz", "c"):
        export(odd, folder / name)
    (folder / "notes.txt").write_text("")
    assert [name.rpartition("/")[2] for name in found(str(folder))] == ["a.jsonl.gz", "b.jsonl", "c"]
    assert found(str(folder / "c")) == [str(folder / "c")]
    for name, said in (("nowhere", "no file, folder"), (str(folder / "c"), "an export that did not end")):
        (folder / "c" / "manifest.json").unlink(missing_ok=True)
        with pytest.raises(UsageError, match=said):
            found(name)


def test_a_file_is_there_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("before")
    with pytest.raises(RuntimeError), replacing(path) as stream:
        stream.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.jsonl"]
