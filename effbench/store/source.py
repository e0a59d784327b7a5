"""Read whole sweeps from a database that may be untrusted.

It is opened for reading only, its own code never runs, only known columns are read, and keys are
computed again; readers check the content of samples.
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

from effbench.core.cell import Cell, Environment
from effbench.core.errors import StoreError
from effbench.core.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.marks import NOISY, marked_values
from effbench.store.schema import (
    CELL,
    EARLIER,
    ENVIRONMENT,
    METADATA,
    REVISIONS,
    SWEEP,
    SWEEP_ID,
    TRIAL,
)
from effbench.store.values import cell_row

#: rows in memory at a time
CHUNK = 1000
#: first bytes of files
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\0"


class RefusedError(StoreError):
    """A sweep is damaged or contradicts the database. Nothing was written."""


@dataclass
class Source:
    """A database to read from. Columns that an earlier version lacks become NULL."""

    connection: sa.Connection
    name: str

    @cached_property
    def columns(self) -> dict[str, set[str]]:
        """Table -> its columns in this database."""
        inspector = sa.inspect(self.connection)
        columns: dict[str, set[str]] = {}
        for table in {*inspector.get_table_names()} & {*METADATA.tables}:
            columns[table] = {column["name"] for column in inspector.get_columns(table)}
        return columns

    def has(self, table: sa.Table) -> bool:
        """Return whether the table has all its required columns: in an earlier version it may have
        others."""
        names = self.columns.get(table.name, set())
        return all(column.nullable or column.name in names for column in table.columns)

    def sweep(self, sweep_id: str) -> dict[str, Any]:
        """Return the row of a sweep. Raises RefusedError unless there is one with this id."""
        rows = list(self.rows(SWEEP, SWEEP.c.id == sweep_id))
        if len(rows) != 1:
            what = f"{len(rows)} sweeps have the id {one_line(sweep_id, 64)}"
            raise RefusedError(f"{self.name}: {what}")
        return rows[0]

    def rows(self, table: sa.Table, *where: sa.ColumnElement[bool]) -> Iterator[dict[str, Any]]:
        """Yield rows by primary key. Raises RefusedError for the first one that cannot be read, or
        whose key does not match it."""
        if not self.has(table):
            return
        missing = dict.fromkeys({*table.columns.keys()} - self.columns[table.name])
        known = [column for column in table.columns if column.name not in missing]
        query = sa.select(*known).where(*where).order_by(*table.primary_key)
        for row in self.fetch(query):
            values = {**missing, **row._mapping}
            if table is TRIAL:
                values = self.marked(values)
            if not has_its_key(table, values):
                raise RefusedError(
                    f"{self.name}: the key of a row of {table.name} does not match it: damaged or"
                    " forged"
                )
            yield values

    def marked(self, trial: dict[str, Any]) -> dict[str, Any]:
        """Return a row of `trial`; if an earlier version recorded it as `noisy`, as this version
        would record it.

        Raises RefusedError if the database fails.
        """
        if "disturbance" in self.columns[TRIAL.name] or trial["status"] != NOISY:
            return trial
        with self.refusing():
            return {**trial, **marked_values(self.connection, trial)}

    def fetch(self, query: sa.Select[Any]) -> Iterator[sa.Row[Any]]:
        """Yield rows. Raises RefusedError if the database fails, or holds a value of another
        type."""
        with self.refusing():
            result = self.connection.execute(query.execution_options(yield_per=CHUNK))
            for rows in result.partitions():
                yield from rows

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise RefusedError for what goes wrong when the database is read."""
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise RefusedError(str(connect.explain(error, self.name))) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise RefusedError(f"{self.name} is damaged: {one_line(error, 100)}") from error

    def sweep_ids(self, references: Sequence[str] = ()) -> list[str]:
        """Return the ids of the referenced sweeps, each once; without references those of all
        sweeps, oldest first.

        Raises NothingFoundError if there are none.
        """
        names = [field.name for field in fields(sweeps.KnownSweep)]
        known = [name for name in names if name in self.columns[SWEEP.name]]
        query = sa.select(*(SWEEP.c[name] for name in known))
        newest_first = query.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
        rows = [sweeps.KnownSweep(**row._mapping) for row in self.fetch(newest_first)]
        if rows and not references:
            return [row.id for row in reversed(rows)]
        ids = [sweeps.resolve(name, rows, self.name) for name in references or ["last"]]
        return list(dict.fromkeys(ids))


def has_its_key(table: sa.Table, row: Mapping[str, Any]) -> bool:
    """Return whether a row has the key that follows from its other columns, as far as one does."""
    if table is SWEEP:  # folders are named by it
        return SWEEP_ID.fullmatch(row["id"]) is not None
    if table is ENVIRONMENT:
        facts = {field.name: row[field.name] for field in fields(Environment)}
        return bool(row["id"] == Environment(**facts).id)
    if table is CELL:
        try:
            return cell_row(Cell.from_params(row["params"])) == dict(row)
        except (AttributeError, KeyError, TypeError):  # it does not describe a cell
            return False
    return True


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
            packed: Any = stack.enter_context(gzip.open(url))
            url, folder = _copied(packed, Path(url).name, stack)
        if not SQLITE.startswith(_head(url)):
            name = url.removeprefix(folder)
            raise StoreError(
                f"{name} is not a SQLite database; import reads files of `effbench export --whole`"
            )
        try:
            connection = stack.enter_context(connect.connected(url, keep=True))
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
