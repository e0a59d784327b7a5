"""Whether what a baseline ran can be run again: interpreters and revisions of a repository made for
the test."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import convert, structs

from effbench.analysis.confirm import interpreter_of
from effbench.analysis.origin import RecordedInterpreter, current, origin, targets
from effbench.core.cell import Cell
from effbench.core.errors import UsageError
from effbench.run.interpreters import HERE, Interpreter


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
    git(
        app.parent,
        "commit",
        "-qm",
        text,
    )


def cell(target="net.py:Net", mode="effbench.modes.eager.Eager", training=None):
    model = {"name": "net", "module": {"_target_": target}}
    settings = {"name": "eager", "_target_": mode}
    return Cell(
        model,
        1,
        settings,
        "float32",
        "inference",
        "cpu",
        training=training,
    )


def recorded(interpreter=HERE):
    """What a sweep that runs now would record about this interpreter."""
    return convert(interpreter.facts(), RecordedInterpreter)


def test_another_revision_is_a_worktree_that_goes_again(repository):
    old = recorded()
    (repository / "net.py").write_text("WIDTH = 2\n")
    commit(repository, "two")
    with (
        pytest.raises(RuntimeError),
        origin(
            old,
            recorded(),
            HERE,
            [cell()],
        ) as found,
    ):
        folder = Path(found.folder)
        assert found.python is None
        assert (folder / "net.py").read_text() == "WIDTH = 1\n"
        assert folder.name == "app", "the same place within the repository"
        raise RuntimeError
    assert not folder.exists()
    assert (repository / "net.py").read_text() == "WIDTH = 2\n"


@pytest.mark.parametrize(
    "changed", [{"python": 3}, {"given": ["loader"]}, {"given": "python"}, {"folder": None}]
)
def test_a_record_that_no_sweep_makes_is_not_used(changed):
    facts = HERE.facts()
    records = {"forged": facts | changed, "empty": {}}
    side = SimpleNamespace(title="s1", environments=records, recorded_facts=records.get)
    with pytest.raises(UsageError, match="s1 does not record its interpreter"):
        interpreter_of(side)
    records["complete"] = facts
    assert interpreter_of(side) == recorded()


OWN = "effbench.models.mlp.MLP"


@pytest.mark.parametrize(
    ("used", "names"),
    [
        (cell(), ["net.py:Net"]),
        (cell(OWN, mode="my.Mode"), ["my.Mode"]),
        (cell(OWN, training={"loss": "my_pkg.loss"}), ["my_pkg.loss"]),
        (cell(OWN, training={"loss": "mean-square"}), []),
    ],
)
def test_what_the_user_wrote(used, names):
    assert targets([used]) == names


def refused(why, *args):
    with pytest.raises(UsageError, match=re.escape(why)), origin(*args):
        pass


def test_what_cannot_be_run_says_why(repository):
    old = recorded()
    commit(repository, "two")
    new = recorded()
    (repository / "later.py").write_text("")
    later = cell("later.py:Net")
    dirty = {"git_description": "v1-dirty", "git_changed_files": "net.py"}
    unversioned = {"git_revision": None, "git_description": None}
    for before, used, why in (
        (old, cell(OWN), "the baseline would run the same code"),
        (structs.replace(old, **dirty), cell(), "uncommitted changes (v1-dirty: net.py)"),
        (new, later, "the baseline would run the same code"),
        (
            structs.replace(old, git_revision="0" * 40),
            cell(),
            "revision 000000000000 is not in this",
        ),
        (structs.replace(old, **unversioned), cell(), "has no Git commit, so its code is unknown"),
        (
            structs.replace(old, python="/nowhere/python"),
            cell(),
            "/nowhere/python does not exist here",
        ),
        (old, later, "its later.py:Net is missing, or imported from elsewhere"),
    ):
        refused(
            why,
            before,
            new,
            HERE,
            [used],
        )


def virtual_environment(folder, imports_from):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "own.pth").write_text(f"{imports_from}\n")
    return Interpreter(str(folder / "bin" / "python"))


def test_a_package_that_comes_from_elsewhere_is_refused(repository, tmp_path):
    """`my_pkg` is imported from `src` by way of a `.pth` file, as an editable install does: in the
    worktree, too, so the baseline's code would not be measured."""
    package = repository / "src" / "my_pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("WIDTH = 1\n")
    commit(repository, "package")
    installed = virtual_environment(tmp_path / "venv", package.parent)
    old = recorded(installed)
    commit(repository, "later")
    refused(
        "its my_pkg.Net is missing, or imported from elsewhere",
        old,
        recorded(installed),
        installed,
        [cell("my_pkg.Net")],
    )


def test_what_is_installed_is_no_matter_of_revisions(repository, tmp_path):
    package = tmp_path / "far_pkg.py"
    package.write_text("")
    installed = virtual_environment(tmp_path / "there", tmp_path)
    old = recorded(installed)
    commit(repository, "later")
    used = [cell("far_pkg.Net")]
    refused(
        "the baseline would run the same code",
        old,
        recorded(installed),
        installed,
        used,
    )


def test_the_interpreter_of_a_sweep(repository, monkeypatch):
    facts = recorded()

    def gone(why, **changed):
        with pytest.raises(UsageError, match=why):
            current(structs.replace(facts, **changed), [cell()])

    assert current(facts, [cell()]) == HERE
    gone("does not exist here, but a sweep was run with it", folder="/nowhere/at/all")
    gone("does not exist here, but a sweep was run with it", python="/nowhere/bin/python")
    with monkeypatch.context() as patch:  # from elsewhere it needs its folder
        patch.chdir(repository.parent)
        assert current(facts, [cell()]) == Interpreter(folder=str(repository))
    commit(repository, "two")
    gone("the sweep ran")
    assert current(facts, [cell(OWN)]) == HERE, "no code of the folder"
    (repository / "net.py").write_text("WIDTH = 2\n")
    facts = recorded()
    assert current(facts, [cell()]) == HERE
    (repository / "net.py").write_text("WIDTH = 3\n")
    gone("differ from those measured")
