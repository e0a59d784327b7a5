"""Queries for comparisons and history, which read few columns of many trials or results."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Any

import sqlalchemy as sa

from effbench.core.cell import Cell, Status, StoredEnvironment, Trial
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.store.schema import CELL, PLANNED, RESULT, SWEEP, TRIAL
from effbench.store.summary import FACTS, PREPARING, CountedTrials, figure_of
from effbench.store.sweeps import (
    CONFIRMING,
    KnownSweep,
    SweepInfo,
    are_cells_of,
    cells,
    environments,
    known_sweeps,
    sweeps,
)
from effbench.store.trials import read_trials
from effbench.store.values import ResultKey, as_dicts

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
#: Metric -> round -> figure.
Figures = dict[str, dict[int, float | None]]
#: (cell key, metric) -> environment id -> values of earlier results
Levels = dict[tuple[str, str], dict[str, list[float]]]


# --- the figures of a sweep ---


@dataclass(frozen=True)
class CellResult:
    """One sweep's result of a cell in one environment. `bound`: its bottleneck; `figures`: metric
    -> round -> figure of that round's trial. A metric with one value per sweep has it under round
    0. In a joined sweep each host has one figure, under its number. `compilations`: round -> the
    trial's compile cache; `kernels`: fingerprints of the kernels of all trials. `disturbance`: why
    its times are marked, None if they are not."""

    status: str
    reason: str | None = None
    bound: str | None = None
    disturbed_fraction: float | None = None
    disturbance: str | None = None
    figures: Mapping[str, Mapping[int, float | None]] = field(default_factory=dict)
    compilations: Mapping[int, int | None] = field(default_factory=dict)
    kernels: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


def sides(connection: sa.Connection, sweep_id: str) -> dict[ResultKey, CellResult]:
    """Return the results of a sweep, with the figures of their counted trials."""
    is_of_sweep = TRIAL.c.sweep_id == sweep_id
    prepared = (preparing.column for preparing in PREPARING.values())
    trials = read_trials(connection, (*FACTS, *prepared, *PER_TRIAL), is_of_sweep)
    hosts = _joined_hosts(chain.from_iterable(trials.values()))
    columns = [RESULT.c[name] for name in (*ResultKey._fields, *_OF_RESULTS, *PER_SWEEP)]
    results = {}
    query = sa.select(*columns).where(RESULT.c.sweep_id == sweep_id)
    for row in as_dicts(connection, query):
        key = ResultKey(row["cell_key"], row["environment_id"])
        counted = CountedTrials.of(trials.get(key, ()))
        results[key] = _cell_result(row, counted, hosts)
    return results


def _joined_hosts(trials: Iterable[Trial]) -> list[str]:
    """Return the hosts of a joined sweep, sorted; none of a sweep that joins no hosts."""
    hosts = sorted({str(trial.host) for trial in trials})
    if hosts == ["None"]:
        return []
    return hosts


def _cell_result(
    row: Mapping[str, Any], counted: CountedTrials, hosts: Sequence[str]
) -> CellResult:
    """Return a stored result with the figures of its counted trials, or of the hosts of a joined
    sweep."""
    measured = [trial for trial in counted.kept if trial.status.is_measured]
    compilations: dict[int, int | None]
    if hosts:
        figures = {name: of_hosts(name, counted, hosts) for name in _OF_TRIALS}
        compilations = {hosts.index(str(trial.host)): None for trial in measured}
    else:
        figures = figures_of(counted)
        compilations = {trial.round: trial.compilation for trial in measured}
    kernels = {trial.kernel_fingerprint for trial in measured}
    return CellResult(
        **{name: row[name] for name in _OF_RESULTS},
        figures=figures | {name: {0: row[name]} for name in PER_SWEEP},
        compilations=compilations,
        kernels=frozenset(filter(None, kernels)),
    )


#: Columns of a result that are fields of `CellResult`.
_OF_RESULTS = ("status", "reason", "bound", "disturbed_fraction", "disturbance")
#: Compared metrics with a value per trial.
_OF_TRIALS = (*PER_TRIAL, *PREPARING)


def figures_of(counted: CountedTrials) -> Figures:
    """Return metric -> round -> figure of the trials that give it, as in results."""
    figures: Figures = {}
    for name in _OF_TRIALS:
        metric = METRICS[name]
        trials = counted.comparable(metric)
        figures[name] = {trial.round: figure_of(trial, metric) for trial in trials}
    return figures


def of_hosts(name: str, counted: CountedTrials, hosts: Sequence[str]) -> dict[int, float | None]:
    """Return number of the host -> its figure: the geometric mean over its trials for times, else
    the largest. Trials of one host are not independent."""
    metric = METRICS[name]
    combine = statistics.geometric_mean if metric.is_timed else max
    figures: dict[int, float | None] = {}
    trials = counted.comparable(metric)
    for host, of_host in grouped(trials, lambda trial: str(trial.host)).items():
        values = [figure_of(trial, metric) for trial in of_host]
        known = [
            value for value in values if value is not None and (value > 0 or not metric.is_timed)
        ]
        if known:
            figures[hosts.index(host)] = combine(known)
    return figures


# --- earlier sweeps ---


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
    earlier = sa.select(SWEEP.c.id, SWEEP.c.protocol).where(
        SWEEP.c.started_at < before,
        sa.func.coalesce(SWEEP.c.name, "") == (sweep.name or ""),
        sa.exists().where(RESULT.c.sweep_id == SWEEP.c.id, of_these),
    )
    if host is not None:
        earlier = earlier.where(SWEEP.c.host["hostname"].as_string() == host)
    recent = _newest_alike(connection, earlier, sweep.protocol)
    known = [name for name in metrics if name in RESULT.columns]
    values = (
        sa.select(*(RESULT.c[name] for name in (*ResultKey._fields, *known)))
        .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
        .where(SWEEP.c.id.in_(recent), of_these)
        .where(RESULT.c.status == Status.OK, RESULT.c.marked.is_not(True))
        .order_by(SWEEP.c.started_at, SWEEP.c.id)
    )
    found: Levels = {}
    for row in as_dicts(connection, values):
        for name in known:
            if row[name] is not None:
                by_environment = found.setdefault((row["cell_key"], name), {})
                by_environment.setdefault(row["environment_id"], []).append(row[name])
    return found


def _newest_alike(
    connection: sa.Connection, earlier: sa.Select[Any], protocol: Mapping[str, Any]
) -> list[str]:
    """Return the ids of the newest MOST_LEVELS of these sweeps that have the rules of `protocol`:
    the noise differs with other rules."""
    newest_first = earlier.order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    rows = connection.execute(newest_first)
    alike = (row.id for row in rows if _same_rules(protocol, row.protocol))
    return list(islice(alike, MOST_LEVELS))


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
    in_these = RESULT.c.environment_id.in_(list(environment_ids))
    its_cells = sa.select(RESULT.c.cell_key).where(RESULT.c.sweep_id == sweep_id, in_these)
    measured = sa.select(RESULT.c.sweep_id).where(RESULT.c.cell_key.in_(its_cells), in_these)
    newest_first = known_sweeps(connection, SWEEP.c.id.in_(measured))
    ids = [sweep.id for sweep in newest_first]
    if sweep_id not in ids:
        return None
    this, *earlier = newest_first[ids.index(sweep_id) :]

    def rank(sweep: KnownSweep) -> tuple[bool, bool]:
        # an imported sweep counts only if there is no other, unless this one was imported as well
        has_other_origin = sweep.imported_at is not None and this.imported_at is None
        has_other_name = this.name is not None and sweep.name != this.name
        return has_other_origin, has_other_name

    candidates = [sweep for sweep in earlier if not sweep.is_rerun]
    return min(candidates, key=rank).id if candidates else None


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
    environments: dict[str, StoredEnvironment]
    cells: dict[str, Cell]
    rows: list[dict[str, Any]]
    older: int = 0


def past_results(
    connection: sa.Connection,
    columns: Sequence[str],
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> PastResults:
    """Return the results of all sweeps with sweep_id, cell_key, environment_id, status, reason and
    `columns`. `models`, `modes`, `environment_ids`: only results of these (empty: all). `most`:
    only the newest sweeps, with at most this many results in total, but at least one."""
    names = dict.fromkeys(("sweep_id", *ResultKey._fields, "status", "reason", *columns))
    results: sa.Select[Any] = sa.select(*(RESULT.c[name] for name in names))
    if models or modes:
        of_cells = sa.select(CELL.c.key).where(*are_cells_of(models, modes))
        results = results.where(RESULT.c.cell_key.in_(of_cells))
    if environment_ids:
        results = results.where(RESULT.c.environment_id.in_(list(environment_ids)))
    older = 0
    if most is not None:
        newest, older = _newest(connection, results, most)
        results = results.where(RESULT.c.sweep_id.in_(newest))
    return PastResults(
        sweeps=sweeps(connection, brief=True),
        environments={known.id: known for known in environments(connection)},
        cells=cells(connection, models, modes),
        rows=list(as_dicts(connection, results)),
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
