"""Find out whether a sweep can run again here: its interpreter (`current`), and the baseline's
revision in a worktree of this repository (`origin`)."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from effbench.core.cell import Cell, targets_in
from effbench.core.errors import UsageError
from effbench.core.folders import cache_home
from effbench.core.printable import listed
from effbench.run.git import MOST_FILES, changed_files, git_changes, git_description, output
from effbench.run.git import git as quick_git
from effbench.run.interpreters import Interpreter

TIMEOUT_S = 120.0
#: Targets of effbench and its dependencies, which do not depend on the working directory.
OWN_TARGETS = ("effbench.models.", "effbench.modes.", "torch.", "torchvision.")
#: A script that prints the path of each package without importing it; it runs in any Python 3.
WHERE = """
import importlib.util, json, sys
sys.path.insert(0, "")
def where(name):
    spec = importlib.util.find_spec(name)
    if spec is None: return None
    if spec.has_location:
        return spec.origin
    return next(iter(spec.submodule_search_locations or [None]))
print(json.dumps(["effbench", {name: where(name) for name in sys.argv[1:]}]))
"""
git = partial(quick_git, timeout_s=TIMEOUT_S)
#: What a sweep records about an interpreter (`Interpreter.facts`).
Facts = Mapping[str, Any]


def current(
    facts: Facts | None,
    sweep_id: str,
    cells: Sequence[Cell],
    since: dt.datetime,
) -> Interpreter:
    """Return the interpreter that runs these cells of the sweep again; `facts`: its recorded facts.
    Raises UsageError if that is impossible here, or if the cells' code has changed `since` the
    sweep began."""
    if not facts:
        raise UsageError(f"sweep {sweep_id} does not record its interpreter")
    folder = Path(facts["folder"])
    for path in (folder, facts["python"]):
        if not os.access(path, os.X_OK):
            raise UsageError(f"sweep {sweep_id} was run with {path}, which does not exist here")
    names = targets(cells)
    if names:
        check_unchanged(facts, folder)
    interpreter = Interpreter.from_facts(facts)
    there = replace(interpreter, folder=str(folder))
    for file in untracked(names, there):
        if file.stat().st_mtime > since.timestamp():
            raise UsageError(
                f"{file} was written after sweep {sweep_id} began, and git does not track it"
            )
    return interpreter if folder == Path.cwd() else there


def check_unchanged(facts: Facts, folder: Path) -> None:
    """Raise UsageError if the folder has other code than the sweep ran."""
    then = facts["git_description"]
    now = git_description(folder)
    names = listed(changed_files(folder), MOST_FILES)
    uncommitted = ""
    if names:
        uncommitted = f" (uncommitted: {names})"
    if now != then:
        raise UsageError(f"{folder} is at {now} now; the sweep ran {then}{uncommitted}")
    if is_dirty(facts) and facts.get("git_changes") != git_changes(folder):
        raise UsageError(
            f"the uncommitted changes in {folder} differ from those measured{uncommitted}"
        )


@contextmanager
def origin(
    old: Facts | None,
    new: Facts,
    here: Interpreter,
    cells: Sequence[Cell],
    software: str | None = None,
) -> Iterator[Interpreter]:
    """Yield the interpreter of the baseline's side, while `here` runs the new side; its worktree
    exists as long as the context. `old`, `new`: recorded facts of the interpreters; `software`: a
    difference in software between them, as text. Raises UsageError if that is impossible or
    pointless."""
    if not old:
        raise UsageError("the baseline does not record its interpreter")
    if not os.access(old["python"], os.X_OK):
        raise UsageError(f"the baseline's interpreter {old['python']} does not exist here")
    python = old["python"]
    if python == new["python"]:
        python = here.python
    other = Interpreter(python, here.folder)
    top = git(here.home, "rev-parse", "--show-toplevel")
    root = Path(top or here.home).resolve()
    used = targets(cells)
    changing: list[str] = []
    if not is_same_code(old, new):
        changing = changing_targets(used, other, root)
    if changing:
        with worktree(old, root) as place:
            homes = homes_of(changing, here, root)
            folder = folder_in(
                place,
                homes,
                python,
                changing,
            )
            yield Interpreter(python, folder)
    elif other != here:
        yield other
    elif software:
        raise UsageError(f"the baseline's software is no longer installed here ({software})")
    else:
        unknown = [file for file in untracked(used, here) if is_versioned(file, root)]
        if unknown:
            raise UsageError(f"git does not track {unknown[0]}, so the baseline's code is unknown")
        raise UsageError("the baseline would run the same code here: only the machine can differ")


def changing_targets(names: Sequence[str], interpreter: Interpreter, root: Path) -> list[str]:
    """Return the targets whose code depends on the revision of the repository."""
    paths = sources(names, interpreter)
    return [name for name, path in paths.items() if path is None or is_versioned(path, root)]


def is_same_code(old: Facts, new: Facts) -> bool:
    """Return whether both interpreters ran the same revision without changes."""
    revision = old["git_revision"]
    if revision is None or revision != new["git_revision"]:
        return False
    return not is_dirty(old) and not is_dirty(new)


def is_dirty(facts: Facts) -> bool:
    return (facts["git_description"] or "").endswith("-dirty")


@contextmanager
def worktree(old: Facts, root: Path) -> Iterator[Path]:
    """Yield a worktree of the repository `root` with the baseline's revision. Raises UsageError if
    the revision is unavailable."""
    commit = old["git_revision"]
    if commit is None:
        raise UsageError(
            f"the baseline's folder {old['folder']} is not under version control, so its code is"
            " unknown"
        )
    if is_dirty(old):
        changed = old["git_description"]
        if old.get("git_changed_files"):
            changed = f"{changed}: {old['git_changed_files']}"
        raise UsageError(f"the baseline was measured with uncommitted changes ({changed})")
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise UsageError(
            f"the baseline's revision {commit[:12]} is not in this repository "
            "(if the clone is shallow: git fetch --unshallow)"
        )
    own = cache_home() / "revisions" / str(os.getpid())
    place = own / commit[:12]
    try:
        own.mkdir(parents=True, exist_ok=True)
        added = git(root, "worktree", "add", "--detach", "--force", str(place), commit)
        if added is None:
            raise UsageError(f"git cannot make a worktree of the baseline's revision {commit[:12]}")
        yield place
    finally:
        shutil.rmtree(own, ignore_errors=True)
        git(root, "worktree", "prune")


def homes_of(names: Sequence[str], here: Interpreter, root: Path) -> list[Path]:
    """Return the folders of the repository from which targets may be imported, relative to its
    `root`: the working directory and those of modules imported from elsewhere, such as `src` of an
    editable package."""
    homes = [Path(here.home).resolve()]
    for path in sources(names, here).values():
        if path is not None and is_versioned(path, root):
            if path.name == "__init__.py":
                path = path.parent
            homes.append(path.parent)
    inside = [home.relative_to(root) for home in homes if home.is_relative_to(root)]
    return list(dict.fromkeys(inside))


def folder_in(
    place: Path,
    homes: Iterable[Path],
    python: str | None,
    names: Sequence[str],
) -> str:
    """Return the first of the folders `homes` in which `python` imports all targets from the
    worktree `place`. Raises UsageError without such a folder, because otherwise other code would be
    measured."""
    place = place.resolve()
    reason = "it does not contain this folder"
    for home in homes:
        folder = place / home
        if not folder.is_dir():
            continue
        outside = []
        paths = sources(names, Interpreter(python, str(folder)))
        for name, path in paths.items():
            if path is None or not path.is_relative_to(place):
                outside.append(name)
        if not outside:
            return str(folder.resolve())
        reason = f"its {outside[0]} is missing, or imported from elsewhere"
    raise UsageError(f"the baseline's revision {place.name}: {reason}")


def untracked(names: Sequence[str], interpreter: Interpreter) -> list[Path]:
    """Return the files of these targets that git does not track; of a package, `__init__.py`
    only."""
    files = []
    for path in sources(names, interpreter).values():
        if path is None or not path.is_file():
            continue
        if git(path.parent, "ls-files", "--error-unmatch", path.name) is None:
            files.append(path)
    return files


def is_versioned(path: Path, root: Path) -> bool:
    """Return whether the file is in the folder of the repository, but not in a virtual environment
    in its folder."""
    return path.is_relative_to(root) and {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def targets(cells: Iterable[Cell]) -> list[str]:
    """Return the import paths that the cells use (`_target_` at any depth, losses), except
    effbench's and torch's."""
    names: dict[str, None] = {}
    for cell in cells:
        names |= dict.fromkeys(targets_in(cell.model["module"]))
        names |= dict.fromkeys(targets_in(cell.mode))
        training = cell.training or {}
        names[str(training.get("loss"))] = None
    return [name for name in names if "." in name and not name.startswith(OWN_TARGETS)]


def sources(names: Sequence[str], interpreter: Interpreter) -> dict[str, Path | None]:
    """Return target -> the file or folder from which this interpreter imports its package; None if
    it has none."""
    home = Path(interpreter.home)
    paths: dict[str, Path | None] = {}
    packages: dict[str, str] = {}
    for name in names:
        file, colon, _ = name.partition(":")  # `path/to/file.py:Name`
        if not colon and not name.endswith(".py"):  # `package.module.Name`
            packages[name] = name.partition(".")[0]
        elif (home / file).is_file():
            paths[name] = (home / file).resolve()
        else:
            paths[name] = None
    if packages:
        command = [interpreter.executable, "-c", WHERE, *sorted(set(packages.values()))]
        text = output(command, TIMEOUT_S, home) or ""
        # a sitecustomize may print before the answer; without an answer no path is known
        answers = [line for line in text.splitlines() if line.startswith('["effbench"')]
        known: dict[str, str | None] = {}
        if answers:
            _, known = json.loads(answers[-1])
        for name, package in packages.items():
            path = known.get(package)
            paths[name] = Path(path).resolve() if path else None
    return paths
