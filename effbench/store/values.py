"""Measured values made fit for any database: what cannot be stored becomes NULL, never an exception."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from typing import Any

from effbench.cell import Cell, Status, Trial, digest, encodable
from effbench.store.schema import ResultRow, TrialRow

#: the columns of `trial` that are fields of `cell.Trial`
TRIAL_FIELDS = tuple(field.name for field in dataclasses.fields(Trial) if field.name in TrialRow.__table__.columns)
RESULT_FIELDS = tuple(
    column.name
    for column in ResultRow.__table__.columns
    if column.name not in ("sweep_id", "cell_key", "environment_id")
)
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
    return json.dumps(plain(value), allow_nan=False)


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
    if value is None:
        return None
    try:
        parsed = dt.datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed.replace(tzinfo=dt.UTC) if parsed.tzinfo is None else parsed.astimezone(dt.UTC)


def comparison_key(cell: Cell) -> str:
    """Hash of everything but the mode: cells that share it are compared with each other."""
    params = cell.params()
    del params["mode"]
    return digest(params)


def cell_row(cell: Cell) -> dict[str, Any]:
    return {
        "key": cell.key,
        "comparison_key": comparison_key(cell),
        "model": cell.model_name,
        "bs": cell.bs,
        "mode": cell.mode_name,
        "dtype": cell.dtype,
        "phase": cell.phase,
        "device": cell.device,
        "params": cell.params(),
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
