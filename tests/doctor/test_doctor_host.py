"""CPU, memory, disk and database, from made-up files of the kernel; the software's checks."""

import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from effbench.core.errors import WorkerError
from effbench.doctor import checks
from effbench.store.store import Store

CPU = "sys/devices/system/cpu"
CG = "sys/fs/cgroup"
ATTENTION = ("warning", "problem")
#: The virtual machine with the H200: 16 cores of one thread, no cpufreq.
VM = {
    "proc/loadavg": "0.31 0.2 0.1 1/200 77",
    "proc/self/cgroup": "0::/",
    f"{CG}/cpu.max": "max 100000",
}


@pytest.mark.parametrize(
    ("check", "files", "usable", "warned"),
    [
        (checks.load, {"proc/loadavg": "9.0 1 1 1/2 3"}, 16, "CPU load 9.0"),
        (checks.load, {"proc/loadavg": "7.9 1 1 1/2 3"}, 16, None),
        (checks.load, {"proc/loadavg": "7.9 1 1 1/2 3"}, 8, "on 8 usable cores"),
        (
            checks.load,
            {"proc/loadavg": "3.0 1 1 1/2 3", f"{CG}/cpu.max": "400000 100000"},
            16,
            "on 4 usable cores",
        ),
        (
            checks.load,
            {
                "proc/self/cgroup": "0::/pods/mine",
                f"{CG}/pods/cpu.max": "400000 100000",
                f"{CG}/pods/mine/cpu.max": "max 100000",
            },
            16,
            "CPU quota of 4 out of 16 cores (cgroup)",
        ),
        (
            checks.governor,
            {f"{CPU}/cpu{n}/cpufreq/scaling_governor": "performance" for n in range(2)},
            2,
            None,
        ),
        (
            checks.governor,
            {f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave"},
            2,
            "governor powersave",
        ),
    ],
)
def test_conditions(machine, monkeypatch, check, files, usable, warned):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(usable)))
    found = [
        finding.what for finding in check(machine({**VM, **files})) if finding.level in ATTENTION
    ]
    assert warned in " ".join(found) if warned else not found


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attention(machine):
    found = [finding for check in checks.CHECKS["storage"] for finding in check(machine)]
    return [(finding.level, finding.what) for finding in found if finding.level in ATTENTION]


def test_a_fresh_folder_and_a_database(here, machine):
    assert attention(machine(db="results/effbench.db")) == []
    assert not (here / "results").exists(), "a check makes nothing"
    Store.open(here / "a.db", mode="write").close()
    (finding,) = checks.database(machine(db=f"sqlite:///{here}/a.db"))
    assert finding.level == "good"
    assert "sweeps: 0" in finding.what


def test_little_room(here, machine, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=2**30))
    caches, database = checks.disk_space(machine())
    assert "1.00 GiB free for compile caches" in caches.what
    assert caches.fix.endswith(" XDG_CACHE_HOME")
    assert "1.00 GiB free for the database" in database.what
    assert database.fix.endswith(" db=")


@pytest.mark.parametrize("db", ["mysql://x/y", "postgresql://me:secret@localhost:1/none", "a.db"])
def test_a_database_that_cannot_be_used(here, machine, db):
    (here / "a.db").write_text("no database, but long enough to be taken for one " * 100)
    ((level, what),) = attention(machine(db=db))
    assert level == "problem"
    assert "secret" not in what


def test_a_database_below_a_file(here, machine):
    (here / "file").touch()
    below = attention(machine(db="file/a.db"))
    assert ("problem", f"{here}/file is not a writable folder for the database") in below


def test_a_database_of_an_old_version(here, machine):
    Store.open("old.db", mode="write").close()
    with closing(sqlite3.connect("old.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
        connection.commit()
    (finding,) = checks.database(machine(db="old.db"))
    assert finding.level == "problem"
    assert "effbench db upgrade" in finding.what


def test_a_database_that_is_read_only(here, machine, monkeypatch):
    Store.open("ro.db", mode="write").close()
    real = os.access
    denied = (Path("ro.db"), os.W_OK)
    monkeypatch.setattr(os, "access", lambda *asked: asked != denied and real(*asked))
    assert attention(machine(db="ro.db")) == [("problem", "ro.db is read-only")]


def levels(found):
    return [finding.level for finding in found]


def test_missing_compilers(machine, answer):
    assert levels(checks.compilers(machine())) == []
    answer["details"]["compilers"] = dict.fromkeys(("gcc", "g++", "clang", "nvcc"), False)
    answer["environment"]["triton_version"] = None
    assert levels(checks.compilers(machine())) == ["warning"] * 2
    own = machine(environ={"CC": sys.executable})
    assert levels(checks.compilers(own)) == ["warning"]
    answer["gpus"] = []
    assert levels(checks.compilers(machine())) == []


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
    findings = checks.compilers(replace(machine(), compiler_error=found))
    assert levels(findings) == ([] if found is None else ["warning"])
    caches = here / "cache" / "effbench" / "compile"
    assert Path(call.call_args.args[1]["cache_dir"]).parent == caches
    assert list(caches.iterdir()) == []


@pytest.mark.parametrize("name", checks.SPOILS)
def test_variables(machine, name):
    (finding,) = checks.variables(machine(environ={name: "1"}))
    assert finding.fix == f"unset {name}"
    assert levels(checks.variables(machine(environ={name: "0"}))) == []
