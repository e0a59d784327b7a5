"""`effbench export --whole` and `effbench import` as they are typed: what is printed, exit codes, pipes, refusals."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import whole_sweeps as whole

from effbench import cli as command_line
from effbench.store import RESULT_COLUMNS, Store


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "odd.db"
    whole.odd_database(path)
    return path


@pytest.fixture
def run(tmp_path, monkeypatch, capsysbinary):
    """A command in an empty folder: its exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def done(*words):
        code = command_line.run([str(word) for word in words])
        said = capsysbinary.readouterr()
        return code, said.out.decode(), said.err.decode()

    return done


def refused(done, *said, code=2):
    found, _, err = done
    assert found == code
    assert 1 <= len(err.splitlines()) <= 2
    assert err.startswith("effbench: ")
    for text in said:
        assert text in err


@pytest.mark.parametrize("out", ["sweeps.jsonl", "new/sweeps.jsonl.gz", "sweeps/", "sweeps.parquet"])
def test_out_and_in_again(out, odd, run):
    assert run("export", "--db", odd, "--whole", "--out", out) == (0, f"3 whole sweeps -> {out}\n", "")
    code, said, err = run("import", out, "--baselines")
    assert (code, err) == (0, "")
    assert "imported, 6 cells, " in said
    assert ", with 2 baselines, 1 acknowledgement, " not in said  # sorted by name
    assert "with 1 acknowledgement, 2 baselines, 2 calibrations, 1 claim verdict" in said
    assert said.splitlines()[-1] == "3 sweeps: 3 imported · database results/effbench.db"
    assert whole.contents("results/effbench.db") == whole.contents(odd)
    code, said, _ = run("import", out)
    assert code == 0
    assert said.splitlines()[-1] == "3 sweeps: 3 already there · database results/effbench.db"


def test_the_format_is_what_is_asked_for(odd, run):
    assert run("export", "--db", odd, "--whole", "--format", "parquet", "--out", "x.jsonl")[0] == 0
    assert Path("x.jsonl/manifest.json").is_file()
    assert run("export", "--db", odd, "--whole", "--format", "jsonl", "--out", "x.parquet")[0] == 0
    assert Path("x.parquet").read_text().startswith('{"format":"effbench-sweeps","version":1,')
    # whatever a file is called, it is read as what it is
    assert run("import", "x.jsonl", "x.parquet")[0] == 0


def test_a_pipe_between_two_effbenches(odd, cli):
    code, said = cli.start("export", "--db", str(odd), "--whole", "--no-samples"), None
    done = subprocess.run(
        [sys.executable, "-m", "effbench", "import", "-"],
        cwd=cli.folder, env=cli.env, stdin=code.stdout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    code.stdout.close()
    said = code.stderr.read()
    code.stderr.close()
    assert (code.wait(), said, done.returncode, done.stderr) == (0, "", 0, "")
    assert "3 sweeps: 3 imported" in done.stdout
    found = whole.contents(cli.db)
    assert (found["sample"], found["trial"]) == ([], whole.contents(odd)["trial"])


def test_a_cut_off_pipe(odd, run, monkeypatch):
    _, text, _ = run("export", "--db", odd, "--whole")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text[: len(text) // 2].encode())))
    refused(run("import", "-"), "standard input, line ", "cut off")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("import", "-")[0] == 0


def test_several_sweeps_by_name(odd, run):
    name = whole.ODD_TEXT[0]
    words = ("export", "--db", odd, "--whole", "--sweep", "last", "--sweep", name, "--sweep", "nothing yet")
    assert "2 whole sweeps" in run(*words, "--out", "x.jsonl")[1]
    assert run("import", odd, "--sweep", "nothing yet", "--sweep", "last")[1].count("imported, 2 cells, 0 trials") == 1
    assert "1 imported, 1 already there" in run("import", "x.jsonl")[1]


def test_straight_into_another_database(odd, run):
    code, said, _ = run("export", "--db", odd, "--to", "history.db")
    assert (code, said.splitlines()[-1]) == (0, "3 sweeps: 3 imported · database history.db")
    assert run("export", "--db", odd, "--to", "one.db", "--sweep", "last", "--no-samples")[0] == 0
    assert (len(whole.contents("one.db")["sweep"]), len(whole.contents("history.db")["sweep"])) == (1, 3)
    refused(run("export", "--db", odd, "--to", odd), "is the database to import into; name another with --to")
    refused(run("export", "--db", odd, "--to", "two.db", "--sweep", "nowhere"), "no sweep 'nowhere'", code=3)
    assert not Path("two.db").exists()


def test_a_folder_of_what_machines_sent(odd, run):
    Path("runs").mkdir()
    run("export", "--db", odd, "--whole", "--sweep", "last", "--out", "runs/a.jsonl.gz")
    run("export", "--db", odd, "--whole", "--sweep", whole.ODD_TEXT[0], "--out", "runs/b")
    Path("runs/c.jsonl").write_text("half of it")
    code, said, err = run("import", "runs")
    assert said.count("imported, ") == 2, "one damaged file does not keep the others away"
    refused((code, said, err), "runs/c.jsonl, line 1: not a file of whole sweeps")


def test_a_refused_sweep_is_an_error_and_the_rest_is_taken(odd, run, tmp_path):
    run("import", odd, "--sweep", whole.ODD_TEXT[0], "--db", "x.db")
    with closing(sqlite3.connect("x.db")) as raw:
        raw.execute("UPDATE sweep SET seed = 7")
        raw.commit()
    code, said, err = run("import", odd, "--db", "x.db")
    assert said.count("refused, nothing of it was written") == 1
    assert said.count("imported, ") == 2
    refused((code, said, err), "contradicts x.db: sweep has seed 7 there, 1099511627776 in what is imported")


def test_a_baseline_that_stays_is_said(odd, run):
    with Store.open("x.db", mode="write") as store:
        whole.decide(store, whole.sweep(store))
    _, said, _ = run("import", odd, "--db", "x.db", "--baselines")
    assert said.count("stays on sweep") == 2


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (["import"], ["SOURCE"], 2),
        (["import", ""], ["no file, folder or database ''"], 2),
        (["import", "nowhere"], ["no file, folder or database nowhere"], 2),
        (["import", "."], ["neither JSON lines", "Parquet"], 2),
        (["import", "empty"], ["empty is empty"], 2),
        (["import", "mysql://me:s3cret@host/x"], ["SQLite or PostgreSQL"], 2),
        (["import", "ODD", "--db", "ODD"], ["is the database to import into"], 2),
        (["import", "ODD", "--sweep", "nowhere"], ["no sweep 'nowhere'"], 3),
        (["import", "x.csv"], ["not a file of whole sweeps", "effbench export --whole"], 2),
        (["import", "x.csv", "--sweep", "last"], ["--sweep chooses from a database"], 2),
        (["import", "blank.db"], ["no sweep in what was named"], 3),
        (["export", "--db", "blank.db", "--whole"], ["holds no sweep yet"], 3),
        (["export", "--db", "ODD", "--whole", "--format", "csv"], ["jsonl or parquet, not csv"], 2),
        (["export", "--db", "ODD", "--whole", "--format", "parquet"], ["needs --out FOLDER"], 2),
        (["export", "--db", "ODD", "--format", "parquet"], ["needs --out FILE"], 2),
        (["export", "--db", "ODD", "--no-samples"], ["for --whole"], 2),
        (["export", "--db", "ODD", "--to", "x.db", "--out", "y"], ["--out and --format are for files"], 2),
        (["export", "--db", "ODD", "--whole", "--out", "empty/x.jsonl"], ["cannot write empty/x.jsonl"], 2),
        (["export", "--db", "ODD", "--whole", "--out", "empty/"], ["cannot write empty"], 2),
        (["export", "--db", "ODD", "--out", "empty/x.parquet"], ["cannot write empty/x.parquet"], 2),
    ],
)
def test_refusals(words, said, code, odd, run, tmp_path):
    Path("empty").write_text("")
    if "x.csv" in words:
        run("export", "--db", odd, "--out", "x.csv")
    if "blank.db" in words:
        Store.open("blank.db", mode="write").close()
    done = run(*(odd if word == "ODD" else word for word in words))
    refused(done, *said, code=code)
    assert "s3cret" not in done[2]


@pytest.mark.parametrize("extra", [[], ["--whole"]])
def test_without_pyarrow(extra, odd, run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(run("export", "--db", odd, *extra, "--out", "x.parquet"), "pip install 'effbench[export]'")
    assert not Path("x.parquet").exists()


def test_the_view_by_the_name_of_the_file(odd, run):
    import pyarrow.parquet as pq

    for name in ("x.parquet", "x.jsonl", "x.csv", "x.txt"):
        assert run("export", "--db", odd, "--out", name) == (0, "", "")
    with Store.open(odd) as store:
        rows = store.results()
    table = pq.read_table("x.parquet")
    assert tuple(table.column_names) == RESULT_COLUMNS
    found = table.to_pylist()
    assert [row["latency_ms"] for row in found] == [row["latency_ms"] for row in rows]
    assert [row["started_at"] for row in found] == [row["started_at"] for row in rows]
    assert [json.loads(row["params"]) for row in found] == [row["params"] for row in rows]
    assert len(Path("x.jsonl").read_text().splitlines()) == len(rows)
    header = ",".join(RESULT_COLUMNS)
    assert Path("x.csv").read_text().splitlines()[0] == Path("x.txt").read_text().splitlines()[0] == header


def test_a_hostile_name_stays_on_its_line(run):
    with Store.open("from.db", mode="write") as store:
        whole.sweep(store, name="evil\x1b[2J\nname\u202e" + "x" * 99, label="a\nb")
    run("export", "--db", "from.db", "--whole", "--out", "x.jsonl")
    code, said, _ = run("import", "x.jsonl")
    assert code == 0
    assert len(said.splitlines()) == 2 and all(line.isprintable() for line in said.splitlines())
    assert " evil [2J name xxx" in said and len(said.splitlines()[0]) < 120
    with Store.open("results/effbench.db") as store:
        assert store.find_sweep("last").name == "evil\x1b[2J\nname\u202e" + "x" * 99
    whole.set_state("results/effbench.db", store_id("results/effbench.db"), label="c\nd")
    code, _, err = run("import", "x.jsonl")
    assert code == 2 and "label c d there, a b in what is imported" in err and len(err.splitlines()) == 1


def store_id(path):
    with Store.open(path) as store:
        return store.find_sweep("last").id
