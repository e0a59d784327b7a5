"""The git state of a folder: its commit, and changes of code that are not committed.

What effbench itself writes (databases, sites and logs) is no code, although git may
track it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Most changed files that a message names.
MOST_FILES = 5
#: A database, with the files that SQLite keeps next to it, and the log of a sweep.
OWN_FILES = re.compile(r"\.db(-wal|-shm|-journal)?$|(^|/)logs/\d{8}-\d{6}-[0-9a-f]{4}\.log$")
#: List of files in the folder of a site.
SITE_LIST = "site.json"


def git_revision(folder: Path) -> str | None:
    """Return the current commit of the repository that contains `folder`, or None."""
    return git(folder, "rev-parse", "HEAD")


def git_description(folder: Path) -> str | None:
    """Return `git describe` with tags, and `-dirty` if there are uncommitted changes; None without
    a repository."""
    description = git(folder, "describe", "--always", "--tags")
    if description is not None and changed_files(folder):
        return f"{description}-dirty"
    return description


def git_changes(folder: Path) -> str | None:
    """Return a hash of the uncommitted changes in tracked files; None if there are none."""
    names = changed_files(folder)
    if not names:
        return None
    paths = [f":(top,literal){name}" for name in names]
    options = ("--binary", "--no-ext-diff", "--no-color")
    changes = git(folder, "diff", "HEAD", *options, "--", *paths) or ""
    return hashlib.sha256(changes.encode(errors="surrogateescape")).hexdigest()[:16]


def changed_files(folder: Path) -> list[str]:
    """Return the tracked files with uncommitted changes that effbench did not write, relative to
    the repository that contains `folder`."""
    root = git(folder, "rev-parse", "--show-toplevel")
    if root is None:
        return []
    names = git(root, "diff", "HEAD", "--name-only", "--no-ext-diff", "--no-renames", "-z") or ""
    return [name for name in names.split("\0") if name and not is_output(Path(root), name)]


def is_output(root: Path, name: str) -> bool:
    """Return whether effbench wrote the file: a README and hidden files in the folder of a site are
    the user's."""
    if OWN_FILES.search(name):
        return True
    path = root / name
    if path.name.startswith((".", "README")):
        return False
    return any(is_site(folder) for folder in path.parents if folder.is_relative_to(root))


def is_site(folder: Path) -> bool:
    """Return whether the folder has effbench's list of files."""
    try:
        return isinstance(json.loads((folder / SITE_LIST).read_bytes())["files"], list)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def git(folder: str | Path, *args: str, timeout_s: float = 10.0) -> str | None:
    """Return what git prints, None if it fails: a sweep does not need git."""
    return output(["git", "-C", str(folder), *args], timeout_s)


def output(command: Sequence[str], timeout_s: float, folder: Path | None = None) -> str | None:
    """Return what a command prints, None if it fails."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return done.stdout.strip()
