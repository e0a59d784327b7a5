"""Files and folders that commands write. A SQLite database is never replaced."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from effbench.core.errors import UsageError

SQLITE = b"SQLite format 3\x00"
#: Folders that effbench creates unless the user names others.
DEFAULT_FOLDERS = ("results", "dashboards")
#: The `.gitignore` in them.
IGNORE_ALL = "# written by effbench; remove this file to track the outputs here\n*\n"
#: Names of files that are already open; they may be regular files with content.
_OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd", "/proc")


@contextmanager
def output(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream that becomes the file at `path` once it is complete.

    Pipes and devices are written directly. Raises UsageError for a SQLite database, and if the file
    cannot be written.
    """
    try:
        if is_special(path):
            with path.open("ab") as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))  # a symbolic link must stay a link
        create_folder(target.parent)
        with replacing(target) as file:
            yield file
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream whose file replaces the one at `path` atomically; an error leaves `path`
    unchanged."""
    refuse_database(path)
    part = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.part")
    try:
        # in a shared folder, another user must not be able to put a link there
        with part.open("xb") as stream:
            yield stream
        if path.exists():
            shutil.copymode(path, part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def refuse_database(path: Path) -> None:
    """Raise UsageError if `path` is a SQLite database."""
    if not path.is_file():
        return
    with suppress(PermissionError), path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            raise UsageError(
                f"{path} is a SQLite database, which effbench does not overwrite; name another file"
            )


def create_folder(folder: Path) -> None:
    """Create a folder for outputs unless it exists. In a default folder that is new, git ignores
    everything: databases and sites are no source."""
    defaults = [Path(name).absolute() for name in DEFAULT_FOLDERS]
    containing = [path for path in defaults if folder.absolute().is_relative_to(path)]
    new = [path for path in containing if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in new:
        with suppress(FileExistsError), (path / ".gitignore").open("x", encoding="utf-8") as file:
            file.write(IGNORE_ALL)


def is_special(path: Path) -> bool:
    """Return whether `path` is written directly: a pipe, a device, or a name such as /dev/stdout or
    /dev/fd/3."""
    with suppress(OSError):
        return any(path.is_relative_to(name) for name in _OPEN_FILES) or (
            path.exists() and not path.is_file()
        )
    return False
