"""Whole sweeps between databases: all of it arrives, once; what contradicts, and what a stranger
forged, does not."""

import re
import shutil
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path

import pytest
import whole_sweeps as whole
from made_sweeps import faults, loosen, sql
from older_schemas import AFTER_0006, AFTER_0010, lower_to
from whole_sweeps import export, ids_of, outcomes, take

from effbench.core.cell import Status, Trial
from effbench.core.errors import SchemaError, StoreError
from effbench.store import Store, maintenance
from effbench.store.source import RefusedError


def test_an_export_is_a_plain_file_with_everything(odd, tmp_path):
    out = export(odd, tmp_path / "x.db")
    assert whole.contents(out) == whole.contents(odd)
    with closing(sqlite3.connect(out)) as raw:
        assert raw.execute("PRAGMA page_size").fetchone() == (2048,), "the file is small"
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_everything_arrives_once(odd, tmp_path, target):
    folder = tmp_path / "sources"
    folder.mkdir()
    source = shutil.copy(odd, folder / "x.db")
    assert outcomes(source, target) == ["imported"] * 3
    assert whole.contents(target) == whole.contents(odd)
    assert outcomes(source, target) == ["already there"] * 3
    assert faults(target) == []
    with Store.open(target) as store:
        assert all(sweep.imported_at for sweep in store.sweeps())
    assert [path.name for path in folder.iterdir()] == ["x.db"], "reading leaves nothing behind"


def test_baselines_are_not_imported(odd, target):
    with Store.open(odd) as store:
        assert store.baselines()
    take(odd, target)
    with Store.open(target) as store:
        assert store.baselines() == []


HALF = """
import os, sqlite3, sys
raw = sqlite3.connect(sys.argv[1], isolation_level=None)
raw.execute("PRAGMA cache_size = 1")
raw.execute("BEGIN")
raw.execute("UPDATE trial SET latency_ms = 1e6")
for table in ("trial", "sample", "sweep", "cell") * 3:
    raw.execute(f"SELECT * FROM {table}").fetchall()
os._exit(0)
"""


def test_half_a_transaction_of_a_killed_process_is_left_to_its_owner(odd, tmp_path, target):
    out = export(odd, tmp_path / "x.db")
    complete = out.read_bytes()
    subprocess.run([sys.executable, "-c", HALF, str(out)], check=True)
    half = out.read_bytes()
    assert half != complete
    with pytest.raises(StoreError, match="unfinished transaction"):
        take(out, target)
    assert out.read_bytes() == half, "an import changes no source"
    Store.open(out).close()  # as the message says
    assert out.read_bytes() == complete
    assert outcomes(out, target) == ["imported"] * 3
    assert whole.contents(target) == whole.contents(odd)


def timed(cell, turn, latency):
    samples = {"latency_ms": [latency] * 3}
    return Trial(
        cell.key,
        turn,
        Status.OK,
        latency_ms=latency,
        samples=samples,
        trace=whole.odd_trace(latency),
    )


def grown(path, folder):
    """A running sweep, exported; then it goes on and ends. Gives the export and the id."""
    plan = whole.cells()
    with Store.open(path, mode="write") as store:
        sweep_id = whole.begun(
            store,
            plan[:4],
            name="grown",
            rounds=2,
        )
        environment_id = store.add_environment(whole.environment(), {})
        for cell in plan[:4]:
            store.add_trial(sweep_id, environment_id, timed(cell, 0, 1.0))
        out = export(path, folder / "early.db")
        store.extend_sweep(sweep_id, plan)
        # its order is that of the environments
        store.note_environments(sweep_id, {environment_id: {"folder": "."}})
        for cell in plan:
            store.add_trial(sweep_id, environment_id, timed(cell, 1, 2.0))
        store.finish_sweep(sweep_id, "completed")
    return out, sweep_id


def test_a_grown_sweep_replaces_its_older_copy(empty_db, tmp_path, target):
    source = shutil.copy(empty_db, tmp_path / "grown.db")
    early, sweep_id = grown(source, tmp_path)
    take(early, target)
    with Store.open(target, mode="write") as store:
        assert store.find_sweep("grown").state == "running"
        store.set_baseline("main", sweep_id)
    (arrival,) = take(source, target)
    assert arrival.outcome == "replaced"
    assert arrival.sweep_id == sweep_id
    assert arrival.trials == 10
    with Store.open(target, mode="write") as store:
        assert [baseline.sweep_id for baseline in store.baselines()] == [sweep_id]
        store.remove_baseline("main")
    assert whole.contents(target) == whole.contents(source)
    assert faults(target) == []
    assert outcomes(early, target) == ["already there"], "the early file takes nothing back"
    assert whole.contents(target) == whole.contents(source)


def test_a_grown_sweep_with_other_trials_is_refused(source, target):
    take(source, target)
    before = whole.contents(target)
    with Store.open(source, mode="write") as store:
        first = ids_of(store)[0]
        environment_id = store.add_environment(whole.environment(), {})
        store.add_trial(first, environment_id, timed(whole.cells()[0], 77, 1.0))  # would be news
    sql(source, "UPDATE trial SET recorded_at = '2020-01-01 00:00:00' WHERE id = 1")
    (refused, *_) = take(source, target, sweeps=[first])
    assert refused.outcome == "refused"
    assert re.search(f"sweep {first} .*contradicts {target}, which has", refused.reason)
    assert len(refused.reason.splitlines()) == 1
    assert whole.contents(target) == before


def test_a_database_of_an_earlier_version(source, target):
    """An upgraded copy is imported, and the file stays as it is."""
    lower_to(source, "0006", f"{AFTER_0010} {AFTER_0006}")
    before = Path(source).read_bytes()
    assert outcomes(source, target) == ["imported"] * 3
    assert Path(source).read_bytes() == before
    assert faults(target) == []
    maintenance.upgrade(source)
    assert whole.contents(target) == whole.contents(source)


def test_a_database_that_is_older_than_any_upgrade(source, target):
    sql(source, "UPDATE alembic_version SET version_num = '0005'")
    with pytest.raises(SchemaError, match="has schema 0005, but this effbench reads"):
        take(source, target)


EXTRA = "UPDATE trial SET extra = '%s' WHERE id = 1"
FORGED = [
    # keys and ids that do not match their rows
    ("UPDATE cell SET model = 'other'", "the key of a row of cell does not match it"),
    ("UPDATE cell SET params = '{\"model\": 1}'", "does not match it"),
    ("UPDATE environment SET driver_version = 'other'", "the key of a row of environment"),
    ("UPDATE trial SET environment_id = 'nowhere' WHERE id = 1", "FOREIGN KEY"),
    # what the target's tables do not take
    ("UPDATE trial SET latency_ms = 'fast'", "could not convert string to float"),
    ("UPDATE trial SET pid = 'fast'", "cannot store TEXT value in INTEGER column trial.pid"),
    ("UPDATE trial SET latency_ms = -0.5 WHERE id = 1", "ck_trial_latency_ms"),
    ("UPDATE trial SET status = 'fine'", "ck_trial_status"),
    ("UPDATE trial SET recorded_at = 'soon'", "soon"),
    ("UPDATE environment SET cpu_name = x'ff'", "is damaged: Object of type bytes"),
    ("UPDATE sweep SET rounds = NULL", "NOT NULL"),
    ("UPDATE sweep SET host = '[1]'", "ck_sweep_host"),
    ("UPDATE sample SET data = zeroblob(100000) WHERE trial_id = 1", "ck_sample_data"),
    ("UPDATE trace SET data = zeroblob(1048577) WHERE trial_id = 1", "ck_trace_data"),
    ("UPDATE sample SET count = 0 WHERE trial_id = 1", "ck_sample_stored_of_count"),
    # what cannot be read
    (EXTRA % '{"a": ', "is damaged: Expecting value"),
    (EXTRA % ("[" * 5000 + "]" * 5000), "recursion"),
]


@pytest.fixture(scope="module")
def loosened(tmp_path_factory):
    """A database with one sweep, whose tables take anything."""
    path = tmp_path_factory.mktemp("loose") / "loose.db"
    whole.odd_database(path, sweeps=1)
    loosen(path)
    return path


@pytest.mark.parametrize(("statement", "reason"), FORGED, ids=[words[:60] for words, _ in FORGED])
def test_what_is_forged_is_refused(statement, reason, loosened, tmp_path, target):
    path = shutil.copy(loosened, tmp_path / "forged.db")
    sql(path, statement)
    arrivals = take(path, target)
    refused = [arrival.reason for arrival in arrivals if arrival.outcome == "refused"]
    assert any(reason in said for said in refused), refused
    assert all(said.isprintable() and len(said) < 400 for said in refused)
    assert faults(target) == []


@pytest.mark.parametrize("name", ["../../x", "", "x\x1b[2J", "-x", "x" * 65])
def test_an_id_that_is_none(name, source, target):
    """Folders of caches and logs are named by it."""
    with Store.open(source) as store:
        last = store.find_sweep("last").id
    sql(
        source,
        f"UPDATE sweep SET id = '{name}' WHERE id = '{last}'",
        f"UPDATE sweep_cell SET sweep_id = '{name}' WHERE sweep_id = '{last}'",
    )
    refused = take(source, target)[-1]
    assert refused.outcome == "refused"
    assert "the key of a row of sweep does not match it" in refused.reason
    assert refused.reason.isprintable()


BOMB = zlib.compress(bytes(10**7), 9)


@pytest.mark.parametrize("blob", ["x'00'", f"x'{BOMB.hex()}'"], ids=["empty", "bomb"])
def test_the_content_of_samples_is_checked_when_it_is_read(blob, source, target):
    """Inflated no further than their number."""
    of_sample = "WHERE trial_id = 1 AND timer = 'latency_ms'"
    sql(source, f"UPDATE sample SET data = CAST({blob} AS BLOB) {of_sample}")
    assert take(source, target)[0].outcome == "imported"
    damaged = pytest.raises(StoreError, match=r"latency_ms of trial 1\): .*does not hold 20")
    with Store.open(target) as store, damaged:
        store.samples(1)


def test_a_damaged_trace_is_imported_and_omitted_when_it_is_read(source, target):
    sql(source, f"UPDATE trace SET data = x'{BOMB.hex()}'")
    assert take(source, target)[0].outcome == "imported"
    with Store.open(target) as store:
        (traced, *_) = store.sweep_traces(ids_of(store)[0])
    assert [of_trial.trace for of_trial in traced] == [None] * len(traced)
    assert any("no trace" in of_trial.trial.extra.get("damaged_trace", "") for of_trial in traced)


SHADOWS = {
    "a view": ["ALTER TABLE sweep RENAME TO old", "CREATE VIEW sweep AS SELECT * FROM old"],
    "a virtual table": [
        "DROP TABLE alembic_version",
        "CREATE VIRTUAL TABLE alembic_version USING fts5(version_num)",
    ],
}


@pytest.mark.parametrize("kind", SHADOWS)
def test_tables_that_run_code_are_refused(kind, source, target):
    sql(source, *SHADOWS[kind])
    with pytest.raises(StoreError, match="not a plain table"):
        take(source, target)
    assert not any(whole.contents(target).values())


def test_other_tables_and_triggers_are_not_copied(source, target):
    sql(
        source,
        "CREATE TABLE secret (x)",
        "ALTER TABLE sweep ADD COLUMN payload TEXT DEFAULT 'x'",
        "CREATE TRIGGER evil AFTER INSERT ON trial BEGIN DELETE FROM trial; END",
    )
    assert outcomes(source, target) == ["imported"] * 3
    with closing(sqlite3.connect(target)) as raw:
        names = {name for (name,) in raw.execute("SELECT name FROM sqlite_master")}
    assert not names & {"secret", "evil"}


def test_a_damaged_sweep_is_not_exported(source, tmp_path):
    loosen(source)
    sql(source, "UPDATE trial SET latency_ms = 'fast' WHERE id = 1")
    with pytest.raises(RefusedError, match=r"is damaged: .*could not convert"):
        export(source, tmp_path / "x.db")
