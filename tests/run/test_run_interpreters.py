"""Interpreters as axes: found, judged, told apart. No torch; small scripts stand for
interpreters."""

import json
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_sweeps import a_cell
from schedule_parts import FACTS, A, B

from effbench.core.cell import Environment
from effbench.core.errors import ConfigError, InterpreterError, WorkerError
from effbench.run import interpreters
from effbench.run.client import ForkServer
from effbench.run.interpreters import HERE, Interpreter, resolve
from effbench.run.plan import CellRun
from effbench.run.pool import open_servers


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A program that prints `text`, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    interpreters.lone_package.cache_clear()

    def write(text=None, path="bin/python", more=""):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        says = "" if text is None else f"cat <<'END'\n{text}\nEND\n"
        file.write_text(f"#!/bin/sh\n{says}{more}\n")
        file.chmod(0o755)
        return str(file)

    yield write
    interpreters.lone_package.cache_clear()


def test_an_interpreter_keeps_its_link_and_a_folder_does_not(script, tmp_path, monkeypatch):
    assert resolve() == HERE == Interpreter()
    path = script(path="bin/python-of-mine")
    monkeypatch.setenv("PATH", str(Path(path).parent))
    assert resolve("python-of-mine").python == path, "a bare name is looked for on PATH"
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(path)
    assert resolve("./venv/../venv/python").python == str(tmp_path / "venv" / "python")
    (tmp_path / "current").symlink_to(tmp_path / "venv")
    assert resolve(folder="current") == Interpreter(None, str(tmp_path / "venv"))


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"python": "nothing"}, "no such program"),
        ({"folder": "bin/python"}, "no such folder"),
    ],
)
def test_what_is_not_there(script, settings, error):
    script()
    with pytest.raises(ConfigError, match=error):
        resolve(**settings)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("echo boo >&2; echo ModuleNotFoundError: no torch >&2; exit 1", "code 1.: ModuleNotFound"),
        ("kill -SEGV $$", "code -11.; trials need Python 3.11 and torch 2.11, or newer"),
    ],
)
def test_an_interpreter_that_does_not_start_is_named_with_its_last_words(script, more, error):
    path = script("GNU bash, version 5.2", more=more)
    error = f"^python={path}: the fork server ended .{error}"
    with pytest.raises(InterpreterError, match=error):
        open_server(path)


def test_a_file_that_is_no_program_is_named(tmp_path):
    path = tmp_path / "python"
    path.write_text("no program")
    path.chmod(0o700)
    error = f"^python={path}: .*Exec format error.*; trials need Python 3.11"
    with pytest.raises(InterpreterError, match=error):
        open_server(str(path))


def open_server(python):
    cell = replace(a_cell(), model={"name": "a", "module": {"_target_": "a.Net"}})
    runs = [CellRun(cell, Interpreter(python))]
    with open_servers(runs, "eager", threading.Event()):
        pass


def test_another_interpreter_sees_effbench_and_nothing_next_to_it(script):
    folder = interpreters.lone_package()
    assert [path.name for path in Path(folder).iterdir()] == ["effbench"]
    interpreters.lone_package.cache_clear()
    assert interpreters.lone_package() == folder


def test_interpreters_with_the_same_software_have_different_environments():
    asked = [HERE, A, B, Interpreter(None, "/x"), Interpreter(A.python, "/x")]
    assert len({one.environment(FACTS).id for one in asked}) == len(asked)
    assert HERE.environment(FACTS) == Environment(**FACTS), (
        "an ordinary sweep keeps its environment"
    )


@pytest.mark.parametrize("interpreter", [HERE, A, Interpreter(A.python, "/x")])
def test_facts_lead_back_to_the_interpreter(tmp_path, monkeypatch, interpreter):
    # of a repository the facts are read by git, which takes seconds
    monkeypatch.chdir(tmp_path)
    facts = json.loads(json.dumps(interpreter.facts()))
    assert Interpreter.from_facts(facts) == interpreter


@pytest.mark.parametrize(
    ("may_write", "has_bytecode", "is_kept"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_a_server_keeps_bytecode_that_python_may_not_write(
    tmp_path, monkeypatch, may_write, has_bytecode, is_kept
):
    torch = tmp_path / "torch.pyc"
    if has_bytecode:
        torch.touch()
    spec = SimpleNamespace(cached=str(torch))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", not may_write)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    variables = interpreters.bytecode_variables()
    assert bool(variables) == is_kept
    if is_kept:
        folder = str(tmp_path / "cache/effbench/bytecode")
        assert variables == {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}


def test_a_server_of_a_cells_own_starts_with_its_variables_and_loads_nothing(script):
    ready = """echo '{"v": 1, "event": "ready"}'; exec cat"""
    path = script(more=f'case "$FOO $*" in "1 "*--no-preload*) {ready};; esac')
    with closing(ForkServer(path, preload=False, env={"FOO": "1"})) as server:
        server.wait_ready()
    with closing(ForkServer(path, preload=False)) as server, pytest.raises(WorkerError):
        server.wait_ready()
