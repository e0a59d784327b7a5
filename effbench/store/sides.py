"""Queries for comparisons and history, which read few columns of many trials or results."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeGuard

from sqlalchemy import Connection, select

from effbench.core.cell import Cell, Result, StoredEnvironment, Trial
from effbench.core.quantities import Metric
from effbench.store.schema import RESULT, SWEEP
from effbench.store.summary import CountedTrials, figure_of
from effbench.store.sweeps import (
    SweepInfo,
    cells,
    environments,
    is_rerun,
    sweeps,
)
from effbench.store.trials import counted_trials
from effbench.store.trials import results as read_results
from effbench.store.values import ResultKey, as_dicts

# --- the results of a sweep ---


@dataclass(frozen=True, kw_only=True)
class ResultWithTrials(Result):
    """A result with the trials that count for it."""

    counted: CountedTrials

    def __str__(self) -> str:
        return f"{self.status}: {self.reason}" if self.reason else str(self.status)

    @cached_property
    def measured(self) -> list[Trial]:
        """The trials with measurements."""
        return [trial for trial in self.counted.kept if trial.status.is_measured]

    @cached_property
    def compile_caches(self) -> dict[int, int | None]:
        """Round -> the compile cache of its trial."""
        return {trial.round: trial.compilation for trial in self.measured}

    @cached_property
    def kernel_fingerprints(self) -> frozenset[str]:
        """The known ones of all trials."""
        return frozenset(filter(None, (trial.kernel_fingerprint for trial in self.measured)))

    def figures(self, metric: Metric) -> dict[int, float]:
        """Return round -> valid figure of that round's trial. A metric with one value per sweep has
        it under round 0."""
        if metric.compare == "bound" and not metric.caches:
            known = {0: self.value(metric.name)}
        else:
            known = {
                trial.round: figure_of(trial, metric) for trial in self.counted.comparable(metric)
            }
        return {
            number: float(figure) for number, figure in known.items() if is_valid(figure, metric)
        }


def is_valid(value: float | None, metric: Metric) -> TypeGuard[float]:
    """Return whether this is a figure of the metric: a time or an energy of 0 was not measured; a
    count, a memory size or an error may be 0."""
    # SQLite allows text in numeric columns; a tuple, because a union takes longer
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    return value > 0 or (value == 0 and metric.unit in ("bytes", ""))


def results_with_trials(connection: Connection, sweep_id: str) -> dict[ResultKey, ResultWithTrials]:
    """Return the results of a sweep with the trials that count for them."""
    counted = counted_trials(connection, sweep_id)
    results = {}
    for result in read_results(connection, sweep_id):
        key = ResultKey(result.cell_key, result.environment_id)
        results[key] = ResultWithTrials(**vars(result), counted=counted[key])
    return results


# --- earlier sweeps ---


def previous(
    connection: Connection, this: SweepInfo, environment_ids: Collection[str]
) -> SweepInfo | None:
    """Return the newest earlier sweep, except re-runs, that has a result of one of this sweep's
    cells, both in these environments, or None. Sweeps that were recorded here come before imported
    ones, and then those of the same name, if this sweep has a name: pushes and pull requests may
    share a database."""
    is_here = RESULT.c.environment_id.in_(environment_ids)
    measured = select(RESULT.c.cell_key).filter_by(sweep_id=this.id).where(is_here)
    alike = select(RESULT.c.sweep_id).where(is_here, RESULT.c.cell_key.in_(measured))
    start = this.started_at, this.id
    earlier = []
    for sweep in sweeps(connection, SWEEP.c.id.in_(alike)):
        is_earlier = (sweep.started_at, sweep.id) < start
        if is_earlier and not is_rerun(sweep.name):
            earlier.append(sweep)

    def rank(sweep: SweepInfo) -> tuple[bool, bool]:
        # an imported sweep counts only if there is no other, unless this one was imported as well
        has_other_origin = sweep.imported_at is not None and this.imported_at is None
        has_other_name = this.name not in (None, sweep.name)
        return has_other_origin, has_other_name

    return min(earlier, key=rank, default=None)


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
    environment_ids: Collection[str],
    most: int | None,
) -> PastResults:
    """Return the results of all sweeps with sweep_id, cell_key, environment_id, status, reason and
    `columns`. `environment_ids`: only results in these (empty: all). `most`: only the newest
    sweeps, with at most this many results in total, but at least one."""
    infos = sweeps(connection)
    results = select(*RESULT.c["sweep_id", *ResultKey._fields, "status", "reason", *columns])
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
