"""Interpreters as axes: found, judged, told apart. No torch; small scripts stand for
interpreters."""

import ast
import json
import os
import py_compile
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from schedule_parts import FACTS, A, B

from effbench.cell import Environment
from effbench.errors import ConfigError
from effbench.sweeping import interpreters
from effbench.sweeping.client import ForkServer
from effbench.sweeping.interpreters import HERE, Interpreter, resolve


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


class TestFound:
    def test_names_and_links(self, script, tmp_path, monkeypatch):
        assert resolve() == HERE == Interpreter()
        path = script(path="bin/python-of-mine")
        monkeypatch.setenv("PATH", str(Path(path).parent))
        assert resolve("python-of-mine").python == path, "a bare name is looked for on PATH"
        (tmp_path / "venv").mkdir()
        (tmp_path / "venv" / "python").symlink_to(path)
        assert resolve("venv/python").python == str(tmp_path / "venv" / "python"), (
            "an interpreter keeps its link"
        )
        assert resolve("./venv/../venv/python") == resolve("venv/python")
        (tmp_path / "current").symlink_to(tmp_path / "venv")
        assert resolve(folder="current") == Interpreter(None, str(tmp_path / "venv")), (
            "a folder does not"
        )

    def test_what_is_not_there(self, script, tmp_path):
        script(path="venv/bin/python")
        (tmp_path / "plain").write_text("")
        for setting, error, values in (
            ("python", "python= is empty; omit it, or use python=null", [""]),
            ("folder", "folder= is empty", ["  "]),
            ("python", "no such program", ["nothing", "not/there", ".", "venv", "./plain"]),
            ("folder", "no such folder", ["gone", "plain"]),
        ):
            for value in values:
                with pytest.raises(ConfigError, match=error):
                    resolve(**{setting: value})


def report(version=(3, 12), missing=(), torch="2.13.0"):
    return json.dumps(
        {"v": 1, "event": "interpreter", "version": version, "missing": missing, "torch": torch}
    )


def refused(path, error):
    with closing(ForkServer(path)) as server, pytest.raises(ConfigError, match=error):
        server.wait_ready()


class TestJudged:
    """By what it reports when it is started, before it imports torch."""

    def test_one_that_will_not_do_is_named_with_what_it_lacks(self, script):
        fix = "fix: .*/python -m pip install torch nvidia-ml-py"
        for text, error in (
            (report(version=(3, 10)), "is Python 3.10; trials need Python 3.11 or newer"),
            (report(missing=["torch", "pynvml"], torch=None), f"lacks torch, nvidia-ml-py\n{fix}"),
            (
                report(torch="2.4.1+cu121"),
                r"has torch 2\.4\.1\+cu121; trials need torch 2\.11 or newer",
            ),
            ("GNU bash, version 5.2", "is not a working Python interpreter"),
            ('["other", 1, 2, 3]', "is not a working Python interpreter"),
        ):
            path = script(text)
            refused(path, f"^python={path} {error}")

    def test_one_that_will_do(self, script):
        for torch in ("2.11.0", "2.12.0a0+git1234", "3.0", "nightly"):
            path = script(f'{report(torch=torch)}\n{{"v": 1, "event": "ready"}}', more="cat")
            with closing(ForkServer(path)) as server:
                server.wait_ready()

    def test_one_that_does_not_run_is_named(self, script, tmp_path):
        path = script(more="echo boo >&2\nkill -SEGV $$")
        refused(path, r"is not a working Python interpreter: .*code -11\): boo")
        path = tmp_path / "python"
        path.write_bytes(b"\x7fELF nonsense")
        path.chmod(0o755)
        with pytest.raises(ConfigError, match="cannot be run: Exec format error"):
            ForkServer(str(path))

    def test_a_module_of_the_user_is_not_the_package(self, script, tmp_path):
        (tmp_path / "torch.py").write_text("raise SystemExit")
        with closing(ForkServer(sys.executable, preload=False, folder=str(tmp_path))) as server:
            server.wait_ready()

    def test_another_interpreter_sees_effbench_and_nothing_next_to_it(self, script):
        folder = interpreters.lone_package()
        assert [path.name for path in Path(folder).iterdir()] == ["effbench"]
        interpreters.lone_package.cache_clear()
        assert interpreters.lone_package() == folder


class TestEnvironment:
    def test_interpreters_with_the_same_software_have_different_environments(self):
        asked = [
            HERE,
            A,
            B,
            Interpreter(None, "/x"),
            Interpreter(A.python, "/x"),
            Interpreter(A.python, "/y"),
        ]
        assert len({one.environment(FACTS).id for one in asked}) == len(asked)
        assert HERE.environment(FACTS) == Environment(**FACTS), (
            "an ordinary sweep keeps its environment"
        )
        assert Interpreter(A.python, "/x").environment(FACTS).flags == {
            "OMP_NUM_THREADS": "2",
            "interpreter": A.python,
            "folder": "/x",
        }

    def test_facts_lead_back_to_the_interpreter(self, tmp_path, monkeypatch):
        # of a repository the facts are read by git, which takes seconds
        monkeypatch.chdir(tmp_path)
        for one in (
            HERE,
            A,
            Interpreter(None, str(tmp_path)),
            Interpreter(A.python, str(tmp_path)),
        ):
            facts = json.loads(json.dumps(one.facts()))
            assert Interpreter.from_facts(facts) == one
            assert facts["python"] == (one.python or sys.executable)
            assert facts["folder"] == (one.folder or os.getcwd())  # noqa: PTH109


def test_a_server_keeps_bytecode_that_python_may_not_write(tmp_path):
    module = tmp_path / "torch" / "__init__.py"
    module.parent.mkdir()
    module.write_text("")
    asked = "from effbench.sweeping.interpreters import bytecode_variables as ask; print(ask())"

    search_path = f"{tmp_path}:{Path(interpreters.__file__).parents[2]}"
    env = {**os.environ, "PYTHONPATH": search_path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)

    def variables(*options: str) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, *options, "-c", asked], env=env, capture_output=True, text=True
        )
        return ast.literal_eval(done.stdout)

    kept = {
        "PYTHONPYCACHEPREFIX": str(tmp_path / "cache/effbench/bytecode"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    assert variables("-B") == kept
    assert variables() == {}, "Python writes it itself"
    py_compile.compile(str(module))
    assert variables("-B") == {}
