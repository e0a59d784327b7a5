"""Upgrade a database's schema, and check that every row is valid: `effbench db upgrade` and `effbench db check`."""

from __future__ import annotations

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.store import connect, schema
from effbench.store.schema import HEAD_REVISION, METADATA, RESULT, SAMPLE, SWEEP, TRIAL
from effbench.store.soundness import any_text, batched, raw, sound_row
from effbench.store.trials import derive, rebuild_results

#: lines of SQLite's integrity check about one value; `_faulty_rows` reports these with their rows
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC) value in ")
#: trials, and sweeps, that are checked at a time
PART, SWEEPS = 20_000, 5
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


def check(url: str | os.PathLike[str], processes: int = 1, deep: bool = True) -> list[str]:
    """Return one line for each fault of the database; an empty list if it has none. Changes nothing.

    Checks the file's structure, foreign keys, every row (`soundness`), and whether results match their trials. Without
    `deep`, only the NEWEST trials are read, and the results of their sweeps; with more than MOST trials, the structure
    and the foreign keys are not checked either. A large database is divided among this many processes. Raises
    StoreError and SchemaError if it cannot be opened.
    """
    with connect.connected(url) as connection:
        current = connect.revision(connection)
        if current is None:
            return [f"{connect.name_of(connection)} is empty"]
        connect.require_head(current, connect.name_of(connection))
        last = connection.scalar(sa.select(sa.func.max(TRIAL.c.id))) or 0
        newest = None if deep or last <= NEWEST else last - NEWEST
        sweeps = sa.select(SWEEP.c.id).order_by(SWEEP.c.id)
        if newest is not None:
            sweeps = sweeps.where(SWEEP.c.id.in_(sa.select(TRIAL.c.sweep_id).where(TRIAL.c.id > newest)))
        ids = connection.scalars(sweeps).all()
        starts = [None, *range(PART, last, PART)] if newest is None else [newest + 1]
        checked = None if newest is None else ids
        rows: list[Callable[..., Any]] = []
        for table in METADATA.sorted_tables:
            divided = starts if table in (TRIAL, SAMPLE) else [None]
            rows += [partial(_faulty_rows, table.name, checked, *part) for part in pairwise([*divided, None])]
        derived = [partial(_wrong_results, part) for part in batched(ids, SWEEPS)]
        structure = partial(_structure, deep or last <= MOST)
        tasks = [structure, *rows, partial(_missing_results, checked), *derived]
        if len(starts) == 1 or processes == 1:
            return _faults((task(connection) for task in tasks), len(rows))
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return _faults(pool.map(partial(_run, url), tasks), len(rows))


def _run(url: str | os.PathLike[str], task: Callable[[sa.Connection], Any]) -> Any:
    with connect.connected(url) as connection:
        return task(connection)


def _faults(outcomes: Iterator[Any], parts: int) -> list[str]:
    """Return the lines of `check`. `outcomes`: of `_structure`, then of so many `_faulty_rows`, then the others."""
    damage, references = next(outcomes)
    if damage:  # rows read from a damaged file are unreliable
        return damage
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    for found, numbers in islice(outcomes, parts):
        first = {**found, **first}
        count += numbers
    more = {column: f", and {count[column] - 1} more" if count[column] > 1 else "" for column in first}
    lines = [f"{line}{more[column]})" for column, line in first.items()]
    # results cannot be derived from faulty rows
    return [*references, *(lines or chain.from_iterable(outcomes))]


def _structure(has_time: bool, connection: sa.Connection) -> tuple[list[str], list[str]]:
    """Return the lines for damage of the file, and those for references to missing rows; none unless `has_time`."""
    if connection.dialect.name != "sqlite" or not has_time:  # PostgreSQL guarantees both
        return [], []
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    damage = [f"damaged file: {line}" for line in lines if line != "ok" and not _VALUE.match(line)]
    broken = Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))
    return damage, [f"{n} rows of {table} refer to missing rows of {to}" for (table, to), n in broken.items()]


def _faulty_rows(
    name: str, checked: list[str] | None, start: int | None, end: int | None, connection: sa.Connection
) -> tuple[dict[str, str], Counter[str]]:
    """Return column -> its first fault with the row, and column -> number of faults, for rows of a table: all, or
    those whose first key is from `start` to before `end`. `checked`: ids of the only sweeps to check."""
    table = METADATA.tables[name]
    key = next(iter(table.primary_key))
    where = [key >= start] if start is not None else []
    where += [sa.or_(key < end, key.is_(None))] if end is not None else []
    where += [table.c.sweep_id.in_(checked)] if checked is not None and "sweep_id" in table.c else []
    any_text(connection)
    query = raw(table).where(*where).order_by(*table.primary_key)
    first: dict[str, str] = {}
    count: Counter[str] = Counter()
    for row in chain.from_iterable(connection.execute(query.execution_options(yield_per=1000)).partitions()):
        try:
            sound_row(table, row._mapping)
        except ValueError as error:
            column = str(error).partition(" ")[0]
            keys = ", ".join(f"{column.name} {row._mapping[column.name]}" for column in table.primary_key)
            first.setdefault(column, f"{error} ({table.name} {keys}")
            count[column] += 1
    return first, count


def _missing_results(checked: list[str] | None, connection: sa.Connection) -> list[str]:
    """Return a line if cells have trials but no result, and one for the reverse. `checked`: see _faulty_rows."""
    keys = [column.name for column in RESULT.primary_key]
    trials, results = (sa.select(*(table.c[name] for name in keys)) for table in (TRIAL, RESULT))
    if checked is not None:
        trials, results = (query.where(query.selected_columns.sweep_id.in_(checked)) for query in (trials, results))
    different = {"trials but no result": trials.except_(results), "a result but no trials": results.except_(trials)}
    counts = {what: connection.scalar(sa.select(sa.func.count()).select_from(query.subquery()))
              for what, query in different.items()}  # fmt: skip
    return [f"{number} cells of sweeps have {what}" for what, number in counts.items() if number]


def _wrong_results(sweep_ids: list[str], connection: sa.Connection) -> list[str]:
    lines = []
    sweeps = sa.select(SWEEP.c.id, SWEEP.c.baseline_mode).where(SWEEP.c.id.in_(sweep_ids))
    for sweep_id, baseline_mode in connection.execute(sweeps).all():
        try:
            derived = _by_cell(derive(connection, sweep_id, baseline_mode))
        except Exception as error:  # valid types do not exclude impossible values
            what = f"{type(error).__name__} {error}"
            lines.append(f"sweep {sweep_id}: its results cannot be derived from its trials: {what}")
            continue
        stored = _by_cell(connection.execute(sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)).mappings())
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
    return math.isclose(a, b, rel_tol=1e-9) if isinstance(a, float) and isinstance(b, float) else a == b
