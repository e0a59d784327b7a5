"""`Store.check`, `Store.upgrade`, and the schema, which changes with a migration, never without
one."""

import shutil

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from made_sweeps import sql
from older_schemas import ADDED, without_checks, without_later_columns

from effbench.core.cell import Status, Trial, digest
from effbench.core.errors import SchemaError, StoreError
from effbench.store import HEAD_REVISION, Store, connect, maintenance, schema


@pytest.fixture
def filled(path, cell, environment, begin):
    with Store.open(path, mode="write") as store:
        cells = [cell("eager"), cell("default")]
        sweep, here = begin(store, cells), store.add_environment(environment(), {})
        for planned in cells:
            samples = {"latency_ms": [2.0] * 9}
            trial = Trial(planned.key, 0, Status.OK, latency_ms=2.0, samples=samples)
            store.record(sweep, here, trial)
    return path


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE result SET latency_ms = 2.1", "differs from its trials in latency_ms"),
        ("UPDATE trial SET disturbance = 'x' WHERE id = 1", "differs from its trials in"),
        ("DELETE FROM result WHERE kernels IS NULL", "result differs from its trials in all"),
        ("DELETE FROM trial WHERE id = 1", "1 rows of sample refer to missing rows of trial"),
        ("DELETE FROM environment", "refer to missing rows of environment"),
    ],
)
def test_problems_are_named(filled, statement, said):
    before = filled.read_bytes()
    assert Store.check(filled) == []
    assert filled.read_bytes() == before
    sql(filled, statement)
    assert any(said in problem for problem in Store.check(filled))


def test_upgrade_fills_an_empty_database_and_leaves_a_current_one(tmp_path, filled):
    with pytest.raises(StoreError, match="no database at"):
        Store.upgrade(tmp_path / "nowhere.db")
    assert not (tmp_path / "nowhere.db").exists()
    empty = tmp_path / "x.db"
    empty.touch()
    assert Store.check(empty) == [f"{empty} is empty"]
    for path, before in ((empty, None), (filled, HEAD_REVISION)):
        assert Store.upgrade(path) == (before, HEAD_REVISION)
        assert Store.check(path) == []


NEXT = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "next", "{head}", None, None
def upgrade():
    op.add_column("trial", sa.Column("humidity", sa.REAL()))
    {more}
"""


@pytest.mark.parametrize("more", ["", "raise RuntimeError('power cut')"])
def test_a_migration_is_all_or_nothing(filled, tmp_path, monkeypatch, more):
    """As a later effbench would run it."""
    folder = shutil.copytree(maintenance._MIGRATIONS, tmp_path / "migrations")
    (folder / "versions" / "next.py").write_text(NEXT.format(head=HEAD_REVISION, more=more))
    monkeypatch.setattr(maintenance, "_MIGRATIONS", folder)
    for module in (maintenance, connect):
        monkeypatch.setattr(module, "HEAD_REVISION", "next")
    for module in (schema, connect):
        monkeypatch.setattr(module, "REVISIONS", (HEAD_REVISION, "next"))
    with pytest.raises(SchemaError, match="effbench db upgrade"):
        Store.open(filled)
    if more:
        with pytest.raises(RuntimeError, match="power cut"):
            Store.upgrade(filled)
    else:
        assert Store.upgrade(filled) == (HEAD_REVISION, "next")
        assert Store.check(filled) == []
    with connect.connected(filled) as connection:
        assert connect.revision(connection) == (HEAD_REVISION if more else "next")
        columns = [column["name"] for column in sa.inspect(connection).get_columns("trial")]
        assert ("humidity" in columns) is not bool(more)


def test_a_database_of_the_first_revision_is_upgraded(filled):
    """A database of revision 0006, as it was."""
    without_checks(filled)
    sql(filled, "UPDATE trial SET peak_reserved_bytes = 3 * 1048576")
    sql(filled, "DROP VIEW results")
    sql(filled, "ALTER TABLE result RENAME COLUMN relative_memory TO memory_ratio")
    sql(filled, "CREATE VIEW results AS SELECT * FROM result")
    for columns in ADDED.values():
        without_later_columns(filled, columns)
    sql(filled, "UPDATE alembic_version SET version_num = '0006'")
    assert Store.upgrade(filled) == ("0006", HEAD_REVISION)
    assert Store.check(filled) == []
    with Store.open(filled) as store:
        assert [result.relative_memory for result in store.results()] == [1.0, 1.0]


@pytest.fixture
def older(filled):
    """A database of revision 0010."""
    without_checks(filled)
    for revision in ("0011", "0012", "0013", "0015"):
        without_later_columns(filled, ADDED[revision])
    sql(filled, "UPDATE alembic_version SET version_num = '0010'")
    return filled


def revision_of(path):
    with connect.connected(path) as connection:
        return connect.revision(connection)


def test_an_upgrade_keeps_a_copy_of_the_file(older):
    copy = maintenance.copy_before(older, "0010")
    assert not copy.exists()
    Store.upgrade(older)
    assert (revision_of(copy), revision_of(older)) == ("0010", HEAD_REVISION)
    before = copy.read_bytes()
    Store.upgrade(older)  # there is nothing to do, and nothing to copy
    assert copy.read_bytes() == before
    assert [found.name for found in older.parent.glob("*before*")] == [copy.name]


def test_an_upgrade_without_room_for_the_copy_changes_nothing(older, monkeypatch):
    nowhere = older.parent / "missing" / "copy.db"
    monkeypatch.setattr(maintenance, "copy_before", lambda url, revision: nowhere)
    with pytest.raises(StoreError, match=r"needs a copy of .*; nothing was changed"):
        Store.upgrade(older)
    assert revision_of(older) == "0010"


#: Changes with every table and the view. Who changes the schema adds a migration, its revision, and
#: this.
DIGEST = "802081e95510ca46"


def test_the_schema_is_that_of_its_revision():
    tables = [str(sa.schema.CreateTable(table)) for table in schema.METADATA.sorted_tables]
    assert digest([HEAD_REVISION, *tables, str(schema.VIEW_QUERY)])[:16] == DIGEST


def test_the_revisions_are_alembics():
    script = ScriptDirectory.from_config(maintenance.migrations())
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == schema.REVISIONS
