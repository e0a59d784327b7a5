"""A database that someone else filled: no path leaves the folders given, no text becomes code or
markup."""

import csv

import pytest
from made_sweeps import a_cell, copied

from effbench.store import Store

SCRIPT = "<script>alert(1)</script>"
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture
def hostile(empty_db, tmp_path, monkeypatch):
    """A database whose texts are code for browsers, spreadsheets and terminals."""
    monkeypatch.chdir(tmp_path)
    made = copied(empty_db, tmp_path / "hostile.db")
    cells = {
        a_cell(model=FORMULA): {},
        a_cell(SCRIPT, FORMULA): {"status": "error", "reason": f"@{SCRIPT}\x1b[2J"},
    }
    made.sweep(cells, name=f"../../{SCRIPT}", label=f"[x](javascript:alert(1)){SCRIPT}")
    return made


def test_texts_are_no_code_in_markdown(hostile, effbench):
    done = effbench("show", "--format", "markdown", "--db", str(hostile.path))
    assert done.code == 0
    for code in ("\x1b[2J", SCRIPT, "](javascript"):
        assert code not in done.out


@pytest.mark.parametrize("words", [["export"], ["show", "--format", "csv"]], ids=" ".join)
def test_texts_are_no_formulas_in_csv(words, hostile, effbench):
    done = effbench(*words, "--db", str(hostile.path))
    rows = list(csv.DictReader(done.out.splitlines()))
    assert {row["model"] for row in rows} == {f"'{FORMULA}"}


def test_texts_are_no_scripts_or_paths_of_a_site(hostile, effbench, tmp_path):
    assert effbench("report", "--out", "deep/site", "--db", str(hostile.path)).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hostile.db", "deep"}
    for page in (tmp_path / "deep" / "site").rglob("*.html"):
        assert SCRIPT not in page.read_text()


def test_a_sweep_id_is_no_path(hostile, effbench):
    for table, column in (
        ("sweep", "id"),
        ("sweep_cell", "sweep_id"),
        ("trial", "sweep_id"),
        ("result", "sweep_id"),
    ):
        hostile.sql(f"UPDATE {table} SET {column} = '../../victim'")
    db = str(hostile.path)
    for words in (["-m", "resume=last", f"db={db}"], ["show", "--db", db]):
        done = effbench(*words)
        assert done.code == 2
        assert "not a sweep id" in done.err


@pytest.mark.parametrize(
    "host",
    ['{"environments": [1], "joined": 3}', '{"environments": {"ENV": 3}, "joined": [3, "x"]}'],
)
def test_facts_about_a_host_may_have_any_form(host, hostile, effbench):
    with Store.open(hostile.path) as store:
        (machine,) = store.environments()
    hostile.sql(f"UPDATE sweep SET host = '{host.replace('ENV', machine.id)}'")
    shown = effbench("show", "--db", str(hostile.path))
    assert (shown.code, shown.err) == (0, "")
    assert "over" not in shown.out
    assert effbench("report", "--out", "site", "--db", str(hostile.path)).code == 0


def test_hydra_prints_no_password(effbench):
    done = effbench("--cfg", "job", 'db="postgresql://me:s3cret@localhost/x"')
    assert done.code == 0
    assert "me:***@localhost" in done.out
    assert "s3cret" not in done.out + done.err
