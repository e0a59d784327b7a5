"""`Store.check` and `Store.upgrade`."""

import sqlite3
from contextlib import closing

import pytest

from effbench.cell import Status, Trial
from effbench.errors import StoreError
from effbench.store import HEAD_REVISION, Store


@pytest.fixture
def filled(path, cell, environment, begin):
    with Store.open(path, mode="write") as store:
        cells = [cell("eager"), cell("default")]
        sweep, here = begin(store, cells), store.add_environment(environment(), {})
        for one in cells:
            store.record(sweep, here, Trial(one.key, 0, Status.OK, latency_ms=2.0, samples={"latency_ms": [2.0] * 9}))
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as raw:
        for statement in statements:
            raw.execute(statement)
        raw.commit()


def test_a_sound_database_has_no_problems(filled):
    before = filled.read_bytes()
    assert Store.check(filled) == []
    assert filled.read_bytes() == before


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE result SET latency_ms = 2.1", "differs from its trials in latency_ms"),
        ("UPDATE result SET status = 'noisy', reason = 'x'", "differs from its trials in status, reason"),
        ("DELETE FROM result WHERE cell_key = (SELECT min(cell_key) FROM result)", "has trials but no result"),
        ("UPDATE sample SET data = x'00'", "damaged samples"),
        ("UPDATE sample SET codec = 'new'", "upgrade effbench"),
        ("DELETE FROM trial WHERE id = 1", "sample rows without their trial"),
        ("DELETE FROM trial WHERE id = 1", "has a result but no trials"),
        ("UPDATE trial SET latency_ms = 'none'", "trial.latency_ms is 'none', not a number (trial id 1, and 1 more)"),
        ("UPDATE result SET kernels = 'none'", "result.kernels is 'none', not an integer"),
        ("DELETE FROM environment", "refers to a missing row of environment"),
    ],
)
def test_problems_are_named(filled, statement, said):
    change(filled, statement)
    assert any(said in problem for problem in Store.check(filled))


def test_rebuilding_mends_results(filled):
    change(filled, "UPDATE result SET latency_ms = 2.1", "DELETE FROM result WHERE trials = 2")
    with Store.open(filled, mode="write") as store:
        before = [row["latency_ms"] for row in store.results()]
        store.rebuild_results(store.find_sweep("last").id)
        assert before != [row["latency_ms"] for row in store.results()]
    assert Store.check(filled) == []


def test_a_damaged_page_is_found(filled):
    with closing(sqlite3.connect(filled)) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
        page = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'trial'").fetchone()[0]
        size = raw.execute("PRAGMA page_size").fetchone()[0]
    data = bytearray(filled.read_bytes())
    data[(page - 1) * size : page * size] = b"\x55" * size
    filled.write_bytes(data)
    try:
        problems = Store.check(filled)
    except StoreError as error:
        problems = [str(error)]
    assert any("damaged" in problem for problem in problems)


def test_check_and_upgrade_of_what_is_missing(path):
    for action in (Store.check, Store.upgrade):
        with pytest.raises(StoreError, match="no database at"):
            action(path)
    assert not path.exists()


def test_check_of_an_empty_file(tmp_path):
    (tmp_path / "x.db").write_bytes(b"")
    assert Store.check(tmp_path / "x.db") == [f"{tmp_path / 'x.db'} is empty"]


def test_upgrade_fills_an_empty_database_and_leaves_a_current_one(tmp_path, filled):
    (tmp_path / "x.db").write_bytes(b"")
    assert Store.upgrade(tmp_path / "x.db") == (None, HEAD_REVISION)
    assert Store.check(tmp_path / "x.db") == []
    assert Store.upgrade(filled) == (HEAD_REVISION, HEAD_REVISION)
    assert Store.check(filled) == []


def test_a_failed_upgrade_leaves_nothing_half_done(tmp_path, monkeypatch):
    (tmp_path / "x.db").write_bytes(b"")
    from effbench.store import migrate

    def half(connection):
        migrate_all(connection)
        raise StoreError("power cut")

    migrate_all = migrate.migrate
    monkeypatch.setattr(migrate, "migrate", half)
    with pytest.raises(StoreError, match="power cut"):
        Store.upgrade(tmp_path / "x.db")
    assert Store.check(tmp_path / "x.db")[0].endswith("is empty")
