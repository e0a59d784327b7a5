"""Why the database did not take a trial."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc

from effbench.cell import Trial
from effbench.errors import StoreError
from effbench.store import connect
from effbench.store.schema import EnvironmentRow, SweepCellRow, TrialRow

ENVIRONMENT, PLANNED, TRIAL = (row.__table__ for row in (EnvironmentRow, SweepCellRow, TrialRow))


def refused(
    connection: sa.Connection, sweep_id: str, environment_id: str, trial: Trial, error: exc.IntegrityError, name: str
) -> StoreError:
    """What is wrong with it; `name`: the database's."""

    def missing(table: sa.Table, **values: Any) -> bool:
        same = (table.c[name] == value for name, value in values.items())
        return connection.execute(sa.select(sa.literal(1)).select_from(table).where(*same)).first() is None

    what = f"round {trial.round + 1}, try {trial.attempt + 1} of cell {trial.cell_key[:12]}"
    cell = {"sweep_id": sweep_id, "cell_key": trial.cell_key}
    if missing(PLANNED, **cell):
        return StoreError(f"{what}: the cell is not planned in sweep {sweep_id}")
    if missing(ENVIRONMENT, id=environment_id):
        return StoreError(f"{what}: unknown environment {environment_id}")
    if missing(TRIAL, **cell, environment_id=environment_id, round=trial.round, attempt=trial.attempt):
        return connect.explain(error, name)
    return StoreError(f"{what} is recorded already in sweep {sweep_id}")
