"""Parts of a sweep named by the path of their folder or interpreter: as it was typed, or as the
database stores it."""

import os

import pytest
from made_pairs import compared_parts
from made_sweeps import EAGER, environment

from effbench.core.errors import UsageError


def swept(made, flag, paths, **facts):
    """Record a sweep over environments with these values of a flag."""
    sweep = None
    for path in paths:
        env = environment(flags={flag: str(path)})
        sweep = made.sweep(
            [EAGER],
            env=env,
            into=sweep,
            **facts,
        )
    return sweep


def titles(made, by, *values):
    found = compared_parts(
        made,
        "last",
        by,
        values,
    )
    return found.before.title, found.after.title


@pytest.fixture
def folders(made, tmp_path):
    """The paths of the two folders of a sweep, by name."""
    paths = {name: tmp_path / "copies" / name / "net" for name in ("old", "new")}
    for path in paths.values():
        path.mkdir(parents=True)
    swept(
        made,
        "folder",
        paths.values(),
        host={"folder": str(tmp_path)},
    )
    return paths


@pytest.mark.parametrize("form", ["{stored}", "./copies/{name}/net/", "copies/new/../{name}/net"])
def test_folders(made, folders, form):
    typed = [form.format(name=name, stored=path) for name, path in folders.items()]
    assert titles(made, "folder", *typed) == ("folder=old", "folder=new")
    assert titles(made, "folder", *typed[::-1]) == ("folder=new", "folder=old")


@pytest.mark.usefixtures("folders")
def test_folders_from_another_directory(made, tmp_path, monkeypatch):
    """Paths may be relative to the folder in which the sweep began."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert titles(made, "folder", "copies/new/net", "old") == ("folder=new", "folder=old")
    with pytest.raises(UsageError, match="has folder=old, new; choose two of them"):
        titles(made, "folder", "old", "nowhere")


def test_the_folder_that_was_not_chosen(made, tmp_path):
    """It is `here`, and has the path that the sweep records."""
    own = environment()
    facts = {own.id: {"folder": str(tmp_path), "python": "/p", "given": []}}
    sweep = made.sweep([EAGER], env=own, host={"environments": facts})
    made.sweep([EAGER], env=environment(flags={"folder": str(tmp_path / "other")}), into=sweep)
    assert titles(made, "folder", "./other", ".") == ("folder=other", "folder=here")


def test_interpreters(made, tmp_path):
    """A link in a virtual environment is not followed."""
    stored = [tmp_path / "venvs" / name / "bin" / "python" for name in "ab"]
    for python in stored:
        python.parent.mkdir(parents=True)
        python.symlink_to("/bin/sh")
    swept(made, "interpreter", stored)
    typed = str(stored[1]), os.path.relpath(stored[0])
    assert titles(made, "python", *typed) == ("python=b", "python=a")
