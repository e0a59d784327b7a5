"""Upgrade a SQLite file to this version's schema (`effbench db upgrade`)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, select

from effbench.core.errors import StoreError
from effbench.store import connect, schema
from effbench.store.schema import HEAD_REVISION, METADATA, REVISIONS, SWEEP
from effbench.store.source import Source, copy_rows
from effbench.store.sweeps import still_running
from effbench.store.trials import rebuild_results

#: Tables that earlier versions had.
FORMER = ("acknowledgement", "calibration")


def upgrade(url: connect.DatabaseUrl) -> tuple[str | None, str]:
    """Bring an existing database to this version's schema in one transaction; return its revision
    before and after.

    A file of an earlier version is first copied to `copy_before`. Raises StoreError if that fails,
    and while a process on this machine runs a sweep, and then changes nothing; SchemaError for an
    earlier version's database on a server, and for a later version's.
    """
    with connect.connected(url, write=True) as connection:
        before = connect.revision(connection)
        file = connect.sqlite_file(url)
        if before is None:
            schema.make(connection)
        elif file is None or before not in REVISIONS[:-1]:
            connect.require_head(before, connect.name_of(connection))
        else:
            require_no_running_sweep(connection)
            copy = copy_before(file, before)
            copy_file(file, copy)
            renew(connection, copy, before)
    return before, HEAD_REVISION


def require_no_running_sweep(connection: Connection) -> None:
    """Raise StoreError if a process on this machine runs a sweep of the database: it would wait too
    long, and go on to write as the earlier version does."""
    for sweep in connection.execute(select(*SWEEP.c["id", "state", "host"])):
        reason = still_running(sweep)
        if reason is not None:
            raise StoreError(reason)


def renew(connection: Connection, copy: Path, before: str) -> None:
    """Replace the tables of a SQLite file by those of this version, with the rows of its copy of
    revision `before`."""
    connection.exec_driver_sql("DROP VIEW results")
    for name in FORMER:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    METADATA.drop_all(connection)
    schema.make(connection)
    with connect.connected(copy) as old:
        copy_rows(Source(old, connect.name_of(connection)), connection, before)
    for sweep_id in connection.scalars(select(SWEEP.c.id)).all():
        rebuild_results(connection, sweep_id)


def copy_before(url: connect.DatabaseUrl, revision: str) -> Path:
    """Return where `upgrade` keeps a copy of a SQLite file of this revision."""
    file = Path(connect.sqlite_file(url) or "")
    return file.with_name(f"{file.stem}.before-upgrade-{revision}{file.suffix}")


def copy_file(file: Path, copy: Path) -> None:
    """Copy a SQLite file, with what its write-ahead log holds. Raises StoreError if that fails."""
    unfinished = copy.with_name(f"{copy.name}.part")
    try:
        source = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        with closing(source), closing(sqlite3.connect(unfinished)) as target:
            source.backup(target)
        unfinished.replace(copy)
    except (OSError, sqlite3.Error) as error:
        unfinished.unlink(missing_ok=True)
        raise StoreError(
            f"the upgrade needs a copy of {file}, which failed: {error}; nothing was changed"
        ) from error
