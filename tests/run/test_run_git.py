"""What effbench writes is no change of the code, although git may track it; new default folders are
ignored."""

import subprocess
from pathlib import Path

import pytest
from made_sweeps import EAGER, Made

from effbench.core.outputs import create_folder
from effbench.run.git import GitState, git_state
from effbench.run.interpreters import HERE


def git(*args):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *args], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(made, tmp_path, monkeypatch):
    """A repository that tracks its database, a site and a module."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    site = tmp_path / "pages"
    site.mkdir()
    (site / "site.json").write_text('{"files": ["index.html"]}')
    (site / "index.html").write_text("old")
    (site / "README.md").write_text("mine")
    (tmp_path / "net.py").write_text("WIDTH = 1\n")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "one")
    return made


def test_a_tracked_database_and_site_do_not_make_the_tree_dirty(repository, tmp_path):
    repository.sweep([EAGER])
    (tmp_path / "pages" / "index.html").write_text("new")
    (tmp_path / "pages" / "site.json").write_text('{"files": ["index.html", "more.html"]}')
    assert "results/effbench.db" in git("diff", "--name-only", "HEAD"), "git sees the changes"
    state = git_state(tmp_path)
    assert state == GitState(git("rev-parse", "HEAD").strip(), state.description)
    assert not state.description.endswith("-dirty")


def test_other_changes_make_it_dirty_and_are_named(repository, tmp_path):
    for name in ("net.py", "pages/README.md"):
        (tmp_path / name).write_text("changed")
    before = git_state(tmp_path)
    assert before.changed_files == "net.py, pages/README.md"
    assert before.description.endswith("-dirty")
    repository.sweep([EAGER])
    assert git_state(tmp_path) == before, "the database does not change the hash"
    assert before.changes is not None
    (tmp_path / "net.py").write_text("WIDTH = 3\n")
    assert git_state(tmp_path).changes != before.changes
    assert HERE.facts()["git_changed_files"] == "net.py, pages/README.md"


def test_no_repository(tmp_path):
    assert git_state(tmp_path) == GitState()


def test_new_default_folders_are_ignored_by_git(tmp_path, monkeypatch, effbench):
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    Made("results/effbench.db").sweep([EAGER])
    assert effbench("report").code == 0
    assert git("status", "--porcelain") == "", "neither the database nor the site"


def test_other_and_existing_folders_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    Made("results/effbench.db").sweep([EAGER])
    Made("mine/effbench.db").sweep([EAGER])
    create_folder(Path("dashboards") / "deep")
    assert sorted(str(path) for path in Path().rglob(".gitignore")) == ["dashboards/.gitignore"]
