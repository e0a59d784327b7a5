"""Queries for comparisons and history, which read few columns of many trials or results."""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, select

from effbench.core.cell import Cell, StoredEnvironment
from effbench.core.labels import grouped
from effbench.core.metrics import METRICS
from effbench.store.schema import RESULT, SWEEP, TRIAL
from effbench.store.summary import CountedTrials, figure_of
from effbench.store.sweeps import (
    SweepInfo,
    cells,
    environments,
    is_rerun,
    sweeps,
)
from effbench.store.trials import read_without_extra
from effbench.store.values import ResultKey, as_dicts, sql_query

#: Compared metrics that every trial has.
PER_TRIAL = tuple(
    name
    for name, metric in METRICS.items()
    if metric.compare in ("ratio", "exact") and name in TRIAL.columns
)
#: Most earlier sweeps that give levels.
MOST_LEVELS = 30
#: Metrics of preparing a mode.
PREPARING = tuple(name for name, metric in METRICS.items() if metric.caches)
#: Compared metrics with one value per sweep.
PER_SWEEP = tuple(
    name for name, metric in METRICS.items() if metric.compare == "bound" and not metric.caches
)
#: Columns of a result that are fields of `CellResult`.
_OF_RESULTS = ("status", "reason", "bound", "disturbed_fraction", "disturbance")
#: (cell key, metric) -> environment id -> values of earlier results
Levels = dict[tuple[str, str], dict[str, list[float]]]
#: round -> figure
Figures = Mapping[int, float | None]


# --- the figures of a sweep ---


@dataclass(frozen=True)
class CellResult:
    """One sweep's result of a cell in one environment. `bound`: its bottleneck; `figures`: metric
    -> round -> figure of that round's trial. A metric with one value per sweep has it under round
    0. `compilations`: round -> the trial's compile cache; `kernels`: fingerprints of the kernels of
    all trials. `disturbance`: why its times are marked, None if they are not."""

    status: str
    reason: str | None = None
    bound: str | None = None
    disturbed_fraction: float | None = None
    disturbance: str | None = None
    figures: Mapping[str, Figures] = field(default_factory=dict)
    compilations: Mapping[int, int | None] = field(default_factory=dict)
    kernels: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)


def sides(connection: Connection, sweep_id: str) -> dict[ResultKey, CellResult]:
    """Return the results of a sweep, with the figures of their counted trials."""
    of_sweep = read_without_extra(connection, TRIAL.c.sweep_id == sweep_id)
    trials = grouped(of_sweep, attrgetter("cell_key", "environment_id"))
    columns = RESULT.c[*ResultKey._fields, *_OF_RESULTS, *PER_SWEEP]
    results = {}
    for row in as_dicts(connection, select(*columns).filter_by(sweep_id=sweep_id)):
        key = ResultKey(row["cell_key"], row["environment_id"])
        counted = CountedTrials.of(trials[key])
        figures: dict[str, Figures] = {name: {0: row[name]} for name in PER_SWEEP}
        for name in (*PER_TRIAL, *PREPARING):
            metric = METRICS[name]
            giving = counted.comparable(metric)
            figures[name] = {trial.round: figure_of(trial, metric) for trial in giving}
        measured = [trial for trial in counted.kept if trial.status.is_measured]
        kernels = {trial.kernel_fingerprint for trial in measured}
        results[key] = CellResult(
            **{name: row[name] for name in _OF_RESULTS},
            figures=figures,
            compilations={trial.round: trial.compilation for trial in measured},
            kernels=frozenset(filter(None, kernels)),
        )
    return results


# --- earlier sweeps ---

#: The sweeps with results of the same cells as this one.
_ALIKE = """
    SELECT DISTINCT sweep_id FROM result
    WHERE environment_id IN :environments AND cell_key IN (
        SELECT cell_key FROM result WHERE sweep_id = :sweep_id AND environment_id IN :environments
    )
"""
#: Whether a result is a level of one of this sweep's cells.
_IS_LEVEL = """
    sweep_id IN :sweeps AND environment_id IN :environments
    AND cell_key IN (SELECT cell_key FROM result WHERE sweep_id = :sweep_id)
    AND status = 'ok' AND marked IS NOT TRUE
"""


def _alike(
    connection: Connection, sweep_id: str, environment_ids: Collection[str]
) -> dict[str, SweepInfo]:
    """Return the sweeps by id, newest first, that have a result of one of this sweep's cells, both
    in these environments."""
    query = sql_query(_ALIKE, sweep_id=sweep_id, environments=list(environment_ids))
    ids = set(connection.scalars(query))
    return {sweep.id: sweep for sweep in sweeps(connection) if sweep.id in ids}


def levels(
    connection: Connection,
    sweep_id: str,
    environment_ids: Collection[str],
    before: dt.datetime,
    metrics: Collection[str],
) -> Levels:
    """Return (cell key, metric) -> environment id -> values of earlier results of the sweep's
    cells, oldest first.

    Only `ok` results without a mark count. They come from the newest MOST_LEVELS sweeps that have
    the same protocol and name (or none, like this sweep), began before `before`, and ran some of
    these cells in these environments. Re-runs are excluded.
    """
    alike = _alike(connection, sweep_id, environment_ids)
    this = alike.get(sweep_id)
    if this is None or is_rerun(this.name):
        return {}
    earlier = [
        sweep.id for sweep in alike.values() if sweep.started_at < before and _is_like(sweep, this)
    ]
    is_level = sql_query(
        _IS_LEVEL,
        sweep_id=sweep_id,
        sweeps=earlier[:MOST_LEVELS],
        environments=list(environment_ids),
    )
    values = (
        select(*RESULT.c[*ResultKey._fields, *metrics])
        .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
        .where(is_level)
        .order_by(*SWEEP.c["started_at", "id"])
    )
    levels: Levels = {}
    for row in as_dicts(connection, values):
        for name in metrics:
            if row[name] is not None:
                values_of = levels.setdefault((row["cell_key"], name), {})
                values_of.setdefault(row["environment_id"], []).append(row[name])
    return levels


def _is_like(sweep: SweepInfo, other: SweepInfo) -> bool:
    """Return whether a sweep has the name and the protocol of the other, as the noise differs with
    other rules. Settings that an earlier version did not have do not count."""
    if (sweep.name or "") != (other.name or ""):
        return False
    names = sweep.protocol.keys() & other.protocol.keys() - {"name"}
    return all(sweep.protocol[name] == other.protocol[name] for name in names)


def previous(connection: Connection, sweep_id: str, environment_ids: Collection[str]) -> str | None:
    """Return the id of the newest earlier sweep, except re-runs, that has a result of one of this
    sweep's cells, both in these environments, or None. Sweeps that were recorded here come before
    imported ones, and then those of the same name, if this sweep has a name: pushes and pull
    requests may share a database."""
    alike = _alike(connection, sweep_id, environment_ids)
    this = alike.get(sweep_id)
    if this is None:
        return None

    def rank(sweep: SweepInfo) -> tuple[bool, bool]:
        # an imported sweep counts only if there is no other, unless this one was imported as well
        has_other_origin = sweep.imported_at is not None and this.imported_at is None
        has_other_name = this.name is not None and sweep.name != this.name
        return has_other_origin, has_other_name

    start = this.started_at, this.id
    earlier = [sweep for sweep in alike.values() if (sweep.started_at, sweep.id) < start]
    candidates = [sweep for sweep in earlier if not is_rerun(sweep.name)]
    if not candidates:
        return None
    return min(candidates, key=rank).id


def host_ms(connection: Connection, sweep_id: str) -> float | None:
    """Return the time of the fixed host work in ms in a sweep's quieter moments: the median over
    its trials; None if no trial has measured it."""
    sql = "SELECT host_ms FROM trial WHERE sweep_id = :sweep_id AND host_ms > 0"
    times = connection.scalars(sql_query(sql, sweep_id=sweep_id)).all()
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
    connection: Connection,
    columns: Sequence[str],
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> PastResults:
    """Return the results of all sweeps with sweep_id, cell_key, environment_id, status, reason and
    `columns`. `environment_ids`: only results in these (empty: all). `most`: only the newest
    sweeps, with at most this many results in total, but at least one."""
    infos = sweeps(connection)
    names = ["sweep_id", *ResultKey._fields, "status", "reason", *columns]
    results = select(*RESULT.c[*dict.fromkeys(names)])
    if environment_ids:
        results = results.where(RESULT.c.environment_id.in_(list(environment_ids)))
    older = 0
    if most is not None:
        measured = [sweep for sweep in infos if sweep.statuses]
        totals = accumulate(sum(sweep.statuses.values()) for sweep in measured)
        newest = measured[: max(1, sum(total <= most for total in totals))]
        older = len(measured) - len(newest)
        results = results.where(RESULT.c.sweep_id.in_([sweep.id for sweep in newest]))
    return PastResults(
        sweeps=infos,
        environments={known.id: known for known in environments(connection)},
        cells={cell.key: cell for cell in cells(connection)},
        rows=list(as_dicts(connection, results)),
        older=older,
    )
