"""Whole sweeps out of a database, as the records of a bundle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from effbench.store.bundle import COLUMNS, Record
from effbench.store.database import Database
from effbench.store.schema import Base
from effbench.store.secrets import masked, masked_db

#: trials in memory at a time; with their samples some 60 kB each at most
CHUNK = 200
SWEEP, ENVIRONMENT, CELL, PLANNED, TRIAL, SAMPLE, CALIBRATION, VERDICT, BASELINE, ACKNOWLEDGED = (
    Base.metadata.tables[name]
    for name in (
        "sweep",
        "environment",
        "cell",
        "sweep_cell",
        "trial",
        "sample",
        "calibration",
        "claim_verdict",
        "baseline",
        "acknowledgement",
    )
)


def collect(store: Database, sweep_ids: Iterable[str], *, samples: bool = True) -> Iterator[Record]:
    """The sections of these sweeps, each as it was at one moment, also while it goes on. Passwords are masked."""
    for sweep_id in sweep_ids:
        with store._reading() as connection:
            if connection.dialect.name == "postgresql":  # SQLite's transactions see one moment anyway
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield from section(connection, sweep_id, samples)


def section(connection: sa.Connection, sweep_id: str, samples: bool) -> Iterator[Record]:
    def rows(query: sa.Select) -> list[dict[str, Any]]:
        return [dict(row) for row in connection.execute(query).mappings()]

    def of(table: sa.Table, *order: str) -> sa.Select:
        columns = [table.c[name] for name in COLUMNS[table.name]]
        return sa.select(*columns).order_by(*(table.c[name] for name in order))

    (sweep,) = rows(of(SWEEP).where(SWEEP.c.id == sweep_id))
    sweep["command"], sweep["overrides"] = masked(sweep["command"]), masked_db(sweep["overrides"])
    used = sa.union(
        sa.select(TRIAL.c.environment_id).where(TRIAL.c.sweep_id == sweep_id),
        sa.select(VERDICT.c.environment_id).where(VERDICT.c.sweep_id == sweep_id),
    )
    environments = rows(of(ENVIRONMENT, "first_seen_at", "id").where(ENVIRONMENT.c.id.in_(used)))
    ids = connection.scalars(sa.select(TRIAL.c.id).where(TRIAL.c.sweep_id == sweep_id).order_by(TRIAL.c.id)).all()
    planned = connection.execute(
        sa.select(PLANNED.c.position, *(CELL.c[name] for name in COLUMNS["cell"]))
        .join(CELL, CELL.c.key == PLANNED.c.cell_key)
        .where(PLANNED.c.sweep_id == sweep_id)
        .order_by(PLANNED.c.position)
    )
    cells = [dict(row) for row in planned.mappings()]
    acknowledged = rows(of(ACKNOWLEDGED, "id").where(ACKNOWLEDGED.c.sweep_id == sweep_id))
    unplanned = {row["cell_key"] for row in acknowledged} - {cell["key"] for cell in cells}
    cells += [{"position": None, **row} for row in rows(of(CELL, "key").where(CELL.c.key.in_(sorted(unplanned))))]

    counts = {"environments": [row["id"] for row in environments], "cells": len(cells), "trials": len(ids)}
    yield Record("sweep", {**sweep, **counts})
    yield from (Record("environment", row) for row in environments)
    yield from (Record("cell", row) for row in cells)
    for start in range(0, len(ids), CHUNK):
        chunk = ids[start : start + CHUNK]
        trials = rows(of(TRIAL, "id").where(TRIAL.c.id.in_(chunk)))
        taken = taken_samples(connection, chunk) if samples else {}
        for trial_id, trial in zip(chunk, trials, strict=True):
            yield Record("trial", {**trial, "samples": taken.get(trial_id, [])} if samples else trial)
    known = of(CALIBRATION, "measured_at", "id").where(CALIBRATION.c.environment_id.in_(counts["environments"]))
    yield from (Record("calibration", row) for row in rows(known))
    yield from (Record("claim_verdict", row) for row in rows(of(VERDICT, "id").where(VERDICT.c.sweep_id == sweep_id)))
    named = of(BASELINE, "name", "hardware").where(BASELINE.c.sweep_id == sweep_id)
    yield from (Record("baseline", row) for row in rows(named))
    yield from (Record("acknowledgement", row) for row in acknowledged)


def taken_samples(connection: sa.Connection, trial_ids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    """Trial id -> its rows of `sample`, by timer."""
    query = sa.select(SAMPLE).where(SAMPLE.c.trial_id.in_(list(trial_ids))).order_by(SAMPLE.c.trial_id, SAMPLE.c.timer)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in connection.execute(query).mappings():
        values = dict(row)
        found.setdefault(values.pop("trial_id"), []).append(values)
    return found
