"""Upgrade a database's schema, and check that every row is valid: `effbench db upgrade` and `effbench db check`."""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.store import connect, schema
from effbench.store.schema import HEAD_REVISION, METADATA, RESULT, SWEEP
from effbench.store.soundness import any_text, raw, sound_row
from effbench.store.trials import derive, rebuild_results

#: lines of SQLite's integrity check about one value; `_faulty_rows` reports these with their rows
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC) value in ")
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
    """Bring an existing database to this version's schema in one transaction; return its revision before and after."""
    with connect.connected(url, write=True) as connection:
        before = connect.revision(connection)
        if before is None:
            schema.make(connection)
        elif before not in schema.REVISIONS:
            connect.require_head(before, connect.name_of(connection))
        elif before != HEAD_REVISION:
            from alembic import command

            connection.execute(sa.text("DROP VIEW results"))  # else it refers to columns that change
            command.upgrade(migrations(connection), "head")
            schema.make_view(connection)
            for sweep_id in connection.scalars(sa.select(SWEEP.c.id)).all():
                rebuild_results(connection, sweep_id)  # new columns
    return before, HEAD_REVISION


def check(url: str | os.PathLike[str]) -> list[str]:
    """Return one line for each fault of the database; an empty list if it has none. Changes nothing.

    Checks the file's structure, foreign keys, every row (`soundness`), and whether results match their trials. Raises
    StoreError and SchemaError if the database cannot be opened.
    """
    with connect.connected(url) as connection:
        references = []
        if connection.dialect.name == "sqlite":  # PostgreSQL guarantees both
            lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
            damage = [f"damaged file: {line}" for line in lines if line != "ok" and not _VALUE.match(line)]
            if damage:
                return damage  # rows read from a damaged file are unreliable
            broken = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
            references = [f"{n} rows of {table} refer to missing rows of {to}" for (table, to), n in broken.items()]
        current = connect.revision(connection)
        if current is None:
            return [f"{connect.name_of(connection)} is empty"]
        connect.require_head(current, connect.name_of(connection))
        faults = [line for table in METADATA.sorted_tables for line in _faulty_rows(connection, table)]
        # results cannot be derived from faulty rows
        return [*references, *(faults or _wrong_results(connection))]


def _faulty_rows(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Yield a line for each column with faults: the first fault, its row, and the number of other faults."""
    any_text(connection)
    query = raw(table).order_by(*table.primary_key.columns).execution_options(yield_per=1000)
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    for row in connection.execute(query).mappings():
        try:
            sound_row(table, row)
        except ValueError as error:
            column = str(error).partition(" ")[0]
            keys = ", ".join(f"{column.name} {row[column.name]}" for column in table.primary_key.columns)
            first.setdefault(column, f"{error} ({table.name} {keys}")
            count[column] += 1
    for column, line in first.items():
        yield f"{line}, and {count[column] - 1} more)" if count[column] > 1 else f"{line})"


def _wrong_results(connection: sa.Connection) -> Iterator[str]:
    for sweep_id, baseline_mode in connection.execute(sa.select(SWEEP.c.id, SWEEP.c.baseline_mode)).all():
        try:
            derived = _by_cell(derive(connection, sweep_id, baseline_mode))
        except Exception as error:  # valid types do not exclude impossible values
            yield f"sweep {sweep_id}: its results cannot be derived from its trials: {type(error).__name__} {error}"
            continue
        stored = _by_cell(connection.execute(sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)).mappings())
        for key in sorted(derived.keys() | stored.keys()):
            row, expected = stored.get(key, {}), derived.get(key, {})
            wrong = [name for name in {**expected, **row} if not _same(row.get(name), expected.get(name))]
            if wrong:
                cell = f"sweep {sweep_id}, cell {key[0][:12]}, environment {key[1]}"
                yield f"{cell}: result differs from its trials in {', '.join(wrong) if row and expected else 'all'}"


def _by_cell(rows: Any) -> dict[tuple[str, str], Any]:
    return {(row["cell_key"], row["environment_id"]): row for row in rows}


def _same(a: Any, b: Any) -> bool:
    return math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
