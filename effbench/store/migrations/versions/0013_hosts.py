"""Hosts of trials in joined sweeps, and the number of hosts behind a result."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trial", sa.Column("host", sa.String()))
    op.add_column("result", sa.Column("hosts", sa.BigInteger()))
