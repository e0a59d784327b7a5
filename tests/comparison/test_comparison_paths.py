"""Parts of a sweep named by the path of their folder or interpreter: as it was typed, or as the
database stores it."""

import os

import pytest
from made_sweeps import EAGER, FAST, SLOW, environment


@pytest.fixture
def folders(made, tmp_path):
    """A sweep over two folders next to the working directory."""
    paths = {}
    sweep = None
    for name, figures in (("old", FAST), ("new", SLOW)):
        folder = tmp_path / "copies" / name / "net"
        folder.mkdir(parents=True)
        paths[name] = str(folder.resolve())
        env = environment(flags={"folder": paths[name]})
        sweep = made.sweep({EAGER: figures}, env=env, into=sweep, host={"folder": str(tmp_path)})
    return paths


@pytest.mark.parametrize(
    "form",
    [
        "stored",
        "short",
        "copies/{}/net",
        "./copies/{}/net/",
        "../{here}/copies/{}/net",
        "copies/new/../{}/net",
    ],
)
def test_folders(folders, effbench, tmp_path, form):
    if form == "stored":
        values = [folders["old"], folders["new"]]
    elif form == "short":
        values = ["old", "new"]
    else:
        values = [form.format(name, here=tmp_path.name) for name in ("old", "new")]
    done = effbench(
        "compare", "last", "--by", "folder", "--values", *values, "--metric", "latency_ms"
    )
    assert (done.code, done.err) == (0, "")
    assert "folder=old → last".replace("last", "folder=new") in done.out and "slower" in done.out
    turned = effbench(
        "compare", "last", "--by", "folder", "--values", *values[::-1], "--metric", "latency_ms"
    )
    assert "faster" in turned.out, "in the order in which they were given"


def test_folders_from_another_directory(folders, effbench, tmp_path, monkeypatch):
    """The typed paths are relative to the folder in which the sweep began."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    words = (
        "--by",
        "folder",
        "--values",
        "copies/old/net",
        "copies/new/net",
        "--db",
        "../results/effbench.db",
    )
    done = effbench("compare", "last", *words)
    assert (done.code, done.err) == (0, "")
    refused = effbench(
        "compare", "last", "--by", "folder", "--values", "old", "nowhere", *words[5:]
    )
    assert refused.code == 2 and "has folder=old, new; choose two of them" in refused.err


def test_interpreters(made, effbench, tmp_path):
    """A link in a virtual environment is not followed, and a bare name is looked up on PATH."""
    sweep, pythons = None, []
    for name, figures in (("a", FAST), ("b", SLOW)):
        python = tmp_path / "venvs" / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to("/bin/sh")
        pythons.append(python)
        env = environment(flags={"interpreter": str(python)})
        sweep = made.sweep({EAGER: figures}, env=env, into=sweep)
    stored, typed = [*map(str, pythons)], [os.path.relpath(python) for python in pythons]
    for values in (stored, typed, ["a", "b"], [stored[0], typed[1]]):
        done = effbench(
            "compare", "last", "--by", "python", "--values", *values, "--metric", "latency_ms"
        )
        assert (done.code, done.err) == (0, ""), values
        assert "python=a → python=b" in done.out and "slower" in done.out


def test_the_folder_that_was_not_chosen(made, effbench, tmp_path):
    """It is `here`, and has the path that the sweep records."""
    own = environment()
    other = environment(flags={"folder": str(tmp_path / "other")})
    facts = {own.id: {"folder": str(tmp_path), "python": "/p", "given": []}}
    sweep = made.sweep({EAGER: FAST}, env=own, host={"environments": facts})
    made.sweep({EAGER: SLOW}, env=other, into=sweep)
    for values in (["here", "other"], [".", "other"], [str(tmp_path), "./other"]):
        done = effbench("compare", "last", "--by", "folder", "--values", *values)
        assert (done.code, done.err) == (0, ""), values


def test_on_takes_a_typed_path(folders, effbench, made):
    effbench("baseline", "set", "main", "last")
    first = made.sweep({EAGER: FAST}, env=environment(flags={"folder": folders["old"]}))
    second = made.sweep({EAGER: FAST}, env=environment(flags={"folder": folders["old"]}))
    done = effbench("compare", first, second, "--on", "./copies/new/../old/net")
    assert (done.code, done.err) == (0, "")
    assert effbench("compare", first, second, "--on", "./copies/new/net").code == 3
