"""Interpreters of a sweep: which Python runs a cell's trials, and in which folder. Both are axes of the sweep
(`python=`, `folder=`) and belong to the environment, not to the cell: two of them are two halves of one sweep."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.cell import Cell, Environment
from effbench.errors import ConfigError
from effbench.sweeping.host import cache_home, git_changes, git_description, git_revision

#: Module that a worker imports -> the package that brings it.
NEEDED = {"torch": "torch", "numpy": "numpy", "pynvml": "nvidia-ml-py"}
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 11)
CHECK_TIMEOUT_S = 60.0
#: Answers one line; understood by any Python 3, and imports nothing heavy.
CHECK = """
import importlib.util as u, json, sys
try:
    from importlib.metadata import version
    torch = version("torch")
except Exception:
    torch = None
missing = [name for name in sys.argv[1:] if u.find_spec(name) is None]
print(json.dumps(["effbench", list(sys.version_info[:2]), missing, torch]))
"""


@dataclass(frozen=True)
class Interpreter:
    """`python`: an executable, None: the one that runs effbench. `folder`: the working directory whose modules trials
    import, None: the one that effbench was started in. Paths are absolute; `resolve` makes them so."""

    python: str | None = None
    folder: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """What was asked for, by its setting: arguments of ForkServer as well."""
        return {name: value for name in ("python", "folder") if (value := getattr(self, name)) is not None}

    @property
    def executable(self) -> str:
        return self.python or sys.executable

    @property
    def home(self) -> str:
        return self.folder or str(Path.cwd())

    def facts(self) -> dict[str, Any]:
        """Where it runs now: `python` and `folder` in full, which of them were `given`, and what git says of the
        folder."""
        home = Path(self.home)
        return {
            "python": self.executable,
            "folder": str(home),
            "given": list(self.given),
            "git_revision": git_revision(home),
            "git_description": git_description(home),
            "git_changes": git_changes(home),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Interpreter:
        """The interpreter as it was asked for, from `facts()`."""
        return cls(**{name: facts[name] for name in facts["given"]})

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.given.items()) or "effbench's own interpreter"

    def environment(self, fingerprint: dict[str, Any]) -> Environment:
        """The environment of a probe's answer; what was asked for is among its flags, so that two interpreters with the
        same software are told apart."""
        flags = dict(fingerprint["flags"])
        if self.python:
            flags["interpreter"] = self.python
        if self.folder:
            flags["folder"] = self.folder
        return Environment(**{**fingerprint, "flags": flags})


#: The interpreter that runs effbench, in the working directory.
HERE = Interpreter()
#: What identifies a unit: cell key and interpreter.
UnitKey = tuple[str, Interpreter]


@dataclass(frozen=True)
class Unit:
    """A cell under an interpreter: what has one trial a round."""

    cell: Cell
    interpreter: Interpreter = HERE

    @property
    def key(self) -> UnitKey:
        return self.cell.key, self.interpreter


def distinct(units: Iterable[Unit]) -> list[Unit]:
    """Each once, in their order."""
    return list({unit.key: unit for unit in units}.values())


def cells_of(units: Iterable[Unit]) -> list[Cell]:
    """Their cells, each once."""
    return list({unit.cell.key: unit.cell for unit in units}.values())


def interpreters_of(units: Iterable[Unit]) -> list[Interpreter]:
    """Their interpreters, each once."""
    return list(dict.fromkeys(unit.interpreter for unit in units))


def resolve(python: str | None = None, folder: str | None = None) -> Interpreter:
    """The settings `python` and `folder` with absolute paths; a bare name is looked for on PATH.

    Symbolic links of a folder are followed, those of an interpreter are not: a virtual environment's is a link.
    Raises ConfigError for what is not there; `check` looks at whether it will do.
    """
    for name, given in (("python", python), ("folder", folder)):
        if given is not None and not given.strip():
            raise ConfigError(f"{name}= is empty; leave it out, or say {name}=null for effbench's own")
    return Interpreter(python and _executable(python), folder and _folder(folder))


def named_twice(known: Mapping[tuple[str | None, str | None], Interpreter]) -> list[str]:
    """What was asked for under several names and runs once, a text each; `known`: what was asked for, resolved."""
    first: dict[Interpreter, tuple[str | None, str | None]] = {}
    texts = []
    for asked, interpreter in known.items():
        other = first.setdefault(interpreter, asked)
        if other != asked:
            one, two = (
                " ".join(f"{name}={value}" for name, value in zip(("python", "folder"), given, strict=True) if value)
                for given in (other, asked)
            )
            texts.append(f"{two} is the same as {one}: it runs once")
    return texts


def _executable(text: str) -> str:
    path = Path(text).expanduser()
    if os.sep not in text and not text.startswith("~"):
        found = shutil.which(text)
        if found is None and not path.exists():
            raise ConfigError(f"python={text}: no such program on PATH; give the path of an interpreter")
        path = Path(found or text)
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow the link out of a virtual environment
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = f"its interpreter is {inside}" if inside.exists() else "give the interpreter in it"
        raise ConfigError(f"python={text} is a folder; {hint}")
    if not path.exists():
        raise ConfigError(f"python={text}: there is no {path}; give the path of an interpreter")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"python={text}: {path} is not executable; give the path of an interpreter")
    return str(path)


def _folder(text: str) -> str:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise ConfigError(f"folder={text}: {path} {what}; give the working directory that trials shall run in")
    return str(path)


def check(interpreter: Interpreter) -> None:
    """Run a chosen Python for a moment: is it one, new enough, with what a worker imports? Raises ConfigError."""
    if interpreter.python is None:
        return
    named = f"python={interpreter.python}"
    try:
        done = subprocess.run(
            [interpreter.python, "-c", CHECK, *NEEDED],
            cwd=interpreter.folder,
            env={**os.environ, "PYTHONSAFEPATH": "1"},  # a torch/ in the working directory is not the package
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHECK_TIMEOUT_S,
        )
        said, version, missing, torch = json.loads(done.stdout)
        if said != "effbench":
            raise ValueError
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{named} did not answer within {CHECK_TIMEOUT_S:.0f} s: is it a Python?") from None
    except OSError as error:
        raise ConfigError(f"{named} cannot be run: {error.strerror or error}; give the path of a Python") from None
    except (ValueError, TypeError):  # what it printed is not what CHECK prints
        words = done.stderr.strip().splitlines()
        last = f" (it said: {words[-1]})" if words else ""
        if done.returncode < 0:
            last = f" (it ended by signal {-done.returncode})"
        raise ConfigError(f"{named} is no Python interpreter that works{last}; give the path of one") from None
    if tuple(version) < OLDEST_PYTHON:
        raise ConfigError(f"{named} is Python {dotted(version)}; trials need {dotted(OLDEST_PYTHON)} or newer")
    if missing:
        packages = [NEEDED[name] for name in missing]
        raise ConfigError(
            f"{named} lacks {', '.join(packages)}\nmend: {interpreter.python} -m pip install {' '.join(packages)}"
        )
    if torch and _release(torch) < OLDEST_TORCH:
        raise ConfigError(f"{named} has torch {torch}; trials need {dotted(OLDEST_TORCH)} or newer")


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _release(version: str) -> tuple[int, ...]:
    """`2.11` of `2.11.0a0+git1234`; a version that does not begin with two numbers passes for any."""
    parts = version.split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(part.isdigit() for part in parts) else OLDEST_TORCH


@functools.cache
def lone_package() -> str:
    """A folder that holds effbench and nothing else, for the PYTHONPATH of another interpreter.

    Where effbench is installed its package lies beside this interpreter's torch and numpy, which another one must not
    find before its own.
    """
    package = Path(__file__).resolve().parents[1]
    folder = cache_home() / "package" / hashlib.sha256(str(package).encode()).hexdigest()[:12]
    link = folder / package.name
    if not (link.is_symlink() and link.resolve() == package):
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{os.getpid()}"
        draft.symlink_to(package, target_is_directory=True)
        draft.replace(link)  # another effbench may be doing the same
    return str(folder)
