"""`maintenance.upgrade`, and the schema, which changes with its revision, never without it."""

import json
import subprocess
from unittest.mock import Mock

import pytest
import sqlalchemy as sa
from made_sweeps import faults, sql
from older_schemas import AFTER_0006, AFTER_0010, lower_to, lower_to_0010
from sqlalchemy.dialects import sqlite

from effbench.core.cell import Status, Trial, digest
from effbench.core.errors import SchemaError, StoreError
from effbench.core.processes import statistics_of
from effbench.store import HEAD_REVISION, Store, connect, liveness, maintenance, schema


@pytest.fixture
def filled(path, store, cell, here, begin):
    """A database with two trials."""
    cells = [cell("eager"), cell("default")]
    sweep = begin(store, cells)
    for planned in cells:
        samples = {"latency_ms": [2.0] * 9}
        trial = Trial(
            planned.key,
            0,
            Status.OK,
            latency_ms=2.0,
            samples=samples,
        )
        store.add_trial(sweep, here, trial)
    store.close()
    return path


def test_upgrade_fills_an_empty_database_and_leaves_a_current_one(tmp_path, filled):
    with pytest.raises(StoreError, match="no database at"):
        maintenance.upgrade(tmp_path / "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()
    empty = tmp_path / "x.db"
    empty.touch()
    for path, before in ((empty, None), (filled, HEAD_REVISION)):
        assert maintenance.upgrade(path) == (before, HEAD_REVISION)
        assert faults(path) == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_upgrade_is_all_or_nothing(older, monkeypatch, is_whole):
    with pytest.raises(SchemaError, match="effbench db upgrade"):
        Store.open(older)
    if is_whole:
        assert maintenance.upgrade(older) == ("0010", HEAD_REVISION)
        assert faults(older) == []
    else:
        monkeypatch.setattr(maintenance, "rebuild_results", Mock(side_effect=RuntimeError("power")))
        with pytest.raises(RuntimeError, match="power"):
            maintenance.upgrade(older)
    assert revision_of(older) == (HEAD_REVISION if is_whole else "0010")
    with connect.connected(older) as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("trial")}
        assert ("threads" in columns) is is_whole


def test_a_database_of_the_first_revision_is_upgraded(filled, cell):
    """A database of revision 0006, as it was."""
    sql(filled, "UPDATE trial SET peak_reserved_bytes = 3 * 1048576")
    lower_to(filled, "0006", f"{AFTER_0010} {AFTER_0006}")
    sql(filled, "ALTER TABLE result RENAME COLUMN relative_memory TO memory_ratio")
    assert maintenance.upgrade(filled) == ("0006", HEAD_REVISION)
    assert faults(filled) == []
    with Store.open(filled, mode="write") as store:
        assert [result.relative_memory for result in store.results()] == [1.0, 1.0]
        (sweep,) = store.sweeps()
        (machine,) = store.environments_of(sweep.id)
        new = store.add_trial(sweep.id, machine.id, Trial(cell().key, 1, Status.OK))
        assert new == 3, "ids go on"
    for column, value in (("round", "-1"), ("status", "noisy"), ("extra", "[]")):
        with pytest.raises(Exception, match=f"ck_trial_{column}"):
            sql(filled, f"UPDATE trial SET {column} = '{value}'")


def test_a_row_that_no_table_takes_prevents_the_upgrade(older):
    sql(older, "UPDATE trial SET round = -1 WHERE id = 1")
    with pytest.raises(StoreError, match=r"does not take a value .*ck_trial_round"):
        maintenance.upgrade(older)
    assert revision_of(older) == "0010"


@pytest.fixture
def older(filled):
    """A database of revision 0010."""
    lower_to_0010(filled)
    return filled


def revision_of(path):
    with connect.connected(path) as connection:
        return connect.revision(connection)


def test_an_upgrade_waits_for_the_end_of_a_sweep(older):
    with subprocess.Popen(["sleep", "60"]) as process:
        started = statistics_of(process.pid)[19]
        host = {"process": liveness.identity() | {"pid": process.pid, "started": started}}
        sql(older, f"UPDATE sweep SET state = 'running', host = '{json.dumps(host)}'")
        with pytest.raises(StoreError, match=f"still running in process {process.pid}; wait"):
            maintenance.upgrade(older)
        process.kill()
    assert revision_of(older) == "0010"
    assert not list(older.parent.glob("*before*"))
    assert maintenance.upgrade(older) == ("0010", HEAD_REVISION), "of a process that was killed"


def test_an_upgrade_keeps_a_copy_of_the_file(older):
    copy = maintenance.copy_before(older, "0010")
    maintenance.upgrade(older)
    assert revision_of(copy) == "0010"
    assert revision_of(older) == HEAD_REVISION
    before = copy.read_bytes()
    maintenance.upgrade(older)  # there is nothing to do, and nothing to copy
    assert copy.read_bytes() == before
    assert [found.name for found in older.parent.glob("*before*")] == [copy.name]


def test_an_upgrade_without_room_for_the_copy_changes_nothing(older, monkeypatch):
    nowhere = older.parent / "missing" / "copy.db"
    monkeypatch.setattr(maintenance, "copy_before", lambda url, revision: nowhere)
    with pytest.raises(StoreError, match=r"needs a copy of .*; nothing was changed"):
        maintenance.upgrade(older)
    assert revision_of(older) == "0010"


#: Changes with every table and the view. Who changes the schema adds a revision, and changes this.
DIGEST = "02ce5502d4ca7bef"


def test_the_schema_is_that_of_its_revision():
    dialect = sqlite.dialect()
    tables = [
        str(sa.schema.CreateTable(table).compile(dialect=dialect))
        for table in schema.METADATA.sorted_tables
    ]
    assert digest([HEAD_REVISION, *tables, str(schema.VIEW_QUERY)])[:16] == DIGEST
