"""Interpreters and working directories of trials.

Both can be swept (`python=`, `folder=`) and belong to the environment, not to the cell.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.core.cell import Environment
from effbench.core.errors import ConfigError
from effbench.core.folders import cache_home, expand_user, plain_path
from effbench.core.printable import listed
from effbench.run.git import (
    MOST_FILES,
    changed_files,
    git_changes,
    git_description,
    git_revision,
)

#: Module that a worker imports -> the package that provides it.
NEEDED = {"torch": "torch", "numpy": "numpy", "pynvml": "nvidia-ml-py"}
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
#: Reports the interpreter and which modules (second argument) are missing, then starts the module
#: in its first argument. It runs under any Python 3. It removes the working directory from sys.path
#: (as `-P` does from Python 3.11 on), so that a folder torch/ in it is not imported.
BOOTSTRAP = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import importlib.util, json, runpy
try:
    from importlib.metadata import version
    torch = version("torch")
except ImportError:  # PackageNotFoundError is one
    torch = None
server, needed = sys.argv[1:3]
missing = [name for name in needed.split(",") if importlib.util.find_spec(name) is None]
event = {"v": 1, "event": "interpreter", "missing": missing, "torch": torch}
event["version"] = list(sys.version_info[:2])
print(json.dumps(event), flush=True)
runpy.run_module(server, run_name="__main__", alter_sys=True)
"""


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
        values = {"python": self.python, "folder": self.folder}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def executable(self) -> str:
        return self.python or sys.executable

    @property
    def home(self) -> str:
        return self.folder or str(Path.cwd())

    def facts(self) -> Facts:
        """Return the facts to record: full paths, which of them were `given`, and the git state of
        the folder."""
        home = Path(self.home)
        return {
            "python": self.executable,
            "folder": str(home),
            "given": list(self.given),
            "git_revision": git_revision(home),
            "git_description": git_description(home),
            "git_changes": git_changes(home),
            "git_changed_files": listed(changed_files(home), MOST_FILES) or None,
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
        flags = dict(fingerprint["flags"])
        if self.python:
            flags["interpreter"] = self.python
        if self.folder:
            flags["folder"] = self.folder
        return Environment(**{**fingerprint, "flags": flags})


#: The interpreter that runs effbench, in the working directory.
HERE = Interpreter()


def resolve(python: str | None = None, folder: str | None = None) -> Interpreter:
    """Return the interpreter of these settings, with absolute paths. A bare name is looked up on
    PATH.

    Links in `folder` are resolved. Raises ConfigError if a path does not exist; a fork server
    checks whether the interpreter is suitable.
    """
    for name, given in (("python", python), ("folder", folder)):
        if given is not None and not given.strip():
            raise ConfigError(f"{name}= is empty; omit it, or use {name}=null for effbench's own")
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


def why_unfit(python: str, report: Mapping[str, Any]) -> str | None:
    """Return why trials cannot run under this interpreter, from the report of BOOTSTRAP; None if
    they can."""
    version, torch = tuple(report["version"]), report["torch"]
    if version < OLDEST_PYTHON:
        oldest = dotted(OLDEST_PYTHON)
        return f"python={python} is Python {dotted(version)}; trials need Python {oldest} or newer"
    if report["missing"]:
        packages = [NEEDED[name] for name in report["missing"]]
        return (
            f"python={python} lacks {', '.join(packages)}\nfix: {python} -m pip install"
            f" {' '.join(packages)}"
        )
    # an unusual version string is accepted
    release = re.match(r"(\d+)\.(\d+)(?:\.|$)", torch or "")
    if release and tuple(map(int, release.groups())) < OLDEST_TORCH:
        oldest = dotted(OLDEST_TORCH)
        return f"python={python} has torch {torch}; trials need torch {oldest} or newer"
    return None


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


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
    link = folder / package.name
    if not (link.is_symlink() and link.resolve() == package):
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{os.getpid()}"
        draft.symlink_to(package, target_is_directory=True)
        draft.replace(link)  # another effbench may be doing the same
    return str(plain_path(folder, "XDG_CACHE_HOME"))  # a colon would end it in a search path
