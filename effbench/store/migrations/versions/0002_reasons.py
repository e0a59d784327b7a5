"""The profiled pass, intervals of the period, memory by phase, and what machines were measured to be capable of.

Frozen, as every migration is.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TRIAL = {
    "enqueue_ms": sa.Double(),
    "discarded_blocks": sa.Integer(),
    "build_peak_allocated_bytes": sa.BigInteger(),
    "gpu_busy_ms": sa.Double(),
    "kernels": sa.BigInteger(),
    "flops": sa.Double(),
    "min_bytes": sa.Double(),
    "compute_floor_ms": sa.Double(),
    "memory_floor_ms": sa.Double(),
}
RESULT = {
    "period_ci_low_ms": sa.Double(),
    "period_ci_high_ms": sa.Double(),
    "gpu_busy_ms": sa.Double(),
    "kernels": sa.BigInteger(),
    "gpu_idle_fraction": sa.Double(),
    "enqueue_ms": sa.Double(),
    "bound": sa.String(),
    "build_peak_allocated_bytes": sa.BigInteger(),
    "prepare_peak_allocated_bytes": sa.BigInteger(),
    "flops": sa.Double(),
    "min_bytes": sa.Double(),
    "roofline_fraction": sa.Double(),
    "unsteady_trials": sa.Integer(),
}

VIEW = """
CREATE VIEW results AS
SELECT
    sweep.id AS sweep_id,
    sweep.name AS sweep_name,
    sweep.label AS label,
    sweep.started_at AS started_at,
    cell.model AS model,
    cell.bs AS bs,
    cell.mode AS mode,
    cell.dtype AS dtype,
    cell.phase AS phase,
    cell.device AS device,
    result.status AS status,
    result.reason AS reason,
    result.trials AS trials,
    result.latency_ms AS latency_ms,
    result.latency_ci_low_ms AS latency_ci_low_ms,
    result.latency_ci_high_ms AS latency_ci_high_ms,
    result.latency_min_ms AS latency_min_ms,
    result.latency_p95_ms AS latency_p95_ms,
    result.period_ms AS period_ms,
    result.period_ci_low_ms AS period_ci_low_ms,
    result.period_ci_high_ms AS period_ci_high_ms,
    result.throughput_per_s AS throughput_per_s,
    result.speedup AS speedup,
    result.speedup_ci_low AS speedup_ci_low,
    result.speedup_ci_high AS speedup_ci_high,
    result.gpu_busy_ms AS gpu_busy_ms,
    result.kernels AS kernels,
    result.gpu_idle_fraction AS gpu_idle_fraction,
    result.enqueue_ms AS enqueue_ms,
    result.bound AS bound,
    result.compile_cold_s AS compile_cold_s,
    result.compile_warm_s AS compile_warm_s,
    result.first_call_s AS first_call_s,
    result.break_even_calls AS break_even_calls,
    result.build_peak_allocated_bytes AS build_peak_allocated_bytes,
    result.prepare_peak_allocated_bytes AS prepare_peak_allocated_bytes,
    result.peak_allocated_bytes AS peak_allocated_bytes,
    result.peak_reserved_bytes AS peak_reserved_bytes,
    result.graph_pool_bytes AS graph_pool_bytes,
    result.process_gpu_bytes AS process_gpu_bytes,
    result.memory_ratio AS memory_ratio,
    result.energy_mj AS energy_mj,
    result.rel_error AS rel_error,
    result.graph_breaks AS graph_breaks,
    result.recompiles AS recompiles,
    result.cudagraph_skips AS cudagraph_skips,
    result.flops AS flops,
    result.min_bytes AS min_bytes,
    result.roofline_fraction AS roofline_fraction,
    result.unsteady_trials AS unsteady_trials,
    environment.gpu_name AS gpu_name,
    environment.torch_version AS torch_version,
    environment.python AS python,
    environment.id AS environment_id,
    cell.key AS cell_key,
    cell.params AS params
FROM result
JOIN sweep ON sweep.id = result.sweep_id
JOIN cell ON cell.key = result.cell_key
JOIN environment ON environment.id = result.environment_id
"""

#: the view of revision 0001, for the way back
OLD_VIEW = """
CREATE VIEW results AS
SELECT
    sweep.id AS sweep_id,
    sweep.name AS sweep_name,
    sweep.label AS label,
    sweep.started_at AS started_at,
    cell.model AS model,
    cell.bs AS bs,
    cell.mode AS mode,
    cell.dtype AS dtype,
    cell.phase AS phase,
    cell.device AS device,
    result.status AS status,
    result.reason AS reason,
    result.trials AS trials,
    result.latency_ms AS latency_ms,
    result.latency_ci_low_ms AS latency_ci_low_ms,
    result.latency_ci_high_ms AS latency_ci_high_ms,
    result.latency_min_ms AS latency_min_ms,
    result.latency_p95_ms AS latency_p95_ms,
    result.period_ms AS period_ms,
    result.throughput_per_s AS throughput_per_s,
    result.speedup AS speedup,
    result.speedup_ci_low AS speedup_ci_low,
    result.speedup_ci_high AS speedup_ci_high,
    CAST(NULL AS DOUBLE PRECISION) AS gpu_busy_ms,
    CAST(NULL AS BIGINT) AS kernels,
    CAST(NULL AS DOUBLE PRECISION) AS gpu_idle_fraction,
    result.compile_cold_s AS compile_cold_s,
    result.compile_warm_s AS compile_warm_s,
    result.first_call_s AS first_call_s,
    result.break_even_calls AS break_even_calls,
    result.peak_allocated_bytes AS peak_allocated_bytes,
    result.peak_reserved_bytes AS peak_reserved_bytes,
    result.graph_pool_bytes AS graph_pool_bytes,
    result.process_gpu_bytes AS process_gpu_bytes,
    result.memory_ratio AS memory_ratio,
    result.energy_mj AS energy_mj,
    result.rel_error AS rel_error,
    result.graph_breaks AS graph_breaks,
    result.recompiles AS recompiles,
    result.cudagraph_skips AS cudagraph_skips,
    CAST(NULL AS DOUBLE PRECISION) AS flops,
    CAST(NULL AS DOUBLE PRECISION) AS min_bytes,
    CAST(NULL AS DOUBLE PRECISION) AS roofline_fraction,
    environment.gpu_name AS gpu_name,
    environment.torch_version AS torch_version,
    environment.python AS python,
    environment.id AS environment_id,
    cell.key AS cell_key,
    cell.params AS params
FROM result
JOIN sweep ON sweep.id = result.sweep_id
JOIN cell ON cell.key = result.cell_key
JOIN environment ON environment.id = result.environment_id
"""


def upgrade() -> None:
    op.execute("DROP VIEW results")
    for table, columns in (("trial", TRIAL), ("result", RESULT)):
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
    op.create_table(
        "calibration",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("gpu_uuid", sa.String(), nullable=True),
        sa.Column("measured_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ceilings", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("noise", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.id"], name="fk_calibration_environment_id_environment"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_calibration"),
    )
    op.create_index("ix_calibration_environment_id", "calibration", ["environment_id"], unique=False)
    op.execute(VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW results")
    op.drop_index("ix_calibration_environment_id", table_name="calibration")
    op.drop_table("calibration")
    for table, columns in (("trial", TRIAL), ("result", RESULT)):
        for name in columns:
            op.drop_column(table, name)
    op.execute(OLD_VIEW)
