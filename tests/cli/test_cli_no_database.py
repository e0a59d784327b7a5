"""Commands in a folder without a database say where they looked, how to name another one, and what
to run first."""

import pytest

#: Commands that read a database.
READERS = (
    "show",
    "show --why",
    "ls",
    "ls --failures",
    "report",
    "export",
    "export --out x.db",
    "compare before last",
    "check --baseline main",
    "baseline ls",
    "baseline set main last",
    "baseline rm main",
    "history",
    "advise mode",
    "db upgrade",
)


@pytest.mark.parametrize("command", READERS)
def test_readers_name_the_folder_the_option_and_the_first_sweep(
    effbench, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = effbench(*command.split())
    what, first = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert f"no database at results/effbench.db in the folder {tmp_path}: " in what
    assert what.endswith("or name its database (--db PATH for a command, db=PATH for a sweep)")
    assert first.startswith("If you have run no sweep yet, run one first: effbench -m ")
    assert not (tmp_path / "results").exists()


def test_a_database_that_is_named(effbench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = effbench("show", "--db", "mine.db").err
    assert f"no database at mine.db in the folder {tmp_path}: " in said
    assert said.endswith(" db=mine.db\n"), "of the command that runs a sweep"
    said = effbench("show", "--db", f"{tmp_path}/there/mine.db").err
    assert f"no database at {tmp_path}/there/mine.db: " in said


def test_resuming_names_the_folder_and_its_setting(cli):
    done = cli.run("-m", "resume=last")
    assert done.code == 2
    assert f"no database at results/effbench.db in the folder {cli.folder}: " in done.err
    assert "db=PATH for a sweep" in done.err
