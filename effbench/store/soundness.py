"""Check that a row is valid: types, ranges and sizes of its values, and values that must match each
other.

SQLite stores anything in any column, and a file may come from an untrusted source. `db check`
reports invalid rows; an import refuses their sweeps. The schema gives types and NULLs.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from effbench.cell import Cell, Environment, Status
from effbench.environments import MACHINE
from effbench.errors import StoreError
from effbench.metrics import TRIAL_METRICS
from effbench.printable import one_line
from effbench.store.decisions import ClaimVerdict
from effbench.store.schema import STATES, SWEEP_ID, TRIAL, UtcDateTime, utc
from effbench.store.values import (
    CODEC,
    SAMPLE_LIMIT,
    artifact_folder,
    cell_row,
    is_plain,
    plain,
    text,
)

#: column -> allowed values
CHOICES = {"state": STATES, "status": tuple(Status), "verdict": tuple(ClaimVerdict)}
#: columns that must not be negative
NOT_NEGATIVE = {
    "bs",
    "rounds",
    "position",
    "round",
    "attempt",
    "trials",
    "count",
    "stored",
    "compile_s",
}
NOT_NEGATIVE |= {metric.name for metric in TRIAL_METRICS if metric.title}
LISTS = {"command", "overrides"}
TEXT_LIMIT, JSON_LIMIT, BLOB_LIMIT = 2**20, 2**24, 2**15
JSON_DEPTH = 64
YEARS = range(1970, 2200)

T = TypeVar("T")
#: column, whether it is valid, and the fault otherwise
Rule = Iterator[tuple[str, Any, str]]


def raw(table: sa.Table, names: Iterable[str] | None = None) -> sa.Select:
    """Return a SELECT of a table's columns (all, or `names`) without SQLAlchemy's conversion of
    values."""
    columns = [column for column in table.c if names is None or column.name in names]
    return sa.select(
        *(sa.type_coerce(column, sa.types.NULLTYPE).label(column.name) for column in columns)
    )


def batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` rows; the last one may be shorter."""
    rows = iter(rows)
    while chunk := list(islice(rows, size)):
        yield chunk


def read_anything(connection: sa.Connection) -> None:
    """Make SQLite return invalid UTF-8 with lone surrogates, which no valid text has, and refuse
    rows above 64 MB."""
    if connection.dialect.name == "sqlite":
        raw_connection = connection.connection.driver_connection
        raw_connection.text_factory = partial(bytes.decode, errors="surrogateescape")
        raw_connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2**26)
        raw_connection.execute("PRAGMA cell_size_check = ON")


def require_sound(table: sa.Table, rows: Sequence[Sequence[Any]]) -> None:
    """Check rows of `trial` or `sample` as SQLite stores them, in a tenth of the time of
    `sound_row`. Raises some error if one may be invalid or is not stored as effbench stores it:
    then `sound_row` decides."""
    if not rows:
        return
    columns = dict(zip(table.columns.keys(), zip(*rows, strict=True), strict=True))
    for name, is_nullable, check in _columns(table, as_stored=True):
        for value in {*columns[name]}:
            if value is not None or not is_nullable:
                check(value)
    used = (
        {"sweep_id": str, "extra": _skim_json}
        if table is TRIAL
        else {"count": int, "stored": int, "codec": str}
    )
    for row in zip(*(map(read, columns[name]) for name, read in used.items()), strict=True):
        for name, right, what in _RULES[table.name](dict(zip(used, row, strict=True))):
            _require(right, name, what)


def sound_row(table: sa.Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `raw` row with the types of the table's columns, None for missing columns. Raises
    ValueError for the first fault."""
    row = typed(table, values)
    rules = _RULES.get(table.name, lambda row: ())
    try:
        fault = next(
            (f"{table.name}.{name} {what}" for name, right, what in rules(row) if not right), None
        )
    except (StoreError, TypeError, KeyError, ValueError, AttributeError) as error:
        fault = f"{table.name} has inconsistent values: {one_line(error, 100)}"
    if fault:
        raise ValueError(fault)
    return row


def typed(
    table: sa.Table, values: Mapping[str, Any], names: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the raw values of these columns (None: of all) with their types. Raises ValueError for
    a wrong type, an impossible value or a forbidden NULL; a missing value is NULL."""
    row, name = {}, ""
    try:
        for name, is_nullable, checked in _columns(table):
            if names is None or name in names:
                value = values.get(name)
                if value is None and not is_nullable:
                    raise ValueError("is NULL, which is not allowed")
                row[name] = None if value is None else checked(value)
    except ValueError as error:
        raise ValueError(f"{table.name}.{name} {error}") from error
    return row


@cache
def _columns(
    table: sa.Table, as_stored: bool = False
) -> list[tuple[str, bool, Callable[[Any], Any]]]:
    """Return the name of each column, whether it may be NULL, and the function that checks and
    converts a value. `as_stored`: it refuses times that SQLite stores in another form; without
    JSON."""
    columns = [
        column for column in table.columns if not (as_stored and isinstance(column.type, sa.JSON))
    ]
    return [
        (column.name, bool(column.nullable), _check_of(column, as_stored)) for column in columns
    ]


def _check_of(column: sa.Column, as_stored: bool) -> Callable[[Any], Any]:
    kind, time = column.type, _stored_time if as_stored else _time
    if isinstance(kind, sa.JSON):
        return _list if column.name in LISTS else partial(_json, wanted=dict)
    for known, check in ((UtcDateTime, time), (sa.LargeBinary, _blob), (sa.Boolean, _boolean)):
        if isinstance(kind, known):
            return check
    lowest = 0 if column.name in NOT_NEGATIVE else -math.inf
    if isinstance(kind, sa.Double):
        return partial(_number, lowest=lowest)
    if isinstance(kind, sa.Integer):
        return partial(
            _integer, lowest=lowest, limit=2**63 if isinstance(kind, sa.BigInteger) else 2**31
        )
    return partial(_text, choices=CHOICES.get(column.name))


def _blob(value: Any) -> bytes:
    value = bytes(value) if isinstance(value, memoryview) else value
    if not (isinstance(value, bytes) and len(value) <= BLOB_LIMIT):
        _require(False, value, f"a blob of at most {BLOB_LIMIT} bytes")
    return value


def _boolean(value: Any) -> bool:
    _require(value in (0, 1), value, "true or false")
    return bool(value)


def _integer(value: Any, lowest: float, limit: int) -> int:
    if not (isinstance(value, int) and max(lowest, -limit) <= value < limit):
        _require(
            isinstance(value, int) and -limit <= value < limit,
            value,
            f"an integer of {limit.bit_length()} bits",
        )
        _require(False, value, "0 or more")
    return value


def _number(value: Any, lowest: float = -math.inf) -> float:
    if not (isinstance(value, int | float) and math.isfinite(value) and value >= lowest):
        _require(False, value, "a finite number" if lowest else "a finite number, 0 or more")
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
    _require_shallow([value], JSON_DEPTH)
    _require(isinstance(value, wanted), value, f"a JSON {'array' if wanted is list else 'object'}")
    return value if is_plain(value) else plain(value)


def _require_shallow(values: Iterable[Any], levels: int) -> None:
    if levels == 0:
        raise ValueError(f"is JSON of more than {JSON_DEPTH} levels")
    for inner in values:
        if isinstance(inner, dict | list):
            _require_shallow(inner.values() if isinstance(inner, dict) else inner, levels - 1)


def _time(value: Any) -> dt.datetime:
    try:
        time = utc(dt.datetime.fromisoformat(value) if isinstance(value, str) else value)
    except (ValueError, OverflowError, AttributeError, TypeError):
        time = None
    _require(
        time is not None and time.year in YEARS,
        value,
        f"a time in {YEARS[0]}–{YEARS[-1]} (ISO 8601)",
    )
    return time


def _stored_time(value: Any) -> None:
    time = dt.datetime.fromisoformat(value)
    _require(
        time.year in YEARS and time.isoformat(" ", "microseconds") == value,
        value,
        "a time as stored",
    )


def _skim_json(value: str) -> Any:
    """Return a JSON value as it is stored, with 0.0 for each float, which saves a third of the
    time."""
    found = _SKIMMER.decode(value)
    if value.count("[") + value.count("{") > JSON_DEPTH:
        _require_shallow([found], JSON_DEPTH)
    is_plain_text = (
        value.isascii() and len(value) <= JSON_LIMIT and ("\\u" not in value or is_plain(found))
    )
    _require(is_plain_text, value, "JSON as stored")
    return found


def _skim_number(text: str) -> float:
    if "e" in text or "E" in text or len(text) > 300 or text[-1] > "9":  # also NaN
        _number(float(text))
    return 0.0


_SKIMMER = json.JSONDecoder(parse_float=_skim_number, parse_constant=_skim_number)


def _sweep_rules(row: Mapping[str, Any]) -> Rule:
    yield "id", SWEEP_ID.fullmatch(row["id"]), f"is {one_line(row['id'], 60)!r}, not a sweep id"
    shards = (row["host"].get("shards") or {}).items()
    right = all(
        re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", name) and state in STATES for name, state in shards
    )
    yield "host", right, "has invalid shards: expected a name such as 1/3 -> state"
    environments = row["host"].get("environments")
    for facts in environments.values() if environments is not None else ():
        right = _is_texts(facts.get("given", [])) and _is_flat(
            v for name, v in facts.items() if name != "given"
        )
        yield (
            "host",
            right,
            "has invalid environments: expected environment id -> facts of its interpreter",
        )
    yield (
        "host",
        isinstance(row["host"].get("processes") or {}, dict),
        "has invalid processes: expected an object",
    )
    yield (
        "host",
        _is_flat(row["host"].get(name) for name in MACHINE),
        f"has invalid facts: {', '.join(MACHINE)}",
    )
    right = all(_is_host(facts) for facts in row["host"].get("joined") or ())
    yield "host", right, "has invalid joined hosts: expected objects with host and host_ms"
    yield "protocol", _is_flat(row["protocol"].values()), "has a setting that is no plain value"


def _cell_rules(row: Mapping[str, Any]) -> Rule:
    params = row["params"]
    parts = [params.get(name) for name in ("model", "mode", "numerics", "env")]
    parts += [
        params[name] for name in ("stream", "training", "generate") if params.get(name) is not None
    ]
    yield "params", all(isinstance(part, dict) for part in parts), "does not describe a cell"
    if (stream := params.get("stream")) is not None:
        sizes = stream["sizes"]
        right = (
            stream.get("samples_per_call", 1) > 0
            and isinstance(sizes, list)
            and all(isinstance(n, int) for n in sizes)
        )
        yield (
            "params",
            right,
            "has an invalid stream: expected a name, sizes and positive samples_per_call",
        )
    expected = cell_row(Cell.from_params(params))
    for name, value in row.items():
        yield name, value == expected[name], "does not match cell.params: damaged or forged"


def _environment_rules(row: Mapping[str, Any]) -> Rule:
    facts = Environment(**{name: row[name] for name in Environment.__dataclass_fields__})
    yield "id", row["id"] == facts.id, "does not match the environment: damaged or forged"
    yield "flags", _is_flat(row["flags"].values()), "has a flag that is no plain value"


def _trial_rules(row: Mapping[str, Any]) -> Rule:
    extra, folder = row["extra"], artifact_folder(row["sweep_id"])
    names = extra.get("artifacts", [])
    right = _is_texts(names) and all(_is_below(name, folder) for name in names)
    yield "extra", right, f"names artifacts outside {folder}"
    right = isinstance(extra.get("artifact_notes", {}), dict) and isinstance(
        extra.get("facts", {}), dict
    )
    yield "extra", right, "has artifact_notes or facts that are not objects"
    if (profile := extra.get("profile")) is not None:
        numbers = [profile.get("calls") or 0, profile.get("kernels_in_graphs") or 0]
        numbers += [kernel[name] for kernel in profile["top"] for name in ("count", "ms", "share")]
        right = {*map(type, numbers)} <= {int, float, bool} and _is_texts(
            [kernel["name"] for kernel in profile["top"]]
        )
        yield (
            "extra",
            right,
            "has an invalid profile: expected its largest kernels with name, count, ms and share",
        )


def _sample_rules(row: Mapping[str, Any]) -> Rule:
    count, stored, codec = row["count"], row["stored"], row["codec"]
    yield (
        "stored",
        stored <= min(count, SAMPLE_LIMIT),
        f"is {stored} of {count} samples, but at most {SAMPLE_LIMIT}",
    )
    yield "codec", codec == CODEC, f"is {codec!r}, not {CODEC!r}; upgrade effbench"


_RULES = {
    "sweep": _sweep_rules,
    "cell": _cell_rules,
    "environment": _environment_rules,
    "trial": _trial_rules,
    "sample": _sample_rules,
}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {str}


def _is_host(facts: Any) -> bool:
    return isinstance(facts.get("host_ms"), float | int | None) and _is_flat(facts.values())


def _is_flat(values: Iterable[Any]) -> bool:
    return not any(isinstance(value, dict | list) for value in values)


def _is_below(name: str, folder: str) -> bool:
    steps = name.removeprefix(folder).split("/")
    return name.startswith(folder) and "\\" not in name and not {"", ".", ".."} & set(steps)
