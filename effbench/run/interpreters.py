"""Interpreters and working directories of trials.

Both can be swept (`python=`, `folder=`) and belong to the environment, not to the cell.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.core.cell import Environment
from effbench.core.environments import FLAGS
from effbench.core.errors import ConfigError
from effbench.core.folders import cache_home, expand_user
from effbench.run.git import git_state

#: What is recorded about something, as plain JSON.
Facts = dict[str, Any]


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and its working directory. `python`: an executable; None: the one that runs
    effbench. `folder`: the working directory, whose modules trials can import; None: the current
    one. Paths are absolute."""

    python: str | None = None
    folder: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """The settings that were given, by name; they are also arguments of ForkServer."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def flags(self) -> dict[str, str]:
        """The given settings, as flags of its environment."""
        return {FLAGS[name]: value for name, value in self.given.items()}

    @property
    def executable(self) -> str:
        return self.python or sys.executable

    @property
    def home(self) -> str:
        return self.folder or str(Path.cwd())

    def facts(self) -> Facts:
        """Return the facts to record: full paths, which of them were `given`, and the git state of
        the folder."""
        git = git_state(self.home)
        return {
            "python": self.executable,
            "folder": self.home,
            "given": list(self.given),
            "git_revision": git.revision,
            "git_description": git.description,
            "git_changes": git.changes,
            "git_changed_files": git.changed_files,
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Interpreter:
        """Return the interpreter from its `facts()`."""
        return cls(**{name: facts[name] for name in facts["given"]})

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.given.items()]
        return " ".join(words) or "effbench's own interpreter"

    def environment(self, fingerprint: Facts) -> Environment:
        """Return the environment of a probe's answer, with flags that distinguish interpreters with
        equal software."""
        return Environment(**{**fingerprint, "flags": {**fingerprint["flags"], **self.flags}})


#: The interpreter that runs effbench, in the working directory.
HERE = Interpreter()


def resolve(python: str | None = None, folder: str | None = None) -> Interpreter:
    """Return the interpreter of these settings, with absolute paths. A bare name is looked up on
    PATH.

    Links in `folder` are resolved. Raises ConfigError if a path does not exist; a fork server
    checks whether the interpreter is suitable.
    """
    if python is not None:
        path = shutil.which(expand_user(python, "python"))
        if path is None:
            raise ConfigError(
                f"python={python}: no such program; give the path of an interpreter:"
                " venv/bin/python"
            )
        # Path.resolve() would follow the link out of a virtual environment
        python = os.path.abspath(path)  # noqa: PTH100
    if folder is not None:
        home = Path(expand_user(folder, "folder")).resolve()
        if not home.is_dir():
            raise ConfigError(
                f"folder={folder}: no such folder; give the working directory of the trials"
            )
        folder = str(home)
    return Interpreter(python, folder)


def bytecode_variables() -> dict[str, str]:
    """Return variables with which a server keeps its modules' bytecode in the user's cache folder.

    There are none unless torch has no bytecode and Python must not write any, as often in
    containers: uv installs packages without it. Compiling torch's modules takes twice as long as
    importing them, at every start.
    """
    torch = importlib.util.find_spec("torch")
    has_bytecode = torch is None or torch.cached is None or Path(torch.cached).exists()
    if has_bytecode or not sys.dont_write_bytecode:
        return {}
    return {"PYTHONPYCACHEPREFIX": str(cache_home() / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


@functools.cache
def lone_package() -> str:
    """Return a folder that contains only effbench, for the PYTHONPATH of another interpreter.

    The folder of an installed effbench also contains this interpreter's torch and numpy.
    """
    package = Path(__file__).resolve().parents[1]
    folder = cache_home() / "package" / hashlib.sha256(os.fsencode(package)).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        (folder / package.name).symlink_to(package, target_is_directory=True)
    return str(folder)
