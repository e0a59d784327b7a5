"""`result.memory_ratio` (baseline ÷ this) becomes `relative_memory` (this ÷ baseline).

`maintenance.upgrade` computes the values again.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("result", "memory_ratio", new_column_name="relative_memory")
