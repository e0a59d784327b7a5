"""What measuring said of claims, every judgement kept."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from effbench.store.schema import ClaimVerdictRow, EnvironmentRow
from effbench.store.values import now

VERDICT = ClaimVerdictRow.__table__
ENVIRONMENT = EnvironmentRow.__table__


class ClaimVerdict(StrEnum):
    """What measuring says of a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    DEPENDS = "depends"  # true in a stated part of the matrix
    UNDECIDED = "undecided"  # the intervals leave it open
    NOT_MEASURABLE = "not measurable here"
    NOT_MEASURED = "not measured yet"


def add(connection: sa.Connection, environment_id: str, judged: Iterable[dict[str, Any]]) -> None:
    """Rows of `claim_verdict` less their environment and time."""
    at = now()
    rows = [{**row, "environment_id": environment_id, "judged_at": at} for row in judged]
    if rows:
        connection.execute(sa.insert(VERDICT), rows)


def newest(connection: sa.Connection) -> list[dict[str, Any]]:
    """The newest judgement of each claim by each experiment on each GPU (or CPU), oldest first, with `gpu_name`,
    `cpu_name` and `torch_version` of its environment."""
    query = (
        sa.select(VERDICT, ENVIRONMENT.c.gpu_name, ENVIRONMENT.c.cpu_name, ENVIRONMENT.c.torch_version)
        .join(ENVIRONMENT, ENVIRONMENT.c.id == VERDICT.c.environment_id)
        .order_by(VERDICT.c.judged_at, VERDICT.c.id)  # an older one may have been imported since
    )
    found: dict[tuple, dict[str, Any]] = {}
    for row in connection.execute(query).mappings():
        key = (row["claim"], row["experiment"], row["gpu_name"] or row["cpu_name"])
        found.pop(key, None)
        found[key] = dict(row)
    return list(found.values())
