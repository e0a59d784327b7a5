"""Speedups of pairs, beside those of separate processes. The upgrade derives the results again,
which sets them."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TRIAL_NUMBERS = tuple(
    f"{speedup}{ending}"
    for speedup in ("pair_speedup", "pair_period_speedup")
    for ending in ("", "_low", "_high", "_disturbed")
)
RESULT_NUMBERS = (
    "separate_speedup",
    "separate_speedup_ci_low",
    "separate_speedup_ci_high",
    "separate_period_speedup",
    "separate_period_speedup_ci_low",
    "separate_period_speedup_ci_high",
    "busy_speedup",
    "busy_period_speedup",
)
COLUMNS = (
    ("trial", sa.Double(), TRIAL_NUMBERS),
    ("trial", sa.BigInteger(), ("pairs", "period_pairs")),
    ("trial", sa.String(), ("pair_disturbance",)),
    ("result", sa.Double(), RESULT_NUMBERS),
    ("result", sa.String(), ("speedup_from", "speedup_disturbance")),
)


def upgrade() -> None:
    for table, kind, names in COLUMNS:
        for name in names:
            op.add_column(table, sa.Column(name, kind))
