"""What a machine was measured to be capable of, and how its figures spread, by environment."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from effbench.store.schema import CalibrationRow
from effbench.store.values import now

CALIBRATION = CalibrationRow.__table__


def add(
    connection: sa.Connection, environment_id: str, gpu_uuid: str | None, **measured: dict[str, Any] | None
) -> None:
    """`measured`: `ceilings`, `noise` or both. Older rows are kept."""
    row = {"environment_id": environment_id, "gpu_uuid": gpu_uuid, "measured_at": now(), **measured}
    connection.execute(sa.insert(CALIBRATION).values(**row))


def newest(connection: sa.Connection, environment_id: str) -> dict[str, Any] | None:
    """The newest ceilings and the newest noise, each None where never measured; None without both.

    `measured_at` and `gpu_uuid` are those of the newest row.
    """
    query = sa.select(CALIBRATION).where(CALIBRATION.c.environment_id == environment_id)
    # by time, not by id: an older one may have been imported since
    rows = connection.execute(query.order_by(CALIBRATION.c.measured_at.desc(), CALIBRATION.c.id.desc()))
    rows = rows.mappings().all()
    if not rows:
        return None

    def last(name: str) -> Any:
        return next((row[name] for row in rows if row[name] is not None), None)

    first = rows[0]
    return {
        "measured_at": first["measured_at"],
        "gpu_uuid": first["gpu_uuid"],
        "ceilings": last("ceilings"),
        "noise": last("noise"),
    }
