"""Read and write trials with their samples, and derive the results. Every function takes a
connection."""

from __future__ import annotations

import platform
import statistics
from collections import namedtuple
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Trial
from effbench.errors import StoreError
from effbench.printable import one_line
from effbench.store.connect import insert
from effbench.store.schema import (
    CELL,
    PLANNED,
    RESULT,
    RESULT_DTYPES,
    RESULTS,
    SAMPLE,
    SWEEP,
    TRIAL,
)
from effbench.store.summary import Baseline, last_attempts, summarise
from effbench.store.sweeps import calibration, lock
from effbench.store.values import (
    CODEC,
    TRIAL_FIELDS,
    decode_samples,
    encode_samples,
    scalar,
    trial_of,
    trial_row,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_MEAN_SIZE = CELL.c.params["stream"]["samples_per_call"].as_float()
#: samples per call: the batch size, or the mean batch size of a stream; NULL if the server chooses
#: it, and for streams without a period, because their median latency is not that of the mean size
_SAMPLES_PER_CALL = sa.case(
    (CELL.c.params["stream"]["rate"].as_float().is_not(None), None),
    (
        sa.and_(CELL.c.device == "cpu", CELL.c.params["stream"]["name"].as_string().is_not(None)),
        None,
    ),
    else_=sa.func.coalesce(_MEAN_SIZE, sa.cast(CELL.c.bs, sa.Double)),
).label("samples_per_call")
#: Newest trials that tell the usual speed of the host.
RECENT_TRIALS = 50
#: Key in `extra` of a trial whose samples cannot be read.
DAMAGED = "damaged_samples"
#: what a summary reads of a trial, with fast attributes; not `extra`, which can be large
_Row = namedtuple(
    "_Row",
    ["environment_id", *(n for n in TRIAL_FIELDS if n not in ("extra", "phase", "started_at"))],
)
_values_of = itemgetter(*map(TRIAL.columns.keys().index, _Row._fields))


def record(connection: sa.Connection, sweep_id: str, environment_id: str, trial: Trial) -> int:
    """Store a trial with its samples, and derive the results of its cell and of all cells compared
    with it; return its id. Recording the same trial twice changes nothing.

    Raises StoreError if another trial is recorded in its place, or if its cell or environment is
    unknown.
    """
    lock(connection, sweep_id)
    row = {"sweep_id": sweep_id, "environment_id": environment_id, **trial_row(trial)}
    what = f"round {trial.round + 1}, attempt {trial.attempt + 1} of cell {trial.cell_key[:12]}"
    new = insert(connection, TRIAL).values(**row).on_conflict_do_nothing().returning(TRIAL.c.id)
    try:
        trial_id = connection.scalar(new)
    except exc.IntegrityError as error:
        fault = "belongs to an unknown environment or a cell that is not planned"
        raise StoreError(f"{what} {fault} in sweep {sweep_id}") from error
    if trial_id is None:
        key = ("sweep_id", "cell_key", "environment_id", "round", "attempt")
        query = sa.select(TRIAL).where(*(TRIAL.c[name] == row[name] for name in key))
        known = connection.execute(query).mappings().one()
        if any(
            known[name] != value
            for name, value in row.items()
            if name not in ("extra", "recorded_at")
        ):
            raise StoreError(f"{what} is already recorded in sweep {sweep_id}")
        return known["id"]  # the connection broke after its commit
    for timer, values in trial.samples.items():
        stored, data = encode_samples(values)
        blob = {
            "trial_id": trial_id,
            "timer": scalar(timer),
            "count": len(values),
            "stored": stored,
        }
        connection.execute(sa.insert(SAMPLE).values(**blob, codec=CODEC, data=data))
    compared = connection.scalar(
        sa.select(CELL.c.comparison_key).where(CELL.c.key == trial.cell_key)
    )
    rebuild_results(connection, sweep_id, environment_id, compared)
    return trial_id


def history(
    connection: sa.Connection, sweep_id: str, environment_id: str
) -> dict[str, list[Trial]]:
    """Return cell key -> its recorded trials (last attempts) in the sweep and environment, without
    samples."""
    query = sa.select(TRIAL).where(
        TRIAL.c.sweep_id == sweep_id, TRIAL.c.environment_id == environment_id
    )
    by_cell: dict[str, list[Trial]] = {}
    for row in connection.execute(query.order_by(TRIAL.c.round, TRIAL.c.attempt)).mappings():
        by_cell.setdefault(row["cell_key"], []).append(trial_of(row))
    return {key: last_attempts(trials) for key, trials in by_cell.items()}


def durations(
    connection: sa.Connection,
    sweep_ids: Sequence[str],
    environment_ids: Sequence[str],
    most: int = 50_000,
) -> list[tuple[Any, ...]]:
    """Return (cell key, phase, model, mode, device, compile_cache, wall_s) of the newest trials of
    these sweeps in these environments."""
    query = sa.select(
        TRIAL.c.cell_key,
        CELL.c.phase,
        CELL.c.model,
        CELL.c.mode,
        CELL.c.device,
        TRIAL.c.compile_cache,
        TRIAL.c.wall_s,
    ).join(CELL, CELL.c.key == TRIAL.c.cell_key)
    chosen = (
        TRIAL.c.sweep_id.in_(sweep_ids),
        TRIAL.c.environment_id.in_(environment_ids),
        TRIAL.c.wall_s.is_not(None),
    )
    return [
        tuple(row)
        for row in connection.execute(query.where(*chosen).order_by(TRIAL.c.id.desc()).limit(most))
    ]


@dataclass
class HostSpeeds:
    """Times of the fixed host work of recent trials on this machine, oldest first, in ms.

    `quiet`: in the quietest moments of trials on a GPU. `high`: in the slower moments of
    undisturbed trials on the CPU.
    """

    quiet: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, record: Trial) -> None:
        if record.gpu_uuid is not None and record.host_ms is not None:
            self.quiet.append(record.host_ms)
        if (
            record.gpu_uuid is None
            and record.host_high_ms is not None
            and record.disturbance is None
        ):
            self.high.append(record.host_high_ms)

    def quiet_ms(self) -> float | None:
        """Return the time on an undisturbed host, a low quantile; None if no trial has measured
        it."""
        return quantile(self.quiet[-RECENT_TRIALS:], 1)

    def high_ms(self) -> float | None:
        """Return the time in the slower moments of a usual host, a high quantile; None if no trial
        has measured it."""
        return quantile(self.high[-RECENT_TRIALS:], 4)


def quantile(values: Sequence[float], fifths: int) -> float | None:
    """Return the quantile that this many fifths of the values do not exceed; None without
    values."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=5, method="inclusive")[fifths - 1]


def host_speeds(connection: sa.Connection, environment_id: str) -> HostSpeeds:
    """Return what the newest trials of this machine in an environment tell of the speed of its
    host.

    The host's speed in a calibration counts like ten trials.
    """
    is_here = (
        SWEEP.c.host["hostname"].as_string() == platform.node(),
        SWEEP.c.imported_at.is_(None),
    )
    query = (
        sa.select(
            TRIAL.c.recorded_at,
            TRIAL.c.gpu_uuid,
            TRIAL.c.host_ms,
            TRIAL.c.host_high_ms,
            TRIAL.c.disturbance,
        )
        .join(SWEEP, SWEEP.c.id == TRIAL.c.sweep_id)
        .where(TRIAL.c.environment_id == environment_id, TRIAL.c.host_ms.is_not(None), *is_here)
        .order_by(TRIAL.c.id.desc())
        .limit(4 * RECENT_TRIALS)
    )
    newest = connection.execute(query).all()
    quiet = [(row.recorded_at, row.host_ms) for row in newest if row.gpu_uuid is not None]
    known = calibration(connection, environment_id) or {"noise": None}
    if (known["noise"] or {}).get("hostname") == platform.node():
        quiet += [(known["measured_at"], known["noise"]["host_ms"])] * 10
    speeds = HostSpeeds(quiet=[host_ms for _, host_ms in sorted(quiet)])
    for row in reversed(newest):
        if row.gpu_uuid is None:
            speeds.add(row)
    return speeds


def trials(connection: sa.Connection, sweep_id: str) -> list[dict[str, Any]]:
    """Return every row of `trial` of the sweep, in the order they were recorded, all attempts."""
    query = sa.select(TRIAL).where(TRIAL.c.sweep_id == sweep_id).order_by(TRIAL.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]


def trial_facts(
    connection: sa.Connection, sweep_id: str, names: Sequence[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return (cell key, environment id) -> the parts of `extra` with these names in its newest
    trial that has any."""
    parts = [TRIAL.c.extra[name].label(name) for name in names]
    query = sa.select(TRIAL.c.cell_key, TRIAL.c.environment_id, *parts).where(
        TRIAL.c.sweep_id == sweep_id
    )
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell_key, environment_id, *values in connection.execute(query.order_by(TRIAL.c.id)):
        facts = {
            name: value for name, value in zip(names, values, strict=True) if value is not None
        }
        if facts:
            found[cell_key, environment_id] = facts
    return found


def samples(connection: sa.Connection, trial_id: int) -> dict[str, np.ndarray]:
    """Return timer -> float32 array of the trial's raw samples, at most 5,000; in ms unless the
    name has a unit."""
    query = sa.select(SAMPLE).where(SAMPLE.c.trial_id == trial_id).order_by(SAMPLE.c.timer)
    return {row.timer: _decoded(row) for row in connection.execute(query)}


def _decoded(row: sa.Row) -> np.ndarray:
    """Return the samples of a row of `sample`. Raises StoreError if they are damaged."""
    name = (
        f"samples (timer {one_line(row.timer, 40)} of trial {row.trial_id}, see `effbench db check"
        " --deep`)"
    )
    return decode_samples(row.codec, row.data, row.stored, name)


def trials_of_cells(
    connection: sa.Connection, sweep_id: str, environment_ids: list[str], cell_keys: list[str]
) -> list[tuple[dict[str, Any], dict[str, tuple[int, np.ndarray]]]]:
    """Return the rows of `trial` of these cells, ordered by cell key, environment, round and
    attempt, each with timer -> (number of samples taken, float32 array of the stored ones). Samples
    that are damaged are omitted, and `extra` says so."""
    cells = (
        TRIAL.c.sweep_id == sweep_id,
        TRIAL.c.environment_id.in_(environment_ids),
        TRIAL.c.cell_key.in_(cell_keys),
    )
    order = (TRIAL.c.cell_key, TRIAL.c.environment_id, TRIAL.c.round, TRIAL.c.attempt)
    rows = connection.execute(sa.select(TRIAL).where(*cells).order_by(*order)).mappings().all()
    blobs = sa.select(SAMPLE).join(TRIAL).where(*cells).order_by(SAMPLE.c.trial_id, SAMPLE.c.timer)
    taken: dict[int, dict[str, tuple[int, np.ndarray]]] = {}
    damaged: dict[int, str] = {}
    for blob in connection.execute(blobs):
        try:
            taken.setdefault(blob.trial_id, {})[blob.timer] = (blob.count, _decoded(blob))
        except StoreError as error:
            damaged[blob.trial_id] = str(error)
    return [
        (
            dict(row)
            | (
                {"extra": row["extra"] | {DAMAGED: damaged[row["id"]]}}
                if row["id"] in damaged
                else {}
            ),
            taken.get(row["id"], {}),
        )
        for row in rows
    ]


def summary_rows(rows: Iterable[Sequence[Any]]) -> Iterator[_Row]:
    """Yield from whole rows of `trial` what a summary reads of them."""
    return map(_Row._make, map(_values_of, rows))


def derive(
    connection: sa.Connection,
    sweep_id: str,
    baseline_mode: str,
    environment_id: str | None = None,
    comparison_key: str | None = None,
    known: Iterable[_Row] | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of `result`, derived from the trials of a sweep: all, or those of the cells
    with this `comparison_key` in one environment. `known`: the sweep's trials, if they have been
    read (see `summary_rows`)."""
    cells = sa.select(CELL.c.key, CELL.c.comparison_key, CELL.c.mode, _SAMPLES_PER_CALL)
    cells = cells.join(PLANNED, PLANNED.c.cell_key == CELL.c.key).where(
        PLANNED.c.sweep_id == sweep_id
    )
    query = sa.select(*(TRIAL.c[name] for name in _Row._fields)).where(TRIAL.c.sweep_id == sweep_id)
    if comparison_key is not None:
        cells = cells.where(CELL.c.comparison_key == comparison_key)
        keys = sa.select(CELL.c.key).where(CELL.c.comparison_key == comparison_key)
        query = query.where(TRIAL.c.environment_id == environment_id, TRIAL.c.cell_key.in_(keys))
    trials: dict[str, dict[str, list[Any]]] = {}
    for trial in map(_Row._make, connection.execute(query).all()) if known is None else known:
        trials.setdefault(trial.environment_id, {}).setdefault(trial.cell_key, []).append(trial)
    compared: dict[tuple[str, str], dict[str, list[Any]]] = {}
    facts: dict[str, tuple[str, float]] = {}
    for key, comparison, mode, size in connection.execute(cells.order_by(PLANNED.c.position)):
        facts[key] = (mode, size)
        for environment, of_environment in trials.items():
            if key in of_environment:
                compared.setdefault((environment, comparison), {})[key] = of_environment[key]
    rows = []
    for (environment, _), cells in compared.items():
        # of several variants of the baseline mode, the first in the plan is the baseline of all
        # cells
        reference = next((key for key in cells if facts[key][0] == baseline_mode), None)
        baseline = Baseline.of(cells.get(reference, ()))
        for key, of_cell in cells.items():
            summary = summarise(
                of_cell, bs=facts[key][1], is_baseline=key == reference, baseline=baseline
            )
            # most values need no conversion; integers come from columns of 64 bits
            values = {
                name: (
                    value
                    if value is None
                    or type(value) is int
                    or (type(value) is float and isfinite(value))
                    else scalar(value)
                )
                for name, value in summary.items()
            }
            rows.append(
                {"sweep_id": sweep_id, "cell_key": key, "environment_id": environment, **values}
            )
    return rows


def rebuild_results(
    connection: sa.Connection,
    sweep_id: str,
    environment_id: str | None = None,
    comparison_key: str | None = None,
    known: Iterable[_Row] | None = None,
) -> None:
    """Replace results of the sweep by newly derived ones: all, or those that `derive` returns for
    these arguments."""
    rows = derive(
        connection, sweep_id, lock(connection, sweep_id), environment_id, comparison_key, known
    )
    stale = sa.delete(RESULT).where(RESULT.c.sweep_id == sweep_id)
    if comparison_key is not None:
        keys = sa.select(CELL.c.key).where(CELL.c.comparison_key == comparison_key)
        stale = stale.where(RESULT.c.environment_id == environment_id, RESULT.c.cell_key.in_(keys))
    connection.execute(stale)
    if rows:
        connection.execute(sa.insert(RESULT), rows)


def stream_results(
    connection: sa.Connection, sweep_ids: Iterable[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the view `results` of these sweeps (empty: all, oldest first), in the order
    of the plan."""
    place = sa.and_(
        PLANNED.c.sweep_id == RESULTS.c.sweep_id, PLANNED.c.cell_key == RESULTS.c.cell_key
    )
    query = (
        sa.select(RESULTS)
        .join(PLANNED, place)
        .order_by(PLANNED.c.position, RESULTS.c.environment_id)
    )
    ids = (
        list(sweep_ids)
        or connection.scalars(sa.select(SWEEP.c.id).order_by(SWEEP.c.started_at, SWEEP.c.id)).all()
    )
    for sweep_id in ids:  # one after the other, because the database would sort all rows in memory
        rows = connection.execute(
            query.where(PLANNED.c.sweep_id == sweep_id).execution_options(yield_per=500)
        )
        yield from map(dict, rows.mappings())


def results(connection: sa.Connection, sweep_id: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of the view `results` for one sweep or all: oldest sweep first, then in the
    order of the plan."""
    return list(stream_results(connection, [] if sweep_id is None else [sweep_id]))


def results_frame(connection: sa.Connection, sweep_id: str | None = None) -> pd.DataFrame:
    """Return `results` as a DataFrame with the dtypes of `RESULT_DTYPES`, which do not depend on
    the rows."""
    return frame_of(results(connection, sweep_id), RESULT_DTYPES)


def frame_of(rows: list[dict[str, Any]], dtypes: dict[str, str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(dtypes), dtype="object").astype(dtypes)
