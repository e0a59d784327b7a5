"""Queries for comparisons and history, which read few columns of many trials or results."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any

import sqlalchemy as sa

from effbench.core.cell import Status, Trial
from effbench.core.metrics import METRICS
from effbench.store.schema import CELL, ENVIRONMENT, PLANNED, RESULT, SWEEP, TRIAL
from effbench.store.summary import PREPARING, CountedTrials, of_cache
from effbench.store.sweeps import CONFIRMING, SweepInfo, sweeps
from effbench.store.values import as_dicts, text, trial_of

#: Compared metrics that every trial has.
PER_TRIAL = tuple(
    name
    for name, metric in METRICS.items()
    if metric.compare in ("ratio", "exact") and name in TRIAL.columns
)
#: Most earlier sweeps that give levels.
MOST_LEVELS = 30
#: Compared metrics with one value per sweep.
PER_SWEEP = tuple(
    name for name, metric in METRICS.items() if metric.compare == "bound" and name not in PREPARING
)


#: Columns that identify a result within a sweep, and facts of trials, results and sweeps.
_KEYS = ("cell_key", "environment_id")
_FACTS_OF_TRIALS = (
    "host",
    "round",
    "attempt",
    "status",
    "disturbance",
    "compile_cache",
    "compilation",
    "kernel_fingerprint",
    "compile_s",
    "first_call_s",
)
_FACTS_OF_RESULTS = ("status", "reason", "bound", "disturbed_fraction", "disturbance")
#: Metric -> round -> figure.
Figures = dict[str, dict[int, float | None]]
#: (cell key, metric) -> environment id -> values of earlier results
Levels = dict[tuple[str, str], dict[str, list[float]]]


@dataclass(frozen=True)
class CellResult:
    """One sweep's result of a cell in one environment. `bound`: its bottleneck; `figures`: metric
    -> round -> figure of that round's trial. A metric with one value per sweep has it under round
    0. In a joined sweep each host has one figure, under its number. `compiled`: round -> the
    trial's `compilation` and `kernel_fingerprint`. `disturbed`: `disturbed_fraction`.
    `disturbance`: why its times are marked, None if they are not."""

    status: str
    reason: str | None = None
    bound: str | None = None
    figures: Mapping[str, Mapping[int, float | None]] = field(default_factory=dict)
    compiled: Mapping[int, tuple[int | None, str | None]] = field(default_factory=dict)
    disturbed: float | None = None
    disturbance: str | None = None

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


def sides(connection: sa.Connection, sweep_id: str) -> dict[tuple[str, str], CellResult]:
    """Return (cell key, environment id) -> result, with the figures of its counted trials, for a
    sweep."""
    trials = _trials(connection, sweep_id)
    hosts = sorted({str(trial.host) for of_cell in trials.values() for trial in of_cell})
    is_joined = hosts not in ([], ["None"])
    columns = [RESULT.c[name] for name in (*_KEYS, *_FACTS_OF_RESULTS, *PER_SWEEP)]
    results = {}
    for row in connection.execute(sa.select(*columns).where(RESULT.c.sweep_id == sweep_id)):
        key = row.cell_key, row.environment_id
        of_cell = trials.get(key, [])
        counted = _with_measurements(CountedTrials.of(of_cell))
        figures = figures_of(counted)
        compiled = {
            trial.round: (trial.compilation, trial.kernel_fingerprint) for trial in counted.kept
        }
        if is_joined:
            numbers = {trial.round: hosts.index(str(trial.host)) for trial in of_cell}
            figures = {name: of_hosts(name, known, numbers) for name, known in figures.items()}
            compiled = {numbers[n]: (None, kernels) for n, (_, kernels) in compiled.items()}
        results[key] = CellResult(
            status=row.status,
            reason=row.reason,
            bound=row.bound,
            figures=figures | {name: {0: getattr(row, name)} for name in PER_SWEEP},
            compiled=compiled,
            disturbed=row.disturbed_fraction,
            disturbance=row.disturbance,
        )
    return results


def _trials(connection: sa.Connection, sweep_id: str) -> dict[tuple[str, str], list[Trial]]:
    """Return (cell key, environment id) -> what comparisons need of its trials."""
    columns = [TRIAL.c[name] for name in (*_KEYS, *_FACTS_OF_TRIALS, *PER_TRIAL)]
    query = sa.select(*columns).where(TRIAL.c.sweep_id == sweep_id)
    trials: dict[tuple[str, str], list[Trial]] = {}
    for row in as_dicts(connection, query):
        key = row["cell_key"], row["environment_id"]
        trials.setdefault(key, []).append(trial_of(row))
    return trials


def _with_measurements(counted: CountedTrials) -> CountedTrials:
    return replace(counted, kept=[trial for trial in counted.kept if trial.status.is_measured])


def figures_of(counted: CountedTrials) -> Figures:
    """Return metric -> round -> figure of the trials that give it, as in results. Sizes with an
    empty cache have a metric of their own, so here they never stand for those with a warm one."""
    figures: Figures = {}
    prepared = {preparing.column for preparing in PREPARING.values()}
    for name in PER_TRIAL:
        trials = counted.giving(METRICS[name])
        if name in prepared:
            trials = of_cache(trials, "warm", None)
        figures[name] = {trial.round: getattr(trial, name) for trial in trials}
    for name, preparing in PREPARING.items():
        figures[name] = {}
        for trial in counted.giving(METRICS[name]):
            value = getattr(trial, preparing.column)
            if value is not None:  # it was prepared while another one ran
                figures[name][trial.round] = value
    return figures


def of_hosts(
    name: str, figures: Mapping[int, float | None], numbers: Mapping[int, int]
) -> dict[int, float | None]:
    """Return number of the host -> its figure: the geometric mean over its trials for times, else
    the largest. Trials of one host are not independent. `numbers`: round -> number of its host."""
    is_timed = METRICS[name].is_timed
    values: dict[int, list[float]] = {}
    for number, value in figures.items():
        if value is not None and (value > 0 or not is_timed):
            values.setdefault(numbers[number], []).append(value)
    combine = statistics.geometric_mean if is_timed else max
    return {host: combine(known) for host, known in values.items()}


def levels(
    connection: sa.Connection,
    sweep_id: str,
    environment_ids: Collection[str],
    before: dt.datetime,
    metrics: Collection[str],
    host: str | None = None,
) -> Levels:
    """Return (cell key, metric) -> environment id -> values of earlier results of the sweep's
    cells, oldest first.

    Only `ok` results without a mark count. They come from the newest MOST_LEVELS sweeps that have
    the same protocol and name (or none, like this sweep), began before `before`, and ran some of
    these cells in these environments; `host`: only on this host. Re-runs are excluded.
    """
    query = sa.select(SWEEP.c.name, SWEEP.c.protocol).where(SWEEP.c.id == sweep_id)
    sweep = connection.execute(query).one_or_none()
    if sweep is None or (sweep.name or "").startswith(CONFIRMING):
        return {}
    cells = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)
    of_these = sa.and_(
        RESULT.c.environment_id.in_(list(environment_ids)), RESULT.c.cell_key.in_(cells)
    )
    has_results = sa.exists().where(RESULT.c.sweep_id == SWEEP.c.id, of_these)
    earlier = sa.select(SWEEP.c.id, SWEEP.c.protocol).where(
        SWEEP.c.started_at < before,
        sa.func.coalesce(SWEEP.c.name, "") == (sweep.name or ""),
        has_results,
    )
    if host is not None:
        earlier = earlier.where(SWEEP.c.host["hostname"].as_string() == host)
    newest_first = earlier.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    # of a protocol with other rules the noise differs
    rows = connection.execute(newest_first)
    alike = (row.id for row in rows if _same_rules(sweep.protocol, row.protocol))
    recent = list(islice(alike, MOST_LEVELS))
    is_level = sa.and_(of_these, RESULT.c.status == Status.OK, RESULT.c.marked.is_not(True))
    return _levels_of(connection, recent, is_level, [m for m in metrics if m in RESULT.columns])


def _levels_of(
    connection: sa.Connection,
    sweep_ids: Sequence[str],
    is_level: sa.ColumnElement[bool],
    metrics: Sequence[str],
) -> Levels:
    """Return the values of these metrics in results of these sweeps."""
    columns = [RESULT.c[name] for name in (*_KEYS, *metrics)]
    query = (
        sa.select(*columns)
        .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
        .where(SWEEP.c.id.in_(sweep_ids), is_level)
        .order_by(SWEEP.c.started_at, SWEEP.c.id)
    )
    found: Levels = {}
    for row in connection.execute(query):
        for name in metrics:
            value = getattr(row, name)
            if value is not None:
                by_environment = found.setdefault((row.cell_key, name), {})
                by_environment.setdefault(row.environment_id, []).append(value)
    return found


def _same_rules(protocol: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two protocols are the same; settings that an earlier version did not have do
    not count."""
    names = protocol.keys() & other.keys() - {"name"}
    return all(protocol[name] == other[name] for name in names)


def previous(
    connection: sa.Connection, sweep_id: str, environment_ids: Collection[str]
) -> str | None:
    """Return the id of the newest earlier sweep, except re-runs, that has a result of one of this
    sweep's cells, both in these environments, or None. Sweeps that were recorded here come before
    imported ones, and then those of the same name, if this sweep has a name: pushes and pull
    requests may share a database."""
    this, here, there = SWEEP.alias(), RESULT.alias(), RESULT.alias()
    same = [
        here.c.sweep_id == sweep_id,
        there.c.sweep_id == SWEEP.c.id,
        here.c.cell_key == there.c.cell_key,
    ]
    same += [table.c.environment_id.in_(list(environment_ids)) for table in (here, there)]
    # an imported sweep counts only if there is no other, unless this one was imported as well
    has_other_origin = sa.and_(SWEEP.c.imported_at.is_not(None), this.c.imported_at.is_(None))
    has_other_name = sa.func.coalesce(SWEEP.c.name == this.c.name, sa.false()).is_(sa.false())
    query = (
        sa.select(SWEEP.c.id)
        .where(this.c.id == sweep_id)
        .where(sa.tuple_(SWEEP.c.started_at, SWEEP.c.id) < sa.tuple_(this.c.started_at, this.c.id))
        .where(
            sa.func.coalesce(SWEEP.c.name, "").not_like(f"{CONFIRMING}%"), sa.exists().where(*same)
        )
        .order_by(has_other_origin, has_other_name, SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
        .limit(1)
    )
    return connection.scalar(query)


def host_ms(connection: sa.Connection, sweep_id: str) -> float | None:
    """Return the time of the fixed host work in ms in a sweep's quieter moments: the median over
    its trials; None if no trial has measured it."""
    query = sa.select(TRIAL.c.host_ms).where(TRIAL.c.sweep_id == sweep_id, TRIAL.c.host_ms > 0)
    times = connection.scalars(query).all()
    return statistics.median(times) if times else None


# --- history ---


@dataclass(frozen=True)
class PastResults:
    """Results of all sweeps. `sweeps`: newest first, those of the future last; `environments` by
    id, `cells` by key; `rows`: values by column, in no order. `older`: number of the oldest sweeps
    whose rows are left out."""

    sweeps: list[SweepInfo]
    environments: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, Any]]
    rows: list[dict[str, Any]]
    older: int = 0


def past_results(
    connection: sa.Connection,
    columns: Sequence[str] | None = None,
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> PastResults:
    """Return the results of all sweeps with sweep_id, cell_key, environment_id, status, reason and
    `columns`; None: without `rows`. `models`, `modes`, `environment_ids`: only results of these
    (empty: all). `most`: only the newest sweeps, with at most this many results in total, but at
    least one."""
    cells = sa.select(CELL)
    if models:
        cells = cells.where(CELL.c.model.in_([text(name) for name in models]))
    if modes:
        cells = cells.where(CELL.c.mode.in_([text(name) for name in modes]))
    names = dict.fromkeys(("sweep_id", *_KEYS, "status", "reason", *(columns or ())))
    results: sa.Select[Any] = sa.select(*(RESULT.c[name] for name in names))
    if models or modes:
        results = results.where(RESULT.c.cell_key.in_(cells.with_only_columns(CELL.c.key)))
    if environment_ids:
        results = results.where(RESULT.c.environment_id.in_(list(environment_ids)))
    older = 0
    if most is not None:
        newest, older = _newest(connection, results, most)
        results = results.where(RESULT.c.sweep_id.in_(newest))
    return PastResults(
        sweeps=sweeps(connection, brief=True),
        environments={row["id"]: row for row in as_dicts(connection, sa.select(ENVIRONMENT))},
        cells={row["key"]: row for row in as_dicts(connection, cells)},
        rows=[] if columns is None else list(as_dicts(connection, results)),
        older=older,
    )


def _newest(connection: sa.Connection, results: sa.Select[Any], most: int) -> tuple[list[str], int]:
    """Return the newest sweeps with at most this many of these results, but at least one sweep; and
    the number of older ones that have some."""
    numbers = results.with_only_columns(RESULT.c.sweep_id, sa.func.count())
    numbers = numbers.join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id).group_by(
        RESULT.c.sweep_id, SWEEP.c.started_at
    )
    newest_first = numbers.order_by(SWEEP.c.started_at.desc(), RESULT.c.sweep_id.desc())
    rows = connection.execute(newest_first).all()
    totals = list(accumulate(number for _, number in rows))
    kept = max(1, sum(total <= most for total in totals))
    return [sweep_id for sweep_id, _ in rows[:kept]], max(0, len(rows) - kept)
