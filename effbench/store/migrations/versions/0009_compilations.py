"""Compilations and kernels of trials; period speedups, intervals of GPU busy time and memory of
cold processes."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

RESULT = {
    **dict.fromkeys(
        ("period_speedup", "period_speedup_ci_low", "period_speedup_ci_high"), sa.Double
    ),
    **dict.fromkeys(("gpu_busy_ci_low_ms", "gpu_busy_ci_high_ms"), sa.Double),
    **dict.fromkeys(("peak_reserved_cold_bytes", "compilations"), sa.BigInteger),
}


def upgrade() -> None:
    op.add_column("trial", sa.Column("compilation", sa.BigInteger()))
    op.add_column("trial", sa.Column("kernel_fingerprint", sa.String()))
    for name, kind in RESULT.items():
        op.add_column("result", sa.Column(name, kind()))
