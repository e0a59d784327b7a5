"""Marks instead of the status `noisy`: trials and results that a disturbed host or GPU affected have figures."""

import math
import re
import statistics

import sqlalchemy as sa
from alembic import op

from effbench.errors import StoreError
from effbench.store.values import decode_samples

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NUMBERS = ("period_median_low_ms", "period_median_high_ms", "host_high_ms")
#: start of the reason of a trial that compiled while it was timed
COMPILED = "a graph was compiled"
#: reason of a trial whose host was disturbed
DISTURBED = re.compile(r"the host was disturbed for (.*) of the timing \(.*")

TRIAL = sa.table(
    "trial",
    sa.column("id", sa.Integer),
    sa.column("status", sa.String),
    sa.column("reason", sa.Text),
    sa.column("disturbance", sa.String),
    *(sa.column(f"{timer}_median_{side}_ms", sa.Double) for timer in ("latency", "period") for side in ("low", "high")),
)
SAMPLE = sa.table(
    "sample",
    sa.column("trial_id", sa.Integer),
    sa.column("timer", sa.String),
    sa.column("stored", sa.Integer),
    sa.column("codec", sa.String),
    sa.column("data", sa.LargeBinary),
)


def upgrade() -> None:
    for name in NUMBERS:
        op.add_column("trial", sa.Column(name, sa.Double()))
    op.add_column("trial", sa.Column("threads", sa.BigInteger()))
    for table in ("trial", "result"):
        op.add_column(table, sa.Column("disturbance", sa.String()))
    op.add_column("result", sa.Column("marked", sa.Boolean()))
    connection = op.get_bind()
    noisy = connection.execute(sa.select(TRIAL).where(TRIAL.c.status == "noisy")).all()
    for trial in noisy:
        if (trial.reason or "").startswith(COMPILED):
            values = {"status": "degraded"}
        else:
            values = marked_values(connection, trial)
        connection.execute(sa.update(TRIAL).where(TRIAL.c.id == trial.id).values(**values))


def marked_values(connection: sa.Connection, trial: sa.Row) -> dict[str, object]:
    """Return the new values of a noisy trial: it is ok and marked, and its bounds hold both kinds of samples."""
    values: dict[str, object] = {
        "status": "ok",
        "reason": None,
        "disturbance": DISTURBED.sub(r"host busy for \1 of the timing", trial.reason or "host or GPU busy"),
    }
    for timer in ("latency", "period"):
        low = getattr(trial, f"{timer}_median_low_ms")
        high = getattr(trial, f"{timer}_median_high_ms")
        known = [bound for bound in (low, high) if bound is not None]
        for name in (f"{timer}_ms", f"{timer}_disturbed_ms"):
            median = median_of_samples(connection, trial.id, name)
            if median is not None:
                known.append(median)
        if known:
            values[f"{timer}_median_low_ms"] = min(known)
            values[f"{timer}_median_high_ms"] = max(known)
    return values


def median_of_samples(connection: sa.Connection, trial_id: int, timer: str) -> float | None:
    """Return the median of a trial's samples of a timer; None if there are none, or if they are damaged."""
    query = sa.select(SAMPLE).where(SAMPLE.c.trial_id == trial_id, SAMPLE.c.timer == timer)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    try:
        samples = decode_samples(row.codec, row.data, row.stored).tolist()
    except StoreError:
        return None
    positive = [value for value in samples if math.isfinite(value) and value > 0]
    return statistics.median(positive) if positive else None
