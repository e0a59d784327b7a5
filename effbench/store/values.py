"""Convert cells, trials and results to rows of the database and back.

A value that cannot be stored becomes NULL.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import sys
import zlib
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    TypeAlias,
    TypeVar,
)

import sqlalchemy as sa
from sqlalchemy import Connection

from effbench.core.cell import (
    Cell,
    JsonObject,
    Result,
    Status,
    StoredTrial,
    Trial,
    encodable,
)
from effbench.core.errors import StoreError
from effbench.core.trace import BYTES_LIMIT, Trace
from effbench.store.schema import (
    NOT_NEGATIVE,
    RESULT_COLUMNS,
    SAMPLE_LIMIT,
    TRIAL,
    utc,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

T = TypeVar("T")
#: What rows must meet.
Condition: TypeAlias = sa.ColumnElement[bool]
#: Column -> value of a row.
Columns: TypeAlias = dict[str, Any]
#: the columns of `trial` that are fields of `cell.Trial`
TRIAL_FIELDS = tuple(
    field.name for field in dataclasses.fields(Trial) if field.name in TRIAL.columns
)
#: samples as blobs: float32, little-endian, zlib
CODEC = "f32le+zlib"
#: a trace as blob: JSON, zlib
TRACE_CODEC = "json+zlib"


class DamagedSamplesError(StoreError):
    """A blob does not hold the samples of a timer."""


class ResultKey(NamedTuple):
    """What identifies a result within a sweep."""

    cell_key: str
    environment_id: str


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def text(value: str) -> str:
    """Return `value` without lone surrogates and NUL, which UTF-8 and PostgreSQL refuse."""
    return encodable(value.replace("\x00", "\ufffd"))


def as_json_value(value: Any) -> Any:
    """Return `value` for strict JSON: NaN and infinities become null, unknown types become text."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {text(str(key)): as_json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json_value(item) for item in value]
    return text(str(value))


def as_dicts(connection: Connection, query: sa.Select[Any]) -> Iterator[Columns]:
    """Yield the rows of a query as dictionaries, faster than `mappings` does."""
    result = connection.execute(query)
    # a call with 130 keywords compares plain, interned names by identity, SQLAlchemy's by letters
    names = [sys.intern(name) for name in map(str, result.keys())]
    for row in result:
        yield dict(zip(names, row, strict=True))


def batched(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` rows; the last one may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def dump_json(value: Any) -> str:
    """Return `as_json_value(value)` as JSON."""
    return json.dumps(as_json_value(value), allow_nan=False, separators=(",", ":"))


def scalar(value: Any) -> Any:
    """Return `value` for a typed column; an integer beyond 64 bits becomes None."""
    if hasattr(value, "item"):  # numpy's
        value = value.item()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None
    if isinstance(value, str | float):
        return as_json_value(value)
    return value


def cell_row(cell: Cell) -> Columns:
    """Return the row of `cell`."""
    return {
        "key": cell.key,
        "comparison_key": cell.comparison_key,
        "model": cell.model_name,
        "bs": cell.bs,
        "mode": cell.mode_name,
        "dtype": cell.dtype,
        "phase": cell.phase,
        "device": cell.device,
        "params": cell.params(),
    }


def result_of(row: Mapping[str, Any]) -> Result:
    """Return the Result of a row of the view `results`."""
    return Result(**{**row, "status": Status(row["status"])})


def result_row(result: Result) -> Columns:
    """Return the columns of the view `results`."""
    row = {name: getattr(result, name) for name in RESULT_COLUMNS}
    return {**row, "status": result.status.value}


def trial_row(trial: Trial) -> Columns:
    """Return the columns of `trial` that come from the trial itself."""
    started_at = None
    with suppress(TypeError, ValueError):  # unknown, or no time
        started_at = utc(dt.datetime.fromisoformat(trial.started_at or ""))
    row = {name: scalar(getattr(trial, name)) for name in TRIAL_FIELDS}
    for name in NOT_NEGATIVE & row.keys():
        if row[name] is not None and row[name] < 0:  # such as of a counter that has wrapped around
            row[name] = None
    return {
        **row,
        "started_at": started_at,
        "recorded_at": now(),
    }


def trial_of(row: Columns) -> StoredTrial:
    """Return the trial of a row with some of its fields, without its samples."""
    started_at = row.get("started_at")
    if started_at is not None:
        row["started_at"] = started_at.isoformat()
    row["status"] = Status(row["status"])
    return StoredTrial(**row)


def encode_samples(values: Sequence[float]) -> tuple[int, bytes]:
    """Return the number of stored values, and their blob. More than `SAMPLE_LIMIT` values are
    thinned out evenly."""
    import numpy as np

    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype="<f4")  # None becomes NaN: order and spacing matter
    if len(array) > SAMPLE_LIMIT:
        array = array[np.linspace(0, len(array) - 1, SAMPLE_LIMIT).round().astype(np.int64)]
    return len(array), zlib.compress(array.tobytes(), 6)


def decode_samples(data: bytes, stored: int, name: str = "samples") -> Samples:
    """Return the `stored` float32 samples of a blob; inflate no more than these. Raises
    DamagedSamplesError. `name`: what the error calls them."""
    import numpy as np

    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(data, 4 * stored + 1)
    except (zlib.error, TypeError) as error:
        raise DamagedSamplesError(f"damaged {name}: {error}") from error
    if len(content) != 4 * stored:
        raise DamagedSamplesError(f"damaged {name}: the blob does not hold {stored} of them")
    return np.frombuffer(content, dtype="<f4").astype(np.float32)


def encode_trace(trace: JsonObject) -> bytes:
    """Return the blob of what `Trace.to_json` gave. Raises ValueError for other data, and for a
    blob of more than BYTES_LIMIT bytes."""
    data = Trace.from_json(trace).packed()
    if len(data) > BYTES_LIMIT:
        raise ValueError(f"the trace has {len(data):,} bytes, more than {BYTES_LIMIT:,}")
    return data
