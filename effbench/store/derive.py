"""Results from trials: read the trials of cells that are compared, summarise, write the rows of `result`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from effbench.analysis.summary import summarise
from effbench.cell import Trial
from effbench.store.schema import CellRow, ResultRow, SweepCellRow, TrialRow
from effbench.store.values import TRIAL_FIELDS, scalar, trial_of

CELL, PLANNED, TRIAL, RESULT = (row.__table__ for row in (CellRow, SweepCellRow, TrialRow, ResultRow))

#: what one call works on: of a stream its mean batch size
_SAMPLES = sa.func.coalesce(
    CELL.c.params["stream"]["samples_per_call"].as_float(), sa.cast(CELL.c.bs, sa.Double)
).label("samples_per_call")
#: what a summary reads; `extra` can be large and says nothing about it
_READ = [TRIAL.c[name] for name in TRIAL_FIELDS if name != "extra"]


def derive(
    connection: sa.Connection,
    sweep_id: str,
    baseline_mode: str,
    *,
    environment_id: str | None = None,
    only: str | None = None,
) -> list[dict[str, Any]]:
    """The rows of `result` as the trials of a sweep say, without writing them.

    With `only` (a cell key) just that cell, or, if it is the baseline of others, all that are compared with it.
    """
    query = (
        sa.select(TRIAL.c.environment_id, CELL.c.comparison_key, CELL.c.mode, _SAMPLES, PLANNED.c.position, *_READ)
        .join(CELL, CELL.c.key == TRIAL.c.cell_key)
        .join(PLANNED, sa.and_(PLANNED.c.sweep_id == TRIAL.c.sweep_id, PLANNED.c.cell_key == TRIAL.c.cell_key))
        .where(TRIAL.c.sweep_id == sweep_id)
        .order_by(TRIAL.c.environment_id, PLANNED.c.position, TRIAL.c.round, TRIAL.c.attempt)
    )
    if environment_id is not None:
        query = query.where(TRIAL.c.environment_id == environment_id)
    if only is not None:
        mode, compared = connection.execute(
            sa.select(CELL.c.mode, CELL.c.comparison_key).where(CELL.c.key == only)
        ).one()
        query = query.where(CELL.c.comparison_key == compared)
        if mode != baseline_mode:
            query = query.where(sa.or_(CELL.c.key == only, CELL.c.mode == baseline_mode))
    trials: dict[tuple[str, str], list[Trial]] = {}
    facts: dict[tuple[str, str], tuple[str, str, float]] = {}
    baselines: dict[tuple[str, str], str] = {}
    for row in connection.execute(query).mappings():
        key = (row["environment_id"], row["cell_key"])
        trials.setdefault(key, []).append(trial_of({**row, "extra": {}}))
        facts[key] = (row["comparison_key"], row["mode"], row["samples_per_call"])
        if row["mode"] == baseline_mode:
            # two variants of the baseline mode: the one planned first is the baseline of all
            baselines.setdefault((row["environment_id"], row["comparison_key"]), row["cell_key"])
    rows = []
    for (environment, cell_key), own in trials.items():
        compared, mode, samples_per_call = facts[environment, cell_key]
        if only is not None and cell_key != only and facts[environment, only][1] != baseline_mode:
            continue
        reference = baselines.get((environment, compared))
        summary = summarise(
            own,
            bs=samples_per_call,
            is_baseline=cell_key == reference,
            baseline=trials[environment, reference] if reference is not None and cell_key != reference else (),
        )
        values = {name: scalar(value) for name, value in _fields(summary).items()}
        rows.append({"sweep_id": sweep_id, "cell_key": cell_key, "environment_id": environment, **values})
    return rows


def write(connection: sa.Connection, rows: Iterable[dict[str, Any]]) -> None:
    """Put the rows in the place of those with the same keys."""
    rows = list(rows)
    if not rows:
        return
    keys = ("sweep_id", "cell_key", "environment_id")
    connection.execute(
        sa.delete(RESULT).where(*(RESULT.c[key] == sa.bindparam(f"old_{key}") for key in keys)),
        [{f"old_{key}": row[key] for key in keys} for row in rows],
    )
    connection.execute(sa.insert(RESULT), rows)


def rewrite(connection: sa.Connection, sweep_id: str, baseline_mode: str) -> None:
    """Derive every result of a sweep again from its trials."""
    rows = derive(connection, sweep_id, baseline_mode)
    connection.execute(sa.delete(RESULT).where(RESULT.c.sweep_id == sweep_id))
    write(connection, rows)


def _fields(summary) -> dict[str, Any]:
    values = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
    return {**values, "status": summary.status.value}
