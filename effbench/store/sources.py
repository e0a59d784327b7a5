"""What whole sweeps can be read from: files, folders of files, Parquet folders, standard input, other databases."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

from effbench.errors import SchemaError, StoreError, UsageError
from effbench.store import connect
from effbench.store.bundle import FORMAT, Record
from effbench.store.bundle_files import read_lines
from effbench.store.bundle_parquet import MANIFEST, read_folder
from effbench.store.collect import collect
from effbench.store.schema import HEAD_REVISION, REVISIONS
from effbench.store.store import Store
from effbench.store.upkeep import upgrade

STANDARD_INPUT = "-"
LINES = (".jsonl", ".jsonl.gz")
_SQLITE, _PARQUET = b"SQLite format 3\x00", b"PAR1"


def found(source: str) -> list[str]:
    """The sources that a word of the command line means: a folder of files is each of them, in the order of names.

    Raises UsageError for what is not there, or holds nothing that can be read.
    """
    if source == STANDARD_INPUT or "://" in source:
        return [source]
    path = Path(source).expanduser()
    if not source.strip() or not path.exists():
        raise UsageError(f"no file, folder or database {source or repr(source)}")
    if not path.is_dir() or (path / MANIFEST).is_file():
        return [str(path)]
    inside = [
        entry
        for entry in sorted(path.iterdir())
        if (entry.is_file() and _is_lines(entry)) or (entry / MANIFEST).is_file()
    ]
    if not inside:
        unfinished = " (an export that did not end?)" if (path / "sweep.parquet").is_file() else ""
        if any(entry.suffix in (".db", ".sqlite") for entry in path.iterdir()):
            unfinished += "; a database is named itself"
        raise UsageError(
            f"{source} holds neither JSON lines (*.jsonl, *.jsonl.gz) nor Parquet folders with their {MANIFEST}"
            + unfinished
        )
    return [str(entry) for entry in inside]


@contextmanager
def opened(
    source: str, into: Store, *, sweeps: Sequence[str] = (), samples: bool = True, option: str = "--db"
) -> Iterator[Iterator[Record]]:
    """The records of one source. `sweeps` (references) chooses from a database; files are taken whole. `option`: by
    which `into` was named.

    Raises StoreError or UsageError for what cannot be read.
    """
    path = None if "://" in source or source == STANDARD_INPUT else Path(source)
    if "://" in source or (path is not None and path.is_file() and _starts(path) == _SQLITE):
        with _database(source) as store:
            if _same(store, into):
                raise UsageError(f"{store.name} is the database to import into; name another with {option}")
            ids = [store.find_sweep(reference).id for reference in sweeps]
            ids = list(dict.fromkeys(ids)) if sweeps else [sweep.id for sweep in reversed(store.sweeps())]
            with closing(collect(store, ids, samples=samples)) as records:
                yield records
        return
    if sweeps:
        raise UsageError(f"--sweep chooses from a database; of {source} all sweeps are imported")
    if path is not None and path.is_dir():
        with closing(read_folder(path)) as records:
            yield records
        return
    with _stream(path) as stream, closing(read_lines(stream, source if path else "standard input")) as records:
        yield records


@contextmanager
def _stream(path: Path | None) -> Iterator[IO[bytes]]:
    """A stream that can be read twice: what cannot is copied first, so that no lock waits for whoever writes it."""
    with ExitStack() as stack:
        try:
            file = sys.stdin.buffer if path is None else stack.enter_context(path.open("rb"))
            if path is None or not path.is_file():
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                file = copy
        except OSError as error:
            raise UsageError(f"cannot read {path or 'standard input'}: {error.strerror or error}") from error
        yield file


def _is_lines(path: Path) -> bool:
    """By its name, or by how it begins: a name is free."""
    if path.name.endswith(LINES):
        return True
    try:
        with path.open("rb") as file:
            return file.read(64).replace(b" ", b"").startswith(f'{{"format":"{FORMAT}"'.encode())
    except OSError:
        return False  # not ours to read


def _starts(path: Path) -> bytes:
    """The first bytes, as far as they say what a file is."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if start.startswith(_PARQUET):
        raise StoreError(f"{path} is one Parquet table; name the folder of all of them, with its {MANIFEST}")
    return start


@contextmanager
def _database(url: str) -> Iterator[Store]:
    """Another database; one of an older schema is read through a copy that is brought up to date."""
    with ExitStack() as stack:
        try:
            store = Store.open(url, mode="read")
        except SchemaError:
            parsed = connect.parse_url(url)
            if parsed.get_backend_name() != "sqlite":
                raise
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="effbench-"))
            copy = Path(folder) / "copy.db"
            if not _copy_older(url, copy):
                raise
            upgrade(copy)
            store = Store.open(copy, mode="read")
            store.name = connect.describe(parsed)
        stack.callback(store.close)
        yield store


def _copy_older(url: str, copy: Path) -> bool:
    """Copy a SQLite database if it is older than this effbench; says whether."""
    parsed = connect.parse_url(url)
    engine = connect.connect(parsed, write=False)
    try:
        with engine.connect() as connection:
            current = connect.revision(connection)
            if current not in REVISIONS or current == HEAD_REVISION:
                return False
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            with closing(sqlite3.connect(copy)) as target:
                raw.rollback()  # the copy takes locks of its own
                raw.backup(target)
            return True
    finally:
        engine.dispose()


def _same(a: Store, b: Store) -> bool:
    if a.name == b.name:
        return True
    first, second = Path(a.name), Path(b.name)
    try:
        return first.samefile(second)
    except OSError:
        return False
