"""Migrations, and checks of every row: `effbench db upgrade` and `db check`, and what an import accepts."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Cell, Environment, Status
from effbench.errors import StoreError
from effbench.printable import one_line
from effbench.store import connect, schema
from effbench.store.decisions import ClaimVerdict
from effbench.store.schema import (
    HEAD_REVISION,
    RESULT,
    SAMPLE,
    STATES,
    SWEEP,
    TRIAL,
    Base,
    UtcDateTime,
    utc,
)
from effbench.store.trials import derive, rebuild_results
from effbench.store.values import artifact_folder, cell_row, decode_samples, plain, scalar

ALLOWED = {
    "sweep.state": STATES,
    "trial.status": tuple(Status),
    "result.status": tuple(Status),
    "claim_verdict.verdict": tuple(ClaimVerdict),
}
#: columns that count
COUNTS = {"bs", "rounds", "position", "round", "attempt", "trials", "count", "stored"}
LISTS = {"command", "overrides"}
TEXT_LIMIT, JSON_LIMIT, BLOB_LIMIT = 2**20, 2**24, 2**15
JSON_DEPTH = 64
YEARS = range(1970, 2200)
#: folders are named by it
SWEEP_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
#: lines of SQLite's integrity check about a value; `faults` names its row as well
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC) value in ")
_MIGRATIONS = Path(__file__).parent / "migrations"


def migrations(connection: sa.Connection | None = None) -> Any:
    """Return alembic's configuration, made in code: users need no ini file."""
    from alembic.config import Config

    logging.getLogger("alembic").setLevel(logging.WARNING)  # whoever stores results does not care about its progress
    made = Config()
    made.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def upgrade(url: str | os.PathLike[str]) -> tuple[str | None, str]:
    """Bring an existing database to this version's schema, all in one transaction; its revision before and after.

    Raises StoreError for a missing or foreign database, SchemaError for one that cannot be upgraded.
    """
    with _connected(url, write=True) as (connection, name):
        before = connect.revision(connection)
        if before is None:
            schema.make(connection)
        elif before not in schema.REVISIONS:
            connect.require_head(before, name)
        elif before != HEAD_REVISION:
            from alembic import command

            command.upgrade(migrations(connection), "head")
            for sweep_id in connection.scalars(sa.select(SWEEP.c.id)).all():
                rebuild_results(connection, sweep_id)  # new columns
    return before, HEAD_REVISION


def check(url: str | os.PathLike[str]) -> list[str]:
    """Return what is wrong with the database, one line each; an empty list if it is sound. Changes nothing.

    Checks the file's structure, foreign keys, every value, keys that do not follow from their rows, samples without a
    trial or that cannot be decoded, and whether results follow from their trials. Raises StoreError and SchemaError as
    opening it does.
    """
    with _connected(url, write=False) as (connection, name):
        if connection.dialect.name == "sqlite":
            damage = _structure(connection)
            if damage:
                return damage  # nothing read from it could be relied on
        current = connect.revision(connection)
        if current is None:
            return [f"{name} is empty"]
        connect.require_head(current, name)
        wrong = [line for table in Base.metadata.sorted_tables for line in _rows(connection, table)]
        # nothing can be derived from values of the wrong type
        results = () if wrong else _results(connection)
        return [*_foreign_keys(connection), *wrong, *_orphans(connection), *results]


@contextmanager
def _connected(url: str | os.PathLike[str], *, write: bool) -> Iterator[tuple[sa.Connection, str]]:
    """Yield a connection in one transaction, and the database for a person."""
    parsed = connect.parse_url(url)
    name = connect.describe(parsed)
    engine = connect.connect(parsed, write=write)
    try:
        with engine.execution_options(**{connect.WRITE_OPTION: write}).begin() as connection:
            yield connection, name
    except exc.SQLAlchemyError as error:
        raise connect.explain(error, name) from error
    finally:
        engine.dispose()


def raw(table: sa.Table, names: Iterator[str] | None = None) -> sa.Select:
    """Select columns (default: all) as the database holds them, without SQLAlchemy's conversion."""
    columns = table.columns if names is None else [table.c[name] for name in names]
    return sa.select(*(sa.type_coerce(column, sa.types.NULLTYPE).label(column.name) for column in columns))


def any_text(connection: sa.Connection) -> None:
    """Let SQLite return text that is not UTF-8 as bytes instead of failing."""
    if connection.dialect.name == "sqlite":
        connection.connection.driver_connection.text_factory = _utf8_or_bytes


def _utf8_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def typed_row(table: sa.Table, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return raw values of a row with the types of their columns, and column -> fault where one is not allowed."""
    row, wrong = {}, {}
    for name, value in values.items():
        try:
            row[name] = typed(table.c[name], value)
        except ValueError as error:
            wrong[name] = f"{table.name}.{name} {error}"
    if not wrong and table.name in _FAULTS:
        try:
            wrong = {name: f"{table.name}.{name} {fault}" for name, fault in _FAULTS[table.name](row)}
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            wrong = {"params": f"{table.name}: its values do not fit together: {type(error).__name__} {error}"}
    return row, wrong


def typed(column: sa.Column, value: Any) -> Any:
    """Return a raw value as its column's type. Raises ValueError for one of another type, or beyond all bounds."""
    kind = column.type
    if value is None:
        if column.nullable:
            return None
        raise ValueError("is NULL, which is not allowed")
    if isinstance(kind, sa.JSON):
        return _json(value, list if column.name in LISTS else dict)
    if isinstance(kind, UtcDateTime):
        return _time(value)
    if isinstance(kind, sa.LargeBinary):
        value = bytes(value) if isinstance(value, memoryview) else value
        _require(isinstance(value, bytes), value, "a blob")
        _require(len(value) <= BLOB_LIMIT, len(value), f"at most {BLOB_LIMIT} bytes")
        return value
    if isinstance(kind, sa.Boolean):
        _require(value in (0, 1), value, "true or false")
        return bool(value)
    if isinstance(kind, sa.Integer):
        limit = 2**63 if isinstance(kind, sa.BigInteger) else 2**31
        _require(isinstance(value, int) and -limit <= value < limit, value, f"an integer of {limit.bit_length()} bits")
        _require(value >= 0 or column.name not in COUNTS, value, "0 or more")
        return value
    if isinstance(kind, sa.Double):
        _require(isinstance(value, int | float) and math.isfinite(value), value, "a finite number")
        return float(value)
    _require(isinstance(value, str), value, "text")
    _require(len(value) <= TEXT_LIMIT, len(value), f"at most {TEXT_LIMIT} characters")
    allowed = ALLOWED.get(f"{column.table.name}.{column.name}")
    _require(allowed is None or value in allowed, repr(value), f"one of {', '.join(allowed or ())}")
    return scalar(value)


def _require(right: bool, value: Any, wanted: str) -> None:
    if not right:
        shown = one_line(value if isinstance(value, str | int | float) else repr(value), 60)
        raise ValueError(f"is {shown}, not {wanted}")


def _json(value: Any, wanted: type) -> Any:
    if isinstance(value, str | bytes):
        _require(len(value) <= JSON_LIMIT, len(value), f"at most {JSON_LIMIT} bytes of JSON")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("is not JSON") from error
    level = [value]
    for _ in range(JSON_DEPTH):
        nested = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [inner for one in nested for inner in one]
    if level:
        raise ValueError(f"is JSON of more than {JSON_DEPTH} levels")
    _require(isinstance(value, wanted), value, f"a JSON {'array' if wanted is list else 'object'}")
    if wanted is list:
        _require(all(isinstance(word, str) for word in value), value, "a list of texts")
    return plain(value)


def _time(value: Any) -> dt.datetime:
    try:
        parsed = utc(dt.datetime.fromisoformat(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError, AttributeError, TypeError):
        parsed = None
    _require(parsed is not None and parsed.year in YEARS, value, f"a time in {YEARS[0]}–{YEARS[-1]} (ISO 8601)")
    return parsed


def _sweep_faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not SWEEP_ID.fullmatch(row["id"]):
        yield "id", f"is {one_line(row['id'], 60)!r}, not the id of a sweep"
    environments = row["host"].get("environments")
    if environments is not None and not (isinstance(environments, dict) and all(map(_is_facts, environments.values()))):
        yield "host", "has odd environments: expected environment id -> facts of its interpreter"


def _is_facts(facts: Any) -> bool:
    return isinstance(facts, dict) and all(
        _is_texts(value) if name == "given" else not isinstance(value, dict | list) for name, value in facts.items()
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _cell_faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    params = row["params"]
    optional = (params.get("stream"), params.get("training"))
    parts = [params.get(name) for name in ("model", "mode", "numerics", "env")]
    if not all(isinstance(part, dict) for part in [*parts, *(part for part in optional if part is not None)]):
        yield "params", "does not describe a cell"
        return
    if optional[0] is not None and not _is_stream(optional[0]):
        yield "params", "has an odd stream: expected its name, samples_per_call and sizes"
        return
    expected = cell_row(Cell.from_params(row["params"]))
    for name, value in row.items():
        if name != "params" and value != expected[name]:
            yield name, "does not follow from cell.params: damaged or forged"


def _is_stream(stream: dict[str, Any]) -> bool:
    mean, sizes = stream.get("samples_per_call"), stream.get("sizes")
    return (
        isinstance(mean, int | float)
        and mean > 0
        and isinstance(sizes, list)
        and all(isinstance(n, int) for n in sizes)
    )


def _environment_faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if row["id"] != Environment(**{name: row[name] for name in Environment.__dataclass_fields__}).id:
        yield "id", "does not follow from the environment: damaged or forged"


def _trial_faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    extra = row["extra"]
    folder = artifact_folder(row["sweep_id"])
    names = extra.get("artifacts", [])
    if not _is_texts(names) or not all(_is_below(name, folder) for name in names):
        yield "extra", f"names artifacts that are not files below {folder}"
    if not isinstance(extra.get("artifact_notes", {}), dict) or not isinstance(extra.get("facts", {}), dict):
        yield "extra", "has artifact_notes or facts that are not objects"
    if not _is_profile(extra.get("profile")):
        yield "extra", "has an odd profile: expected its largest kernels with name, count, ms and share"


def _is_below(name: str, folder: str) -> bool:
    steps = name.removeprefix(folder).split("/")
    return name.startswith(folder) and "\\" not in name and not {"", ".", ".."} & set(steps)


def _is_profile(profile: Any) -> bool:
    if profile is None:
        return True
    if not isinstance(profile, dict) or not isinstance(profile.get("top"), list):
        return False
    numbers = [profile.get("calls") or 0, profile.get("kernels_in_graphs") or 0]
    for kernel in profile["top"]:
        if not isinstance(kernel, dict) or not isinstance(kernel.get("name"), str):
            return False
        numbers += [kernel.get(name) for name in ("count", "ms", "share")]
    return all(isinstance(number, int | float) for number in numbers)


def _sample_faults(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if row["count"] < row["stored"]:
        yield "stored", f"is {row['stored']} of {row['count']} samples"
    try:
        decode_samples(row["codec"], row["data"], row["stored"])
    except StoreError as error:
        yield "data", f"({one_line(row['timer'], 40)}): {error}"


_FAULTS = {
    "sweep": _sweep_faults,
    "cell": _cell_faults,
    "environment": _environment_faults,
    "trial": _trial_faults,
    "sample": _sample_faults,
}


def _structure(connection: sa.Connection) -> list[str]:
    lines = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
    return [f"damaged file: {line}" for line in lines if line != "ok" and not _VALUE.match(line)]


def _foreign_keys(connection: sa.Connection) -> Iterator[str]:
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL does not let them break
    for table, row_id, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        if table != "sample":
            yield f"{table} row {row_id} refers to a missing row of {parent}"


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[str]:
    """Each fault of the table's rows with its first row: SQLite stores anything in any column."""
    any_text(connection)
    query = raw(table).order_by(*table.primary_key.columns).execution_options(yield_per=1000)
    first: dict[str, str] = {}
    more: dict[str, int] = {}
    for row in connection.execute(query).mappings():
        for name, fault in typed_row(table, row)[1].items():
            if name in first:
                more[name] = more.get(name, 0) + 1
            else:
                keys = ", ".join(f"{column.name} {row[column.name]}" for column in table.primary_key.columns)
                first[name] = f"{fault} ({table.name} {keys}"
    for name, line in first.items():
        yield f"{line}, and {more[name]} more)" if name in more else f"{line})"


def _orphans(connection: sa.Connection) -> Iterator[str]:
    orphaned = connection.execute(
        sa.select(sa.func.count()).where(~sa.exists().where(TRIAL.c.id == SAMPLE.c.trial_id)).select_from(SAMPLE)
    ).scalar()
    if orphaned:
        yield f"{orphaned} sample rows without their trial"


def _results(connection: sa.Connection) -> Iterator[str]:
    for sweep_id, baseline_mode in connection.execute(sa.select(SWEEP.c.id, SWEEP.c.baseline_mode)).all():
        try:
            derived = {_key(row): row for row in derive(connection, sweep_id, baseline_mode)}
        except Exception as error:  # whatever a value of the right type can still break
            yield f"sweep {sweep_id}: its results cannot be derived from its trials: {type(error).__name__} {error}"
            continue
        rows = connection.execute(sa.select(RESULT).where(RESULT.c.sweep_id == sweep_id)).mappings()
        stored = {_key(row): row for row in rows}
        for key in sorted(derived.keys() | stored.keys()):
            where = f"sweep {sweep_id}, cell {key[0][:12]}, environment {key[1]}"
            if key not in stored:
                yield f"{where}: has trials but no result"
            elif key not in derived:
                yield f"{where}: has a result but no trials"
            else:
                wrong = [name for name, value in derived[key].items() if not _same(value, stored[key][name])]
                if wrong:
                    yield f"{where}: result differs from its trials in {', '.join(wrong)}"


def _key(row: Any) -> tuple[str, str]:
    return row["cell_key"], row["environment_id"]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b
