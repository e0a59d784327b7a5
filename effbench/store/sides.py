"""Queries for comparisons and history, which read few columns of many trials or results."""

from __future__ import annotations

import datetime as dt
import itertools
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from effbench.cell import Status
from effbench.metrics import COLD, METRICS
from effbench.store.schema import CELL, ENVIRONMENT, PLANNED, RESULT, SWEEP, TRIAL
from effbench.store.summary import counted
from effbench.store.sweeps import CONFIRMING
from effbench.store.values import text

#: Compared metrics that every trial has.
PER_TRIAL = tuple(
    name
    for name, metric in METRICS.items()
    if metric.compare in ("ratio", "exact") and name in TRIAL.columns
)
#: Those that are taken from processes that did not compile with an empty cache, if any.
_WARM = tuple(name for name in PER_TRIAL if METRICS[name].combine == "warm")
_MEASURED = frozenset(status for status in Status if status.is_measured)
#: Compared metrics -> the column of a trial that gives them, and the compile caches of the trials
#: that have them.
PREPARING = {
    "compile_cold_s": ("compile_s", {"cold"}),
    "compile_warm_s": ("compile_s", {"warm"}),
    "first_call_s": ("first_call_s", {"cold", None}),
    **{cold: (name, {"cold"}) for name, cold in COLD.items()},
}
#: Compared metrics with one value per sweep.
PER_SWEEP = tuple(
    name for name, metric in METRICS.items() if metric.compare == "bound" and name not in PREPARING
)


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
    keys = (TRIAL.c.cell_key, TRIAL.c.environment_id)
    facts = (
        "host",
        "round",
        "attempt",
        "status",
        "disturbance",
        "compile_cache",
        "compilation",
        "kernel_fingerprint",
    )
    query = (
        sa.select(
            *keys, *(TRIAL.c[name] for name in (*facts, "compile_s", "first_call_s", *PER_TRIAL))
        )
        .where(TRIAL.c.sweep_id == sweep_id)
        .order_by(*keys, TRIAL.c.round, TRIAL.c.attempt)
    )
    names = sa.select(TRIAL.c.host).where(TRIAL.c.sweep_id == sweep_id).distinct()
    hosts = sorted(connection.scalars(names), key=str)
    is_joined = hosts not in ([], [None])
    measured: dict[tuple[str, str], tuple[dict[str, dict[int, Any]], dict[int, tuple]]] = {}
    for key, rows in groupby(connection.execute(query).all(), itemgetter(0, 1)):
        rows = list(rows)
        kept = [row for row in counted(rows) if row.status in _MEASURED]
        figures = figures_of(kept, [row for row in rows if row.status in _MEASURED])
        compiled = {row.round: (row.compilation, row.kernel_fingerprint) for row in kept}
        if is_joined:
            numbers = {row.round: hosts.index(row.host) for row in rows}
            figures = {name: of_hosts(name, of, numbers) for name, of in figures.items()}
            compiled = {numbers[n]: (None, kernels) for n, (_, kernels) in compiled.items()}
        measured[key] = (figures, compiled)
    columns = (
        "cell_key",
        "environment_id",
        "status",
        "reason",
        "bound",
        "disturbed_fraction",
        "disturbance",
        *PER_SWEEP,
    )
    query = sa.select(*(RESULT.c[name] for name in columns)).where(RESULT.c.sweep_id == sweep_id)
    results = {}
    for (
        cell_key,
        environment_id,
        status,
        reason,
        bound,
        disturbed,
        disturbance,
        *values,
    ) in connection.execute(query):
        whole = {name: {0: value} for name, value in zip(PER_SWEEP, values, strict=True)}
        figures, compiled = measured.get((cell_key, environment_id), ({}, {}))
        results[cell_key, environment_id] = CellResult(
            status, reason, bound, figures | whole, compiled, disturbed, disturbance
        )
    return results


def figures_of(kept: Sequence[sa.Row], seen: Sequence[sa.Row]) -> dict[str, dict[int, Any]]:
    """Return metric -> round -> figure. As in results, the sizes of trials that compiled with an
    empty cache only count if there are no others. `seen`: also marked trials that do not count,
    which give the metrics of PREPARING."""
    figures, warm = by_round(kept), [row for row in kept if row.compile_cache != "cold"]
    if len(warm) < len(kept):
        of_warm = by_round(warm)
        figures |= {name: of_warm[name] for name in _WARM if warm or name in COLD}
    for name, (column, caches) in PREPARING.items():
        # trials that were prepared while another one ran have none
        known = ((row.round, getattr(row, column)) for row in seen if row.compile_cache in caches)
        figures[name] = {number: value for number, value in known if value is not None}
    return figures


def by_round(rows: Sequence[sa.Row]) -> dict[str, dict[int, Any]]:
    """Return metric -> round -> figure for the metrics of PER_TRIAL, which are the last columns."""
    rounds = [row.round for row in rows]
    columns = [*zip(*rows, strict=True)][-len(PER_TRIAL) :] or [()] * len(PER_TRIAL)
    return {
        name: dict(zip(rounds, column, strict=True))
        for name, column in zip(PER_TRIAL, columns, strict=True)
    }


def of_hosts(
    name: str, figures: Mapping[int, float | None], numbers: Mapping[int, int]
) -> dict[int, float]:
    """Return number of the host -> its figure: the geometric mean over its trials for times, else
    the largest. Trials of one host are not independent. `numbers`: round -> number of its host."""
    values: dict[int, list[float]] = {}
    for number, value in figures.items():
        if value is not None and not (METRICS[name].is_timed and value <= 0):
            values.setdefault(numbers[number], []).append(value)
    combine = statistics.geometric_mean if METRICS[name].is_timed else max
    return {host: combine(known) for host, known in values.items()}


def levels(
    connection: sa.Connection,
    sweep_id: str,
    environment_ids: Iterable[str],
    before: dt.datetime,
    metrics: Iterable[str],
    host: str | None = None,
    most: int = 30,
) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return (cell key, metric) -> environment id -> values of earlier results of the sweep's
    cells, oldest first.

    Only `ok` results without a mark count. They come from the newest `most` sweeps that have the
    same protocol and name (or none, like this sweep), began before `before`, and ran some of these
    cells in these environments; `host`: only on this host. Re-runs are excluded.
    """
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    own = connection.execute(
        sa.select(SWEEP.c.name, SWEEP.c.protocol).where(SWEEP.c.id == sweep_id)
    ).one_or_none()
    line, protocol = (own.name or "", own.protocol) if own else ("", {})
    if line.startswith(CONFIRMING):
        return found
    metrics = [name for name in metrics if name in RESULT.columns]
    cells = sa.select(PLANNED.c.cell_key).where(PLANNED.c.sweep_id == sweep_id)
    here = RESULT.c.environment_id.in_(list(environment_ids))
    having = sa.select(RESULT.c.sweep_id).where(
        RESULT.c.sweep_id == SWEEP.c.id, here, RESULT.c.cell_key.in_(cells)
    )
    on_host = sa.true() if host is None else SWEEP.c.host["hostname"].as_string() == host
    earlier = connection.execute(
        sa.select(SWEEP.c.id, SWEEP.c.protocol)
        .where(
            SWEEP.c.started_at < before,
            sa.func.coalesce(SWEEP.c.name, "") == line,
            on_host,
            having.exists(),
        )
        .order_by(SWEEP.c.started_at.desc(), SWEEP.c.id.desc())
    )
    # of a protocol with other rules the noise differs; settings that an earlier version did not
    # have do not count
    recent = list(islice((row.id for row in earlier if _same_rules(protocol, row.protocol)), most))
    query = (
        sa.select(RESULT.c.cell_key, RESULT.c.environment_id, *(RESULT.c[name] for name in metrics))
        .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
        .where(
            SWEEP.c.id.in_(recent), here, RESULT.c.cell_key.in_(cells), RESULT.c.status == Status.OK
        )
        .where(RESULT.c.marked.is_not(True))
        .order_by(SWEEP.c.started_at, SWEEP.c.id)
    )
    for key, environment_id, *values in connection.execute(query):
        for name, value in zip(metrics, values, strict=True):
            if value is not None:
                found.setdefault((key, name), {}).setdefault(environment_id, []).append(value)
    return found


def _same_rules(protocol: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(protocol[name] == other[name] for name in protocol.keys() & other.keys() - {"name"})


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


def _rows(connection: sa.Connection, query: sa.Select) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query).mappings()]


# --- history ---


@dataclass(frozen=True)
class Series:
    """Results of all sweeps. `sweeps`: oldest first; `environments` by id, `cells` by key; `rows`:
    tuples of `columns`, in no order. `measured`: every (sweep id, environment id, model) that has a
    result, even if the rows are limited to some models and modes. `older`: number of the oldest
    sweeps whose rows are left out."""

    sweeps: list[dict[str, Any]]
    environments: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, Any]]
    columns: tuple[str, ...]
    rows: list[tuple]
    measured: list[tuple[str, str, str]]
    older: int = 0

    def of(self, sweep_ids: Collection[str]) -> Series:
        """Return a copy with only the rows of these sweeps; `sweeps` is not limited."""
        rows = [row for row in self.rows if row[0] in sweep_ids]
        return replace(
            self, rows=rows, measured=[entry for entry in self.measured if entry[0] in sweep_ids]
        )

    def without_reruns(self) -> Series:
        """Return a copy without the sweeps that only re-ran cells of another sweep: these are not
        part of a history."""
        sweeps = [
            sweep for sweep in self.sweeps if not (sweep["name"] or "").startswith(CONFIRMING)
        ]
        return replace(self.of({sweep["id"] for sweep in sweeps}), sweeps=sweeps)


def series(
    connection: sa.Connection,
    columns: Sequence[str] | None,
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    environment_ids: Collection[str] = (),
    most: int | None = None,
) -> Series:
    """Return the results of all sweeps with sweep_id, cell_key, environment_id, status, reason and
    `columns`; None: without `rows` and `measured`. `models`, `modes`, `environment_ids`: only
    results of these (empty: all). `most`: only the newest sweeps, with at most this many results in
    total, but at least one."""
    names = tuple(
        dict.fromkeys(
            ("sweep_id", "cell_key", "environment_id", "status", "reason", *(columns or ()))
        )
    )
    cells = sa.select(CELL)
    for column, wanted in ((CELL.c.model, models), (CELL.c.mode, modes)):
        cells = cells.where(column.in_([*map(text, wanted)])) if wanted else cells
    results = sa.select(*(RESULT.c[name] for name in names))
    if models or modes:
        results = results.where(RESULT.c.cell_key.in_(cells.with_only_columns(CELL.c.key)))
    if environment_ids:
        results = results.where(RESULT.c.environment_id.in_(list(environment_ids)))
    facts = (
        "id",
        "name",
        "label",
        "started_at",
        "imported_at",
        "protocol",
        "baseline_mode",
        "host",
        "state",
    )
    order = (SWEEP.c.started_at, SWEEP.c.id)
    sweeps = _rows(connection, sa.select(*(SWEEP.c[name] for name in facts)).order_by(*order))
    older = 0
    if most is not None:
        numbers = results.with_only_columns(RESULT.c.sweep_id, sa.func.count()).group_by(
            RESULT.c.sweep_id
        )
        counts = dict(connection.execute(numbers).all())
        ids = [sweep["id"] for sweep in sweeps if sweep["id"] in counts]
        totals = itertools.accumulate(counts[sweep_id] for sweep_id in reversed(ids))
        older = max(0, len(ids) - max(1, sum(total <= most for total in totals)))
    if older:
        first = next(sweep for sweep in sweeps if sweep["id"] == ids[older])
        newest = sa.tuple_(*order) >= sa.tuple_(
            *(sa.literal(first[it.name], it.type) for it in order)
        )
        results = results.join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id).where(newest)
    cell = RESULT.join(CELL, CELL.c.key == RESULT.c.cell_key)
    measured = (
        sa.select(RESULT.c.sweep_id, RESULT.c.environment_id, CELL.c.model)
        .select_from(cell)
        .distinct()
    )
    return Series(
        sweeps,
        {row["id"]: row for row in _rows(connection, sa.select(ENVIRONMENT))},
        {row["key"]: row for row in _rows(connection, cells)},
        names,
        [] if columns is None else connection.execute(results).all(),
        [] if columns is None else connection.execute(measured).all(),
        older,
    )
