"""Read and write trials with their samples, and derive the results. Every function takes a
connection."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, select

from effbench.core.cell import (
    NO_CACHE,
    Cell,
    JsonObject,
    Result,
    StoredTrial,
    Trial,
)
from effbench.core.errors import StoreError
from effbench.core.labels import grouped
from effbench.core.parallel import Parallel
from effbench.core.printable import one_line
from effbench.core.trace import DamagedTraceError, Trace
from effbench.store.connect import insert
from effbench.store.schema import (
    CELL,
    PLANNED,
    RESULT,
    RESULTS,
    SAMPLE,
    SWEEP,
    TRACE,
    TRIAL,
)
from effbench.store.summary import CountedTrials, last_attempts, summarise
from effbench.store.sweeps import lock
from effbench.store.values import (
    CODEC,
    TRACE_CODEC,
    TRIAL_FIELDS,
    Columns,
    Condition,
    DamagedSamplesError,
    ResultKey,
    as_dicts,
    decode_samples,
    encode_samples,
    encode_trace,
    result_of,
    scalar,
    text,
    trial_of,
    trial_row,
)

if TYPE_CHECKING:
    import pandas as pd

    from effbench.store.values import Samples


@dataclass(frozen=True)
class StoredSamples:
    """The samples of one timer of a trial, in ms unless the timer's name has a unit. `taken`: how
    many were taken; at most 5,000 of them are stored."""

    taken: int
    stored: Samples


@dataclass(frozen=True)
class SampledTrial:
    """A trial with its samples, by timer."""

    trial: StoredTrial
    timers: dict[str, StoredSamples]


@dataclass(frozen=True)
class TracedTrial:
    """A trial with its trace; None if none was stored, or if it is damaged."""

    trial: StoredTrial
    trace: Trace | None


#: Newest trials that tell the usual speed of the host.
RECENT_TRIALS = 50
#: A machine is far slower than usual if its fixed work takes this many times the median of recent
#: trials. On an idle virtual machine the slower moments of trials differ by a factor of 1.3.
FAR_SLOWER = 2.0
#: Columns by which trials are ordered.
ORDER = ("cell_key", "environment_id", "round", "attempt")
#: Fields of a trial without `extra`.
WITHOUT_EXTRA = tuple(name for name in TRIAL_FIELDS if name != "extra")


def add_trial(
    connection: Connection,
    sweep_id: str,
    environment_id: str,
    trial: Trial,
) -> int:
    """Store a trial with its samples and trace, and derive the results of its cell and of all cells
    compared with it; return its id. Recording the same trial twice changes nothing. A trace that
    cannot be stored is omitted, and `extra` says why.

    Raises StoreError if another trial is recorded in its place.
    """
    lock(connection, sweep_id)
    row = {
        "sweep_id": sweep_id,
        "environment_id": environment_id,
        **trial_row(trial),
    }
    trace = None
    if trial.trace is not None:
        try:
            trace = encode_trace(trial.trace)
        except ValueError as error:
            row["extra"] = {**trial.extra, "omitted_trace": one_line(error, 100)}
    new = insert(connection, TRIAL).values(**row).on_conflict_do_nothing().returning(TRIAL.c.id)
    trial_id: int | None = connection.scalar(new)
    if trial_id is None:
        # a job of SLURM may have reported it before
        same = {name: row[name] for name in ("sweep_id", *ORDER, "status", "pid", "started_at")}
        recorded: int | None = connection.scalar(select(TRIAL.c.id).filter_by(**same))
        if recorded is None:
            what = f"round {trial.round + 1}, attempt {trial.attempt + 1}"
            raise StoreError(
                f"{what} of cell {trial.cell_key[:12]} is already recorded in sweep {sweep_id}"
            )
        return recorded
    for timer, values in trial.samples.items():
        stored, data = encode_samples(values)
        connection.execute(
            sa.insert(SAMPLE).values(
                trial_id=trial_id,
                timer=text(timer),
                count=len(values),
                stored=stored,
                codec=CODEC,
                data=data,
            )
        )
    if trace is not None:
        of_trial = sa.insert(TRACE).values(trial_id=trial_id, codec=TRACE_CODEC, data=trace)
        connection.execute(of_trial)
    rebuild_results(connection, sweep_id, trial.cell_key)
    return trial_id


def read_trials(
    connection: Connection,
    sweep_id: str,
    *where: Condition,
    names: Collection[str] = TRIAL_FIELDS,
) -> list[StoredTrial]:
    """Return the trials of the sweep that meet these conditions, by cell, environment, round and
    attempt, with the fields of these names."""
    columns = TRIAL.c["id", "environment_id", *names]
    query = select(*columns).filter_by(sweep_id=sweep_id).where(*where).order_by(*TRIAL.c[ORDER])
    return [trial_of(row) for row in as_dicts(connection, query)]


def counted_trials(
    connection: Connection, sweep_id: str, *where: Condition
) -> dict[ResultKey, CountedTrials]:
    """Return the trials that count for each result of the sweep, of those that meet these
    conditions, without `extra`, which can be large."""
    recorded = read_trials(connection, sweep_id, *where, names=WITHOUT_EXTRA)
    by_result = grouped(recorded, lambda trial: ResultKey(trial.cell_key, trial.environment_id))
    return {key: CountedTrials.of(of_result) for key, of_result in by_result.items()}


def trials(connection: Connection, sweep_id: str) -> list[StoredTrial]:
    """Return the trials of the sweep in the order they were recorded, all attempts."""
    return sorted(read_trials(connection, sweep_id), key=attrgetter("id"))


def history(connection: Connection, sweep_id: str, environment_id: str) -> dict[str, list[Trial]]:
    """Return cell key -> its recorded trials (last attempts) in the sweep and environment, without
    samples."""
    recorded = read_trials(connection, sweep_id, TRIAL.c.environment_id == environment_id)
    by_cell = grouped(recorded, attrgetter("cell_key"))
    return {key: last_attempts(of_cell) for key, of_cell in by_cell.items()}


@dataclass
class HostSpeeds:
    """Times of the fixed host work of recent trials on this machine, oldest first, in ms.

    `quiet`: in the quietest moments of trials on a GPU. `high`: in the slower moments of
    undisturbed trials on the CPU.
    """

    quiet: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, trial: Trial | sa.Row[Any]) -> None:
        if trial.gpu_uuid is not None:
            if trial.host_ms is not None:
                self.quiet.append(trial.host_ms)
        elif trial.host_high_ms is not None and trial.disturbance is None:
            self.high.append(trial.host_high_ms)

    def quiet_ms(self) -> float | None:
        """Return the time on an undisturbed host, a low quantile; None if no trial has measured
        it."""
        return _quantile(self.quiet, 0.2)

    def high_ms(self) -> float | None:
        """Return the time in the slower moments of a usual host, a high quantile; None if no trial
        has measured it.

        Trials for which a shared machine was far slower than usual do not count."""
        recent = self.high[-RECENT_TRIALS:]
        if not recent:
            return None
        limit_ms = FAR_SLOWER * statistics.median(recent)
        return _quantile([high_ms for high_ms in recent if high_ms <= limit_ms], 0.8)


def _quantile(values: Sequence[float], fraction: float) -> float | None:
    """Return the quantile of the last RECENT_TRIALS values; None without values."""
    import numpy as np

    if not values:
        return None
    return float(np.quantile(values[-RECENT_TRIALS:], fraction))


def host_speeds(connection: Connection, environment_id: str) -> HostSpeeds:
    """Return what the newest trials of this machine in an environment tell of the speed of its
    host."""
    is_of_machine = SWEEP.c.host["hostname"].as_string() == platform.node()
    query = (
        select(*TRIAL.c["gpu_uuid", "host_ms", "host_high_ms", "disturbance"])
        # a subquery instead of the join would make SQLite read all trials of the machine
        .join(SWEEP, SWEEP.c.id == TRIAL.c.sweep_id)
        .where(is_of_machine, SWEEP.c.imported_at.is_(None))
        .where(TRIAL.c.environment_id == environment_id, TRIAL.c.host_ms.is_not(None))
        .order_by(TRIAL.c.id.desc())
        .limit(4 * RECENT_TRIALS)
    )
    speeds = HostSpeeds()
    for row in reversed(connection.execute(query).all()):
        speeds.add(row)
    return speeds


def trial_facts(
    connection: Connection, sweep_id: str, names: Sequence[str]
) -> dict[ResultKey, JsonObject]:
    """Return for each result the parts of `extra` with these names in its newest trial that has
    any."""
    newest: dict[ResultKey, JsonObject] = {}
    for trial in trials(connection, sweep_id):
        extra = trial.extra
        facts = {name: extra[name] for name in names if extra.get(name) is not None}
        if facts:
            newest[ResultKey(trial.cell_key, trial.environment_id)] = facts
    return newest


def samples(connection: Connection, trial_id: int) -> dict[str, Samples]:
    """Return timer -> float32 array of the trial's raw samples, at most 5,000; in ms unless the
    name has a unit. Raises DamagedSamplesError."""
    query = select(SAMPLE).filter_by(trial_id=trial_id).order_by(SAMPLE.c.timer)
    return {row["timer"]: _samples_of(row) for row in as_dicts(connection, query)}


def with_samples(connection: Connection, trials: Sequence[StoredTrial]) -> list[SampledTrial]:
    """Return these trials with their samples. Those of a timer that are damaged are omitted, and
    `extra` says so."""
    sampled = {trial.id: SampledTrial(trial, {}) for trial in trials}
    query = select(SAMPLE).where(SAMPLE.c.trial_id.in_(sampled)).order_by(SAMPLE.c.timer)
    for row in as_dicts(connection, query):
        of_trial = sampled[row["trial_id"]]
        try:
            of_trial.timers[row["timer"]] = StoredSamples(row["count"], _samples_of(row))
        except DamagedSamplesError as error:
            of_trial.trial.extra["damaged_samples"] = str(error)
    return list(sampled.values())


def _samples_of(row: Columns) -> Samples:
    name = f"samples (timer {one_line(row['timer'], 40)} of trial {row['trial_id']})"
    return decode_samples(row["data"], row["stored"], name)


def traces(
    connection: Connection, sweep_id: str, cell_key: str, environment_id: str
) -> list[TracedTrial]:
    """Return the trials that count for a result, oldest first, with their traces. A trace that is
    damaged is omitted, and `extra` says so."""
    of_result = TRIAL.c.cell_key == cell_key, TRIAL.c.environment_id == environment_id
    recorded = read_trials(connection, sweep_id, *of_result)
    counted = CountedTrials.of(recorded).kept
    traced = []
    for trial in recorded:
        if trial not in counted:
            continue
        trace = None
        data = connection.scalar(select(TRACE.c.data).filter_by(trial_id=trial.id))
        if data is not None:
            try:
                trace = Trace.unpacked(data)
            except DamagedTraceError as error:
                trial.extra["damaged_trace"] = one_line(error, 100)
        traced.append(TracedTrial(trial, trace))
    return traced


def copy_trace(connection: Connection, trial_id: int | None, new_id: int) -> None:
    """Store the trace of a trial, if it has one, as that of another trial, too."""
    columns = select(sa.literal(new_id), *TRACE.c["codec", "data"])
    query = columns.where(TRACE.c.trial_id == trial_id)
    connection.execute(sa.insert(TRACE).from_select(list(TRACE.c.keys()), query))


def traced_results(connection: Connection, sweep_id: str) -> list[ResultKey]:
    """Return which results of the sweep have trials with a trace, by cell key and environment."""
    key = TRIAL.c["cell_key", "environment_id"]
    query = select(*key).join(TRACE).filter_by(sweep_id=sweep_id).distinct().order_by(*key)
    return [ResultKey(*row) for row in connection.execute(query)]


# --- results ---


def rebuild_results(connection: Connection, sweep_id: str, cell_key: str | None = None) -> None:
    """Replace the results of the sweep by newly derived ones: all, or those of this cell and of the
    cells that it is compared with."""
    baseline_mode = lock(connection, sweep_id, "baseline_mode").baseline_mode
    plan = select(CELL).join(PLANNED).filter_by(sweep_id=sweep_id)
    if cell_key is not None:
        plan = plan.where(CELL.c.comparison_key.in_(_compared_with(connection, plan, cell_key)))
    cells = {cell.key: cell for cell in connection.execute(plan.order_by(PLANNED.c.position))}
    keys = plan.with_only_columns(CELL.c.key)
    measured = counted_trials(connection, sweep_id, TRIAL.c.cell_key.in_(keys))
    # of several variants of the baseline mode, the first in the plan is the baseline; of a cold
    # start the first one without a cache
    order = sorted(cells, key=lambda key: cells[key].params.get("cache", NO_CACHE) != NO_CACHE)
    baselines: dict[tuple[str, str], CountedTrials] = {}
    for key in sorted(measured, key=lambda key: order.index(key.cell_key)):
        cell = cells[key.cell_key]
        if cell.mode == baseline_mode:
            baselines.setdefault((cell.comparison_key, key.environment_id), measured[key])
    rows = []
    for key, counted in measured.items():
        cell = cells[key.cell_key]
        parallel = Parallel.of(cell.params)
        single = None
        if parallel is not None:
            single_key = Cell(**cell.params).over(None).key
            single = measured.get(ResultKey(single_key, key.environment_id))
        summary = summarise(
            counted,
            bs=_samples_per_call(cell),
            of_baseline=baselines.get((cell.comparison_key, key.environment_id)),
            of_single=single,
            parallel=parallel,
        )
        row = {name: scalar(value) for name, value in vars(summary).items()}
        rows.append({**row, **key._asdict(), "sweep_id": sweep_id})
    connection.execute(
        sa.delete(RESULT).filter_by(sweep_id=sweep_id).where(RESULT.c.cell_key.in_(keys))
    )
    if rows:
        connection.execute(sa.insert(RESULT), rows)


def _compared_with(connection: Connection, plan: sa.Select[Any], cell_key: str) -> set[str]:
    """Return the comparison key of a cell, and those of the same cell on other numbers of devices
    in this plan."""
    cell = connection.execute(select(CELL).filter_by(key=cell_key)).one()
    # without these conditions, the query would read the JSON of each cell
    alike = CELL.c.model == cell.model, CELL.c.bs == cell.bs, CELL.c.mode == cell.mode
    parallel = CELL.c.params["parallel"].as_string()
    values = connection.scalars(plan.where(*alike).with_only_columns(parallel).distinct())
    return {Cell(**cell.params).over(value).comparison_key for value in values}


def _samples_per_call(cell: sa.Row[Any]) -> float | None:
    """Return the batch size of a cell, of all ranks in data parallel training, or the mean size of
    its stream.

    It is unknown if the server chooses it, for streams without a period, because their median
    latency is not that of the mean size, and for a cold start with another one than its cell's.
    """
    if cell.params.get("coldstart", {}).get("change") == "bs":
        return None
    stream = cell.params.get("stream")
    if stream is None:
        parallel = Parallel.of(cell.params)
        batches = parallel.batches if parallel else 1
        return float(cell.bs * batches)
    if stream.get("rate") is not None or cell.device == "cpu":
        return None
    return float(stream.get("samples_per_call", cell.bs))


def results(connection: Connection, *sweep_ids: str) -> list[Result]:
    """Return the results of these sweeps, or of all if none is named: oldest sweep first, then in
    the order of the plan."""
    is_planned = PLANNED.c.cell_key == RESULTS.c.cell_key, PLANNED.c.sweep_id == RESULTS.c.sweep_id
    order = *RESULTS.c["started_at", "sweep_id"], PLANNED.c.position, RESULTS.c.environment_id
    query = select(RESULTS).join(PLANNED, sa.and_(*is_planned)).order_by(*order)
    if sweep_ids:
        query = query.where(RESULTS.c.sweep_id.in_(sweep_ids))
    return [result_of(row) for row in as_dicts(connection, query)]


def frame_of(rows: list[JsonObject], dtypes: dict[str, str]) -> pd.DataFrame:
    """Return rows as a DataFrame with these dtypes, which do not depend on the rows."""
    import pandas as pd

    return pd.DataFrame(
        rows,
        columns=list(dtypes),
        dtype="object",
    ).astype(dtypes)
