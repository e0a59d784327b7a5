"""A database that whole sweeps are read from. It may be a stranger's, or of an older effbench.

It is opened for reading only, its own code never runs, known columns alone are read, and every value is checked
(`maintenance.typed_row`).
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.errors import StoreError
from effbench.outputs import SQLITE
from effbench.printable import one_line
from effbench.store import connect, sweeps
from effbench.store.maintenance import any_text, raw, typed, typed_row
from effbench.store.schema import IMPORTED_REVISIONS, SWEEP, Base

STANDARD_INPUT = "-"
#: bytes of a row of SQLite
ROW_LIMIT = 2**26
TABLES = Base.metadata.sorted_tables


class RefusedError(StoreError):
    """A sweep that is damaged, or contradicts what the database holds. Nothing of it was written."""


@dataclass
class Source:
    """A database to read from. `columns`: table -> those of ours that it has, none if a required one is missing."""

    connection: sa.Connection
    name: str
    columns: dict[str, list[str]]

    def rows(self, table: sa.Table, *where: Any, order: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Yield typed rows. Raises RefusedError for the first that is not allowed."""
        names = self.columns[table.name]
        if not names:
            return
        query = raw(table, names).where(*where).order_by(*(table.c[name] for name in order))
        for values in self.fetch(query):
            row, wrong = typed_row(table, values)
            if wrong:
                raise RefusedError(f"{self.name}: {next(iter(wrong.values()))}")
            yield row

    def fetch(self, query: sa.Select) -> Iterator[sa.RowMapping]:
        """Yield rows as the database holds them. Raises RefusedError if it fails."""
        try:
            yield from self.connection.execute(query).mappings()
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise RefusedError(str(connect.explain(error, self.name))) from error

    def sweep_ids(self, references: Sequence[str] = ()) -> list[str]:
        """Return the sweeps that are asked for, each once; without references all, oldest first."""
        query = raw(SWEEP, ["id", "name", "started_at"]).order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
        rows = list(self.fetch(query))
        if not references:
            return [row["id"] for row in reversed(rows)]
        known = []
        for row in rows:
            with suppress(ValueError):  # else it can only be meant by "all"
                known.append(tuple(typed(SWEEP.c[name], row[name]) for name in ("id", "name", "started_at")))
        return list(dict.fromkeys(sweeps.resolve(reference, known, self.name) for reference in references))


@contextmanager
def opened(url: str) -> Iterator[Source]:
    """Open a database, or standard input (`-`), to read whole sweeps from; it may have the schema of an older effbench.

    Raises StoreError for a file that is not a sound database of effbench.
    """
    with ExitStack() as stack:
        name = None
        if url == STANDARD_INPUT:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="effbench-"))
            url, name = f"{folder}/input.db", "standard input"
            with Path(url).open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        parsed = connect.parse_url(url)
        name = name or connect.describe(parsed)
        engine = _engine(parsed, name)
        stack.callback(engine.dispose)
        try:
            connection = stack.enter_context(engine.connect())
            if connection.dialect.name == "sqlite":
                _make_safe(connection, name)
            else:  # SQLite's transactions see one moment anyway
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            current = connect.revision(connection)
            if current not in IMPORTED_REVISIONS:
                if current is None:
                    raise StoreError(f"{name} is empty")
                connect.require_head(current, name)
            columns = _columns(connection)
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise connect.explain(error, name) from error
        yield Source(connection, name, columns)


def _engine(url: sa.URL, name: str) -> sa.Engine:
    try:
        return connect.connect(url, write=False, untrusted=True)
    except StoreError as error:
        path = Path(url.database or "")
        with suppress(OSError), path.open("rb") as file:
            if url.get_backend_name() == "sqlite" and file.read(len(SQLITE)) != SQLITE:
                raise StoreError(
                    f"{name} is not a database of whole sweeps; `effbench export --whole --out FILE.db` writes one. "
                    "JSON lines and Parquet of older versions are read by the version that wrote them"
                ) from error
        raise StoreError(str(error).replace(url.database or name, name)) from error  # not the temporary file


def _make_safe(connection: sa.Connection, name: str) -> None:
    """Raise StoreError for a SQLite file that is damaged, or whose known tables run code when they are read."""
    connection.connection.driver_connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_LIMIT)
    connection.exec_driver_sql("PRAGMA cell_size_check = ON")
    any_text(connection)
    damage = connection.exec_driver_sql("PRAGMA quick_check(1)").scalars().all()
    # values of a wrong type are found row by row
    if damage and damage != ["ok"] and " value in " not in str(damage[0]):
        raise StoreError(f"{name} is damaged ({one_line(damage[0], 100)}); nothing of it was imported")
    known = {table.name for table in TABLES} | {"alembic_version"}
    for kind, table, text in connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master").all():
        if str(table).lower() not in known:
            continue
        plain = kind == "table" and str(text).upper().startswith("CREATE TABLE")
        hidden = connection.exec_driver_sql("SELECT max(hidden) FROM pragma_table_xinfo(?)", (table,)).scalar()
        if not plain or hidden:
            raise StoreError(f"{name}: {table} is not a plain table; nothing of it was imported")


def _columns(connection: sa.Connection) -> dict[str, list[str]]:
    inspector = sa.inspect(connection)
    tables = set(inspector.get_table_names())
    found = {}
    for table in TABLES:
        there = {column["name"] for column in inspector.get_columns(table.name)} if table.name in tables else set()
        required = {column.name for column in table.columns if not column.nullable}
        found[table.name] = (
            [column.name for column in table.columns if column.name in there] if required <= there else []
        )
    return found
