"""Parts of a sweep named by the path of their folder or interpreter: as it was typed, or as the
database stores it."""

import os

import pytest
from made_sweeps import EAGER, FAST, SLOW, environment


@pytest.fixture
def folders(made, tmp_path):
    """A sweep over two folders below the working directory; the path of each."""
    paths = {}
    sweep = None
    for name, figures in (("old", FAST), ("new", SLOW)):
        folder = tmp_path / "copies" / name / "net"
        folder.mkdir(parents=True)
        paths[name] = str(folder.resolve())
        env = environment(flags={"folder": paths[name]})
        sweep = made.sweep(
            {EAGER: figures},
            env=env,
            into=sweep,
            host={"folder": str(tmp_path)},
        )
    return paths


def compared(effbench, by, values, *words):
    metric = ("--metric", "latency_ms")
    return effbench("compare", "last", "--by", by, "--values", *values, *metric, *words)


@pytest.mark.parametrize(
    "form",
    ["{stored}", "copies/{name}/net", "./copies/{name}/net/", "copies/new/../{name}/net"],
)
def test_folders(folders, effbench, form):
    old, new = (form.format(name=name, stored=folders[name]) for name in ("old", "new"))
    done = compared(effbench, "folder", (old, new))
    assert done.code == 0
    assert done.err == ""
    assert "folder=old → folder=new" in done.out
    assert "slower" in done.out
    assert "faster" in compared(effbench, "folder", (new, old)).out


def test_folders_from_another_directory(folders, effbench, tmp_path, monkeypatch):
    """Paths may be relative to the folder in which the sweep began."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    db = ("--db", "../results/effbench.db")
    done = compared(effbench, "folder", ("copies/old/net", "copies/new/net"), *db)
    assert done.code == 0
    assert done.err == ""
    refused = compared(effbench, "folder", ("old", "nowhere"), *db)
    assert refused.code == 2
    assert "has folder=old, new; choose two of them" in refused.err


def test_the_folder_that_was_not_chosen(made, effbench, tmp_path):
    """It is `here`, and has the path that the sweep records."""
    own = environment()
    other = environment(flags={"folder": str(tmp_path / "other")})
    facts = {own.id: {"folder": str(tmp_path), "python": "/p", "given": []}}
    sweep = made.sweep({EAGER: FAST}, env=own, host={"environments": facts})
    made.sweep({EAGER: SLOW}, env=other, into=sweep)
    done = compared(effbench, "folder", (".", "./other"))
    assert done.code == 0
    assert done.err == ""


def test_interpreters(made, effbench, tmp_path):
    """A link in a virtual environment is not followed."""
    sweep = None
    stored = []
    for name, figures in (("a", FAST), ("b", SLOW)):
        python = tmp_path / "venvs" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to("/bin/sh")
        stored.append(str(python))
        env = environment(flags={"interpreter": str(python)})
        sweep = made.sweep({EAGER: figures}, env=env, into=sweep)
    done = compared(effbench, "python", (stored[0], os.path.relpath(stored[1])))
    assert done.code == 0
    assert done.err == ""
    assert "python=a → python=b" in done.out
    assert "slower" in done.out
