"""Files and folders that commands write: a database is never replaced, nor what someone else wrote."""

from __future__ import annotations

import gzip
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from made_sweeps import a_cell

EAGER, DEFAULT = a_cell(), a_cell("default")
DB = "results/effbench.db"
NOTES = "# My notes\n"
#: A command that writes each kind of file.
FILES = {
    "show table": ("show",),
    "show markdown": ("show", "--format", "markdown"),
    "show csv": ("show", "--format", "csv"),
    "show json": ("show", "--format", "json"),
    "why json": ("show", "--why", "--format", "json"),
    "compare csv": ("compare", "before", "last", "--format", "csv"),
    "compare junit": ("compare", "before", "last", "--format", "junit"),
    "check markdown": ("check", "--baseline", "main", "--format", "markdown"),
    "history table": ("history",),
    "advise json": ("advise", "mode", "--format", "json"),
    "export csv": ("export",),
    "export jsonl": ("export", "--format", "jsonl"),
    "export parquet": ("export", "--format", "parquet"),
    "export whole": ("export", "--whole", "--format", "jsonl"),
}


@pytest.fixture
def two(made, effbench, monkeypatch):
    """A database with a sweep and a baseline, and its bytes."""
    made.sweep({EAGER: {}, DEFAULT: {}}, name="before")
    made.sweep({EAGER: {}, DEFAULT: {}})
    assert effbench("baseline", "set", "main", "before").code == 0
    for slow in ("report.site.build.all_pages", "commands.ledgers.load_all", "commands.claims.load_all"):
        monkeypatch.setattr(f"effbench.{slow}", list)
    return made.path.read_bytes()


def refused(done, *said):
    assert done.code == 2, done
    assert len(done.err.splitlines()) == 1
    for text in said:
        assert text in done.err


def leftovers():
    return [str(path) for path in Path().rglob(".*")]


@pytest.mark.parametrize("command", FILES.values(), ids=list(FILES))
def test_only_an_earlier_output_is_replaced(two, effbench, command):
    Path("out").touch()  # as mktemp makes it
    for _ in "twice":
        assert effbench(*command, "--out", "out").code == 0
    ours = Path("out").read_bytes()
    Path("out").write_text(NOTES)
    refused(effbench(*command, "--out", "out"), "out exists", "--force")
    assert Path("out").read_text() == NOTES
    assert effbench(*command, "--out", "out", "--force").code == 0
    assert len(Path("out").read_bytes()) == pytest.approx(len(ours), abs=60)  # those of whole sweeps say when
    refused(effbench(*command, "--out", DB, "--force"), "database in use")
    assert Path(DB).read_bytes() == two
    assert leftovers() == []


@pytest.mark.parametrize("command", [("claims",), ("report", "--format", "markdown")])
def test_slower_commands_write_the_same_way(two, effbench, command):
    Path("out").write_text(NOTES)
    refused(effbench(*command, "--out", "out"), "out exists", "--force")
    refused(effbench(*command, "--out", DB, "--force"), "database in use")
    assert (Path("out").read_text(), Path(DB).read_bytes()) == (NOTES, two)


@pytest.mark.parametrize("format", ["csv", "json", "markdown"])
def test_what_was_swept_may_change_between_two_outputs(made, effbench, format):
    for settings in ([{}], [{"x": 1}, {"x": 2}]):
        made.sweep([EAGER, *(a_cell("default", settings=one) for one in settings)])
        assert effbench("show", "--format", format, "--out", "out").code == 0


@pytest.mark.parametrize(
    "text", ['{"name": "app", "version": 1}', "[1, 2]", "a,b\n1,2\n", "\n\n", "<?xml?>\n<a/>", "{"]
)
@pytest.mark.parametrize("format", ["csv", "json", "markdown"])
def test_files_of_the_same_format_that_others_wrote(two, effbench, format, text):
    Path("out").write_text(text)
    refused(effbench("show", "--format", format, "--out", "out"), "out exists")
    assert Path("out").read_text() == text


@pytest.mark.parametrize("ending", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("way", ["name", "symlink", "hard link"])
def test_no_name_of_the_database_in_use_is_written(two, effbench, way, ending):
    file = Path(DB + ending)
    if ending == "-journal":
        file.touch()
    connection = sqlite3.connect(DB)  # without one, the -wal and -shm files are removed
    connection.execute("SELECT count(*) FROM sweep").fetchall()
    out = {"name": file, "symlink": Path("s.csv"), "hard link": Path("h.csv")}[way]
    if way == "symlink":
        out.symlink_to(file)
    elif way == "hard link":
        out.hardlink_to(file)
    for db in (DB, f"sqlite:///{DB}"):
        refused(effbench("show", "--db", db, "--format", "csv", "--out", str(out), "--force"), "database in use")
    connection.close()
    assert Path(DB).read_bytes() == two


def test_no_sqlite_file_is_written(two, effbench, empty_db):
    Path("other.csv").write_bytes(empty_db.read_bytes())
    refused(effbench("show", "--format", "csv", "--out", "other.csv", "--force"), "SQLite", "another file")
    assert Path("other.csv").read_bytes() == empty_db.read_bytes()
    Path("folder").mkdir()
    for name, command in (("site.json", ("report",)), ("trial.parquet", ("export", "--whole", "--format", "parquet"))):
        Path("other.csv").rename(f"folder/{name}")
        refused(effbench(*command, "--out", "folder", "--force"), "SQLite", "another file")
        Path(f"folder/{name}").rename("other.csv")
        assert not any(Path("folder").iterdir())
    assert Path("other.csv").read_bytes() == empty_db.read_bytes()


def test_check_writes_no_database(two, effbench, monkeypatch):
    refused(effbench("check", "--baseline", "main", "--junit", DB, "--force"), "database in use")
    for _ in "twice":
        assert effbench("check", "--baseline", "main", "--junit", "junit.xml").code == 0
    Path("notes.xml").write_text(NOTES)
    refused(effbench("check", "--baseline", "main", "--junit", "notes.xml"), "notes.xml exists")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", DB)
    refused(effbench("check", "--baseline", "main"), "database in use")
    assert Path(DB).read_bytes() == two
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "notes.xml")
    assert effbench("check", "--baseline", "main").code == 0
    assert Path("notes.xml").read_text().startswith(NOTES), "a summary is appended"


@pytest.mark.parametrize("command", [("show",), ("export", "--format", "parquet"), ("export", "--whole")])
def test_a_failed_write_leaves_the_old_file(two, effbench, monkeypatch, command):
    assert effbench(*command, "--out", "out").code == 0
    before = Path("out").read_bytes()
    monkeypatch.setattr(Path, "replace", disk_full)
    refused(effbench(*command, "--out", "out"), "cannot write out: No space left")
    assert Path("out").read_bytes() == before
    assert leftovers() == []


@pytest.mark.parametrize("command", [("show",), ("report",), ("export", "--whole"), ("export", "--format", "parquet")])
def test_a_name_that_no_file_can_have(two, effbench, command):
    refused(effbench(*command, "--out", "x" * 300), "cannot write", "name too long")


def disk_full(*args):
    raise OSError(28, "No space left on device")


def test_symbolic_links_and_permissions_stay(two, effbench):
    Path("there").mkdir()
    Path("there/x.csv").touch(mode=0o640)
    Path("x.csv").symlink_to("there/x.csv")
    assert effbench("export", "--out", "x.csv").code == 0
    assert Path("x.csv").is_symlink()
    assert Path("there/x.csv").stat().st_mode & 0o777 == 0o640
    assert Path("there/x.csv").read_text().startswith("sweep_id,")
    for _ in "twice":
        assert effbench("export", "--out", "x.csv.gz").code == 0
    assert gzip.decompress(Path("x.csv.gz").read_bytes()) == Path("x.csv").read_bytes()


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
    assert effbench("show", "--out", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
    with Path("log").open("w") as log:
        log.write("before\n")
        log.flush()
        assert effbench("show", "--format", "csv", "--out", f"/dev/fd/{log.fileno()}").code == 0
    assert Path("log").read_text() == "before\n" + printed


@pytest.mark.parametrize(
    ("command", "manifest"),
    [(("report",), "site.json"), (("export", "--whole", "--format", "parquet"), "manifest.json")],
    ids=["report", "export"],
)
class TestFolders:
    def test_only_an_earlier_output_is_replaced(self, two, effbench, command, manifest):
        folder = Path("folder")
        folder.mkdir()
        for name in ("README.md", ".gitignore"):
            (folder / name).touch()
        for _ in "twice":
            assert effbench(*command, "--out", "folder").code == 0
        assert (folder / "README.md").exists()
        for text in ("{", "{}", "[]", '{"files": 1}'):
            (folder / manifest).write_text(text)
            refused(effbench(*command, "--out", "folder"), "folder is not empty", "--force")
            assert (folder / manifest).read_text() == text
        assert effbench(*command, "--out", "folder", "--force").code == 0
        assert effbench(*command, "--out", "folder").code == 0

    def test_a_folder_of_others(self, two, effbench, command, manifest):
        Path("folder").mkdir()
        Path("folder/thesis.txt").write_text(NOTES)
        refused(effbench(*command, "--out", "folder"), "folder is not empty")
        assert [path.name for path in Path("folder").iterdir()] == ["thesis.txt"]
        refused(effbench(*command, "--out", "/"), "/ is not empty")


class TestFailures:
    def test_a_site_goes_on_after_a_failure(self, two, effbench, monkeypatch):
        replace = Path.replace
        with monkeypatch.context() as patch:
            patch.setattr(
                Path, "replace", lambda self, target: disk_full() if target.suffix == ".css" else replace(self, target)
            )
            refused(effbench("report", "--out", "site"), "cannot write the site to site: No space left")
        assert leftovers() == []
        assert effbench("report", "--out", "site").code == 0

    def test_a_parquet_folder_stays_whole(self, two, effbench, monkeypatch):
        command = ("export", "--whole", "--format", "parquet", "--out", "folder")
        assert effbench(*command).code == 0
        before = {path.name: path.read_bytes() for path in Path("folder").iterdir()}
        monkeypatch.setattr("effbench.store.bundle_parquet._digest", disk_full)
        refused(effbench(*command), "cannot write folder: No space left")
        assert {path.name: path.read_bytes() for path in Path("folder").iterdir()} == before

    def test_a_process_that_is_stopped_removes_its_file(self, tmp_path):
        from effbench.outputs import replacing
        from effbench.report.site.parallel import started

        ready, writing = os.pipe()

        def work(part):
            with replacing(tmp_path / "x"):
                os.write(writing, b"x")
                threading.Event().wait(60)

        with pytest.raises(KeyError), started(1, work):
            os.read(ready, 1)
            assert len(list(tmp_path.iterdir())) == 1
            raise KeyError
        assert list(tmp_path.iterdir()) == []
        os.close(ready)
        os.close(writing)
