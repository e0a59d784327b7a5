"""Opening: what is made, what is refused and in which words, what a reader may do without
writing."""

import os
import shutil
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from made_sweeps import sql

from effbench.core.errors import SchemaError, StoreError
from effbench.store import HEAD_REVISION, Store, maintenance
from effbench.store.connect import parse_url
from effbench.store.source import opened


def refused(url, mode="read"):
    with pytest.raises(StoreError) as caught:
        Store.open(url, mode=mode).close()
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    assert "Traceback" not in message
    assert "sqlalche.me" not in message
    return message


def test_write_makes_file_folder_and_schema(tmp_path, cell, begin):
    odd = tmp_path / "a" / "b c%20ü?#" / os.fsdecode(b"d %20;&?#\xc3\xbc\xff.db")
    for form, path in (
        ("{}", odd),
        ("sqlite:///{}", tmp_path / "x.db"),
        ("sqlite+pysqlite:///{}", tmp_path / "y.db"),
    ):
        with Store.open(form.format(path), mode="write") as store:
            assert store.name == str(path)
            begin(store, [cell()])
        with Store.open(form.format(path)) as store:
            assert [sweep.cells for sweep in store.sweeps()] == [1]
    assert [*odd.parent.iterdir()] == [odd]


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch, cell, begin):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_url("~/x.db").database == str(tmp_path / "x.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Store.open("results/x.db", mode="write") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        begin(store, [cell()])
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_no_database(tmp_path, path, store, cell, begin):
    text = tmp_path / "text.db"
    text.write_bytes(b"latency_ms,period_ms\n" * 400)
    begin(store, [cell(bs=n) for n in range(1, 200)])
    store.close()
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)
    os.mkfifo(tmp_path / "pipe")
    for mode in ("read", "write"):
        assert "is not a file" in refused(tmp_path / "pipe", mode)
        assert "is not a file" in refused(tmp_path, mode)
        assert str(text / "x.db") in refused(text / "x.db", mode)
        assert "not a database" in refused(text, mode)
        assert "damaged" in refused(path, mode)
    assert text.read_bytes().startswith(b"latency_ms")


def test_reading_makes_no_database(tmp_path):
    missing = tmp_path / "nowhere" / "x.db"
    assert f"no database at {missing}" in refused(missing)
    assert not missing.parent.exists()


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE bookmarks (url TEXT)", "CREATE TABLE alembic_version (version_num TEXT)"],
)
def test_a_database_of_another_program(tmp_path, statement):
    path = tmp_path / "x.db"
    sql(path, "CREATE TABLE other (url TEXT)", statement)
    before = path.read_bytes()
    for mode in ("read", "write"):
        message = refused(path, mode)
        assert "another program" in message
        assert "other" in message
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "action",
    [
        Store.open,
        partial(Store.open, mode="write"),
        maintenance.upgrade,
        lambda path: opened(path).__enter__(),
    ],
)
def test_a_database_of_a_later_version(path, action):
    sql(path, "UPDATE alembic_version SET version_num = '9999'")
    said = f"has schema 9999, but this effbench reads {HEAD_REVISION}; .* newer"
    with pytest.raises(SchemaError, match=said):
        action(path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://u:secret@h/db", "unknown database"),
        ("postgresql+asyncpg://u:secret@h/db", "unknown database"),
        ("sqlite://", "sqlite:///PATH"),
        ("sqlite:///:memory:", "of a file"),
        ("postgresql://u:secret@h:port/db", "not a database URL"),
        ("postgresql//me:secret@h/db", "not a database URL"),
        ("host=h password=secret dbname=d", "not a database URL"),
        ("", "is not a file"),
        ("postgresql://user:secret@127.0.0.1:1/db", "cannot be reached"),
    ],
)
def test_urls_that_cannot_be(url, said):
    message = refused(url, "write")
    assert said in message
    assert "secret" not in message


def test_a_server_needs_a_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "effbench[postgres]" in refused("postgresql://user:secret@localhost/db")


@pytest.fixture
def unprivileged():
    """Without the rights of root, also where the tests themselves run as root: everything is
    writable for it."""
    if os.geteuid() != 0:
        yield
        return
    os.setresgid(65534, 65534, 0)
    os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(0, 0, 0)
    os.setresgid(0, 0, 0)


@pytest.fixture
def read_only(cell, begin):
    """A folder that every user may read: `x.db`, `unfinished.db` with a log and a link, `hot.db`
    with a journal."""
    folder = Path(tempfile.mkdtemp())
    for name in ("x.db", "unfinished.db", "hot.db"):
        with Store.open(folder / name, mode="write") as store:
            begin(store, [cell()])
    (folder / "unfinished.db-wal").write_bytes(b"\0" * 4152)
    (folder / "hot.db-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\0" * 504)
    (folder / "link.db").symlink_to("unfinished.db")
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_folder_can_be_read_and_not_written(read_only, unprivileged):
    path = read_only / "x.db"
    with Store.open(path) as store:
        assert [sweep.cells for sweep in store.sweeps()] == [1]
    assert len(list(read_only.iterdir())) == 6
    for name in ("x.db", "new.db"):
        assert "permissions" in refused(read_only / name, "write")
    for name, log in (
        ("unfinished.db", "-wal"),
        ("link.db", "unfinished.db-wal"),
        ("hot.db", "-journal"),
    ):
        assert log in refused(read_only / name)


def test_the_lock_is_waited_for_and_then_named(path, cell, begin, monkeypatch):
    monkeypatch.setattr("effbench.store.connect.BUSY_TIMEOUT_S", 0.1)
    with (
        Store.open(path, mode="write") as impatient,
        closing(sqlite3.connect(path, isolation_level=None)) as raw,
    ):
        raw.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        with pytest.raises(StoreError, match="locked by another process"):
            begin(impatient, [cell()])
        assert time.monotonic() - start < 5
        assert impatient.sweeps() == []  # readers do not wait for writers


def test_a_reader_does_not_write(path, cell, begin):
    with Store.open(path) as reader, pytest.raises(StoreError, match="reading only"):
        begin(reader, [cell()])
