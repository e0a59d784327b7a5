"""Facts about where a sweep was started that do not define its environment: git, host, user's command."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import effbench
from effbench.store import liveness


def facts() -> dict[str, Any]:
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "cpu_count": os.cpu_count(),
        "effbench": effbench.__version__,
        "executable": sys.executable,
        "folder": str(Path.cwd()),
        "process": liveness.identity(),
    }


def cache_home() -> Path:
    """effbench's own part of the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) / "effbench").absolute()


def git_revision(folder: Path) -> str | None:
    """The commit of the repository that holds `folder`, or None."""
    return _git(folder, "rev-parse", "HEAD")


def git_description(folder: Path) -> str | None:
    """`git describe` with tags, `-dirty` where the working tree was changed, or None."""
    return _git(folder, "describe", "--always", "--tags", "--dirty")


def git_changes(folder: Path) -> str | None:
    """A hash of what differs from the commit in tracked files, None where nothing does: two dirty trees of one commit
    have the same description."""
    found = _git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color")
    return hashlib.sha256(found.encode(errors="surrogateescape")).hexdigest()[:16] if found else None


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args], capture_output=True, text=True, errors="surrogateescape", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):  # no git here: a sweep does not need one
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
