"""Find out whether a sweep can run again here: its interpreter, and its revision in a worktree of
this repository."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from effbench.cell import Cell, targets_in
from effbench.errors import UsageError
from effbench.folders import cache_home
from effbench.printable import listed
from effbench.sweeping.interpreters import (
    MOST_FILES,
    Interpreter,
    changed_files,
    git_changes,
    git_description,
    output,
)
from effbench.sweeping.interpreters import git as quick_git

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


def current(
    facts: Mapping[str, Any] | None, sweep_id: str, cells: Iterable[Cell], since: dt.datetime
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
    if targets(cells):
        then, now = facts["git_description"], git_description(folder)
        if now != then:
            raise UsageError(
                f"{folder} is at {now} now; the sweep ran {then}{uncommitted_text(folder)}"
            )
        if is_dirty(facts) and facts.get("git_changes") != git_changes(folder):
            names = uncommitted_text(folder)
            raise UsageError(
                f"the uncommitted changes in {folder} differ from those measured{names}"
            )
    given = {name: facts[name] for name in facts["given"]}
    for path in untracked(targets(cells), Interpreter(given.get("python"), str(folder))):
        if path.stat().st_mtime > since.timestamp():
            raise UsageError(
                f"{path} was written after sweep {sweep_id} began, and git does not track it"
            )
    return Interpreter(**given if folder == Path.cwd() else {**given, "folder": str(folder)})


@contextmanager
def origin(
    old: Mapping[str, Any] | None,
    new: Mapping[str, Any],
    here: Interpreter,
    cells: Iterable[Cell],
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
    python = here.python if old["python"] == new["python"] else old["python"]
    other = Interpreter(python, here.folder)
    is_clean = old["git_revision"] is not None and not is_dirty(old) and not is_dirty(new)
    names = [] if is_clean and old["git_revision"] == new["git_revision"] else targets(cells)
    root = Path(git(here.home, "rev-parse", "--show-toplevel") or here.home).resolve()
    paths = sources(names, other)
    changing = [name for name, path in paths.items() if path is None or is_versioned(path, root)]
    if changing:
        with revision(old, here, root, python, changing) as folder:
            yield Interpreter(python, folder)
    elif other != here:
        yield other
    elif paths:
        name, path = next(iter(paths.items()))
        raise UsageError(f"{name} is imported from {path}, which does not depend on the revision")
    elif software:
        raise UsageError(f"the baseline's software is no longer installed here ({software})")
    else:
        for path in untracked(targets(cells), here):
            if is_versioned(path, root):
                raise UsageError(f"git does not track {path}, so the baseline's code is unknown")
        raise UsageError(
            "baseline and sweep have the same interpreter and revision: only the machine can differ"
        )


def uncommitted_text(folder: Path) -> str:
    """Return ` (uncommitted: net.py)` with the changed files of a repository; empty without any."""
    names = changed_files(folder)
    return f" (uncommitted: {listed(names, MOST_FILES)})" if names else ""


def is_dirty(facts: Mapping[str, Any]) -> bool:
    return (facts["git_description"] or "").endswith("-dirty")


@contextmanager
def revision(
    old: Mapping[str, Any], here: Interpreter, root: Path, python: str | None, names: Sequence[str]
) -> Iterator[str]:
    """Yield the folder in which `python` imports these targets from the baseline's revision, in a
    worktree of the repository `root`. Raises UsageError if the revision is unavailable."""
    commit = old["git_revision"]
    if commit is None:
        raise UsageError(
            f"the baseline's folder {old['folder']} is not under version control, so its code is"
            " unknown"
        )
    if is_dirty(old):
        names = f": {old['git_changed_files']}" if old.get("git_changed_files") else ""
        raise UsageError(
            f"the baseline was measured with uncommitted changes ({old['git_description']}{names})"
        )
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
        # also the folders of modules imported from elsewhere in the repository, such as `src` of an
        # editable package
        files = [
            path
            for path in sources(names, here).values()
            if path is not None and is_versioned(path, root)
        ]
        roots = [
            path.parent.parent if path.name == "__init__.py" else path.parent for path in files
        ]
        inside = [path for path in [Path(here.home).resolve(), *roots] if path.is_relative_to(root)]
        folders = dict.fromkeys(place / path.relative_to(root) for path in inside)
        yield within(place.resolve(), folders, python, names)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        git(root, "worktree", "prune")


def untracked(names: Sequence[str], interpreter: Interpreter) -> list[Path]:
    """Return the files of these targets that git does not track; of a package, `__init__.py`
    only."""
    files = [
        path for path in sources(names, interpreter).values() if path is not None and path.is_file()
    ]
    return [
        path for path in files if git(path.parent, "ls-files", "--error-unmatch", path.name) is None
    ]


def is_versioned(path: Path, root: Path) -> bool:
    """Return whether the file is in the folder of the repository, but not in a virtual environment
    in its folder."""
    return path.is_relative_to(root) and {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def within(place: Path, folders: Iterable[Path], python: str | None, names: Sequence[str]) -> str:
    """Return the first of the folders in which all targets are imported from the worktree `place`.
    Raises UsageError without such a folder, because otherwise other code would be measured."""
    reasons = []
    for folder in filter(Path.is_dir, folders):
        paths = sources(names, Interpreter(python, str(folder)))
        outside = {
            name: path
            for name, path in paths.items()
            if path is None or not path.is_relative_to(place)
        }
        if not outside:
            return str(folder.resolve())
        name, path = next(iter(outside.items()))
        reasons.append(f"its {name} {f'would be imported from {path}' if path else 'is missing'}")
    raise UsageError(
        f"the baseline's revision {place.name}:"
        f" {(reasons or ['it does not contain this folder'])[0]}"
    )


def targets(cells: Iterable[Cell]) -> list[str]:
    """Return the import paths that the cells use (`_target_` at any depth, losses), except
    effbench's and torch's."""
    names = {}
    for cell in cells:
        used = [
            *targets_in(cell.model["module"]),
            *targets_in(cell.mode),
            (cell.training or {}).get("loss", "mean"),
        ]
        names |= dict.fromkeys(
            name for name in used if "." in name and not name.startswith(OWN_TARGETS)
        )
    return list(names)


def sources(names: Sequence[str], interpreter: Interpreter) -> dict[str, Path | None]:
    """Return target -> the file or folder from which this interpreter imports its package; None if
    it has none."""
    home = Path(interpreter.home)
    # `path/to/file.py:Name`, not `package.module.Name`
    files = {
        name: home / name.partition(":")[0] for name in names if ":" in name or name.endswith(".py")
    }
    paths: dict[str, Path | None] = {
        name: path if path.is_file() else None for name, path in files.items()
    }
    packages = {name: name.partition(".")[0] for name in names if name not in files}
    if packages:
        command = [interpreter.executable, "-c", WHERE, *sorted(set(packages.values()))]
        text = output(command, TIMEOUT_S, home) or ""
        # a sitecustomize may print before the answer; without an answer no path is known
        lines = [line for line in text.splitlines() if line.startswith('["effbench"')]
        answer = json.loads(lines[-1])[1] if lines else {}
        paths |= {
            name: Path(path) if (path := answer.get(package)) else None
            for name, package in packages.items()
        }
    return {name: path and path.resolve() for name, path in paths.items()}
