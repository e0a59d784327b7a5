"""Files and folders that commands write: which existing ones may be replaced, and how."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from effbench.core.errors import UsageError

SQLITE = b"SQLite format 3\x00"
#: SQLite application id of whole sweeps written by `effbench export`
EXPORT_ID = 0x65666662
#: Folders that effbench creates unless the user names others.
DEFAULT_FOLDERS = ("results", "dashboards")
#: The `.gitignore` in them.
IGNORE_ALL = "# written by effbench; remove this file to track the outputs here\n*\n"
#: Names of files that are already open; they may be regular files with content.
_OPEN_FILES = ("/dev/stdout", "/dev/stderr", "/dev/fd", "/proc")
#: Number of first bytes that tell an earlier output from another file.
_HEAD = 6


@contextmanager
def output(path: Path, *, database: Path | None = None, force: bool = False) -> Iterator[IO[bytes]]:
    """Yield a stream that becomes the file at `path` once it is complete.

    An existing file must begin as the new one does, unless `force`. `database`: the database in
    use. Pipes and devices are written directly. Raises UsageError if the file must not be replaced
    or cannot be written.
    """
    try:
        refuse_database(path, database)
        if is_special(path):
            with path.open("ab") as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))  # a symbolic link must stay a link
        create_folder(target.parent)
        with replacing(target) as file:
            yield file
            file.flush()
            if not force and _head(target) not in (b"", _head(Path(file.name))):
                hint = "name another file or use --force"
                raise UsageError(
                    f"{path} exists and is not an earlier output of this command; {hint}"
                )
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def _head(path: Path) -> bytes:
    """Return the first bytes of a file; none if there is no such file."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(_HEAD)


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


def refuse_database(path: Path, database: Path | None = None) -> None:
    """Raise UsageError if `path` is a SQLite database, or belongs to the database in use, at
    `database`."""
    if database is not None and belongs_to(path, database):
        raise UsageError(f"{path} belongs to the database in use ({database}); name another file")
    # only now, because opening and closing the database in use would release the locks that SQLite
    # holds on it
    if path.is_file():
        with suppress(PermissionError), path.open("rb") as file:
            head = file.read(100)
            if head.startswith(SQLITE) and not _is_export(head):
                raise UsageError(
                    f"{path} is a SQLite database, which effbench does not overwrite; name another"
                    " file"
                )


def belongs_to(path: Path, database: Path) -> bool:
    """Return whether `path` is this SQLite database or one of the files that SQLite keeps next to
    it."""
    for ending in ("", "-wal", "-shm", "-journal"):
        used = Path(os.path.realpath(database) + ending)
        if os.path.realpath(path) == str(used):
            return True
        if path.exists() and used.exists() and path.samefile(used):
            return True
    return False


def _is_export(head: bytes) -> bool:
    """Return whether a file is an unused export of whole sweeps; writing to it would enable
    write-ahead logging."""
    return (
        head.startswith(SQLITE) and head[18:20] == b"\1\1" and head[68:72] == EXPORT_ID.to_bytes(4)
    )


def require_folder(folder: Path, is_ours: Callable[[Path], bool], force: bool) -> None:
    """Raise UsageError if `folder` has content other than README.md and hidden files, unless
    `force` or `is_ours`."""
    with suppress(OSError):  # writing to it will fail as well
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder with --out")
    if force or is_ours(folder):
        return
    with suppress(OSError):  # the folder does not exist yet, or writing to it will fail as well
        if any(
            entry.name != "README.md" and not entry.name.startswith(".")
            for entry in folder.iterdir()
        ):
            hint = "name another folder with --out or use --force"
            raise UsageError(
                f"{folder} is not empty and not an earlier output of this command; {hint}"
            )


def create_folder(folder: Path) -> None:
    """Create a folder for outputs unless it exists. In a default folder that is new, git ignores
    everything: databases and sites are no source."""
    defaults = [Path(name).absolute() for name in DEFAULT_FOLDERS]
    folders = (folder.absolute(), *folder.absolute().parents)
    new = [path for path in folders if path in defaults and not path.exists()]
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
