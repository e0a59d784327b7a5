"""Which result the others are compared with; the upgrade derives it."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    kind = sa.Boolean().with_variant(sa.Integer(), "sqlite")
    op.add_column("result", sa.Column("is_baseline", kind))
