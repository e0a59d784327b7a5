"""Can what a baseline ran still be run here? Its interpreter, and its revision in a worktree of this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from effbench.cell import Cell
from effbench.errors import UsageError
from effbench.regression.targets import sources, targets
from effbench.sweep.interpreters import Interpreter, cache_home, git_changes, git_description

GIT_TIMEOUT_S = 120.0
DIRTY = "-dirty"


@dataclass(frozen=True)
class Origin:
    """`interpreter`: runs what the baseline ran, None where that is impossible or pointless, and `why`. `revision`: the
    commit that its folder is a worktree of, where one was made."""

    interpreter: Interpreter | None
    why: str | None = None
    revision: str | None = None


def current(
    facts: Mapping[str, Any] | None, sweep_id: str, cells: Iterable[Cell]
) -> tuple[Interpreter, str | None]:  # fmt: skip
    """The interpreter that runs these cells of the sweep with these facts again, and what of their code has changed
    there since.

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
    return Interpreter(**given), moved(facts) if targets(cells) else None


def moved(facts: Mapping[str, Any]) -> str | None:
    """How the folder differs from what the sweep with these facts ran, None where it does not."""
    folder, then = Path(facts["folder"]), facts["git_description"]
    now = git_description(folder)
    if now != then:
        return f"{folder} is at {now} now; the sweep ran {then}"
    if is_dirty(facts) and "git_changes" not in facts:
        return f"the sweep ran {then}, and does not say with which changes"
    if is_dirty(facts) and facts["git_changes"] != git_changes(folder):
        return f"the changes in {folder} that were not committed are others now than those that the sweep ran"
    return None


@contextmanager
def origin(
    old: Mapping[str, Any] | None, new: Mapping[str, Any], here: Interpreter, cells: Iterable[Cell],
    software: str | None = None,
) -> Iterator[Origin]:  # fmt: skip
    """What runs the baseline's side beside `here`, which runs the new one; a worktree lives as long as the context.

    `old`, `new`: what the sweeps say of their interpreters (`host["environments"]`); `software`: what of it differs
    between them, as text.
    """
    if not old:
        yield Origin(None, "the baseline does not say what it was run with")
        return
    if not os.access(old["python"], os.X_OK):
        yield Origin(None, f"the baseline's interpreter {old['python']} is not here")
        return
    python = here.python if old["python"] == new["python"] else old["python"]
    names = targets(cells)
    if not names or same_revision(old, new):
        found = Interpreter(python, here.folder)
        if found != here:
            yield Origin(found)
        elif software:
            yield Origin(None, f"the software that the baseline ran with is not here any more ({software})")
        else:
            why = "baseline and sweep have the same interpreter and revision: only the machine can differ"
            yield Origin(None, why)
        return
    found = sources(names, Interpreter(python, here.folder))
    root = Path(git(here.home, "rev-parse", "--show-toplevel") or here.home).resolve()
    changing = [name for name, path in found.items() if path is None or is_versioned(path, root)]
    if not changing:
        name, path = next(iter(found.items()))
        why = f"{name} is imported from {path}, which no revision changes"
        yield Origin(None, why) if python == here.python else Origin(Interpreter(python, here.folder))
        return
    with revision(old, here, python, changing) as (folder, why):
        yield Origin(None, why) if folder is None else Origin(Interpreter(python, folder), revision=old["git_revision"])


def same_revision(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return old["git_revision"] is not None and all(
        old[name] == new[name] for name in ("git_revision", "git_description")
    ) and not is_dirty(old)  # fmt: skip


def is_dirty(facts: Mapping[str, Any]) -> bool:
    return (facts["git_description"] or "").endswith(DIRTY)


@contextmanager
def revision(
    old: Mapping[str, Any], here: Interpreter, python: str | None, names: Sequence[str]
) -> Iterator[tuple[str | None, str | None]]:
    """The folder in which `python` imports these targets from the baseline's revision, or why there is none."""
    commit = old["git_revision"]
    if commit is None:
        folder = old["folder"]
        if folder != here.home and Path(folder).is_dir():
            # another checkout, which stands beside this one
            yield within(Path(folder).resolve(), [Path(folder)], python, names)
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
        root = Path(top).resolve()
        rest = Path(here.home).resolve().relative_to(root)
        if not (place / rest).is_dir():
            yield None, f"the baseline's revision {commit[:12]} has no folder {rest}"
            return
        yield within(place.resolve(), [place / rest, *roots(names, here, root, place)], python, names)
    finally:
        shutil.rmtree(own, ignore_errors=True)
        git(top, "worktree", "prune")


def roots(names: Sequence[str], here: Interpreter, root: Path, place: Path) -> list[Path]:
    """The worktree's folders in which modules lie that are imported from elsewhere in the repository: `src`, where the
    package is installed as editable."""
    found = [path.parent.parent if path.name == "__init__.py" else path.parent
             for path in sources(names, here).values() if path is not None and is_versioned(path, root)]  # fmt: skip
    return [place / path.relative_to(root) for path in dict.fromkeys(found) if path.is_relative_to(root)]


def is_versioned(path: Path, root: Path) -> bool:
    """In the repository, and not in a virtual environment that lies in its folder."""
    return path.is_relative_to(root) and {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def within(
    place: Path, folders: Iterable[Path], python: str | None, names: Sequence[str]
) -> tuple[str | None, str | None]:
    """The first of the folders in which everything is imported from the worktree `place`; or why there is none."""
    why = None
    for folder in folders:
        if not folder.is_dir():
            continue
        found = sources(names, Interpreter(python, str(folder)))
        strange = [(name, path) for name, path in found.items() if path is None or not path.is_relative_to(place)]
        if not strange:
            return str(folder.resolve()), None
        name, path = strange[0]
        where = "is not in it" if path is None else f"would be imported from {path}"
        why = why or f"{name} of the baseline {where}"
    return None, why


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
