"""Read whole sweeps from a database that may be untrusted.

It is opened for reading only, its own code never runs, only known columns are read, and keys are
computed again; readers check the content of samples. Of a database of an earlier version, an
upgraded copy is read.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, exc, select

from effbench.core.cell import Cell, Environment
from effbench.core.errors import StoreError
from effbench.core.printable import one_line
from effbench.store import connect, schema, sweeps
from effbench.store.schema import (
    CELL,
    ENVIRONMENT,
    METADATA,
    RESULT,
    REVISIONS,
    SWEEP,
    SWEEP_ID,
    TRACE,
    TRIAL,
)
from effbench.store.values import Columns, Condition, batched, cell_row

#: rows in memory at a time
CHUNK = 1000
#: The first revision in which a mark replaces the status `noisy`.
MARKS_REVISION = "0011"
#: The first revision with traces.
TRACES_REVISION = "0018"
#: Start of the reason of a noisy trial that compiled while it was timed.
COMPILED = "a graph was compiled"
#: Reason of a noisy trial whose host was disturbed.
DISTURBED = re.compile(r"the host was disturbed for (.*) of the timing \(.*")


class RefusedError(StoreError):
    """A sweep is damaged or contradicts the database. Nothing was written."""


@dataclass
class Source:
    """A database to read from."""

    connection: Connection
    name: str

    def rows(self, table: sa.Table, *where: Condition) -> Iterator[Columns]:
        """Yield rows by primary key. Raises RefusedError for the first one that cannot be read, or
        whose key does not match it."""
        query = select(table).where(*where).order_by(*table.primary_key)
        for row in self.fetch(query):
            values = dict(row._mapping)
            if not has_its_key(table, values):
                raise RefusedError(
                    f"{self.name}: the key of a row of {table.name} does not match it: damaged or"
                    " forged"
                )
            yield values

    def fetch(self, query: sa.Select[Any]) -> Iterator[sa.Row[Any]]:
        """Yield rows. Raises RefusedError if the database fails, or holds a value of another
        type."""
        try:
            result = self.connection.execute(query.execution_options(yield_per=CHUNK))
            for rows in result.partitions():
                yield from rows
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise RefusedError(str(connect.explain(error, self.name))) from error
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise RefusedError(f"{self.name} is damaged: {one_line(error, 100)}") from error

    def sweep_ids(self, references: Sequence[str] = ()) -> list[str]:
        """Return the ids of the referenced sweeps, each once; without references those of all
        sweeps, oldest first.

        Raises NothingFoundError if there are none.
        """
        every = select(SWEEP.c.id).order_by(SWEEP.c.started_at, SWEEP.c.id)
        ids = [row.id for row in self.fetch(every)]
        if references or not ids:
            ids = [
                sweeps.find_sweep(self.connection, reference).id
                for reference in references or ["last"]
            ]
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
            return cell_row(Cell(**row["params"])) == dict(row)
        except (AttributeError, KeyError, TypeError):  # it does not describe a cell
            return False
    return True


@contextmanager
def opened(url: str) -> Iterator[Source]:
    """Open a database for reading whole sweeps.

    Raises StoreError for a file that is not a valid effbench database, SchemaError for one of a
    newer version.
    """
    with ExitStack() as stack:
        file = connect.sqlite_file(url)
        if file is not None:  # reading it would finish the transaction of its owner
            connect.require_finished(file, "-journal")
        connection = stack.enter_context(connect.connected(url))
        name = connect.name_of(connection)
        if file is not None:
            require_safe(connection, name)
        current = connect.revision(connection)
        if current is None:
            raise StoreError(f"{name} is empty")
        if current in REVISIONS[:-1]:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="effbench-"))
            copy = Path(folder) / "upgraded.db"
            copy.touch()
            with connect.connected(copy, write=True, name=name) as upgraded:
                schema.make(upgraded)
                copy_rows(Source(connection, name), upgraded, current)
            connection = stack.enter_context(connect.connected(copy, name=name))
        else:
            connect.require_head(current, name)
        yield Source(connection, name)


def copy_rows(source: Source, target: Connection, before: str) -> None:
    """Copy the rows of a database of revision `before` into one with this version's schema, except
    results, which are derived again. Columns that are new become NULL."""
    inspector = sa.inspect(source.connection)
    for table in METADATA.sorted_tables:
        if table is RESULT or (table is TRACE and before < TRACES_REVISION):
            continue
        known = {column["name"] for column in inspector.get_columns(table.name)}
        query = select(*(column for column in table.columns if column.name in known))
        for chunk in batched(source.fetch(query), CHUNK):
            rows = [dict(row._mapping) for row in chunk]
            if table is TRIAL and before < MARKS_REVISION:
                mark_noisy(rows)
            target.execute(sa.insert(table), rows)


def mark_noisy(rows: Iterable[Columns]) -> None:
    """Give the rows of trials that are `noisy` the status `ok` and a mark, or `degraded` if they
    compiled while they were timed."""
    for row in rows:
        row["disturbance"] = None
        if row["status"] != "noisy":
            continue
        reason = row["reason"] or "host or GPU busy"
        if reason.startswith(COMPILED):
            row["status"] = "degraded"
            continue
        row["status"] = "ok"
        row["reason"] = None
        row["disturbance"] = DISTURBED.sub(r"host busy for \1 of the timing", reason)


def require_safe(connection: Connection, name: str) -> None:
    """Raise StoreError for a SQLite file that is damaged, or whose known tables run code when they
    are read."""
    damage = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if damage != "ok":
        raise StoreError(f"{name} is damaged ({one_line(damage, 100)}); nothing was imported")
    others = "SELECT lower(name) FROM pragma_table_list WHERE type <> 'table'"
    for table in connection.exec_driver_sql(others).scalars():
        if table in METADATA.tables or table == "alembic_version":
            raise StoreError(f"{name}: {table} is not a plain table; nothing was imported")
