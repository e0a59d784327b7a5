"""Upgrade a database's schema, and check that every row is valid: `effbench db upgrade` and
`effbench db check`."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.core.errors import StoreError
from effbench.store import connect, schema
from effbench.store.schema import HEAD_REVISION, RESULT, SAMPLE, SWEEP, TRIAL
from effbench.store.trials import derive, rebuild_results
from effbench.store.values import decode_samples

Row = dict[str, Any]
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
    if before != HEAD_REVISION:
        compact(url)
    return before, HEAD_REVISION


def compact(url: str | os.PathLike[str]) -> None:
    """Give the space of tables that a migration has copied back."""
    file = connect.sqlite_file(url)
    if file is None:
        return
    # without room for a copy, or while another process reads, the file stays large
    with suppress(sqlite3.Error), closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM")


def copy_before(url: str | os.PathLike[str], revision: str) -> Path | None:
    """Return where `upgrade` keeps a copy of a SQLite file of this revision; None for a database
    server."""
    file = connect.sqlite_file(url)
    if file is None:
        return None
    return file.with_name(f"{file.stem}.before-upgrade-{revision}{file.suffix}")


def copy_file(url: str | os.PathLike[str], revision: str) -> None:
    """Copy a SQLite file to `copy_before`, with what its write-ahead log holds."""
    file = connect.sqlite_file(url)
    copy = copy_before(url, revision)
    if file is None or copy is None:
        return
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

    Checks the file's structure, types, constraints and foreign keys, the content of samples, and
    whether results match their trials. Without `deep`, only the NEWEST trials are read, and the
    results of their sweeps; with more than MOST trials, the file is not checked either. Raises
    StoreError and SchemaError if it cannot be opened, DamagedError if its file is damaged: rows
    read from it are unreliable.
    """
    with connect.connected(url) as connection:
        name = connect.name_of(connection)
        current = connect.revision(connection)
        if current is None:
            return [f"{name} is empty"]
        connect.require_head(current, name)
        last = connection.scalar(sa.select(sa.func.max(TRIAL.c.id))) or 0
        first = 0 if deep else max(0, last - NEWEST + 1)
        is_file = connection.dialect.name == "sqlite"  # PostgreSQL guarantees its constraints
        faults: list[str] = []
        if is_file and (deep or last <= MOST):
            require_undamaged(connection)
            faults += broken_references(connection)
        faults += damaged_samples(connection, first)
        query = sa.select(SWEEP.c.id, SWEEP.c.baseline_mode).order_by(SWEEP.c.id)
        if first > 0:
            recent = sa.select(TRIAL.c.sweep_id).where(TRIAL.c.id >= first)
            query = query.where(SWEEP.c.id.in_(recent))
        for sweep_id, baseline_mode in connection.execute(query).all():
            faults += wrong_results(connection, sweep_id, baseline_mode)
        return faults


def require_undamaged(connection: sa.Connection) -> None:
    """Raise DamagedError if the SQLite file is damaged, or holds values that are not allowed."""
    try:
        text = "\n".join(connection.exec_driver_sql("PRAGMA integrity_check").scalars())
    except sa.exc.DatabaseError as error:
        text = str(error.orig)
    damage = [line for line in text.splitlines() if line != "ok" and not line.startswith("***")]
    if damage:
        what = f"{connect.name_of(connection)} is damaged; restore a copy"
        raise connect.DamagedError("\nSQLite: ".join([what, *damage]))


def broken_references(connection: sa.Connection) -> list[str]:
    """Return a line for each kind of reference to missing rows."""
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check")
    broken = Counter((row[0], row[2]) for row in rows)
    return [
        f"{number} rows of {table} refer to missing rows of {other}"
        for (table, other), number in broken.items()
    ]


def damaged_samples(connection: sa.Connection, first: int) -> list[str]:
    """Return a line for each sample of trials from this id on that cannot be read."""
    query = sa.select(SAMPLE).where(SAMPLE.c.trial_id >= first)
    rows = connection.execute(query.order_by(*SAMPLE.primary_key).execution_options(yield_per=1000))
    faults = []
    for row in rows:
        try:
            decode_samples(row.codec, row.data, row.stored)
        except StoreError as error:
            faults.append(f"{error} (sample trial_id {row.trial_id}, timer {row.timer})")
    return faults


def wrong_results(connection: sa.Connection, sweep_id: str, baseline_mode: str) -> list[str]:
    """Return a line for each result of a sweep that differs from what its trials give."""
    try:
        derived = _by_cell(derive(connection, sweep_id, baseline_mode))
    except (ArithmeticError, ValueError) as error:  # valid types do not exclude impossible values
        what = f"{type(error).__name__} {error}"
        return [f"sweep {sweep_id}: its results cannot be derived from its trials: {what}"]
    query = sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)
    stored = _by_cell(map(dict, connection.execute(query).mappings()))
    lines = []
    for cell_key, environment_id in sorted(derived.keys() | stored.keys()):
        key = cell_key, environment_id
        what = _difference(stored.get(key), derived.get(key))
        if what:
            cell = f"sweep {sweep_id}, cell {cell_key[:12]}, environment {environment_id}"
            lines.append(f"{cell}: result differs from its trials in {what}")
    return lines


def _difference(stored: Row | None, derived: Row | None) -> str:
    """Return the names of the columns in which a result differs, `all` if there is only one."""
    if stored is None or derived is None:
        return "all"
    names = {**derived, **stored}
    return ", ".join(name for name in names if not _same(stored.get(name), derived.get(name)))


def _by_cell(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Row]:
    return {(row["cell_key"], row["environment_id"]): dict(row) for row in rows}


def _same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b
