"""Files and folders that commands write: a database is never replaced."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from made_sweeps import DEFAULT, EAGER

DB = "results/effbench.db"
NOTES = "# My notes\n"
#: Commands, and the kinds of file that each can write.
FILES = [
    ("show", "table"),
    ("show", "csv"),
    ("compare before last", "junit"),
    ("check --baseline main", "markdown"),
    ("export", "csv"),
    ("claims", None),
]


@pytest.fixture
def two(made, effbench, monkeypatch):
    """A database with a sweep and a baseline, and its bytes."""
    made.sweep({EAGER: {}, DEFAULT: {}}, name="before")
    made.sweep({EAGER: {}, DEFAULT: {}})
    assert effbench("baseline", "set", "main", "before").code == 0
    for slow, nothing in (
        ("render.site.build.PAGES", ()),
        ("render.claims.shipped_verdicts", list),
    ):
        monkeypatch.setattr(f"effbench.{slow}", nothing)
    return made.path.read_bytes()


def refused(done, *said):
    # the log has the verdict anyway
    lines = [line for line in done.err.splitlines() if "check passed" not in line]
    assert (done.code, len(lines)) == (2, 1), done
    assert all(text in done.err for text in said), done


def leftovers():
    return [str(path) for path in Path().rglob(".*")]


def options(form):
    return ["--format", form] if form else []


@pytest.mark.parametrize(("words", "form"), FILES)
def test_any_file_is_replaced_except_a_database(two, effbench, words, form):
    command = [*words.split(), *options(form)]
    Path("out").write_text(NOTES)
    assert effbench(*command, "--out", "out").code == 0
    assert not Path("out").read_bytes().startswith(NOTES.encode())
    Path("link").symlink_to(DB)
    for name in (DB, "link"):
        refused(effbench(*command, "--out", name), "SQLite", "another file")
    assert (Path(DB).read_bytes(), leftovers()) == (two, [])


def test_every_output_spares_databases(two, effbench):
    refused(effbench("check", "--baseline", "main", "--junit", DB), "SQLite", "another file")
    assert effbench("export", "--out", "x.db").code == 0
    exported = Path("x.db").read_bytes()
    refused(effbench("export", "--out", "x.db"), "SQLite", "another file")
    assert Path("x.db").read_bytes() == exported
    Path("folder").mkdir()
    Path("x.db").rename("folder/site.json")
    refused(effbench("report", "--out", "folder"), "SQLite", "another file")
    assert Path("folder/site.json").read_bytes() == exported
    assert Path(DB).read_bytes() == two


def test_a_folder_is_no_file_and_a_file_is_no_folder(two, effbench):
    Path("folder").mkdir()
    refused(effbench("show", "--out", "folder"), "cannot write folder", "Is a directory")
    Path("notes").write_text(NOTES)
    refused(effbench("report", "--out", "notes"), "cannot write the report to notes", "File exists")
    assert Path("notes").read_text() == NOTES


@pytest.mark.parametrize("command", ["show", "export"])
def test_a_failed_write_leaves_the_old_file(two, effbench, monkeypatch, command):
    words = command.split()
    assert effbench(*words, "--out", "out").code == 0
    before = Path("out").read_bytes()
    monkeypatch.setattr(Path, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    refused(effbench(*words, "--out", "out"), "cannot write out: No space left")
    assert (Path("out").read_bytes(), leftovers()) == (before, [])


def test_symbolic_links_and_permissions_stay(two, effbench):
    Path("there").mkdir()
    Path("there/x.csv").touch(mode=0o640)
    Path("x.csv").symlink_to("there/x.csv")
    assert effbench("export", "--out", "x.csv").code == 0
    assert Path("x.csv").is_symlink()
    assert Path("there/x.csv").stat().st_mode & 0o777 == 0o640


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(two, effbench, monkeypatch):
    """In a shared folder another user may have put it there."""
    monkeypatch.setattr("effbench.core.outputs.secrets.token_hex", lambda size: "guessed")
    Path("mine").write_text("all of it")
    Path(".out.csv-guessed.part").symlink_to("mine")
    assert effbench("export", "--out", "out.csv").code == 2
    assert Path("mine").read_text() == "all of it"
    assert not Path("out.csv").exists()


def test_pipes_and_devices_are_written_directly(two, effbench):
    os.mkfifo("pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_text()))
    reader.start()
    assert effbench("show", "--format", "csv", "--out", "pipe").code == 0
    reader.join()
    printed = effbench("show", "--format", "csv").out
    assert read == [printed]
    assert Path("pipe").is_fifo()
    assert effbench("show", "--format", "csv", "--out", "/dev/stdout").out == printed
    with Path("log").open("w") as log:
        log.write("before\n")
        log.flush()
        assert effbench("show", "--format", "csv", "--out", f"/dev/fd/{log.fileno()}").code == 0
    assert Path("log").read_text() == "before\n" + printed


@pytest.mark.parametrize(
    ("words", "out", "start"),
    [
        ([], "x.csv", b"sweep_id,"),
        ([], "x.db", b"SQLite"),
        (["--format", "db"], "x.csv", b"SQLite"),
        (["--format", "csv"], "x.foo", b"sweep_id,"),
    ],
)
def test_a_format_or_else_the_name_of_the_file_says_what_is_written(
    two, effbench, words, out, start
):
    assert effbench("export", *words, "--out", out).code == 0
    assert Path(out).read_bytes().startswith(start)


def test_a_name_without_an_extension_is_csv(two, effbench):
    assert effbench("export", "--out", "x").code == 0
    assert Path("x").read_bytes() == effbench("export").out.encode()


@pytest.mark.parametrize("out", ["x.xlsx", "x.parquet"])
def test_an_extension_of_another_format_is_refused(two, effbench, out):
    done = effbench("export", "--out", out)
    assert done.code == 2
    assert "ends in .csv, .db, .sqlite" in done.err
    assert not Path(out).exists()


@pytest.mark.parametrize("words", ["ls", "export", "show", "history", "report"])
def test_an_empty_database_has_nothing_to_show(effbench, empty_db, words):
    done = effbench(*words.split(), "--db", str(empty_db))
    assert (done.code, done.out) == (3, "")
    assert "holds no sweep yet" in done.err


@pytest.mark.parametrize("words", ["show", "report", "report --sweep before"])
def test_a_named_sweep_without_results_has_nothing_to_show(two, made, effbench, words):
    made.sweep({EAGER: None}, name="empty")
    done = effbench(*words.split(), "--sweep", "empty")
    assert done.code == 3 and "has no results yet" in done.err
    assert not Path("dashboards").exists()
