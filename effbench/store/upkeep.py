"""Migrations and integrity: what `effbench db upgrade` and `effbench db check` do."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Cell, Status
from effbench.errors import SchemaError, StoreError
from effbench.store import bundle, connect, derive, samples
from effbench.store.schema import HEAD_REVISION, REVISIONS, Base, ResultRow, SampleRow, SweepRow, TrialRow
from effbench.store.sweeps import STATES
from effbench.store.values import RESULT_FIELDS, cell_row
from effbench.store.verdicts import ClaimVerdict

SWEEP, TRIAL, SAMPLE, RESULT = (row.__table__ for row in (SweepRow, TrialRow, SampleRow, ResultRow))
ALLOWED = {
    "sweep.state": STATES,
    "trial.status": tuple(Status),
    "result.status": tuple(Status),
    "claim_verdict.verdict": tuple(ClaimVerdict),
}
#: Lines of SQLite's integrity check about a value. `_values` names the row as well.
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC) value in ")


def upgrade(url: str | os.PathLike[str]) -> tuple[str | None, str]:
    """Bring an existing database to this version's schema, all in one transaction; its revision before and after.

    Raises StoreError for a missing or foreign database, SchemaError for one that is newer than this effbench.
    """
    parsed = connect.parse_url(url)
    name = connect.describe(parsed)
    engine = connect.connect(parsed, write=True)
    try:
        with engine.execution_options(**{connect.WRITE_OPTION: True}).begin() as connection:
            before = connect.revision(connection)
            if before is not None and before not in REVISIONS:
                raise SchemaError(f"{name} was made by a newer effbench (schema {before}); upgrade effbench")
            if before != HEAD_REVISION:
                from effbench.store.migrate import migrate

                migrate(connection)
                if before is not None:
                    # columns that are new say what the trials have held all along
                    for sweep in connection.execute(sa.select(SWEEP.c.id, SWEEP.c.baseline_mode)).all():
                        derive.rewrite(connection, *sweep)
        return before, HEAD_REVISION
    except exc.SQLAlchemyError as error:
        raise connect.explain(error, name) from error
    finally:
        engine.dispose()


def check(url: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong with the database, one line each; an empty list if it is sound. Changes nothing.

    Checks the file's structure, foreign keys, the type of every value, samples without a trial or that cannot be
    decoded, and whether results follow from their trials. Raises StoreError and SchemaError as opening it does.
    """
    parsed = connect.parse_url(url)
    name = connect.describe(parsed)
    engine = connect.connect(parsed, write=False)
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "sqlite":
                damage = _structure(connection)
                if damage:
                    return damage  # nothing read from it could be relied on
            current = connect.revision(connection)
            if current is None:
                return [f"{name} is empty"]
            connect.require_head(current, name)
            wrong = [line for table in Base.metadata.sorted_tables for line in _values(connection, table)]
            # nothing can be derived from values of the wrong type
            results = () if wrong else _results(connection)
            return [*_foreign_keys(connection), *wrong, *_samples(connection), *results]
    except exc.SQLAlchemyError as error:
        raise connect.explain(error, name) from error
    finally:
        engine.dispose()


def _structure(connection: sa.Connection) -> list[str]:
    said = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [f"damaged file: {line}" for line in said if line != "ok" and not _VALUE.match(line)]


def _foreign_keys(connection: sa.Connection) -> Iterator[str]:
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL does not let them break
    for table, row_id, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        if table != "sample":
            yield f"{table} row {row_id} refers to a missing row of {parent}"


def _values(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Values that do not fit their column, each fault with its first row: SQLite stores anything in any column."""
    if connection.dialect.name == "sqlite":
        connection.connection.driver_connection.text_factory = _utf8_or_bytes
    raw = [sa.type_coerce(column, sa.types.NULLTYPE).label(column.name) for column in table.columns]
    query = sa.select(*raw).order_by(*table.primary_key.columns).execution_options(yield_per=1000)
    first: dict[str, str] = {}
    more: dict[str, int] = {}
    for row in connection.execute(query).mappings():
        for name, fault in _faults(table, row):
            if name in first:
                more[name] = more.get(name, 0) + 1
            else:
                keys = ", ".join(f"{column.name} {row[column.name]}" for column in table.primary_key.columns)
                first[name] = f"{fault} ({table.name} {keys}"
    for name, line in first.items():
        yield f"{line}, and {more[name]} more)" if name in more else f"{line})"


def _utf8_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _faults(table: sa.Table, row: sa.RowMapping) -> Iterator[tuple[str, str]]:
    """The name of each column whose raw value in this row does not fit, and why not."""
    found = False
    for column in table.columns:
        if fault := _fault(f"{table.name}.{column.name}", column, row[column.name]):
            found = True
            yield column.name, fault
    if table.name == "cell" and not found:
        params = row["params"] if isinstance(row["params"], dict) else json.loads(row["params"])
        try:
            expected = cell_row(Cell.from_params(params))
        except (TypeError, KeyError, ValueError) as error:
            yield "params", f"cell.params does not describe a cell: {type(error).__name__} {error}"
        else:
            for name in expected.keys() - {"params"}:
                if row[name] != expected[name]:
                    yield name, f"cell.{name} does not follow from cell.params"


def _fault(what: str, column: sa.Column, value: Any) -> str | None:
    """Why a raw value does not fit its column, None if it does."""
    if isinstance(column.type, sa.JSON) and isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return f"{what} is not JSON"
    if value is None:
        return None if column.nullable else f"{what} is NULL, which is not allowed"
    if isinstance(column.type, sa.LargeBinary):
        return None if isinstance(value, bytes | memoryview) else f"{what} is not a blob"
    if isinstance(column.type, sa.Boolean) and value in (0, 1):
        return None
    try:
        typed = bundle.typed(column, value, what)
    except StoreError as error:
        return str(error)
    if typed is None:
        return f"{what} is {value}, not a finite number"
    if what in ALLOWED and typed not in ALLOWED[what]:
        return f"{what} is {typed!r}, not one of {', '.join(ALLOWED[what])}"
    if isinstance(typed, list) and not all(isinstance(word, str) for word in typed):
        return f"{what} is not a list of texts"
    return None


def _samples(connection: sa.Connection) -> Iterator[str]:
    orphaned = connection.execute(
        sa.select(sa.func.count()).where(~sa.exists().where(TRIAL.c.id == SAMPLE.c.trial_id)).select_from(SAMPLE)
    ).scalar()
    if orphaned:
        yield f"{orphaned} sample rows without their trial"
    for row in connection.execute(sa.select(SAMPLE)):
        try:
            samples.decode(row.codec, row.data, row.stored)
        except StoreError as error:
            yield f"samples {row.timer} of trial {row.trial_id}: {error}"


def _results(connection: sa.Connection) -> Iterator[str]:
    for sweep_id, baseline_mode in connection.execute(sa.select(SWEEP.c.id, SWEEP.c.baseline_mode)).all():
        try:
            said = {_key(row): row for row in derive.derive(connection, sweep_id, baseline_mode)}
        except Exception as error:  # whatever a value of the right type can still break
            yield f"sweep {sweep_id}: its results cannot be derived from its trials: {type(error).__name__} {error}"
            continue
        kept = connection.execute(sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)).mappings()
        stored = {_key(row): row for row in kept}
        for key in said.keys() | stored.keys():
            where = f"sweep {sweep_id}, cell {key[0][:12]}, environment {key[1]}"
            if key not in stored:
                yield f"{where}: has trials but no result"
            elif key not in said:
                yield f"{where}: has a result but no trials"
            else:
                wrong = [name for name in RESULT_FIELDS if not _same(said[key][name], stored[key][name])]
                if wrong:
                    yield f"{where}: result differs from its trials in {', '.join(wrong)}"


def _key(row: Any) -> tuple[str, str]:
    return row["cell_key"], row["environment_id"]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b
