"""CPU, folders and database; the software's checks."""

import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from effbench.core.errors import WorkerError
from effbench.doctor import checks
from effbench.store.store import Store


@pytest.mark.parametrize(
    ("busy", "usable", "level"), [(9.0, 16, "warning"), (7.9, 16, "good"), (7.9, 8, "warning")]
)
def test_load(monkeypatch, busy, usable, level):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(usable)))
    monkeypatch.setattr(os, "getloadavg", lambda: (busy, 1.0, 1.0))
    finding = checks.load()
    assert finding.level == level
    assert f"CPU load {busy} (mean of one minute) on {usable} usable cores" in finding.what


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attention(db):
    found = [*checks.compile_caches(), *checks.database(db)]
    return [(finding.level, finding.what) for finding in found if finding.level != "good"]


def test_a_fresh_folder_and_a_database(here):
    assert attention("results/effbench.db") == []
    assert not (here / "results").exists(), "a check makes nothing"
    Store.open(here / "a.db", mode="write").close()
    (finding,) = checks.database(f"sqlite:///{here}/a.db")
    assert finding.level == "good"
    assert "sweeps: 0" in finding.what


@pytest.mark.parametrize("db", ["mysql://x/y", "postgresql://me:secret@localhost:1/none", "a.db"])
def test_a_database_that_cannot_be_used(here, db):
    (here / "a.db").write_text("no database, but long enough to be taken for one " * 100)
    ((level, what),) = attention(db)
    assert level == "problem"
    assert "secret" not in what


def test_a_database_below_a_file(here):
    (here / "file").touch()
    below = attention("file/a.db")
    assert ("problem", f"{here}/file is not a writable folder for the database") in below


def test_a_database_of_an_old_version(here):
    Store.open("old.db", mode="write").close()
    with closing(sqlite3.connect("old.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
        connection.commit()
    (finding,) = checks.database("old.db")
    assert finding.level == "problem"
    assert "effbench db upgrade" in finding.what


def test_a_database_that_is_read_only(here, monkeypatch):
    Store.open("ro.db", mode="write").close()
    real = os.access
    denied = (Path("ro.db"), os.W_OK)
    monkeypatch.setattr(os, "access", lambda *asked: asked != denied and real(*asked))
    assert attention("ro.db") == [("problem", "ro.db is read-only")]


def warnings(machine, error=None):
    return [finding.level for finding in checks.compilers(machine, error)].count("warning")


def test_missing_compilers(machine, monkeypatch, answer):
    monkeypatch.delenv("CC", raising=False)
    assert warnings(machine()) == 0
    answer["details"]["compilers"] = dict.fromkeys(("gcc", "g++", "clang", "nvcc"), False)
    answer["environment"]["triton_version"] = None
    assert warnings(machine()) == 2
    monkeypatch.setenv("CC", sys.executable)
    assert warnings(machine()) == 1
    answer["gpus"] = []
    assert warnings(machine()) == 0


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ({"status": "ok", "reason": None, "facts": {}}, "None"),
        ({"status": "error", "reason": "C++: fatal error: no room"}, "fatal error: no room"),
        (WorkerError("check failed: killed by SIGKILL"), "killed by SIGKILL"),
    ],
)
def test_a_compiler_that_fails(here, machine, outcome, error):
    call = Mock(side_effect=[outcome])
    found = checks.try_compiler(SimpleNamespace(call=call))
    assert error in str(found)
    assert warnings(machine(), found) == (found is not None)
    caches = here / "cache" / "effbench" / "compile"
    assert Path(call.call_args.args[1]["cache_dir"]).parent == caches
    assert list(caches.iterdir()) == []


@pytest.mark.parametrize("name", checks.SPOILS)
def test_variables(monkeypatch, name):
    for other in checks.SPOILS:
        monkeypatch.delenv(other, raising=False)
    assert list(checks.variables()) == []
    monkeypatch.setenv(name, "1")
    (finding,) = checks.variables()
    assert finding.fix == f"unset {name}"
    monkeypatch.setenv(name, "0")
    assert list(checks.variables()) == []
