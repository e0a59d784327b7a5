"""Files and folders that commands write: which existing ones may be replaced, and how."""

from __future__ import annotations

import gzip
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

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
#: Bytes of an output that are searched for its columns or keys.
_HEAD = 20_000


@contextmanager
def output(
    path: Path, names: set[str], *, database: Path | None = None, force: bool = False
) -> Iterator[IO[bytes]]:
    """Yield a stream that becomes the file at `path` once it is complete, compressed if `path` ends
    in `.gz`.

    An existing file must have similar `names` (see `names_in`), unless `force`. `database`: the
    database in use. Pipes and devices are written directly. Raises UsageError if the file must not
    be replaced or cannot be written.
    """
    try:
        refuse_database(path, database)
        if is_special(path):
            with path.open("ab") as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))  # a symbolic link must stay a link
        if not force and target.exists() and target.stat().st_size and not _is_like(target, names):
            hint = "name another file or use --force"
            raise UsageError(f"{path} exists and is not an earlier output of this command; {hint}")
        create_folder(target.parent)
        with replacing(target) as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6) as packed:
                    yield cast(IO[bytes], packed)
            else:
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


def names_in(stream: IO[bytes]) -> set[str]:
    """Return names that identify an output: columns of CSV or Parquet, JSON keys, an XML tag, or
    `SQLite`."""
    head = stream.read(_HEAD)
    if head.startswith(b"PAR1"):
        import pyarrow.parquet

        return set(pyarrow.parquet.read_schema(stream).names)
    if _is_export(head):
        return {"SQLite"}
    text = head.decode(errors="replace")
    first, _, rest = text.partition("\n")
    if first.startswith(("{", "[")):
        return set(re.findall(r'"(\w+)":', text))
    if first.startswith("<?xml"):
        return {" ".join(rest.split()[:2])}
    return set(first.split(","))


def _is_like(path: Path, names: set[str]) -> bool:
    """Return whether at least half of the names are in both files. Names vary between sweeps and
    versions."""
    with suppress(OSError, EOFError, ValueError, ImportError, zlib.error):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            old = names_in(cast(IO[bytes], file))
        return 2 * len(old & names) >= max(len(old), len(names), 1)
    return False
