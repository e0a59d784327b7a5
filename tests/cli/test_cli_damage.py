"""A database edited by hand: `db check` names what is wrong, and no command ends in a traceback."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from made_sweeps import EAGER, GRAPH, loosen, sql

from effbench.store import Store
from effbench.store.values import CODEC, encode_samples

READING = ("show", "ls --cells", "report --format markdown", "history", "export --out x.db")
COMPARING = ("compare main last", "check --baseline main")
#: A statement, and what the line of `db check` about it holds.
CORRUPTIONS = [
    ("UPDATE result SET status = 'fine'", "result.status is 'fine', not one of", "and 3 more"),
    (
        "UPDATE sweep SET started_at = '2026-13-45 99:00' WHERE id = '{last}'",
        "sweep.started_at",
        "not a time",
    ),
    (
        "UPDATE trial SET latency_ms = 'fast' WHERE id = 2",
        "trial.latency_ms is fast, not a finite number",
        "id 2",
    ),
    (
        "UPDATE result SET latency_ms = 'fast', latency_ci_low_ms = x'00'",
        "result.latency_ms is fast, not",
    ),
    ("UPDATE cell SET mode = NULL WHERE key = '{key}'", "cell.mode is NULL", "{key}"),
    (
        "UPDATE cell SET params = '{{}}' WHERE key = '{key}'",
        "cell.params does not describe a cell",
        "{key}",
    ),
    ("UPDATE cell SET params = '[1' WHERE key = '{key}'", "cell.params is not JSON", "{key}"),
    (
        "UPDATE sweep SET host = '[]' WHERE id = '{last}'",
        "sweep.host is [], not a JSON object",
        "id {last}",
    ),
    ("UPDATE sample SET data = 'text'", "sample.data is text, not a blob", "trial_id 1"),
]


@pytest.fixture
def damaged(made):
    """Makes one corruption of a sound database with two sweeps; its columns accept NULL."""
    first, last = (made.sweep([EAGER, GRAPH], rounds=2, name=name) for name in ("main", "next"))
    with Store.open(made.path, mode="write") as store:
        store.set_baseline("main", first)
    stored, data = encode_samples([1.0])
    sql(
        made.path,
        f"INSERT INTO sample VALUES (1, 'latency_ms', 1, {stored}, '{CODEC}', x'{data.hex()}')",
    )
    loosen(made.path)
    sound = shutil.copy(made.path, made.path.with_name("sound.db"))

    def damage(*texts: str) -> tuple[str, ...]:
        statement, *said = (text.format(last=last, key=GRAPH.key) for text in texts)
        shutil.copy(sound, made.path)
        sql(made.path, statement)
        return tuple(said)

    return damage


def test_every_corruption_is_named_and_nothing_raises(damaged, effbench):
    assert (effbench("db", "check").code, effbench("check", "--baseline", "main").code) == (0, 0)
    for corruption in CORRUPTIONS:
        said = damaged(*corruption)
        done = effbench("db", "check")
        assert done.code == 1, (corruption, done)
        assert any(all(text in line for text in said) for line in done.out.splitlines()), (
            corruption,
            done.out,
        )
        for command in (*READING, *COMPARING):
            done = effbench(*command.split())
            assert done.code in (0, 1, 2, 3) and "Traceback" not in done.err, (
                corruption,
                command,
                done,
            )
            assert done.err.count("\n") <= 2, (corruption, command, done)


def test_a_damaged_file_is_a_problem_with_its_tables_and_a_remedy(damaged, effbench, made):
    damaged("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = made.path.read_bytes()
    with closing(sqlite3.connect(made.path)) as connection:
        pages = dict(
            connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'")
        )
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    first = (pages["sample"] - 1) * size
    for content, said in (
        (whole[:first] + bytes(size) + whole[first + size :], "is damaged (tables: sample)"),
        (whole[: len(whole) // 2], "is damaged"),
        (
            whole.replace(b"CREATE TABLE trial", b"CREATE TABLE \xfftria"),
            "malformed database schema",
        ),
        (whole.replace(b"kernel_fingerprint", b"kernel_fingerprinx"), "no such column"),
    ):
        made.path.write_bytes(content)
        done = effbench("db", "check")
        assert (
            (done.code, done.err) == (1, "") and said in done.out and "restore a copy" in done.out
        ), done


def test_a_report_omits_damaged_samples_and_says_so(damaged, effbench):
    damaged("UPDATE sample SET data = x'00'")
    done = effbench("report", "--sweep", "main", "--out", "site")
    assert (done.code, done.err) == (0, ""), done
    cells = "".join(path.read_text() for path in Path("site").rglob("cells-*.js"))
    assert (
        "damaged samples (timer latency_ms of trial 1, see `effbench db check --deep`): " in cells
    )
    assert '"samples":{}' in cells
    # which read no samples
    for command in ("show", "export --whole --out x.db", "import x.db --db copy.db"):
        assert effbench(*command.split()).code in (0, 1), command


def test_check_survives_what_it_does_not_foresee(damaged, effbench, monkeypatch):
    damaged("UPDATE trial SET wall_s = 1")
    monkeypatch.setattr("effbench.store.trials.summarise", lambda *_, **__: 1 / 0)
    done = effbench("db", "check")
    assert done.code == 1 and "cannot be derived from its trials: ZeroDivisionError" in done.out


@pytest.mark.parametrize(("command", "hint"), [("ls", True), ("db", False)])
def test_an_error_that_nobody_foresaw(command, hint, effbench, monkeypatch):
    def fail(args):
        return {}["postgresql://me:s3cret@h/x\nmore"]

    monkeypatch.setattr(f"effbench.commands.{command}.options.add_db", fail)
    monkeypatch.delenv("EFFBENCH_DEBUG", raising=False)
    done = effbench(command)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 2)
    assert re.search(rf"KeyError at effbench/commands/{command}\.py:\d+", done.err)
    assert "EFFBENCH_DEBUG=1" in done.err and ("effbench db check" in done.err) is hint
    assert "me:***@h" in done.err and "s3cret" not in done.err
    monkeypatch.setenv("EFFBENCH_DEBUG", "1")
    done = effbench(command)
    assert (done.code, "Traceback" in done.err, "KeyError" in done.err, "s3cret" in done.err) == (
        2,
        True,
        True,
        False,
    )
