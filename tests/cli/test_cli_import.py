"""`effbench export` and `effbench import` as they are typed: what is printed, exit codes,
pipes, refusals."""

import resource
import tempfile
from dataclasses import astuple
from pathlib import Path

import pytest
import whole_sweeps as whole
from made_sweeps import DEFAULT, EAGER, Made

from effbench.cli import main as command_line
from effbench.store import Store


@pytest.fixture
def run(tmp_path, monkeypatch, effbench):
    """A command in an empty folder: its exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: astuple(effbench(*map(str, words)))


def refused(done, *said, code=2):
    found, _, err = done
    assert (found, len(err.splitlines()) in (1, 2)) == (code, True), done
    assert err.startswith("effbench: ") and all(text in err for text in said), err


def test_out_and_in_again(odd, run):
    exported = run("export", "--db", odd, "--out", "new/sweeps.db")
    assert exported == (0, "3 whole sweeps → new/sweeps.db\n", "")
    code, said, err = run("import", "new/sweeps.db")
    assert (code, err) == (0, "")
    assert ": imported, " in said
    assert " trials\n" in said
    assert said.endswith("\n3 sweeps: 3 imported · database results/effbench.db\n")
    assert whole.contents("results/effbench.db") == whole.contents(odd)


@pytest.mark.parametrize("size", [512, 8192])
def test_a_full_temporary_folder_is_named_and_not_the_database(odd, run, fill_disk, size):
    fill_disk(size)
    done = run("export", "--db", odd, "--out", "sweeps.db")
    fill_disk(resource.RLIM_INFINITY)  # pytest, too, may write to a file
    refused(done, f"{tempfile.gettempdir()}/effbench-", "sweeps.db failed: the disk is full")
    assert "--db" not in done[2] and not Path("sweeps.db").exists()


@pytest.mark.parametrize(
    ("length", "said"), [(50_000, "is damaged"), (50, "is damaged"), (0, "is empty")]
)
def test_a_file_that_breaks_off(odd, run, length, said):
    Path("part.db").write_bytes(odd.read_bytes()[:length])
    refused(run("import", "part.db"), "part.db", said)
    assert not Path("results/effbench.db").exists()


def test_an_export_is_written_to_a_pipe(odd, capfdbinary):
    assert (
        command_line.run(["export", "--db", str(odd), "--format", "db", "--out", "/dev/stdout"])
        == 0
    )
    assert capfdbinary.readouterr().out.startswith(b"SQLite")


def test_a_damaged_file_or_a_refused_sweep_does_not_keep_the_others_away(odd, run):
    Path("b.db").write_bytes(odd.read_bytes()[:5000])
    code, said, err = run("import", "b.db", odd, "nowhere", "--db", "x.db")
    assert (code, said.count(": imported")) == (2, 3)
    assert "b.db" in err and "damaged" in err and "nowhere: no such file" in err


def sweep_on(name):
    """A sweep on a host of this name, in a database of this name."""
    host = {"hostname": name, "process": {"boot": name}}
    of_host = {"gpu_uuid": f"GPU-{name}", "host_ms": 0.04}
    Made(f"{name}.db").sweep({EAGER: of_host, DEFAULT: of_host}, rounds=2, host=host)


def test_sweeps_of_two_hosts_become_one(run):
    for name in ("alpha", "beta"):
        sweep_on(name)
    words = ("import", "alpha.db", "beta.db", "--db", "all.db", "--join", "both")
    for _ in "twice":
        _, out, err = run(*words)
        assert err == ""
        assert " both: joined, 2 hosts (alpha, beta), 2 cells\n" in out
    assert "over 2 hosts: alpha (" in run("show", "--db", "all.db", "--sweep", "both")[1]
    refusal = run("import", "alpha.db", "--db", "all.db", "--join", "one")
    refused(refusal, "--join needs the sweeps of two hosts or more, not 1 sweep")


SERVER = "postgresql://me:s3cret@host/x"
REFUSALS = [
    ("import nowhere", "effbench: nowhere: no such file\n", 2),
    ("import ODD --sweep nowhere", "no sweep 'nowhere'", 3),
    ("import blank.db", "holds no sweep yet", 3),
    ("export --db ODD --out empty/x.db", "cannot write empty/x.db", 2),
]


@pytest.mark.parametrize(("words", "said", "code"), REFUSALS)
def test_refusals(odd, run, words, said, code):
    Path("empty").write_text("")
    Store.open("blank.db", mode="write").close()
    done = run(*words.replace("ODD", str(odd)).split())
    refused(done, said, code=code)
    assert "s3cret" not in done[2]


def test_a_hostile_name_stays_on_its_line(run):
    name = "evil\x1b[2J\nname\u202e" + "x" * 99
    with Store.open("from.db", mode="write") as store:
        whole.sweep(store, name=name)
    _, said, _ = run("import", "from.db", "--db", "x.db")
    line, last = said.splitlines()
    assert (line + last).isprintable()
    assert len(line) < 140 and " evil [2J name xxx" in line
