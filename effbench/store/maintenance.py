"""Upgrade a database to this version's schema (`effbench db upgrade`).

An upgrade compares the tables with their declarations, so that a new column needs no migration.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from effbench.core.errors import StoreError
from effbench.store import connect, schema
from effbench.store.schema import (
    HEAD_REVISION,
    METADATA,
    SWEEP,
)
from effbench.store.trials import rebuild_results

#: Tables that earlier versions had.
FORMER = {"acknowledgement", "calibration"}
#: The first revision in which a mark replaces the status `noisy`.
MARKS_REVISION = "0011"
#: Start of the reason of a noisy trial that compiled while it was timed.
COMPILED = "a graph was compiled"
#: Reason of a noisy trial whose host was disturbed.
DISTURBED = re.compile(r"the host was disturbed for (.*) of the timing \(.*")


def upgrade(url: str | os.PathLike[str]) -> tuple[str | None, str]:
    """Bring an existing database to this version's schema in one transaction; return its revision
    before and after.

    A SQLite file is first copied to `copy_before`. Raises StoreError if that fails, and then
    changes nothing.
    """
    with connect.connected(url, write=True) as connection:
        schema.lock(connection)
        before = connect.revision(connection)
        if before is None:
            schema.make(connection)
        elif before not in schema.REVISIONS:
            connect.require_head(before, connect.name_of(connection))
        elif before != HEAD_REVISION:
            copy = copy_before(url, before)
            if copy is not None:
                copy_file(url, copy)
            renew(connection, before)
            sweep_ids = connection.scalars(sa.select(SWEEP.c.id)).all()
            for sweep_id in sweep_ids:
                rebuild_results(connection, sweep_id)
    return before, HEAD_REVISION


def renew(connection: sa.Connection, before: str) -> None:
    """Give a database of revision `before` the schema of this version. Columns that are new become
    NULL; there are no results, until they are derived again."""
    if before < MARKS_REVISION:
        mark_noisy_trials(connection)
    for name in FORMER - METADATA.tables.keys():
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {name}"))
    connection.execute(sa.text("DROP VIEW results"))
    connection.execute(sa.text("DELETE FROM result"))
    if connection.dialect.name == "postgresql":
        extend_tables(connection)
        schema.make(connection)
        return
    copies = set_aside(connection)
    schema.make(connection)
    for table, copy in reversed(copies.items()):
        names = copy.columns.keys()
        insert = sa.insert(table).from_select(names, sa.select(copy))
        connection.execute(insert)


def set_aside(connection: sa.Connection) -> dict[sa.Table, sa.TableClause]:
    """Move the rows of all tables of a SQLite file to temporary copies, and return these with the
    columns that this version knows: SQLite does not add checks to a table, or make it STRICT."""
    inspector = sa.inspect(connection)
    copies = {}
    for table in reversed(METADATA.sorted_tables):  # those that refer to others come first
        name = table.name
        known = {column["name"] for column in inspector.get_columns(name)}
        shared = [column.name for column in table.columns if column.name in known]
        copies[table] = sa.table(f"old_{name}", *map(sa.column, shared))
        for statement in (
            f"CREATE TEMPORARY TABLE old_{name} AS SELECT * FROM {name}",
            f"DROP TABLE {name}",
        ):
            connection.exec_driver_sql(statement)
    return copies


def extend_tables(connection: sa.Connection) -> None:
    """Add the columns and checks of this version to the tables of a PostgreSQL database, which keep
    their privileges."""
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        parts = [
            *inspector.get_columns(table.name),
            *inspector.get_check_constraints(table.name),
        ]
        known = {part["name"] for part in parts}
        additions = []
        for column in table.columns:
            if column.name not in known:
                declared = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                additions.append(f"ADD COLUMN {declared}")
        for check in table.constraints:
            if not isinstance(check, sa.CheckConstraint):
                continue
            if check.name not in known and not check.info.get(schema.ONLY_SQLITE):
                additions.append(f"ADD CONSTRAINT {check.name} CHECK ({check.sqltext})")
        for addition in additions:
            connection.exec_driver_sql(f"ALTER TABLE {table.name} {addition}")


def mark_noisy_trials(connection: sa.Connection) -> None:
    """Give the trials that are `noisy` in a database of an earlier revision the status `ok` and a
    mark; those that compiled while they were timed are `degraded`."""
    connection.execute(sa.text("ALTER TABLE trial ADD COLUMN disturbance TEXT"))
    noisy = connection.execute(sa.text("SELECT id, reason FROM trial WHERE status = 'noisy'")).all()
    degraded = sa.text("UPDATE trial SET status = 'degraded' WHERE id = :id")
    marked = sa.text(
        "UPDATE trial SET status = 'ok', reason = NULL, disturbance = :disturbance WHERE id = :id"
    )
    for trial in noisy:
        reason = trial.reason or "host or GPU busy"
        if reason.startswith(COMPILED):
            connection.execute(degraded, {"id": trial.id})
        else:
            disturbance = DISTURBED.sub(r"host busy for \1 of the timing", reason)
            connection.execute(marked, {"id": trial.id, "disturbance": disturbance})


def copy_before(url: str | os.PathLike[str], revision: str) -> Path | None:
    """Return where `upgrade` keeps a copy of a SQLite file of this revision; None for a database
    server."""
    file = connect.sqlite_file(url)
    if file is None:
        return None
    return file.with_name(f"{file.stem}.before-upgrade-{revision}{file.suffix}")


def copy_file(url: str | os.PathLike[str], copy: Path) -> None:
    """Copy a SQLite file. Raises StoreError if that fails."""
    unfinished = copy.with_name(f"{copy.name}.part")
    file = Path(connect.sqlite_file(url) or "")
    try:
        back_up(file, unfinished)
        unfinished.replace(copy)
    except (OSError, sqlite3.Error) as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(
            f"the upgrade needs a copy of {file}, which failed: {error}; nothing was changed"
        ) from error


def back_up(file: Path, copy: Path) -> None:
    """Copy a SQLite file, with what its write-ahead log holds."""
    source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    with closing(source), closing(sqlite3.connect(copy)) as target:
        source.backup(target)
