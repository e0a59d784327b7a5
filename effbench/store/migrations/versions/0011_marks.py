"""Marks instead of the status `noisy`: trials and results that a disturbed host or GPU affected
have figures."""

import sqlalchemy as sa
from alembic import op

from effbench.store.marks import NOISY, marked_values

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

NUMBERS = ("period_median_low_ms", "period_median_high_ms", "host_high_ms")
BOUNDS = tuple(
    f"{timer}_median_{side}_ms" for timer in ("latency", "period") for side in ("low", "high")
)
TRIAL = sa.table(
    "trial", *(sa.column(name) for name in ("id", "status", "reason", "disturbance", *BOUNDS))
)


def upgrade() -> None:
    for name in NUMBERS:
        op.add_column("trial", sa.Column(name, sa.Double()))
    op.add_column("trial", sa.Column("threads", sa.BigInteger()))
    for table in ("trial", "result"):
        op.add_column(table, sa.Column("disturbance", sa.String()))
    op.add_column("result", sa.Column("marked", sa.Boolean()))
    connection = op.get_bind()
    noisy = connection.execute(sa.select(TRIAL).where(TRIAL.c.status == NOISY)).all()
    for trial in noisy:
        values = marked_values(connection, trial._mapping)
        connection.execute(sa.update(TRIAL).where(TRIAL.c.id == trial.id).values(**values))
