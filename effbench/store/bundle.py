"""Whole sweeps as plain records: what a bundle holds, whatever carries it, and how its fields are checked.

A bundle is a header and sections. A section is a record of `sweep` and all that belongs to it, in this order:
`environment`, `cell` (with its position in the plan), `trial` (all attempts, with their samples), `calibration`,
`claim_verdict`, `baseline`, `acknowledgement`. Results are not in it: they follow from the trials. Ids that a database
gave itself are not in it either: they mean nothing in another one.

A later version of effbench reads what an earlier one wrote: fields may be missing and then have a default. A field
that is unknown would be lost, so it is refused.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from effbench import __version__
from effbench.cell import Cell, Status
from effbench.errors import StoreError
from effbench.store import samples as blobs
from effbench.store.schema import HEAD_REVISION, REVISIONS, Base, UtcDateTime
from effbench.store.sweeps import STATES
from effbench.store.values import cell_row, plain, scalar

FORMAT = "effbench-sweeps"
VERSION = 1
#: tables of a section, in order
TABLES = ("sweep", "environment", "cell", "trial", "calibration", "claim_verdict", "baseline", "acknowledgement")
#: columns that the section says (its sweep), or that mean something in one database only
_LOCAL = {
    "sweep": ("imported_at",),
    "trial": ("id", "sweep_id"),
    "calibration": ("id",),
    "claim_verdict": ("id", "sweep_id"),
    "baseline": ("sweep_id",),
    "acknowledgement": ("id", "sweep_id"),
}
COLUMNS: dict[str, dict[str, sa.Column]] = {
    name: {
        column.name: column for column in Base.metadata.tables[name].columns if column.name not in _LOCAL.get(name, ())
    }
    for name in TABLES
}
#: fields beside the columns: of a sweep the ids of its environments and how many cells and trials follow
MORE = {"sweep": ("environments", "cells", "trials"), "cell": ("position",), "trial": ("samples",)}
REQUIRED = {
    "sweep": ("id", "started_at"),
    "environment": ("id", "torch_version", "python", "cpu_name", "platform"),
    "cell": ("key", "params"),
    "trial": ("cell_key", "environment_id", "round", "status"),
    "calibration": ("environment_id", "measured_at"),
    "claim_verdict": ("claim", "experiment", "environment_id", "verdict", "judged_at"),
    "baseline": ("name", "hardware", "set_at"),
    "acknowledgement": ("cell_key", "hardware", "metric", "reason", "acknowledged_at"),
}
#: what stands for a missing field that may not be NULL; JSON columns have {} and [], times that of the sweep's start
_DEFAULTS = {"state": "completed", "baseline_mode": "eager", "seed": 0, "rounds": 1, "attempt": 0}
_LISTS = ("command", "overrides")
_INT32 = 2**31 - 1
_SAMPLE = {"timer": str, "count": int, "stored": int, "codec": str}


class Record(NamedTuple):
    """A row of `table`. `where` says where it was read, for messages: a file and a line; None of a database."""

    table: str
    values: dict[str, Any]
    where: str | None = None


def header(samples: bool) -> dict[str, Any]:
    """What a bundle says of itself first. `samples`: whether trials have theirs."""
    at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {
        "format": FORMAT,
        "version": VERSION,
        "effbench": __version__,
        "schema": HEAD_REVISION,
        "written_at": at,
        "samples": samples,
    }


def check_header(said: Any, where: str) -> None:
    """Raise StoreError for what is no header of ours, or one of a newer effbench."""
    hint = "`effbench export --whole` writes what can be imported"
    if isinstance(said, dict) and {"sweep_id", "cell_key", "latency_ms"} <= said.keys():
        raise StoreError(f"{where}: rows of the view `results` are summaries, not whole sweeps; {hint}")
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise StoreError(f"{where}: not a file of whole sweeps; {hint}")
    version, schema = said.get("version"), said.get("schema", REVISIONS[0])
    if not isinstance(version, int) or version < 1:
        raise StoreError(f"{where}: version {version!r} of the format {FORMAT} does not exist")
    if version > VERSION or schema not in REVISIONS:
        by = f"effbench {said.get('effbench', 'unknown')}"
        raise StoreError(
            f"{where}: written by a newer {by} (format {version}, schema {schema}; known here: format {VERSION}, "
            f"schema {HEAD_REVISION}); upgrade effbench"
        )


def checked(table: Any, given: Any, where: str) -> Record:
    """A record out of what a file holds: times and blobs may be text, everything else has its type.

    Raises StoreError that names the place and the field.
    """
    if table not in TABLES:
        raise StoreError(f"{where}: unknown table {table!r}; a bundle holds {', '.join(TABLES)}")
    columns, more = COLUMNS[table], MORE.get(table, ())
    if unknown := sorted(given.keys() - columns.keys() - set(more)):
        raise StoreError(f"{where}: {table} has no field {unknown[0]!r} in this version of effbench; upgrade it")
    for name in REQUIRED[table]:
        if given.get(name) is None:
            raise StoreError(f"{where}: {table} without its {name}")
    values = {}
    for name, value in given.items():
        what = f"{where}: {table}.{name}"
        if name not in columns:
            values[name] = _more(name, value, what)
        elif value is None:
            if columns[name].nullable:
                values[name] = None  # else as if it were missing
        else:
            values[name] = typed(columns[name], value, what)
    if table == "trial" and values["status"] not in set(Status):
        raise StoreError(f"{where}: trial.status is {values['status']!r}, not one of {', '.join(Status)}")
    if values.get("state", "completed") not in STATES:
        raise StoreError(f"{where}: sweep.state is {values['state']!r}, not one of {', '.join(STATES)}")
    return Record(table, values, where)


def filled(record: Record, started_at: dt.datetime) -> dict[str, Any]:
    """All columns of the record's row but local ones; what it does not say has its default."""
    given = record.values
    known: dict[str, Any] = {}
    if record.table == "cell" and not COLUMNS["cell"].keys() <= given.keys():
        try:
            known = cell_row(Cell.from_params(given["params"]))
        except (TypeError, KeyError, ValueError) as error:
            raise StoreError(f"{record.where}: cell.params does not describe a cell ({error})") from error
    row = {}
    for name, column in COLUMNS[record.table].items():
        if name in given:
            row[name] = given[name]
        elif name in known:
            row[name] = known[name]
        elif column.nullable:
            row[name] = None
        elif name in _DEFAULTS:
            row[name] = _DEFAULTS[name]
        elif isinstance(column.type, sa.JSON):
            row[name] = [] if name in _LISTS else {}
        else:
            assert isinstance(column.type, UtcDateTime), f"no default for {record.table}.{name}"
            row[name] = given.get("started_at") or started_at
    return row


class Sections:
    """The records of a bundle, section by section, without holding more than one record."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = iter(records)
        self._next: Record | None = None

    def __iter__(self) -> Iterator[tuple[Record, Iterator[Record]]]:
        """Each sweep with the iterator of its records; what of them is not read is skipped."""
        self._advance()
        while self._next is not None:
            sweep = self._next
            if sweep.table != "sweep":
                raise StoreError(f"{sweep.where}: a {sweep.table} that belongs to no sweep")
            self._advance()
            yield sweep, self._rest()
            for _ in self._rest():
                pass

    def _advance(self) -> None:
        self._next = next(self._records, None)

    def _rest(self) -> Iterator[Record]:
        while self._next is not None and self._next.table != "sweep":
            record = self._next
            self._advance()
            yield record


def typed(column: sa.Column, value: Any, what: str) -> Any:
    """Return a value that is not None as the column stores it. Raises StoreError that begins with `what`."""
    kind = column.type
    if isinstance(kind, UtcDateTime):
        return _instant(value, what)
    if isinstance(kind, sa.JSON):
        wanted = list if column.name in _LISTS else dict
        if not isinstance(value, wanted):
            raise StoreError(f"{what} is {_shown(value)}, not a JSON {'array' if wanted is list else 'object'}")
        return plain(value)
    if isinstance(kind, sa.Boolean):
        right, wanted = isinstance(value, bool), "true or false"
    elif isinstance(kind, sa.BigInteger):
        right, wanted = isinstance(value, int) and not isinstance(value, bool), "an integer"
    elif isinstance(kind, sa.Integer):
        right, wanted = _is_integer(value) and -value <= _INT32, "an integer of 32 bits"
    elif isinstance(kind, sa.Double):
        right, wanted = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        value = _float(value) if right else value
    else:
        right, wanted = isinstance(value, str), "text"
    if not right:
        raise StoreError(f"{what} is {_shown(value)}, not {wanted}")
    stored = scalar(value)
    if stored is None and not column.nullable:
        raise StoreError(f"{what} is {_shown(value)}, which no database can hold")
    return stored


def _is_integer(value: Any) -> bool:
    """One that every database holds in an INTEGER."""
    return isinstance(value, int) and not isinstance(value, bool) and value <= _INT32


def _float(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def _more(name: str, value: Any, what: str) -> Any:
    if name == "samples":
        if not isinstance(value, list):
            raise StoreError(f"{what} is {_shown(value)}, not a list")
        return [_sample(one, what) for one in value]
    if name == "environments":
        right = isinstance(value, list) and all(isinstance(one, str) for one in value)
    else:  # counts; a cell that is not planned has no position
        right = (_is_integer(value) and value >= 0) or (value is None and name == "position")
    if not right:
        raise StoreError(f"{what} is {_shown(value)}, which it cannot be")
    return value


def _sample(given: Any, what: str) -> dict[str, Any]:
    """A row of `sample` less its trial; its blob is decoded once, so that nothing damaged gets in."""
    if not isinstance(given, dict) or given.keys() != {*_SAMPLE, "data"}:
        raise StoreError(f"{what}: an entry has {', '.join((*_SAMPLE, 'data'))}, not {_shown(given)}")
    for name, kind in _SAMPLE.items():
        if not (isinstance(given[name], kind) if kind is str else _is_integer(given[name])):
            raise StoreError(f"{what}: {name} is {_shown(given[name])}")
    data = given["data"]
    if not isinstance(data, str | bytes):
        raise StoreError(f"{what}: data is {_shown(data)}, not a blob")
    if given["count"] < given["stored"]:
        raise StoreError(f"{what}: {given['stored']} samples of {given['count']} are stored, which cannot be")
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise StoreError(f"{what}: damaged samples of {given['timer']} ({error})") from error
    try:
        blobs.decode(given["codec"], data, given["stored"])
    except StoreError as error:
        raise StoreError(f"{what}, {given['timer']}: {error}") from error
    return {**given, "timer": scalar(given["timer"]), "data": data}


def _instant(value: Any, what: str) -> dt.datetime:
    with contextlib.suppress(ValueError, OverflowError):  # raised below
        parsed = dt.datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(parsed, dt.datetime):
            return parsed.replace(tzinfo=dt.UTC) if parsed.tzinfo is None else parsed.astimezone(dt.UTC)
    raise StoreError(f"{what} is {_shown(value)}, not a time (ISO 8601)")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "…"
