"""The overrides that plan a cell again. Unknown for cells of before this revision.

Frozen, as every migration is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sweep_cell", sa.Column("overrides", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("sweep_cell", "overrides")
