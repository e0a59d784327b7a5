"""The speed of the host: `trial.host_ms`, and `disturbed_fraction` of trials and results."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trial", sa.Column("host_ms", sa.Double()))
    for table in ("trial", "result"):
        op.add_column(table, sa.Column("disturbed_fraction", sa.Double()))
