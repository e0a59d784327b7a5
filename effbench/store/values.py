"""Values as any database can hold them: what cannot be stored becomes NULL, never an exception."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Cell, Status, Trial, digest, encodable
from effbench.errors import StoreError
from effbench.store.schema import TRIAL, utc

if TYPE_CHECKING:
    import numpy as np

#: the columns of `trial` that are fields of `cell.Trial`
TRIAL_FIELDS = tuple(field.name for field in dataclasses.fields(Trial) if field.name in TRIAL.columns)
#: samples as blobs: float32, little-endian, zlib
CODEC = "f32le+zlib"
#: samples kept of one timer of one trial
SAMPLE_LIMIT = 5000
_INT64 = 2**63


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def text(value: str) -> str:
    """`value` without what UTF-8 or PostgreSQL refuse: lone surrogates and NUL."""
    return encodable(value.replace("\x00", "\ufffd"))


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: NaN and infinities are null, unknown types their text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return {text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return text(str(value))


def dump_json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def scalar(value: Any) -> Any:
    """One value for a typed column."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value if -_INT64 <= value < _INT64 else None
    if isinstance(value, str):
        return text(str(value))
    if hasattr(value, "item"):  # numpy's
        return scalar(value.item())
    return value


def instant(value: str | None) -> dt.datetime | None:
    """ISO 8601 text as an aware datetime (UTC where it names no zone); None for what is no time."""
    try:
        return None if value is None else utc(dt.datetime.fromisoformat(value))
    except ValueError:
        return None


def artifact_folder(sweep_id: str, cell_key: str = "") -> str:
    """The folder of a sweep's or a cell's artifacts, below `connect.artifact_home`."""
    return f"artifacts/{sweep_id}/{cell_key[:12]}"


def cell_row(cell: Cell) -> dict[str, Any]:
    """The row of `cell`. Cells with the same `comparison_key`, a hash of all but the mode, are compared."""
    params = cell.params()
    return {
        "key": cell.key,
        "comparison_key": digest({name: value for name, value in params.items() if name != "mode"}),
        "model": cell.model_name,
        "bs": cell.bs,
        "mode": cell.mode_name,
        "dtype": cell.dtype,
        "phase": cell.phase,
        "device": cell.device,
        "params": params,
    }


def trial_row(trial: Trial) -> dict[str, Any]:
    """The columns of `trial` that come from the record itself."""
    row = {name: scalar(getattr(trial, name)) for name in TRIAL_FIELDS}
    row["status"] = trial.status.value
    row["started_at"] = instant(trial.started_at)
    row["extra"] = trial.extra
    row["recorded_at"] = now()
    return row


def trial_of(row: dict[str, Any]) -> Trial:
    """The record of a row of `trial`, without its samples."""
    fields = {name: row[name] for name in TRIAL_FIELDS}
    started = fields["started_at"]
    fields["started_at"] = started.isoformat() if started else None
    return Trial(**{**fields, "status": Status(fields["status"])})


def encode_samples(values: Sequence[float]) -> tuple[int, bytes]:
    """How many of `values` are stored, and their blob. Beyond `SAMPLE_LIMIT` they are thinned evenly, in order, with
    the first and the last."""
    import numpy as np

    # what is no number stays in its place as nan: order and spacing matter
    with np.errstate(over="ignore"):
        array = np.asarray([np.nan if value is None else value for value in values], dtype="<f4")
    if len(array) > SAMPLE_LIMIT:
        array = array[np.linspace(0, len(array) - 1, SAMPLE_LIMIT).round().astype(np.int64)]
    return len(array), zlib.compress(array.tobytes(), 6)


def decode_samples(codec: str, data: bytes, stored: int) -> np.ndarray:
    """The float32 samples of a blob, of which no more than `stored` are inflated. Raises StoreError for an unknown
    codec or a damaged blob."""
    import numpy as np

    if codec != CODEC:
        raise StoreError(f"samples are stored as {codec!r}; this effbench reads {CODEC!r}: upgrade effbench")
    if not 0 <= stored <= SAMPLE_LIMIT:
        raise StoreError(f"damaged samples: {stored} stored, at most {SAMPLE_LIMIT} are allowed")
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(data, 4 * stored + 1)
    except (zlib.error, TypeError) as error:
        raise StoreError(f"damaged samples: {error}") from error
    if len(content) != 4 * stored or not inflater.eof or inflater.unused_data:
        raise StoreError(f"damaged samples: the blob does not hold {stored} of them")
    return np.frombuffer(content, dtype="<f4").astype(np.float32)
