"""Changes in the history of cells that are known and accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from effbench.store.schema import AcknowledgementRow
from effbench.store.values import now, text

ACKNOWLEDGEMENT = AcknowledgementRow.__table__
KEYS = ("cell_key", "hardware", "metric", "sweep_id")


def add(connection: sa.Connection, changes: Iterable[dict[str, str]], reason: str) -> None:
    """`changes` hold the four `KEYS`; one that is acknowledged already gets the new reason."""
    for change in changes:
        values = {key: change[key] for key in KEYS}
        connection.execute(sa.delete(ACKNOWLEDGEMENT).where(*(ACKNOWLEDGEMENT.c[key] == values[key] for key in KEYS)))
        connection.execute(sa.insert(ACKNOWLEDGEMENT).values(**values, reason=text(reason), acknowledged_at=now()))


def remove(connection: sa.Connection, ids: Iterable[int]) -> None:
    connection.execute(sa.delete(ACKNOWLEDGEMENT).where(ACKNOWLEDGEMENT.c.id.in_(list(ids))))


def read(connection: sa.Connection) -> list[dict[str, Any]]:
    """Every row, oldest first."""
    query = sa.select(ACKNOWLEDGEMENT).order_by(ACKNOWLEDGEMENT.c.acknowledged_at, ACKNOWLEDGEMENT.c.id)
    return [dict(row) for row in connection.execute(query).mappings()]
