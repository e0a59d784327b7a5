"""Whether what a baseline ran can be run again: interpreters and revisions of a repository made for the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from effbench.cell import Cell
from effbench.errors import UsageError
from effbench.regression import origin as origins
from effbench.sweeping.interpreters import HERE, Interpreter


def git(folder, *args):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder `app` in a repository with two commits; the working directory is `app`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    app = tmp_path / "repo" / "app"
    app.mkdir(parents=True)
    git(app.parent, "init", "-q")
    (app / "net.py").write_text("WIDTH = 1\n")
    commit(app, "one")
    monkeypatch.chdir(app)
    return app


def commit(app, text):
    (app / "said.txt").write_text(text)
    git(app.parent, "add", "-A")
    git(app.parent, "commit", "-qm", text)


def cell(target="net.py:Net", mode="effbench.modes.eager.Eager", training=None):
    phase = "training" if training else "inference"
    model = {"name": "net", "module": {"_target_": target}}
    return Cell(model, 1, {"name": "eager", "_target_": mode}, "float32", phase, "cpu", training=training)


def test_another_revision_is_a_worktree_that_goes_again(repository):
    old = HERE.facts()
    (repository / "net.py").write_text("WIDTH = 2\n")
    commit(repository, "two")
    with origins.origin(old, HERE.facts(), HERE, [cell()]) as found:
        folder = Path(found.interpreter.folder)
        assert found.interpreter.python is None
        assert (folder / "net.py").read_text() == "WIDTH = 1\n"
        assert folder.name == "app", "the same place within the repository"
        assert found.revision == old["git_revision"]
        assert found.why is None
    assert not folder.exists()
    listed = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1
    assert (repository / "net.py").read_text() == "WIDTH = 2\n"


def test_changes_beside_the_baseline_are_compared_with_its_revision(repository):
    old = HERE.facts()
    (repository / "net.py").write_text("WIDTH = 3\n")
    new = HERE.facts()
    assert new["git_description"].endswith("-dirty")
    with origins.origin(old, new, HERE, [cell()]) as found:
        assert (Path(found.interpreter.folder) / "net.py").read_text() == "WIDTH = 1\n"


def test_the_worktree_goes_where_the_run_fails(repository):
    old = HERE.facts()
    commit(repository, "two")
    with pytest.raises(RuntimeError), origins.origin(old, HERE.facts(), HERE, [cell()]) as found:
        raise RuntimeError
    assert not Path(found.interpreter.folder).exists()


def test_the_same_on_both_sides_has_nothing_to_take_turns(repository):
    with origins.origin(HERE.facts(), HERE.facts(), HERE, [cell()]) as found:
        assert found.interpreter is None
        assert "only the machine can differ" in found.why


def test_models_of_effbench_do_not_need_the_folder(repository):
    old = HERE.facts()
    commit(repository, "two")
    with origins.origin(old, HERE.facts(), HERE, [cell("effbench.models.mlp.MLP")]) as found:
        assert "only the machine can differ" in found.why


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"target": "effbench.models.mlp.MLP", "mode": "my.Mode"},
        {"target": "effbench.models.mlp.MLP", "training": {"loss": "my_pkg.loss"}},
    ],
)
def test_whatever_is_the_users_does(own):
    assert origins.uses_folder(cell(**own))


def test_a_loss_of_effbench_is_none_of_the_users():
    assert not origins.uses_folder(cell("effbench.models.mlp.MLP", training={"loss": "mean-square"}))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"git_description": "v1-dirty"}, "changes that were not committed (v1-dirty)"),
        ({"git_revision": "0" * 40, "git_description": "v0"}, "revision 000000000000 is not in this repository"),
        ({"git_revision": None, "git_description": None}, "is under no version control"),
        ({"python": "/nowhere/bin/python"}, "interpreter /nowhere/bin/python is not here"),
    ],
)
def test_what_cannot_be_run_says_why(repository, changed, why):
    with origins.origin({**HERE.facts(), **changed}, HERE.facts(), HERE, [cell()]) as found:
        assert found.interpreter is None
        assert why in found.why


def test_a_sweep_that_says_nothing():
    with origins.origin(None, HERE.facts(), HERE, [cell()]) as found:
        assert "does not say" in found.why
    with pytest.raises(UsageError, match="does not say what it was run with"):
        origins.current(None, "s1")


def test_another_interpreter_is_taken_as_it_is(repository, tmp_path):
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    old = {**HERE.facts(), "python": str(link), "given": ["python"]}
    with origins.origin(old, HERE.facts(), HERE, [cell()]) as found:
        assert found.interpreter == Interpreter(str(link))


def test_another_folder_without_version_control_stands_as_it_is(tmp_path, monkeypatch):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    monkeypatch.chdir(after)
    old = Interpreter(folder=str(before)).facts()
    with origins.origin(old, HERE.facts(), HERE, [cell()]) as found:
        assert found.interpreter == Interpreter(folder=str(before))


def test_a_revision_without_the_folder(repository):
    old = HERE.facts()
    (repository.parent / "later").mkdir()
    (repository.parent / "later" / "x").write_text("x")
    commit(repository, "two")
    here = Interpreter(folder=str(repository.parent / "later"))
    with origins.origin(old, here.facts(), here, [cell()]) as found:
        assert found.interpreter is None
        assert "has no folder later" in found.why


class TestCurrent:
    def test_where_it_ran(self, repository):
        assert origins.current(HERE.facts(), "s1") == (HERE, None)

    def test_from_elsewhere_it_needs_its_folder(self, repository, monkeypatch):
        facts = HERE.facts()
        monkeypatch.chdir(repository.parent)
        interpreter, moved = origins.current(facts, "s1")
        assert interpreter == Interpreter(folder=str(repository))
        assert moved is None

    def test_what_has_changed_since_is_said(self, repository):
        facts = HERE.facts()
        commit(repository, "two")
        assert "the sweep ran" in origins.current(facts, "s1")[1]

    @pytest.mark.parametrize("gone", [{"folder": "/nowhere/at/all"}, {"python": "/nowhere/bin/python"}])
    def test_what_is_not_here(self, repository, gone):
        with pytest.raises(UsageError, match="which is not here"):
            origins.current({**HERE.facts(), **gone}, "s1")
