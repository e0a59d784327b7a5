"""The connection behind `Store`: opening, creating, transactions, and errors told in a line or two."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.errors import StoreError
from effbench.store import connect


class Database:
    """An open database. Use `Store`, which says what can be done with it."""

    def __init__(self, engine: sa.Engine, name: str, *, writable: bool) -> None:
        """Use `open`."""
        self._engine = engine
        self._writer = engine.execution_options(**{connect.WRITE_OPTION: True})
        self._lock = threading.Lock()
        self._writable = writable
        self.name = name

    @classmethod
    def open(cls, url: str | os.PathLike[str], *, mode: Literal["read", "write"] = "read") -> Self:
        """Open the database at `url`: a SQLAlchemy URL or the path of a SQLite file.

        "write" makes a missing SQLite file, its folder and the schema of an empty database; "read" changes nothing,
        and works where it may not write. Raises StoreError for what cannot be opened, SchemaError for an older or
        newer schema.
        """
        if mode not in ("read", "write"):
            raise ValueError(f"mode must be 'read' or 'write', not {mode!r}")
        parsed = connect.parse_url(url)
        name = connect.describe(parsed)
        write = mode == "write"
        engine = connect.connect(parsed, write=write, create=write)
        store = cls(engine, name, writable=write)
        try:
            store._prepare(write)
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self, write: bool) -> None:
        with self._reading() as connection:
            current = connect.revision(connection)
        if current is None:
            if not write:
                raise StoreError(f"{self.name} is empty; `effbench -m mode=eager,default db={self.name}` fills it")
            current = self._create()
        connect.require_head(current, self.name)
        if write and self._engine.dialect.name == "sqlite":
            with self._translated():
                connect.use_wal(self._engine)

    def _create(self) -> str:
        from effbench.store.migrate import migrate

        with self._writing() as connection:
            if connection.dialect.name == "postgresql":
                # two processes that both found it empty: the second waits, then finds the schema
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(20823501)"))
            if connect.revision(connection) is None:
                migrate(connection)
            current = connect.revision(connection)
        assert current is not None
        return current

    def is_moved(self) -> bool:
        """Return whether the path no longer leads to the file that was opened for writing (SQLite only)."""
        file, opened = self._engine.get_execution_options().get(connect.FILE_OPTION, (None, None))
        return opened is not None and connect.identity(file) != opened

    def rescue(self, suffix: str) -> Path:
        """Save all that a moved, deleted or replaced database holds in a new file, and return its path.

        It is next to the old path, or in a new temporary folder. Raises StoreError if neither can be written.
        """
        file: Path = self._engine.get_execution_options()[connect.FILE_OPTION][0]
        name = f"{file.stem}.recovered-{suffix}.db"
        with self._lock, self._engine.connect() as connection:
            try:
                copy = _copy(connection, file.with_name(name))
            except (OSError, sqlite3.Error):
                try:
                    copy = _copy(connection, Path(tempfile.mkdtemp(prefix="effbench-")) / name)
                except (OSError, sqlite3.Error) as error:
                    raise StoreError(f"{connect.moved(self.name)}, and no copy of it can be saved: {error}") from error
        _remove_log(file)
        return copy

    def close(self) -> None:
        """Close every connection. The Store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def upgrade(url: str | os.PathLike[str]) -> tuple[str | None, str]:
        """Bring an existing database to this version's schema; returns its revision before and after."""
        from effbench.store.upkeep import upgrade

        return upgrade(url)

    @staticmethod
    def check(url: str | os.PathLike[str]) -> list[str]:
        """What is wrong with the database, one line each; empty where all is well."""
        from effbench.store.upkeep import check

        return check(url)

    # --- for those that build on it ---

    def _rows(self, query: sa.Select) -> list[dict[str, Any]]:
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if not self._writable:
            raise StoreError(f"{self.name} is open for reading only")
        with self._lock, self._translated(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise connect.explain(error, self.name) from error

    def _insert(self, table: sa.Table) -> Any:
        if self._engine.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert
        else:
            from sqlalchemy.dialects.sqlite import insert
        return insert(table)


def _copy(connection: sa.Connection, target: Path) -> Path:
    """Copy the database of an open connection, wherever its file is, to a new file."""
    target.open("x").close()
    try:
        with closing(sqlite3.connect(target)) as copy:
            connection.connection.driver_connection.backup(copy)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


def _remove_log(file: Path) -> None:
    """Remove this process's log: SQLite would take it for that of any file that is put where the database was."""
    try:
        ours = {connect.identity(descriptor) for descriptor in Path("/proc/self/fd").iterdir()}
    except OSError:  # not Linux
        return
    for log in (file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
        if (found := connect.identity(log)) and found in ours:
            log.unlink(missing_ok=True)
