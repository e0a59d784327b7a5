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
from dataclasses import dataclass
from pathlib import Path

from effbench.core.printable import listed

#: Most changed files that a message names.
MOST_FILES = 5
#: A database, with the files that SQLite keeps next to it, and the log of a sweep.
OWN_FILES = re.compile(r"\.db(-wal|-shm|-journal)?$|(^|/)logs/\d{8}-\d{6}-[0-9a-f]{4}\.log$")
#: List of files in the folder of a site.
SITE_LIST = "site.json"


@dataclass(frozen=True)
class GitState:
    """The state of a folder's repository; all None without a repository or a commit.

    `revision`: its commit. `description`: `git describe` with tags, and `-dirty` if there are
    uncommitted changes in tracked files. `changed_files`: the first of these files, relative to
    the repository. `changes`: a hash of their changes.
    """

    revision: str | None = None
    description: str | None = None
    changed_files: str | None = None
    changes: str | None = None


def git_state(folder: str | Path) -> GitState:
    """Return the state of the repository that contains `folder`."""
    found = git(folder, "rev-parse", "--show-toplevel", "HEAD")
    if found is None:
        return GitState()
    root, _, revision = found.rpartition("\n")
    description = git(root, "describe", "--always", "--tags") or revision
    options = ("--no-ext-diff", "--no-renames", "--no-color")
    changed = git(root, "diff", "HEAD", "--name-only", "-z", *options) or ""
    names = [name for name in changed.split("\0") if name and not is_output(Path(root), name)]
    if not names:
        return GitState(revision, description)
    paths = [f":(top,literal){name}" for name in names]
    changes = git(root, "diff", "HEAD", "--binary", *options, "--", *paths) or ""
    digest = hashlib.sha256(changes.encode(errors="surrogateescape")).hexdigest()[:16]
    return GitState(revision, f"{description}-dirty", listed(names, MOST_FILES), digest)


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
        return "files" in json.loads((folder / SITE_LIST).read_bytes())
    except (OSError, ValueError, TypeError):
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
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
