"""Upgrade a database's schema, and check that every row is valid: `effbench db upgrade` and
`effbench db check`."""

from __future__ import annotations

import logging
import math
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.errors import StoreError
from effbench.store import connect, schema
from effbench.store.schema import HEAD_REVISION, METADATA, RESULT, SAMPLE, SWEEP, TRIAL
from effbench.store.soundness import raw, read_anything, sound_row
from effbench.store.trials import derive, rebuild_results
from effbench.store.values import decode_samples

#: lines of SQLite's integrity check that are no damage, or about one value: `_faulty_rows` reports
#: it with its row
_IGNORED = re.compile(r"ok$|\*\*\*|(NULL|TEXT|NUMERIC) value in ")
#: newest trials, which are always checked
NEWEST = 5_000
#: most trials of a database whose file is always checked: reading gigabytes takes minutes
MOST = 200_000
_MIGRATIONS = Path(__file__).parent / "migrations"


def migrations(connection: sa.Connection | None = None) -> Any:
    """Return alembic's configuration, built in code so that users need no ini file."""
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


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
            from alembic import command

            copy_file(url, before)
            # else it refers to columns that change
            connection.execute(sa.text("DROP VIEW results"))
            command.upgrade(migrations(connection), "head")
            schema.make_view(connection)
            for sweep_id in connection.scalars(sa.select(SWEEP.c.id)).all():
                rebuild_results(connection, sweep_id)  # new columns
    return before, HEAD_REVISION


def copy_before(url: str | os.PathLike[str], revision: str) -> Path | None:
    """Return where `upgrade` keeps a copy of a SQLite file of this revision; None for a database
    server."""
    file = connect.sqlite_file(url)
    return (
        None
        if file is None
        else file.with_name(f"{file.stem}.before-upgrade-{revision}{file.suffix}")
    )


def copy_file(url: str | os.PathLike[str], revision: str) -> None:
    """Copy a SQLite file to `copy_before`, with what its write-ahead log holds."""
    copy = copy_before(url, revision)
    if copy is None:
        return
    file = connect.sqlite_file(url)
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


def check(url: str | os.PathLike[str], deep: bool = True) -> list[str]:
    """Return one line for each fault of the database; an empty list if it has none. Changes
    nothing.

    Checks the file's structure, foreign keys, every row (`soundness`), and whether results match
    their trials. Without `deep`, only the NEWEST trials are read, and the results of their sweeps;
    with more than MOST trials, the structure and the foreign keys are not checked either. Raises
    StoreError and SchemaError if it cannot be opened, DamagedError if its file is damaged: rows
    read from it are unreliable.
    """
    with connect.connected(url) as connection:
        current = connect.revision(connection)
        if current is None:
            return [f"{connect.name_of(connection)} is empty"]
        connect.require_head(current, connect.name_of(connection))
        last = connection.scalar(sa.select(sa.func.max(TRIAL.c.id))) or 0
        query, first = sa.select(SWEEP.c.id, SWEEP.c.baseline_mode).order_by(SWEEP.c.id), None
        if not deep and last > NEWEST:
            first = last - NEWEST + 1
            query = query.where(
                SWEEP.c.id.in_(sa.select(TRIAL.c.sweep_id).where(TRIAL.c.id >= first))
            )
        read_anything(connection)
        references = _broken_references(connection) if deep or last <= MOST else []
        sweeps = connection.execute(query).all()
        checked = None if first is None else [sweep.id for sweep in sweeps]
        faults = [
            line
            for table in METADATA.sorted_tables
            for line in _faulty_rows(connection, table, first, checked)
        ]
        if not faults:  # results cannot be derived from faulty rows
            faults = _wrong_results(connection, sweeps)
        return [*references, *faults]


def _broken_references(connection: sa.Connection) -> list[str]:
    """Return a line for each kind of reference to missing rows. Raises DamagedError for a damaged
    file."""
    if connection.dialect.name != "sqlite":  # PostgreSQL guarantees both
        return []
    if damage := _damage(connection):
        tables = ", ".join(
            table.name for table in METADATA.sorted_tables if _damage(connection, f"({table.name})")
        )
        what = (
            f"{connect.name_of(connection)} is damaged{f' (tables: {tables})' if tables else ''};"
            " restore a copy"
        )
        raise connect.DamagedError("\nSQLite: ".join([what, *damage]))
    broken = Counter(
        (row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
    )
    return [
        f"{n} rows of {table} refer to missing rows of {to}" for (table, to), n in broken.items()
    ]


def _damage(connection: sa.Connection, where: str = "") -> list[str]:
    """Return a line for each damage that SQLite finds in the file, or in a table and its indexes:
    `where="(trial)"`."""
    try:
        text = "\n".join(connection.exec_driver_sql(f"PRAGMA integrity_check{where}").scalars())
    except sa.exc.DatabaseError as error:
        text = str(error.orig)
    return [line for line in text.splitlines() if not _IGNORED.match(line)]


def _faulty_rows(
    connection: sa.Connection, table: sa.Table, first: int | None, checked: list[str] | None
) -> Iterator[str]:
    """Yield a line for each column with invalid values: the first one with its row, and how many
    more there are. `first`: id of the first trial to check; `checked`: ids of the only sweeps to
    check; None: all."""
    key = next(iter(table.primary_key))
    where = [key >= first] if first is not None and table in (TRIAL, SAMPLE) else []
    where += (
        [table.c.sweep_id.in_(checked)] if checked is not None and "sweep_id" in table.c else []
    )
    query = raw(table).where(*where).order_by(*table.primary_key)
    faults: dict[str, str] = {}
    count: Counter[str] = Counter()
    for row in chain.from_iterable(
        connection.execute(query.execution_options(yield_per=1000)).partitions()
    ):
        try:
            values = sound_row(table, row._mapping)
            if table is SAMPLE:
                decode_samples(values["codec"], values["data"], values["stored"])
        except (ValueError, StoreError) as error:
            column = str(error).partition(" ")[0]
            keys = ", ".join(
                f"{column.name} {row._mapping[column.name]}" for column in table.primary_key
            )
            faults.setdefault(column, f"{error} ({table.name} {keys}")
            count[column] += 1
    for column, line in faults.items():
        yield f"{line}{f', and {count[column] - 1} more' if count[column] > 1 else ''})"


def _wrong_results(connection: sa.Connection, sweeps: Sequence[sa.Row]) -> list[str]:
    lines = []
    for sweep_id, baseline_mode in sweeps:
        try:
            derived = _by_cell(derive(connection, sweep_id, baseline_mode))
        except Exception as error:  # valid types do not exclude impossible values
            what = f"{type(error).__name__} {error}"
            lines.append(f"sweep {sweep_id}: its results cannot be derived from its trials: {what}")
            continue
        stored = _by_cell(
            connection.execute(sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)).mappings()
        )
        for key in sorted(derived.keys() | stored.keys()):
            row, expected = stored.get(key, {}), derived.get(key, {})
            names = {**expected, **row} if row != expected else ()
            if wrong := [name for name in names if not _same(row.get(name), expected.get(name))]:
                cell = f"sweep {sweep_id}, cell {key[0][:12]}, environment {key[1]}"
                what = ", ".join(wrong) if row and expected else "all"
                lines.append(f"{cell}: result differs from its trials in {what}")
    return lines


def _by_cell(rows: Any) -> dict[tuple[str, str], Any]:
    return {(row["cell_key"], row["environment_id"]): dict(row) for row in rows}


def _same(a: Any, b: Any) -> bool:
    return (
        math.isclose(a, b, rel_tol=1e-9)
        if isinstance(a, float) and isinstance(b, float)
        else a == b
    )
