"""Find out whether a sweep can run again here: its interpreter (`current`), and the baseline's
revision in a worktree of this repository (`origin`)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from effbench.core.cell import Cell
from effbench.core.errors import UsageError
from effbench.core.folders import cache_home
from effbench.run.git import git as quick_git
from effbench.run.git import git_state, output
from effbench.run.interpreters import Interpreter

TIMEOUT_S = 120.0
#: Targets of effbench and its dependencies, which do not depend on the working directory.
OWN_TARGETS = ("effbench.models.", "effbench.modes.", "torch.", "torchvision.")
#: A script that prints the path of a package without importing it; it runs in any Python 3.
WHERE = """
import importlib.util, sys
sys.path.insert(0, "")
spec = importlib.util.find_spec(sys.argv[1])
print(spec.origin or next(iter(spec.submodule_search_locations)))
"""
git = partial(quick_git, timeout_s=TIMEOUT_S)
SAME_CODE = (
    "the baseline would run the same code here: only the machine, or software that was replaced,"
    " can differ"
)


class RecordedInterpreter(Struct, frozen=True):
    """What a sweep records about an interpreter (`Interpreter.facts`)."""

    python: str
    folder: str
    given: list[Literal["python", "folder"]]
    git_revision: str | None
    git_description: str | None
    git_changes: str | None = None
    git_changed_files: str | None = None

    @property
    def is_dirty(self) -> bool:
        return (self.git_description or "").endswith("-dirty")


def check_exist(*paths: str) -> None:
    """Raise UsageError unless these folders and interpreters of sweeps exist here."""
    for path in paths:
        if not os.access(path, os.X_OK):
            raise UsageError(f"{path} does not exist here, but a sweep was run with it")


def current(recorded: RecordedInterpreter, cells: Iterable[Cell]) -> Interpreter:
    """Return the interpreter that runs these cells of a sweep again. Raises UsageError if that is
    impossible here, or if the cells' code has changed since."""
    check_exist(recorded.folder, recorded.python)
    folder = Path(recorded.folder)
    if targets(cells):
        check_unchanged(recorded, folder)
    interpreter = Interpreter.from_facts(structs.asdict(recorded))
    if folder == Path.cwd():
        return interpreter
    return replace(interpreter, folder=str(folder))


def check_unchanged(recorded: RecordedInterpreter, folder: Path) -> None:
    """Raise UsageError if the folder has other code than the sweep ran."""
    then = recorded.git_description
    now = git_state(folder)
    uncommitted = ""
    if now.changed_files:
        uncommitted = f" (uncommitted: {now.changed_files})"
    if now.description != then:
        raise UsageError(f"{folder} is at {now.description} now; the sweep ran {then}{uncommitted}")
    if recorded.is_dirty and recorded.git_changes != now.changes:
        raise UsageError(
            f"the uncommitted changes in {folder} differ from those measured{uncommitted}"
        )


@contextmanager
def origin(
    old: RecordedInterpreter,
    new: RecordedInterpreter,
    here: Interpreter,
    cells: Iterable[Cell],
) -> Iterator[Interpreter]:
    """Yield the interpreter of the baseline's side, while `here` runs the new side; its worktree
    exists as long as the context. Raises UsageError if that is impossible or pointless."""
    check_exist(old.python)
    python = here.python if old.python == new.python else old.python
    other = Interpreter(python, here.folder)
    root = Path(git(here.home, "rev-parse", "--show-toplevel") or here.home).resolve()
    changing: list[str] = []
    if not is_same_code(old, new):
        changing = [name for name in targets(cells) if is_versioned(source(name, other), root)]
    if changing:
        with worktree(old, root) as place:
            folder = place / Path(here.home).resolve().relative_to(root)
            then = Interpreter(python, str(folder))
            check_inside(place, changing, then)
            yield then
    elif other != here:
        yield other
    else:
        raise UsageError(SAME_CODE)


def check_recorded(
    old: RecordedInterpreter, new: RecordedInterpreter, cells: Iterable[Cell]
) -> None:
    """Raise UsageError if these records already rule out that both sides run again here. Nothing
    that they name is run."""
    check_exist(new.folder, new.python, old.python)
    if old.python != new.python:
        return
    if is_same_code(old, new) or not targets(cells):
        raise UsageError(SAME_CODE)
    check_committed(old)


def is_same_code(old: RecordedInterpreter, new: RecordedInterpreter) -> bool:
    """Return whether both interpreters ran the same revision without changes."""
    if old.git_revision is None or old.is_dirty or new.is_dirty:
        return False
    return old.git_revision == new.git_revision


@contextmanager
def worktree(old: RecordedInterpreter, root: Path) -> Iterator[Path]:
    """Yield a worktree of the repository `root` with the baseline's revision. Raises UsageError if
    the revision is unavailable."""
    commit = check_committed(old)
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise UsageError(
            f"the baseline's revision {commit[:12]} is not in this repository "
            "(if the clone is shallow: git fetch --unshallow)"
        )
    own = cache_home() / "revisions" / str(os.getpid())
    place = own / commit[:12]
    try:
        own.mkdir(parents=True, exist_ok=True)
        if git(root, "worktree", "add", "--detach", "--force", str(place), commit) is None:
            raise UsageError(f"git cannot make a worktree of the baseline's revision {commit[:12]}")
        yield place.resolve()
    finally:
        shutil.rmtree(own, ignore_errors=True)
        git(root, "worktree", "prune")


def check_committed(old: RecordedInterpreter) -> str:
    """Return the commit with the baseline's code. Raises UsageError if no commit has it."""
    if old.git_revision is None:
        raise UsageError(
            f"the baseline's folder {old.folder} has no Git commit, so its code is unknown;"
            " commit it, then measure and set the baseline again"
        )
    if old.is_dirty:
        changed = old.git_description
        if old.git_changed_files:
            changed = f"{changed}: {old.git_changed_files}"
        raise UsageError(f"the baseline was measured with uncommitted changes ({changed})")
    return old.git_revision


def check_inside(place: Path, names: Sequence[str], interpreter: Interpreter) -> None:
    """Raise UsageError unless the interpreter imports all targets from the worktree `place`:
    otherwise other code would be measured."""
    for name in names:
        path = source(name, interpreter)
        if path is None or not path.is_relative_to(place):
            raise UsageError(
                f"the baseline's revision {place.name}: its {name} is missing, or imported from"
                f" elsewhere than {interpreter.home}"
            )


def is_versioned(path: Path | None, root: Path) -> bool:
    """Return whether the code at this path depends on the revision of the repository: it is in the
    folder `root`, but not in a virtual environment there; or it is unknown (None)."""
    if path is None:
        return True
    return path.is_relative_to(root) and {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def targets(cells: Iterable[Cell]) -> list[str]:
    """Return the import paths that the cells use (modules, modes, losses), except effbench's
    and torch's."""
    names: dict[str, None] = {}
    for cell in cells:
        training = cell.training or {}
        for name in (cell.model["module"]["_target_"], cell.mode["_target_"], training.get("loss")):
            names[str(name)] = None
    return [name for name in names if "." in name and not name.startswith(OWN_TARGETS)]


def source(name: str, interpreter: Interpreter) -> Path | None:
    """Return the file or folder from which this interpreter imports a target (`file.py:Name`, or
    the package of `package.module.Name`); None if it has none."""
    home = Path(interpreter.home)
    file, colon, _ = name.partition(":")
    if colon or file.endswith(".py"):
        path = home / file
        return path.resolve() if path.is_file() else None
    package, _, _ = name.partition(".")
    text = output([interpreter.executable, "-c", WHERE, package], TIMEOUT_S, home)
    if not text:
        return None
    # a sitecustomize may print before the answer
    return Path(text.splitlines()[-1]).resolve()
