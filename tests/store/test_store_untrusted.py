"""A database that someone else filled: no path leaves the folders given, no text becomes code or
markup."""

import csv
import json
import math

import pytest
import sqlalchemy as sa
from made_sweeps import Made, a_cell

from effbench.errors import StoreError
from effbench.store import Store
from effbench.store.schema import SAMPLE, TRIAL
from effbench.store.soundness import raw, require_sound, sound_row
from effbench.store.source import opened
from effbench.store.transfer import copy
from effbench.store.values import CODEC

SCRIPT = "<script>alert(1)</script>"
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A database whose texts are code for browsers, spreadsheets and terminals."""
    monkeypatch.chdir(tmp_path)
    made = Made(tmp_path / "hostile.db")
    cells = {
        a_cell(model=FORMULA): {},
        a_cell(SCRIPT, FORMULA): {"status": "error", "reason": f"@{SCRIPT}\x1b[2J"},
    }
    made.sweep(cells, name=f"../../{SCRIPT}", label=f"[x](javascript:alert(1)){SCRIPT}")
    return made


def test_texts_do_not_become_code(hostile, effbench, tmp_path):
    db = ("--db", str(hostile.path))
    assert effbench("report", "--format", "markdown", "--out", "deep/summary.md", *db).code == 0
    shown = effbench("show", *db).out + effbench("ls", *db).out
    markdown = (
        effbench("show", "--format", "markdown", *db).out
        + (tmp_path / "deep" / "summary.md").read_text()
    )
    assert (
        "\x1b[2J" not in shown + markdown
        and SCRIPT not in markdown
        and "](javascript" not in markdown
    )
    for words in (["export"], ["show", "--format", "csv"]):
        rows = list(csv.DictReader(effbench(*words, *db).out.splitlines()))
        assert {row["model"] for row in rows} == {f"'{FORMULA}"}
    assert effbench("report", "--out", "deep/site", *db).code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hostile.db", "deep"}
    for page in (tmp_path / "deep" / "site").rglob("*.html"):
        assert SCRIPT not in page.read_text()


@pytest.mark.parametrize("sweep_id", ["../../victim", "/tmp/victim", "..", "a/b"])
def test_a_sweep_id_is_no_path(sweep_id, hostile, effbench):
    for table, column in (
        ("sweep", "id"),
        ("sweep_cell", "sweep_id"),
        ("trial", "sweep_id"),
        ("result", "sweep_id"),
    ):
        hostile.sql(f"UPDATE {table} SET {column} = '{sweep_id}'")
    for words in (
        ["-m", "resume=last", f"db={hostile.path}"],
        ["show", "--db", str(hostile.path)],
    ):
        done = effbench(*words)
        assert (done.code, "not a sweep id" in done.err) == (2, True)


@pytest.mark.parametrize(
    "name", ["private.txt", "../private.txt", "artifacts/../private.txt", "artifacts/link.txt"]
)
def test_the_site_copies_only_artifacts(name, hostile, effbench, tmp_path):
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "artifacts" / "link.txt").symlink_to(tmp_path / "private.txt")
    (tmp_path / "private.txt").write_text("private")
    with Store.open(hostile.path) as store:
        sweep_id = store.find_sweep("last").id
    hostile.sql(
        f"UPDATE trial SET extra = '{json.dumps({'artifacts': [name]})}' WHERE sweep_id ="
        f" '{sweep_id}'"
    )
    assert effbench("report", "--db", str(hostile.path), "--out", "site").code == 0
    assert not list((tmp_path / "site").rglob("*private*")) + list(
        (tmp_path / "site").rglob("*link.txt")
    )


def test_hydra_prints_no_password(effbench):
    done = effbench("--cfg", "job", 'db="postgresql://me:s3cret@localhost/x"')
    assert (done.code, "me:***@localhost" in done.out, "s3cret" in done.out + done.err) == (
        0,
        True,
        False,
    )


def is_accepted(check, *given):
    try:
        check(*given)
    except Exception:
        return False
    return True


def test_the_fast_check_of_trials_and_samples_accepts_only_what_the_thorough_one_accepts(hostile):
    texts = ["x", "é", "\ud800", "a\x00", "1900-01-01 00:00:00.000000", "2026-01-01 00:00:00"]
    values = [None, -1, 2, 2**31, 2**63, 1.5, math.inf, math.nan, b"x", b"x" * 2**16, *texts]
    values += [
        "[]",
        "null",
        "{",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"facts": []}',
        '{"artifact_notes": 1}',
        '{"artifacts": ["x"]}',
        '{"profile": {}}',
        '{"a": ' + "[" * 70 + "]" * 70 + "}",
        '{"a": ' + "9" * 400 + ".5}",
    ]
    with sa.create_engine(
        f"sqlite:///{hostile.path}", poolclass=sa.NullPool
    ).connect() as connection:
        trial = dict(connection.execute(raw(TRIAL)).mappings().first())
    sample = {
        "trial_id": 1,
        "timer": "latency",
        "count": 3,
        "stored": 2,
        "codec": CODEC,
        "data": b"x",
    }
    for table, row in ((TRIAL, trial), (SAMPLE, sample)):
        require_sound(table, [[*row.values()]])
        for name, value in ((name, value) for name in row for value in values):
            odd = {**row, name: value}
            accepted = is_accepted(sound_row, table, odd)
            assert accepted or not is_accepted(require_sound, table, [[*odd.values()]]), (
                name,
                value,
            )
            column = table.c[name]
            if value is None or value in ("\ud800", "a\x00"):
                assert accepted is (value is None and bool(column.nullable)), (name, value)


def test_a_file_that_is_overwritten_during_its_import_is_not_taken_for_a_damaged_target(
    source, target
):
    with opened(str(source)) as arriving, Store.open(target, mode="write") as store:
        arrivals = copy(arriving, store, arriving.sweep_ids())
        assert next(arrivals).outcome == "imported"
        source.write_bytes(source.read_bytes()[:100] + b"x" * 4900)
        with pytest.raises(
            StoreError,
            match=f"^{source} is damaged or was changed during the import: import it again",
        ):
            next(arrivals)
    assert Store.check(target) == []
