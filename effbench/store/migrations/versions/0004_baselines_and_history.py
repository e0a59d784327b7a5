"""A baseline's name holds once for each hardware; what was said about changes in history is kept.

Nothing ever wrote to `baseline` before, so it is made anew. Frozen, as every migration is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("baseline")
    baseline(sa.Column("hardware", sa.String(), nullable=False), keys=("name", "hardware"))
    op.create_table(
        "acknowledgement",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("cell_key", sa.String(), nullable=False),
        sa.Column("hardware", sa.String(), nullable=False),
        sa.Column("metric", sa.String(), nullable=False),
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["cell_key"], ["cell.key"], name="fk_acknowledgement_cell_key_cell"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name="fk_acknowledgement_sweep_id_sweep"),
        sa.PrimaryKeyConstraint("id", name="pk_acknowledgement"),
        sa.UniqueConstraint(
            "cell_key",
            "hardware",
            "metric",
            "sweep_id",
            name="uq_acknowledgement_cell_key_hardware_metric_sweep_id",
        ),
    )


def downgrade() -> None:
    op.drop_table("acknowledgement")
    op.drop_table("baseline")
    baseline(keys=("name",))


def baseline(*more: sa.Column, keys: tuple[str, ...]) -> None:
    op.create_table(
        "baseline",
        sa.Column("name", sa.String(), nullable=False),
        *more,
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name="fk_baseline_sweep_id_sweep"),
        sa.PrimaryKeyConstraint(*keys, name="pk_baseline"),
    )
