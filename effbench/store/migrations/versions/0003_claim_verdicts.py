"""Verdicts rest on evidence as well as on sweeps, and every judgement is kept.

Nothing ever wrote to the table before, so it is made anew. Frozen, as every migration is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("claim_verdict")
    make(experiment_nullable=False, sweep_nullable=True)
    op.create_index("ix_claim_verdict_claim", "claim_verdict", ["claim"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_claim_verdict_claim", table_name="claim_verdict")
    op.drop_table("claim_verdict")
    unique = sa.UniqueConstraint(
        "claim", "sweep_id", "environment_id", name="uq_claim_verdict_claim_sweep_id_environment_id"
    )
    make(unique, experiment_nullable=True, sweep_nullable=False)


def make(*constraints: sa.Constraint, experiment_nullable: bool, sweep_nullable: bool) -> None:
    op.create_table(
        "claim_verdict",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("claim", sa.String(), nullable=False),
        sa.Column("experiment", sa.String(), nullable=experiment_nullable),
        sa.Column("sweep_id", sa.String(), nullable=sweep_nullable),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("measured", sa.JSON(), nullable=False),
        sa.Column("judged_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name="fk_claim_verdict_environment_id_environment"
        ),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name="fk_claim_verdict_sweep_id_sweep"),
        sa.PrimaryKeyConstraint("id", name="pk_claim_verdict"),
        *constraints,
    )
