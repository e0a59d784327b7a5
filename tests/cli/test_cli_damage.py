"""A database edited by hand: it refuses what is wrong, and no command ends in a traceback."""

import re
import sqlite3
from pathlib import Path

import pytest
from made_sweeps import EAGER, sql

from effbench.store.values import CODEC, encode_samples

#: A statement that the database refuses.
NOT_ALLOWED = [
    "UPDATE result SET status = 'fine'",
    "UPDATE sweep SET started_at = '2026-13-45 99:00'",
    "UPDATE trial SET latency_ms = 'fast' WHERE id = 2",
    "UPDATE trial SET latency_ms = -1.0 WHERE id = 2",
    "UPDATE trial SET latency_ms = 9e999 WHERE id = 2",
    "UPDATE trial SET round = -1 WHERE id = 2",
    "UPDATE result SET latency_ms = x'00'",
    "UPDATE cell SET mode = NULL",
    "UPDATE cell SET params = '[1]'",
    "UPDATE sweep SET host = '[]'",
    "UPDATE sweep SET command = '{}'",
    "UPDATE sample SET data = 'text'",
    "UPDATE sample SET stored = 2",
]


@pytest.fixture
def damaged(made):
    """Makes one corruption of a sound database."""
    made.sweep([EAGER], rounds=2, name="main")
    stored, data = encode_samples([1.0])
    sql(
        made.path,
        f"INSERT INTO sample VALUES (1, 'latency_ms', 1, {stored}, '{CODEC}', x'{data.hex()}')",
    )
    return lambda statement: sql(made.path, statement)


@pytest.mark.parametrize("statement", NOT_ALLOWED)
def test_the_database_refuses_values_that_are_not_allowed(statement, damaged):
    with pytest.raises(sqlite3.IntegrityError):
        damaged(statement)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[: len(whole) // 2], "is damaged"),
        (lambda whole: whole.replace(b"relative_memory", b"relative_memorx"), "no such column"),
    ],
)
def test_a_damaged_file_is_a_problem_with_a_remedy(damaged, effbench, made, change, said):
    damaged("PRAGMA wal_checkpoint(TRUNCATE)")
    made.path.write_bytes(change(made.path.read_bytes()))
    done = effbench("show", "--why")
    assert (done.code, done.out) == (2, "")
    assert said in done.err and "restore a copy" in done.err


def test_a_report_omits_damaged_samples_and_says_so(damaged, effbench):
    damaged("UPDATE sample SET data = x'00'")
    done = effbench("report", "--sweep", "main", "--out", "site")
    assert (done.code, done.err) == (0, ""), done
    cells = "".join(path.read_text() for path in Path("site").rglob("*.js"))
    assert "damaged samples (timer latency_ms of trial 1): " in cells
    assert '"timers":[]' in cells


@pytest.mark.parametrize(
    "words", [["show"], ["ls"], ["compare", "main", "other"], ["export"]], ids=" ".join
)
def test_tables_are_made_without_reading_a_trace(words, damaged, made, effbench):
    made.sweep([EAGER], rounds=2, name="other")
    whole = effbench(*words)
    damaged("DROP TABLE trace")
    assert effbench(*words) == whole
    assert whole.code == 0, whole


def test_an_error_that_nobody_foresaw(effbench, monkeypatch):
    def fail(args):
        return {}["postgresql://me:s3cret@h/x\nmore"]

    monkeypatch.setattr("effbench.cli.ls.options.add_sweep", fail)
    monkeypatch.delenv("EFFBENCH_DEBUG", raising=False)
    done = effbench("ls")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 2)
    assert re.search(r"KeyError at effbench/cli/ls\.py:\d+: .*me:\*\*\*@h", done.err)
    assert "EFFBENCH_DEBUG=1" in done.err
    monkeypatch.setenv("EFFBENCH_DEBUG", "1")
    done = effbench("ls")
    assert "Traceback" in done.err and "s3cret" not in done.err
