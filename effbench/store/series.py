"""What history reads: a few columns of every result, with the sweeps, environments and cells that they name; and the
changes that are acknowledged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from effbench.store.schema import AcknowledgementRow, CellRow, EnvironmentRow, ResultRow, SweepRow
from effbench.store.sweeps import CONFIRMING
from effbench.store.values import now, text

SWEEP, ENVIRONMENT, CELL, RESULT, ACKNOWLEDGEMENT = (
    row.__table__ for row in (SweepRow, EnvironmentRow, CellRow, ResultRow, AcknowledgementRow)
)
KEYS = ("cell_key", "hardware", "metric", "sweep_id")


@dataclass(frozen=True)
class Series:
    """`sweeps` oldest first; `environments` and `cells` by id and key; `rows` are plain tuples in the order of
    `columns`, unordered. `measured`: every (sweep id, environment id, model) that has a result, also if the rows are
    limited to some models and modes."""

    sweeps: list[dict[str, Any]]
    environments: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, Any]]
    columns: tuple[str, ...]
    rows: list[tuple]
    measured: list[tuple[str, str, str]]

    def of(self, sweep_ids: Collection[str]) -> Series:
        """Return what these sweeps measured; `sweeps` are still all."""
        rows = [row for row in self.rows if row[0] in sweep_ids]
        return replace(self, rows=rows, measured=[one for one in self.measured if one[0] in sweep_ids])

    def without_reruns(self) -> Series:
        """Return it without the sweeps that only re-ran some cells of another one: they are no points in time."""
        sweeps = [sweep for sweep in self.sweeps if not (sweep["name"] or "").startswith(CONFIRMING)]
        if len(sweeps) == len(self.sweeps):
            return self
        return replace(self.of({sweep["id"] for sweep in sweeps}), sweeps=sweeps)


def read(
    connection: sa.Connection, columns: Sequence[str] | None, models: Sequence[str], modes: Sequence[str]
) -> Series:
    """Read `columns` of all results, after the first five: sweep_id, cell_key, environment_id, status, reason.

    With None there are no rows and nothing `measured`. `models`, `modes`: only cells of these names; empty for all.
    """
    names = tuple(dict.fromkeys(("sweep_id", "cell_key", "environment_id", "status", "reason", *(columns or ()))))
    cells = sa.select(CELL)
    if models:
        cells = cells.where(CELL.c.model.in_(list(models)))
    if modes:
        cells = cells.where(CELL.c.mode.in_(list(modes)))
    results = sa.select(*(RESULT.c[name] for name in names))
    if models or modes:
        results = results.where(RESULT.c.cell_key.in_(cells.with_only_columns(CELL.c.key)))
    wanted = ("id", "name", "label", "started_at", "protocol", "host", "state")
    sweeps = sa.select(*(SWEEP.c[name] for name in wanted)).order_by(SWEEP.c.started_at, SWEEP.c.id)
    measured = (
        sa.select(RESULT.c.sweep_id, RESULT.c.environment_id, CELL.c.model)
        .join(CELL, CELL.c.key == RESULT.c.cell_key)
        .distinct()
    )
    return Series(
        [dict(row) for row in connection.execute(sweeps).mappings()],
        {row["id"]: dict(row) for row in connection.execute(sa.select(ENVIRONMENT)).mappings()},
        {row["key"]: dict(row) for row in connection.execute(cells).mappings()},
        names,
        [] if columns is None else [tuple(row) for row in connection.execute(results)],
        [] if columns is None else [tuple(row) for row in connection.execute(measured)],
    )


def acknowledge(connection: sa.Connection, changes: Iterable[dict[str, str]], reason: str) -> None:
    """Store `changes`, which hold the four `KEYS`; one that is acknowledged already gets the new reason."""
    for change in changes:
        values = {key: change[key] for key in KEYS}
        connection.execute(sa.delete(ACKNOWLEDGEMENT).where(*(ACKNOWLEDGEMENT.c[key] == values[key] for key in KEYS)))
        connection.execute(sa.insert(ACKNOWLEDGEMENT).values(**values, reason=text(reason), acknowledged_at=now()))


def unacknowledge(connection: sa.Connection, ids: Iterable[int]) -> None:
    connection.execute(sa.delete(ACKNOWLEDGEMENT).where(ACKNOWLEDGEMENT.c.id.in_(list(ids))))


def acknowledgements(connection: sa.Connection) -> list[dict[str, Any]]:
    """Return every row of `acknowledgement`, oldest first."""
    query = sa.select(ACKNOWLEDGEMENT).order_by(ACKNOWLEDGEMENT.c.acknowledged_at, ACKNOWLEDGEMENT.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]
