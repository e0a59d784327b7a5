"""Trials with their samples, and the results that are derived from them. Every function takes a connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Status, Trial
from effbench.errors import StoreError
from effbench.store import connect
from effbench.store.schema import CELL, ENVIRONMENT, PLANNED, RESULT, RESULTS, SAMPLE, TRIAL
from effbench.store.summary import last_attempts, summarise
from effbench.store.sweeps import lock
from effbench.store.values import CODEC, TRIAL_FIELDS, decode_samples, encode_samples, scalar, trial_of, trial_row

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

#: trials in one statement: below SQLite's limit of bound values, and some megabytes of samples
CHUNK = 500
#: what one call works on: of a stream its mean batch size
_SAMPLES_PER_CALL = sa.func.coalesce(
    CELL.c.params["stream"]["samples_per_call"].as_float(), sa.cast(CELL.c.bs, sa.Double)
).label("samples_per_call")
#: what a summary reads; `extra` can be large
_SUMMARISED = [TRIAL.c[name] for name in TRIAL_FIELDS if name != "extra"]


def record(connection: sa.Connection, sweep_id: str, environment_id: str, trial: Trial) -> int:
    """Store a trial with its samples, and rewrite the results that depend on it, in one transaction; return its id.

    Those are its cell's, and, for a trial of the baseline mode, all that are compared with it. Raises StoreError for a
    trial that is recorded already, or whose cell or environment is unknown.
    """
    row = {"sweep_id": sweep_id, "environment_id": environment_id, **trial_row(trial)}
    blobs = {timer: encode_samples(values) for timer, values in trial.samples.items()}
    baseline_mode = lock(connection, sweep_id)
    try:
        with connection.begin_nested():
            inserted = connection.execute(sa.insert(TRIAL).values(**row))
    except exc.IntegrityError as error:
        raise _refused(connection, row, error) from error
    (trial_id,) = inserted.inserted_primary_key
    for timer, (stored, data) in blobs.items():
        connection.execute(
            sa.insert(SAMPLE).values(
                trial_id=trial_id, timer=scalar(timer), count=len(trial.samples[timer]), stored=stored, codec=CODEC,
                data=data,
            )
        )  # fmt: skip
    write_results(
        connection, derive(connection, sweep_id, baseline_mode, environment_id=environment_id, only=trial.cell_key)
    )
    return trial_id


def _refused(connection: sa.Connection, row: dict[str, Any], error: exc.IntegrityError) -> StoreError:
    """Return why the database did not take the trial."""

    def missing(table: sa.Table, **values: Any) -> bool:
        same = (table.c[name] == value for name, value in values.items())
        return connection.execute(sa.select(sa.literal(1)).select_from(table).where(*same)).first() is None

    what = f"round {row['round'] + 1}, try {row['attempt'] + 1} of cell {row['cell_key'][:12]}"
    key = {name: row[name] for name in ("sweep_id", "cell_key", "environment_id", "round", "attempt")}
    if missing(PLANNED, sweep_id=row["sweep_id"], cell_key=row["cell_key"]):
        return StoreError(f"{what}: the cell is not planned in sweep {row['sweep_id']}")
    if missing(ENVIRONMENT, id=row["environment_id"]):
        return StoreError(f"{what}: unknown environment {row['environment_id']}")
    if missing(TRIAL, **key):
        return connect.explain(error, connect.name_of(connection))
    return StoreError(f"{what} is recorded already in sweep {row['sweep_id']}")


def recorded(connection: sa.Connection, sweep_id: str, environment_id: str) -> dict[tuple[str, int], Status]:
    """(cell key, round) of every trial in the sweep and environment, with the status of its last attempt."""
    query = (
        sa.select(TRIAL.c.cell_key, TRIAL.c.round, TRIAL.c.status)
        .where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
        .order_by(TRIAL.c.attempt)
    )
    return {(row.cell_key, row.round): Status(row.status) for row in connection.execute(query)}


def history(connection: sa.Connection, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
    """Cell key -> its recorded trials (last attempts) in the sweep and environment, without samples."""
    query = sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id)
    found: dict[str, list[Trial]] = {}
    for row in connection.execute(query.order_by(TRIAL.c.round, TRIAL.c.attempt)).mappings():
        found.setdefault(row["cell_key"], []).append(trial_of(row))
    return {key: last_attempts(trials) for key, trials in found.items()}


def trials(connection: sa.Connection, sweep_id: str) -> list[dict[str, Any]]:
    """Every row of `trial` of the sweep, in the order they were recorded, all attempts."""
    query = sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id).order_by(TRIAL.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]


def samples(connection: sa.Connection, trial_id: int) -> dict[str, np.ndarray]:
    """Timer -> float32 array of the trial's raw samples in order, at most 5,000; in ms unless the name has a unit."""
    query = sa.select(SAMPLE).where(SAMPLE.c.trial_id == trial_id).order_by(SAMPLE.c.timer)
    return {row.timer: decode_samples(row.codec, row.data, row.stored) for row in connection.execute(query)}


def trial_ids(
    connection: sa.Connection, sweep_id: str, environment_ids: Sequence[str], part: int = 0, parts: int = 1
) -> list[int]:
    """The sweep's trials in these environments by cell key, each cell's by environment, round and attempt; of `parts`
    nearly equal ones, each of whole cells, the one with the number `part`."""
    query = (
        sa.select(TRIAL.c.id, TRIAL.c.cell_key)
        .where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id.in_(environment_ids))
        .order_by(TRIAL.c.cell_key, TRIAL.c.environment_id, TRIAL.c.round, TRIAL.c.attempt)
    )
    rows = connection.execute(query).all()

    def cut(number: int) -> int:
        """Where this part begins: not within a cell."""
        place = number * len(rows) // parts
        while 0 < place < len(rows) and rows[place].cell_key == rows[place - 1].cell_key:
            place += 1
        return place

    return [row.id for row in rows[cut(part) : cut(part + 1)]]


def trials_by_id(
    connection: sa.Connection, ids: Sequence[int]
) -> Iterator[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
    """Rows of `trial` in the order of `ids`, each with timer -> how many samples were taken, and float32 of those that
    are stored."""
    result = connection.execute(_BY_ID, {"ids": ids})
    names = tuple(result.keys())
    place = names.index("id")
    rows = {values[place]: dict(zip(names, values, strict=True)) for values in result.all()}
    blobs: dict[int, dict[str, tuple[int, np.ndarray]]] = {}
    for trial_id, timer, count, stored, codec, data in connection.execute(_SAMPLES_BY_ID, {"ids": ids}).all():
        blobs.setdefault(trial_id, {})[timer] = (count, decode_samples(codec, data, stored))
    for trial_id in ids:
        if trial_id in rows:
            yield rows[trial_id], blobs.get(trial_id, {})


_IDS = sa.bindparam("ids", expanding=True)
_BY_ID = sa.select(TRIAL).where(TRIAL.c.id.in_(_IDS))
_SAMPLES_BY_ID = sa.select(SAMPLE).where(SAMPLE.c.trial_id.in_(_IDS)).order_by(SAMPLE.c.trial_id, SAMPLE.c.timer)


def derive(
    connection: sa.Connection,
    sweep_id: str,
    baseline_mode: str,
    *,
    environment_id: str | None = None,
    only: str | None = None,
) -> list[dict[str, Any]]:
    """The rows of `result` that follow from the trials of a sweep, without writing them.

    With `only` (a cell key) that cell's, or, if it is the baseline of others, those of all cells compared with it.
    """
    query = (
        sa.select(
            TRIAL.c.environment_id, CELL.c.comparison_key, CELL.c.mode, _SAMPLES_PER_CALL, PLANNED.c.position,
            *_SUMMARISED,
        )
        .join(CELL, CELL.c.key == TRIAL.c.cell_key)
        .join(PLANNED, sa.and_(PLANNED.c.sweep_id == TRIAL.c.sweep_id, PLANNED.c.cell_key == TRIAL.c.cell_key))
        .where(TRIAL.c.sweep_id == sweep_id)
        .order_by(TRIAL.c.environment_id, PLANNED.c.position, TRIAL.c.round, TRIAL.c.attempt)
    )  # fmt: skip
    if environment_id is not None:
        query = query.where(TRIAL.c.environment_id == environment_id)
    if only is not None:
        mode, compared = connection.execute(
            sa.select(CELL.c.mode, CELL.c.comparison_key).where(CELL.c.key == only)
        ).one()
        query = query.where(CELL.c.comparison_key == compared)
        if mode != baseline_mode:
            query = query.where(sa.or_(CELL.c.key == only, CELL.c.mode == baseline_mode))
    by_cell: dict[tuple[str, str], list[Trial]] = {}
    facts: dict[tuple[str, str], tuple[str, str, float]] = {}
    baselines: dict[tuple[str, str], str] = {}
    for row in connection.execute(query).mappings():
        key = (row["environment_id"], row["cell_key"])
        by_cell.setdefault(key, []).append(trial_of({**row, "extra": {}}))
        facts[key] = (row["comparison_key"], row["mode"], row["samples_per_call"])
        if row["mode"] == baseline_mode:
            # two variants of the baseline mode: the one planned first is the baseline of all
            baselines.setdefault((row["environment_id"], row["comparison_key"]), row["cell_key"])
    rows = []
    for (environment, cell_key), own in by_cell.items():
        compared, mode, samples_per_call = facts[environment, cell_key]
        if only is not None and cell_key != only and facts[environment, only][1] != baseline_mode:
            continue
        reference = baselines.get((environment, compared))
        summary = summarise(
            own,
            bs=samples_per_call,
            is_baseline=cell_key == reference,
            baseline=by_cell[environment, reference] if reference is not None and cell_key != reference else (),
        )
        values = {name: scalar(value) for name, value in summary.items()}
        rows.append({"sweep_id": sweep_id, "cell_key": cell_key, "environment_id": environment, **values})
    return rows


def write_results(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    """Replace rows of `result` that have the same keys."""
    if not rows:
        return
    keys = ("sweep_id", "cell_key", "environment_id")
    connection.execute(
        sa.delete(RESULT).where(*(RESULT.c[key] == sa.bindparam(f"old_{key}") for key in keys)),
        [{f"old_{key}": row[key] for key in keys} for row in rows],
    )
    connection.execute(sa.insert(RESULT), rows)


def rebuild_results(connection: sa.Connection, sweep_id: str) -> None:
    """Derive every result of the sweep again from its trials."""
    rows = derive(connection, sweep_id, lock(connection, sweep_id))
    connection.execute(sa.delete(RESULT).where(RESULT.c.sweep_id == sweep_id))
    write_results(connection, rows)


def results(connection: sa.Connection, sweep_id: str | None = None) -> list[dict[str, Any]]:
    """Rows of the view `results` of one sweep or of all: oldest sweep first, then in the order of the plan.

    `params` is a dict, `started_at` an aware UTC datetime.
    """
    query = (
        sa.select(RESULTS)
        .join(PLANNED, sa.and_(PLANNED.c.sweep_id == RESULTS.c.sweep_id, PLANNED.c.cell_key == RESULTS.c.cell_key))
        .order_by(RESULTS.c.started_at, RESULTS.c.sweep_id, PLANNED.c.position, RESULTS.c.environment_id)
    )
    if sweep_id is not None:
        query = query.where(RESULTS.c.sweep_id == sweep_id)
    return [dict(row) for row in connection.execute(query).mappings()]


def results_frame(connection: sa.Connection, sweep_id: str | None = None) -> pd.DataFrame:
    """`results` as a DataFrame with the view's columns in order, also when it is empty.

    Its types do not depend on its content: figures, also counts, are float64 with NaN for NULL (`bs` and `trials`
    int64), `started_at` is UTC, `params` dicts.
    """
    import pandas as pd

    frame = pd.DataFrame(results(connection, sweep_id), columns=list(RESULTS.columns.keys()), dtype="object")
    for column in RESULTS.columns:
        if column.name == "started_at":
            frame[column.name] = pd.to_datetime(frame[column.name], utc=True)
        elif column.name in ("bs", "trials"):
            frame[column.name] = frame[column.name].astype("int64")
        elif isinstance(column.type, sa.Double | sa.Integer):
            frame[column.name] = frame[column.name].astype("float64")
    return frame
