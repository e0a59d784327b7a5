"""Figures of generated tokens, the 99th percentile latency, and the quantization error."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

FIGURES = (
    "latency_p99_ms",
    "quantization_error",
    "ttft_ms",
    "tpot_ms",
    "tpot_p99_ms",
    "tokens_per_s",
)
BOUNDS = ("ttft_ci_low_ms", "ttft_ci_high_ms", "tpot_ci_low_ms", "tpot_ci_high_ms")


def upgrade() -> None:
    for table, names in (("trial", FIGURES), ("result", (*FIGURES, *BOUNDS))):
        for name in names:
            op.add_column(table, sa.Column(name, sa.Double()))
