"""Check that a row is valid: types, ranges and sizes of its values, and values that must match each other.

SQLite stores anything in any column, and a file may come from an untrusted source. `db check` reports invalid rows; an
import refuses their sweeps. The schema gives types and NULLs.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from typing import Any, TypeVar

import sqlalchemy as sa

from effbench.cell import Cell, Environment, Status
from effbench.errors import StoreError
from effbench.printable import one_line
from effbench.store.decisions import ClaimVerdict
from effbench.store.schema import SAMPLE, STATES, SWEEP_ID, TRIAL, UtcDateTime, utc
from effbench.store.values import Document, artifact_folder, cell_row, decode_samples, plain, text

#: column -> allowed values
CHOICES = {"state": STATES, "status": tuple(Status), "verdict": tuple(ClaimVerdict)}
#: columns that must not be negative
COUNTS = {"bs", "rounds", "position", "round", "attempt", "trials", "count", "stored"}
LISTS = {"command", "overrides"}
#: tables with contents that the database cannot check
CONTENTS = (TRIAL, SAMPLE)
TEXT_LIMIT, JSON_LIMIT, BLOB_LIMIT = 2**20, 2**24, 2**15
JSON_DEPTH = 64
YEARS = range(1970, 2200)

T = TypeVar("T")
#: column, whether it is valid, and the fault otherwise
Rule = Iterator[tuple[str, Any, str]]


def raw(table: sa.Table, names: Iterable[str] | None = None) -> sa.Select:
    """Return a SELECT of a table's columns (all, or `names`) without SQLAlchemy's conversion of values."""
    columns = [table.c[name] for name in table.c.keys() if names is None or name in names]  # noqa: SIM118
    return sa.select(*(sa.type_coerce(column, sa.types.NULLTYPE).label(column.name) for column in columns))


def batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` rows; the last one may be shorter."""
    rows = iter(rows)
    while chunk := list(islice(rows, size)):
        yield chunk


@cache
def doubtful(table: sa.Table, dialect: str) -> sa.Label[bool]:
    """Return a fast condition, `doubt`, of rows of which a type, bound or size may be wrong: `sound_row` decides. It
    does not look at the contents of JSON documents and blobs."""
    doubts = chain.from_iterable(_doubts(column, dialect == "sqlite") for column in table.columns)
    return sa.func.coalesce(sa.or_(*doubts), False).label("doubt")


def _doubts(column: sa.Column, is_sqlite: bool) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions, of which one is true for an invalid value; for NULL, if it is allowed, none is."""
    kind, value = column.type, sa.type_coerce(column, sa.types.NULLTYPE)
    size = sa.func.length(sa.cast(value, sa.Text) if isinstance(kind, sa.JSON) else value)
    if not column.nullable:
        yield value.is_(None)
    if isinstance(kind, UtcDateTime):
        first, last = (sa.literal_column(f"'{day}'") for day in (f"{YEARS[0]}-01-02", f"{YEARS[-1]}-12-31"))
        yield sa.not_(value.between(first, last))  # in any time zone
    elif isinstance(kind, sa.Double):  # in SQLite, text and blobs are larger than numbers
        yield sa.not_(value.between(-sys.float_info.max, sys.float_info.max))
    elif isinstance(kind, sa.Integer):
        limit = 2**63 if isinstance(kind, sa.BigInteger) else 2**31
        yield sa.not_(value.between(0 if column.name in COUNTS else -limit, limit - 1))
    elif isinstance(kind, sa.LargeBinary):
        yield size > BLOB_LIMIT
    elif isinstance(kind, sa.JSON):
        yield size > JSON_LIMIT
        yield sa.func.substr(sa.cast(value, sa.Text), 1, 1) != ("[" if column.name in LISTS else "{")
    elif column.name in CHOICES:
        yield value.not_in(CHOICES[column.name])
    elif isinstance(kind, sa.String):
        yield size > TEXT_LIMIT
    if is_sqlite:
        yield from _sqlite_doubts(column, value)


def _sqlite_doubts(column: sa.Column, value: sa.ColumnElement[Any]) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions of values that have another type than their column."""
    kind, storage = column.type, sa.func.typeof(value)
    if isinstance(kind, sa.Boolean):
        yield value.not_in((0, 1))
    elif isinstance(kind, sa.Integer):
        yield storage.not_in(("integer", "null"))
    elif isinstance(kind, sa.LargeBinary):
        yield storage.not_in(("blob", "null"))
    elif not isinstance(kind, sa.Double):
        yield storage.not_in(("text", "null"))
    if isinstance(kind, UtcDateTime):
        second = sa.func.substr(value, 1, 19)
        # adding nothing finds days that a month does not have
        yield value.is_not(None) & (sa.func.coalesce(sa.func.datetime(second, "+0 days"), "") != second)
        yield value.op("NOT GLOB")(f"{'?' * 19}.{'[0-9]' * 6}")
    elif isinstance(kind, sa.JSON):
        yield value.is_not(None) & (sa.func.json_valid(value) == 0)
    elif isinstance(kind, sa.String):  # not ASCII, or with NUL, where `length` ends
        yield value.op("GLOB")("*[^\x01-\x7f]*")
        yield sa.func.length(sa.cast(value, sa.LargeBinary)) != sa.func.length(value)


def any_text(connection: sa.Connection) -> None:
    """Make SQLite return invalid UTF-8 with lone surrogates instead of failing; no valid text has these."""
    if connection.dialect.name == "sqlite":
        connection.connection.driver_connection.text_factory = partial(bytes.decode, errors="surrogateescape")


def has_sound_contents(table: sa.Table, row: sa.Row) -> bool:
    """Check what a `raw` row of these CONTENTS contains that is not `doubtful`. Return whether it can be stored as it
    is. Raises ValueError for the first fault."""
    values = row._mapping
    if table is TRIAL:
        document = _readers(table)["extra"](row.extra)
        values = {"sweep_id": row.sweep_id, "extra": document}
    _require_rules(table, values)
    return table is not TRIAL or isinstance(document, Document)


def sound_row(table: sa.Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `raw` row with the types of the table's columns, None for missing columns. Raises ValueError for the
    first fault."""
    row = {name: read(values.get(name)) for name, read in _readers(table).items()}
    _require_rules(table, row)
    return row


def _require_rules(table: sa.Table, row: dict[str, Any]) -> None:
    if (rules := _RULES.get(table.name)) is None:
        return
    try:
        fault = next((f"{table.name}.{name} {what}" for name, right, what in rules(row) if not right), None)
    except (StoreError, TypeError, KeyError, ValueError, AttributeError) as error:
        fault = f"{table.name} has inconsistent values: {one_line(error, 100)}"
    if fault:
        raise ValueError(fault)


def sound_value(column: sa.Column, value: Any) -> Any:
    """Return a raw value with its column's type. Raises ValueError for a wrong type or an impossible value."""
    return _readers(column.table)[column.name](value)


@cache
def _readers(table: sa.Table) -> dict[str, Callable[[Any], Any]]:
    """Return column name -> `sound_value` of the column, without the cost of looking at its type for every value."""
    return {column.name: _reader(column, _typed(column)) for column in table.columns}


def _reader(column: sa.Column, typed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value is None and column.nullable:
            return None
        try:
            if value is None:
                raise ValueError("is NULL, which is not allowed")
            return typed(value)
        except ValueError as error:
            raise ValueError(f"{column.table.name}.{column.name} {error}") from error

    return read


def _typed(column: sa.Column) -> Callable[[Any], Any]:
    kind = column.type
    if isinstance(kind, sa.JSON):
        return _list if column.name in LISTS else _object
    for known, typed in ((UtcDateTime, _time), (sa.LargeBinary, _blob), (sa.Boolean, _boolean), (sa.Double, _number)):
        if isinstance(kind, known):
            return typed
    if isinstance(kind, sa.Integer):
        limit = 2**63 if isinstance(kind, sa.BigInteger) else 2**31
        return partial(_integer, lowest=0 if column.name in COUNTS else -limit, limit=limit)
    return partial(_text, choices=CHOICES.get(column.name))


def _blob(value: Any) -> bytes:
    value = bytes(value) if isinstance(value, memoryview) else value
    if not (isinstance(value, bytes) and len(value) <= BLOB_LIMIT):
        _require(False, value, f"a blob of at most {BLOB_LIMIT} bytes")
    return value


def _boolean(value: Any) -> bool:
    _require(value in (0, 1), value, "true or false")
    return bool(value)


def _integer(value: Any, lowest: int, limit: int) -> int:
    if not (isinstance(value, int) and lowest <= value < limit):
        _require(isinstance(value, int) and -limit <= value < limit, value, f"an integer of {limit.bit_length()} bits")
        _require(False, value, "0 or more")
    return value


def _number(value: Any) -> float:
    if not (isinstance(value, int | float) and math.isfinite(value)):
        _require(False, value, "a finite number")
    return float(value)


def _text(value: Any, choices: Collection[str] | None) -> str:
    right = isinstance(value, str) and len(value) <= TEXT_LIMIT
    if not right or not value.isascii() or "\x00" in value:
        _require(right and value == text(value), value, f"text of at most {TEXT_LIMIT} characters")
    if choices is not None and value not in choices:
        _require(False, repr(value), f"one of {', '.join(choices)}")
    return value


def _require(right: bool, value: Any, wanted: str) -> None:
    if not right:
        shown = one_line(value if isinstance(value, str | int | float) else repr(value), 60)
        raise ValueError(f"is {shown}, not {wanted}")


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str) and value.isascii() and value.count("[") + value.count("{") <= JSON_DEPTH:
        # plain JSON is read fast and keeps its text; the general way below also finds the fault of other text
        with suppress(ValueError, RecursionError):
            is_plain = "\\u" not in value and len(value) <= JSON_LIMIT and not _has_huge_number(value)
            found = _PLAIN_JSON.decode(value) if is_plain else None
            if isinstance(found, dict):
                document = Document(found)
                document.source = value
                return document
    return _json(value, dict)


def _list(value: Any) -> list[str]:
    found = _json(value, list)
    _require(_is_texts(found), value, "a list of strings")
    return found


def _json(value: Any, wanted: type) -> Any:
    if isinstance(value, str | bytes):
        _require(len(value) <= JSON_LIMIT, len(value), f"at most {JSON_LIMIT} bytes of JSON")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("is not JSON") from error
    _require_shallow(value, JSON_DEPTH)
    _require(isinstance(value, wanted), value, f"a JSON {'array' if wanted is list else 'object'}")
    return plain(value)


def _refuse(constant: str) -> None:
    raise ValueError(f"is not JSON: {constant}")


#: reads no NaN and Infinity
_PLAIN_JSON = json.JSONDecoder(parse_constant=_refuse)
#: two patterns are searched four times as fast as one with [eE]
_EXPONENTS = re.compile(r"e\+?[0-9]{3}"), re.compile(r"E\+?[0-9]{3}")


def _has_huge_number(text: str) -> bool:
    """Return whether JSON may contain a number that is infinite as a float; true for any of 300 digits."""
    has_exponent = any(exponent.search(text) for exponent in _EXPONENTS)
    return has_exponent or any(text[at : at + 150].isdigit() for at in range(0, len(text), 150))


def _require_shallow(value: Any, levels: int) -> None:
    if levels == 0:
        raise ValueError(f"is JSON of more than {JSON_DEPTH} levels")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(inner, levels - 1)


def _time(value: Any) -> dt.datetime:
    try:
        time = utc(dt.datetime.fromisoformat(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError, AttributeError, TypeError):
        time = None
    _require(time is not None and time.year in YEARS, value, f"a time in {YEARS[0]}–{YEARS[-1]} (ISO 8601)")
    return time


def _sweep_rules(row: Mapping[str, Any]) -> Rule:
    yield "id", SWEEP_ID.fullmatch(row["id"]), f"is {one_line(row['id'], 60)!r}, not a sweep id"
    environments = row["host"].get("environments")
    for facts in environments.values() if environments is not None else ():
        given, *scalars = facts.get("given", []), *(value for name, value in facts.items() if name != "given")
        right = _is_texts(given) and not any(isinstance(value, dict | list) for value in scalars)
        yield "host", right, "has invalid environments: expected environment id -> facts of its interpreter"


def _cell_rules(row: Mapping[str, Any]) -> Rule:
    params = row["params"]
    parts = [params.get(name) for name in ("model", "mode", "numerics", "env")]
    parts += [params[name] for name in ("stream", "training", "generate") if params.get(name) is not None]
    yield "params", all(isinstance(part, dict) for part in parts), "does not describe a cell"
    if (stream := params.get("stream")) is not None:
        sizes = stream["sizes"]
        right = (
            stream.get("samples_per_call", 1) > 0 and isinstance(sizes, list) and all(isinstance(n, int) for n in sizes)
        )
        yield "params", right, "has an invalid stream: expected a name, sizes and positive samples_per_call"
    expected = cell_row(Cell.from_params(params))
    for name, value in row.items():
        yield name, value == expected[name], "does not match cell.params: damaged or forged"


def _environment_rules(row: Mapping[str, Any]) -> Rule:
    facts = Environment(**{name: row[name] for name in Environment.__dataclass_fields__})
    yield "id", row["id"] == facts.id, "does not match the environment: damaged or forged"


def _trial_rules(row: Mapping[str, Any]) -> Rule:
    extra, folder = row["extra"], artifact_folder(row["sweep_id"])
    names = extra.get("artifacts", [])
    right = _is_texts(names) and all(_is_below(name, folder) for name in names)
    yield "extra", right, f"names artifacts outside {folder}"
    right = isinstance(extra.get("artifact_notes", {}), dict) and isinstance(extra.get("facts", {}), dict)
    yield "extra", right, "has artifact_notes or facts that are not objects"
    if (profile := extra.get("profile")) is not None:
        numbers = [profile.get("calls") or 0, profile.get("kernels_in_graphs") or 0]
        numbers += [kernel[name] for kernel in profile["top"] for name in ("count", "ms", "share")]
        right = {*map(type, numbers)} <= {int, float, bool} and _is_texts([kernel["name"] for kernel in profile["top"]])
        yield "extra", right, "has an invalid profile: expected its largest kernels with name, count, ms and share"


def _sample_rules(row: Mapping[str, Any]) -> Rule:
    yield "stored", row["stored"] <= row["count"], f"is {row['stored']} of {row['count']} samples"
    decode_samples(row["codec"], row["data"], row["stored"])


_RULES = {
    "sweep": _sweep_rules,
    "cell": _cell_rules,
    "environment": _environment_rules,
    "trial": _trial_rules,
    "sample": _sample_rules,
}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_below(name: str, folder: str) -> bool:
    steps = name.removeprefix(folder).split("/")
    return name.startswith(folder) and "\\" not in name and not {"", ".", ".."} & set(steps)
