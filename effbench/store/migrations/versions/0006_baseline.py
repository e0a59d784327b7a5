"""The first schema that is migrated. A new database is made from the declarations, not by running
migrations."""

revision = "0006"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing is older."""
