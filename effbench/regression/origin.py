"""Can what a baseline ran still be run here? Its interpreter, and its revision in a worktree of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.cell import Cell
from effbench.errors import UsageError
from effbench.sweeping.host import cache_home, git_description
from effbench.sweeping.interpreters import Interpreter

#: Targets that come with effbench: what they do does not depend on the working directory.
OWN_TARGETS = ("effbench.models.", "effbench.modes.", "torch.", "torchvision.")
GIT_TIMEOUT_S = 120.0
DIRTY = "-dirty"


@dataclass(frozen=True)
class Origin:
    """`interpreter`: runs what the baseline ran, None where that is impossible or pointless, and `why`. `revision`: the
    commit that its folder is a worktree of, where one was made."""

    interpreter: Interpreter | None
    why: str | None = None
    revision: str | None = None


def current(facts: Mapping[str, Any] | None, sweep_id: str) -> tuple[Interpreter, str | None]:
    """The interpreter that runs again what the sweep with these facts ran, and what has changed there since.

    Raises UsageError where it cannot be run here.
    """
    if not facts:
        raise UsageError(f"sweep {sweep_id} does not say what it was run with: it cannot be confirmed; leave --confirm")
    folder = Path(facts["folder"])
    if not folder.is_dir():
        raise UsageError(f"sweep {sweep_id} was run in {folder}, which is not here: it cannot be confirmed here")
    if not os.access(facts["python"], os.X_OK):
        raise UsageError(f"sweep {sweep_id} was run by {facts['python']}, which is not here: it cannot be confirmed")
    given = {name: facts[name] for name in facts["given"]}
    if folder != Path.cwd():
        given["folder"] = str(folder)
    now = git_description(folder)
    moved = (
        None
        if now == facts["git_description"]
        else f"{folder} is at {now} now; the sweep ran {facts['git_description']}"
    )
    return Interpreter(**given), moved


@contextmanager
def origin(
    old: Mapping[str, Any] | None, new: Mapping[str, Any], here: Interpreter, cells: Iterable[Cell]
) -> Iterator[Origin]:
    """What runs the baseline's side beside `here`, which runs the new one; a worktree lives as long as the context.

    `old`, `new`: what the sweeps say of their interpreters (`host["environments"]`).
    """
    if not old:
        yield Origin(None, "the baseline does not say what it was run with")
        return
    if not os.access(old["python"], os.X_OK):
        yield Origin(None, f"the baseline's interpreter {old['python']} is not here")
        return
    python = here.python if old["python"] == new["python"] else old["python"]
    if not any(uses_folder(cell) for cell in cells) or same_revision(old, new):
        found = Interpreter(python, here.folder)
        same = Origin(None, "baseline and sweep have the same interpreter and revision: only the machine can differ")
        yield same if found == here else Origin(found)
        return
    with revision(old, here) as (folder, why):
        yield Origin(None, why) if folder is None else Origin(Interpreter(python, folder), revision=old["git_revision"])


def uses_folder(cell: Cell) -> bool:
    """Does the cell run code of the user's, which may lie in the working directory?"""
    targets = [cell.model["module"]["_target_"], cell.mode["_target_"], (cell.training or {}).get("loss", "mean")]
    return any("." in target and not target.startswith(OWN_TARGETS) for target in targets)


def same_revision(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old["git_revision"] is not None and all(
        old[name] == new[name] for name in ("git_revision", "git_description")
    ) and not is_dirty(old)  # fmt: skip


def is_dirty(facts: Mapping[str, Any]) -> bool:
    return (facts["git_description"] or "").endswith(DIRTY)


@contextmanager
def revision(old: Mapping[str, Any], here: Interpreter) -> Iterator[tuple[str | None, str | None]]:
    """The folder of the baseline's revision, or why there is none."""
    commit = old["git_revision"]
    if commit is None:
        folder = old["folder"]
        if folder != here.home and Path(folder).is_dir():
            yield folder, None  # another checkout, which stands beside this one
        else:
            yield None, f"the baseline's folder {folder} is under no version control: what it held is not known"
        return
    if is_dirty(old):
        yield None, f"the baseline was measured with changes that were not committed ({old['git_description']})"
        return
    top = git(here.home, "rev-parse", "--show-toplevel")
    if top is None or git(top, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        yield None, (f"the baseline's revision {commit[:12]} is not in this repository "
                     "(of a shallow clone: git fetch --unshallow)")  # fmt: skip
        return
    own = cache_home() / "revisions" / str(os.getpid())
    place = own / commit[:12]
    try:
        own.mkdir(parents=True, exist_ok=True)
        if git(top, "worktree", "add", "--detach", "--force", str(place), commit) is None:
            yield None, f"git cannot make a worktree of the baseline's revision {commit[:12]}"
            return
        folder = place / Path(here.home).resolve().relative_to(Path(top).resolve())
        if folder.is_dir():
            yield str(folder.resolve()), None
        else:
            yield None, f"the baseline's revision {commit[:12]} has no folder {folder.relative_to(place)}"
    finally:
        shutil.rmtree(own, ignore_errors=True)
        git(top, "worktree", "prune")


def git(folder: str, *args: str) -> str | None:
    """What git says, None where it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=GIT_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
