"""Room, left compile caches, the database."""

from __future__ import annotations

import os
import socket
import sqlite3
from collections import namedtuple
from datetime import UTC, datetime
from pathlib import Path

import pytest

from effbench.doctor import storage
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

REAL = storage.running_servers
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "running_servers", lambda proc=None: REAL(proc) if proc else 0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attention(findings):
    return [(finding.level, finding.what) for finding in findings if finding.needs_attention]


def words(findings):
    return [finding.what for finding in findings]


def test_a_fresh_folder(here):
    found = list(storage.findings("results/effbench.db"))
    assert attention(found) == []
    assert "no database at results/effbench.db yet" in words(found)
    assert not (here / "results").exists(), "looking makes nothing"


def test_a_database(here):
    Store.open(here / "a.db", mode="write").close()
    assert f"database {here}/a.db: 0 sweeps, schema up to date" in words(storage.findings(f"sqlite:///{here}/a.db"))


def test_little_room(here, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda path: Usage(9, 9, 2**30))
    found = [what for level, what in attention(storage.findings("a.db")) if level == "warning"]
    assert [what.split(" (")[0] for what in found] == [
        "1.00 GiB free for compile caches",
        "1.00 GiB free for the database",
    ]


def test_no_folder_can_be_made(here):
    (here / "file").write_text("")
    assert ("problem", f"no folder can be made in {here}/file for the database") in attention(
        storage.findings(str(here / "file" / "a.db"))
    )


def test_an_older_schema(here):
    Store.open("old.db", mode="write").close()
    with sqlite3.connect("old.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    connection.close()
    (finding,) = [finding for finding in storage.findings("old.db") if finding.needs_attention]
    assert finding.level == "problem"
    assert "older effbench" in finding.what
    assert finding.mend == "Run `effbench db upgrade --db old.db`."


@pytest.mark.parametrize("db", ["mysql://x/y", "postgresql://me:secret@localhost:1/none"])
def test_a_database_that_cannot_be_used(db):
    ((level, what),) = attention(storage.findings(db))
    assert level == "problem"
    assert "secret" not in what


def test_not_a_database(here):
    (here / "a.db").write_text("no database, but long enough to be taken for one " * 100)
    assert [level for level, _ in attention(storage.findings("a.db"))] == ["problem"]


def test_a_read_only_file(here, monkeypatch):
    Store.open("a.db", mode="write").close()
    real = os.access

    def access(path, mode):
        return real(path, mode) and not (mode == os.W_OK and Path(path).name == "a.db")

    monkeypatch.setattr(os, "access", access)
    assert attention(storage.findings("a.db")) == [("problem", "a.db is read-only")]


def sweep(id, state, host=None):
    now = datetime.now(UTC)
    return SweepInfo(
        id, None, None, state, now, now, [], [], {}, "eager", 0, 1, None, {"hostname": host or socket.gethostname()}
    )


@pytest.fixture
def caches(here):
    """Two sweeps' compile caches of 3 KiB together."""
    folder = here / "cache" / "effbench" / "compile"
    for name, size in (("s1", 1024), ("s2", 2048)):
        (folder / name / "env").mkdir(parents=True)
        (folder / name / "env" / "kernel").write_bytes(b"x" * size)
    return folder


def test_left_caches(caches):
    (finding,) = storage.leftovers(caches, [sweep("s1", "interrupted"), sweep("s2", "completed")])
    assert finding.what == f"compile caches of 2 sweeps that no longer run: 3.00 KiB in {caches}"
    assert "s1 can be resumed" in finding.effect
    assert "s2" not in finding.effect
    assert finding.mend == f"rm -r {caches}/s1 {caches}/s2"


def test_no_caches(here):
    assert list(storage.leftovers(here / "nothing", [])) == []


@pytest.mark.parametrize(
    ("state", "host", "servers", "runs"),
    [
        ("running", None, 1, True),
        ("running", None, 0, False),  # it was killed
        ("running", "elsewhere", 0, True),  # the folder is shared
        ("completed", None, 1, False),
        ("interrupted", None, 1, False),
        (None, None, 1, True),  # of another database
        (None, None, 0, False),
    ],
)
def test_which_sweeps_may_run(caches, monkeypatch, state, host, servers, runs):
    assert storage.may_run(sweep("s1", state, host) if state else None, servers) is runs


def test_a_running_sweep_keeps_its_cache(caches, monkeypatch):
    monkeypatch.setattr(storage, "running_servers", lambda: 1)
    (finding,) = storage.leftovers(caches, [sweep("s1", "running"), sweep("s2", "completed")])
    assert finding.mend == f"rm -r {caches}/s2"
    assert list(storage.leftovers(caches, [sweep("s1", "running")])) == []  # s2 may be another database's


@pytest.mark.parametrize(
    ("words", "parent", "count"),
    [
        ("python -P -m effbench.worker.server", 1, 1),
        ("python -P -m effbench.worker.server", os.getpid(), 0),  # the doctor's own
        ("python -m effbench ls", 1, 0),
    ],
    ids=["another's", "the doctor's own", "no server"],
)
def test_fork_servers_of_others(machine, words, parent, count):
    root = machine({"proc/77/stat": f"77 (python (x)) S {parent} 77 77 0", "proc/78/stat": "gone meanwhile"})
    (root / "proc/77/cmdline").write_bytes(words.replace(" ", "\0").encode())
    assert storage.running_servers(root / "proc") == count
