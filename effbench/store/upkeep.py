"""Migrations and integrity: what `effbench db upgrade` and `effbench db check` do."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.errors import SchemaError, StoreError
from effbench.store import connect, derive, samples
from effbench.store.schema import HEAD_REVISION, REVISIONS, ResultRow, SampleRow, SweepRow, TrialRow
from effbench.store.values import RESULT_FIELDS

SWEEP, TRIAL, SAMPLE, RESULT = (row.__table__ for row in (SweepRow, TrialRow, SampleRow, ResultRow))


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
    """What is wrong with the database, one line each; empty where all is well. Changes nothing.

    Looks at the file's structure, foreign keys, samples without a trial or that cannot be decoded, texts in columns of
    numbers, and results that differ from what the trials say. Raises StoreError and SchemaError as opening it does.
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
            texts = list(_texts(connection))
            # nothing can be derived from trials whose figures are none
            return [*_foreign_keys(connection), *_samples(connection), *texts, *(() if texts else _results(connection))]
    except exc.SQLAlchemyError as error:
        raise connect.explain(error, name) from error
    finally:
        engine.dispose()


def _structure(connection: sa.Connection) -> list[str]:
    said = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [f"damaged file: {line}" for line in said if line != "ok"]


def _foreign_keys(connection: sa.Connection) -> Iterator[str]:
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL does not let them break
    for table, row_id, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        if table != "sample":
            yield f"{table} row {row_id} refers to a missing row of {parent}"


def _texts(connection: sa.Connection) -> Iterator[str]:
    """Numbers that are none: SQLite keeps a text in such a column, if someone writes it there."""
    if connection.dialect.name != "sqlite":
        return
    for table in (TRIAL, RESULT):
        columns = [column for column in table.columns if isinstance(column.type, sa.Float | sa.Integer)]
        odd = [
            sa.func.sum(sa.case((sa.func.typeof(column).in_(("text", "blob")), 1), else_=0)).label(column.name)
            for column in columns
        ]
        for name, count in connection.execute(sa.select(*odd)).mappings().one().items():
            if count:
                yield f"{table.name}.{name}: no number in {count} row{'s' * (count != 1)}"


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
        said = {_key(row): row for row in derive.derive(connection, sweep_id, baseline_mode)}
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
