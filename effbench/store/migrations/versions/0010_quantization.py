"""The quantization error of trials and results."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("trial", "result"):
        op.add_column(table, sa.Column("quantization_error", sa.Double()))
