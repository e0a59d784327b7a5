"""Read whole sweeps from a database that may be untrusted.

It is opened for reading only, its own code never runs, only known columns are read, and every row
is checked (`soundness`); readers check the content of samples.
"""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.errors import StoreError
from effbench.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.marks import NOISY, marked_values
from effbench.store.schema import EARLIER, METADATA, REVISIONS, SWEEP, TRIAL
from effbench.store.soundness import raw, read_anything, sound_row, typed

#: rows in memory at a time
CHUNK = 1000
#: first bytes of files
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\0"
#: name of a source's file on a connection to another SQLite file
ATTACHED = "arriving"


class RefusedError(StoreError):
    """A sweep is damaged or contradicts the database. Nothing was written."""


@dataclass
class Source:
    """A database to read from. Columns that an earlier version lacks become NULL."""

    connection: sa.Connection
    name: str
    _attached_to: sqlite3.Connection | None = None

    @cached_property
    def columns(self) -> dict[str, list[str]]:
        """Table -> its columns in this database."""
        inspector = sa.inspect(self.connection)
        tables = {*inspector.get_table_names()} & {*METADATA.tables}
        return {
            table: [column["name"] for column in inspector.get_columns(table)] for table in tables
        }

    def has(self, table: sa.Table) -> bool:
        """Return whether the table has all its required columns: in an earlier version it may have
        others."""
        names = self.columns.get(table.name, ())
        return all(column.nullable or column.name in names for column in table.columns)

    def attach(self, connection: sa.Connection) -> None:
        """Let a connection to another SQLite file read this one as schema ATTACHED, until that
        connection closes."""
        if self._attached_to is not (raw_connection := connection.connection.driver_connection):
            file = Path(self.connection.engine.url.database).absolute()
            raw_connection.execute(f"ATTACH ? AS {ATTACHED}", (f"{file.as_uri()}?mode=ro",))
            read_anything(connection)
            self._attached_to = raw_connection

    def rows(self, table: sa.Table, *where: Any) -> Iterator[dict[str, Any]]:
        """Yield rows by primary key. Raises RefusedError for the first invalid row."""
        if not self.has(table):
            return
        query = raw(table, self.columns[table.name]).where(*where).order_by(*table.primary_key)
        for row in self.fetch(query):
            values = self.marked(row._mapping) if table is TRIAL else row._mapping
            try:
                yield sound_row(table, values)
            except ValueError as error:
                raise RefusedError(f"{self.name}: {error}") from error

    def marked(self, trial: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row of `trial`; if an earlier version recorded it as `noisy`, as this version
        would record it.

        Raises RefusedError if the database fails.
        """
        if "disturbance" in self.columns[TRIAL.name] or trial["status"] != NOISY:
            return trial
        try:
            return {**trial, **marked_values(self.connection, trial)}
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise RefusedError(str(connect.explain(error, self.name))) from error

    def fetch(self, query: sa.Select) -> Iterator[sa.Row]:
        """Yield rows without converting their values. Raises RefusedError if the database fails."""
        try:
            for rows in self.connection.execute(
                query.execution_options(yield_per=CHUNK)
            ).partitions():
                yield from rows
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise RefusedError(str(connect.explain(error, self.name))) from error

    def sweep_ids(self, references: Sequence[str] = ()) -> list[str]:
        """Return the ids of the referenced sweeps, each once; without references those of all
        sweeps, oldest first.

        Raises NothingFoundError if there are none.
        """
        names = [
            field.name
            for field in fields(sweeps.KnownSweep)
            if field.name in self.columns[SWEEP.name]
        ]
        query = raw(SWEEP, names)
        rows = list(self.fetch(query.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())))
        if rows and not references:
            return [row.id for row in reversed(rows)]
        known = []
        for row in rows:
            with suppress(ValueError):  # an invalid row cannot be referenced
                known.append(sweeps.KnownSweep(**typed(SWEEP, row._mapping, row._fields)))
        return list(
            dict.fromkeys(
                sweeps.resolve(reference, known, self.name) for reference in references or ["last"]
            )
        )


@contextmanager
def opened(url: str) -> Iterator[Source]:
    """Open a database, a file compressed by gzip or standard input (`-`) for reading whole sweeps.

    Raises StoreError for a file that is not a valid effbench database, SchemaError for one of a
    newer version.
    """
    with ExitStack() as stack:
        folder = ""  # of a copy
        if url == "-":
            url, folder = _copied(sys.stdin.buffer, "standard input", stack)
        if _head(url).startswith(GZIP):
            url, folder = _copied(stack.enter_context(gzip.open(url)), Path(url).name, stack)
        if not SQLITE.startswith(_head(url)):
            name = url.removeprefix(folder)
            raise StoreError(
                f"{name} is not a SQLite database; import reads files of `effbench export --whole`"
            )
        try:
            connection = stack.enter_context(connect.connected(url, untrusted=True))
            name = connect.name_of(connection)
            if connection.dialect.name == "sqlite":
                _make_safe(connection, name)
            current = connect.revision(connection)
            if current is None:
                raise StoreError(f"{name} is empty")
            if current not in (*EARLIER, *REVISIONS):
                connect.require_head(current, name)
        except StoreError as error:
            raise type(error)(str(error).replace(folder, "")) from error
        yield Source(connection, name.removeprefix(folder))


def _head(url: str) -> bytes:
    """Return the first bytes of a file; none if there is no such file or it cannot be read, as
    connecting explains."""
    with suppress(OSError):
        if Path(url).is_file():  # and not a pipe, whose other end may never write
            with Path(url).open("rb") as file:
                return file.read(len(SQLITE))
    return b""


def _copied(stream: IO[bytes], name: str, stack: ExitStack) -> tuple[str, str]:
    """Copy a stream to a temporary file with this name; return its path and its folder, with a
    slash."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="effbench-"))
    try:
        with Path(folder, name).open("wb") as file:
            shutil.copyfileobj(stream, file)
            is_empty = not file.tell()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise StoreError(f"{name} is damaged ({error}); nothing was imported") from error
    except OSError as error:
        how = "set TMPDIR to a folder with free space"
        raise StoreError(f"{name} cannot be copied to {folder}: {error.strerror}; {how}") from error
    if is_empty:
        raise StoreError(f"{name} is empty; the export that wrote it may have failed")
    return f"{folder}/{name}", f"{folder}/"


def _make_safe(connection: sa.Connection, name: str) -> None:
    """Raise StoreError for a SQLite file that is damaged, or whose known tables run code when they
    are read."""
    read_anything(connection)
    damage = connection.exec_driver_sql("PRAGMA quick_check(1)").scalars().all()
    # wrong values are reported later, with their rows
    if damage and damage != ["ok"] and " value in " not in str(damage[0]):
        raise StoreError(f"{name} is damaged ({one_line(damage[0], 100)}); nothing was imported")
    known = {*METADATA.tables, "alembic_version"}
    for kind, table, text in connection.exec_driver_sql(
        "SELECT type, name, sql FROM sqlite_master"
    ).all():
        if str(table).lower() not in known:
            continue
        is_table = kind == "table" and str(text).upper().startswith("CREATE TABLE")
        hidden = connection.exec_driver_sql(
            "SELECT max(hidden) FROM pragma_table_xinfo(?)", (table,)
        ).scalar()
        if not is_table or hidden:
            raise StoreError(f"{name}: {table} is not a plain table; nothing was imported")
