"""Everything: tables and the view `results`.

Frozen: written out instead of taken from the declarations, which move on while this must not.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

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
    op.create_table(
        "cell",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("comparison_key", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("bs", sa.BigInteger(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("dtype", sa.String(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_cell"),
    )
    op.create_index("ix_cell_comparison_key", "cell", ["comparison_key"], unique=False)
    op.create_table(
        "environment",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("gpu_name", sa.String(), nullable=True),
        sa.Column("gpu_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("driver_version", sa.String(), nullable=True),
        sa.Column("cuda_version", sa.String(), nullable=True),
        sa.Column("torch_version", sa.String(), nullable=False),
        sa.Column("triton_version", sa.String(), nullable=True),
        sa.Column("python", sa.String(), nullable=False),
        sa.Column("cpu_name", sa.String(), nullable=False),
        sa.Column("platform", sa.String(), nullable=False),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_environment"),
    )
    op.create_table(
        "sweep",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("label", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("overrides", sa.JSON(), nullable=False),
        sa.Column("protocol", sa.JSON(), nullable=False),
        sa.Column("baseline_mode", sa.String(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("git_revision", sa.String(), nullable=True),
        sa.Column("host", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_sweep"),
    )
    op.create_index("ix_sweep_name", "sweep", ["name"], unique=False)
    op.create_index("ix_sweep_started_at", "sweep", ["started_at"], unique=False)
    op.create_table(
        "baseline",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("set_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name="fk_baseline_sweep_id_sweep"),
        sa.PrimaryKeyConstraint("name", name="pk_baseline"),
    )
    op.create_table(
        "claim_verdict",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("claim", sa.String(), nullable=False),
        sa.Column("experiment", sa.String(), nullable=True),
        sa.Column("sweep_id", sa.String(), nullable=False),
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
        sa.UniqueConstraint(
            "claim", "sweep_id", "environment_id", name="uq_claim_verdict_claim_sweep_id_environment_id"
        ),
    )
    op.create_table(
        "sweep_cell",
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("cell_key", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["cell_key"], ["cell.key"], name="fk_sweep_cell_cell_key_cell"),
        sa.ForeignKeyConstraint(["sweep_id"], ["sweep.id"], name="fk_sweep_cell_sweep_id_sweep"),
        sa.PrimaryKeyConstraint("sweep_id", "cell_key", name="pk_sweep_cell"),
        sa.UniqueConstraint("sweep_id", "position", name="uq_sweep_cell_sweep_id_position"),
    )
    op.create_index("ix_sweep_cell_cell_key", "sweep_cell", ["cell_key"], unique=False)
    op.create_table(
        "result",
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("cell_key", sa.String(), nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("latency_ms", sa.Double(), nullable=True),
        sa.Column("latency_ci_low_ms", sa.Double(), nullable=True),
        sa.Column("latency_ci_high_ms", sa.Double(), nullable=True),
        sa.Column("latency_min_ms", sa.Double(), nullable=True),
        sa.Column("latency_p95_ms", sa.Double(), nullable=True),
        sa.Column("period_ms", sa.Double(), nullable=True),
        sa.Column("throughput_per_s", sa.Double(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("speedup_ci_low", sa.Double(), nullable=True),
        sa.Column("speedup_ci_high", sa.Double(), nullable=True),
        sa.Column("compile_cold_s", sa.Double(), nullable=True),
        sa.Column("compile_warm_s", sa.Double(), nullable=True),
        sa.Column("first_call_s", sa.Double(), nullable=True),
        sa.Column("break_even_calls", sa.BigInteger(), nullable=True),
        sa.Column("peak_allocated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("graph_pool_bytes", sa.BigInteger(), nullable=True),
        sa.Column("process_gpu_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_ratio", sa.Double(), nullable=True),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("rel_error", sa.Double(), nullable=True),
        sa.Column("graph_breaks", sa.BigInteger(), nullable=True),
        sa.Column("recompiles", sa.BigInteger(), nullable=True),
        sa.Column("cudagraph_skips", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_result_environment_id_environment"),
        sa.ForeignKeyConstraint(
            ["sweep_id", "cell_key"],
            ["sweep_cell.sweep_id", "sweep_cell.cell_key"],
            name="fk_result_sweep_id_cell_key_sweep_cell",
        ),
        sa.PrimaryKeyConstraint("sweep_id", "cell_key", "environment_id", name="pk_result"),
    )
    op.create_index("ix_result_cell_key", "result", ["cell_key"], unique=False)
    op.create_table(
        "trial",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("sweep_id", sa.String(), nullable=False),
        sa.Column("cell_key", sa.String(), nullable=False),
        sa.Column("environment_id", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("phase", sa.String(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("gpu_index", sa.Integer(), nullable=True),
        sa.Column("gpu_uuid", sa.String(), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("wall_s", sa.Double(), nullable=True),
        sa.Column("overhead_s", sa.Double(), nullable=True),
        sa.Column("build_s", sa.Double(), nullable=True),
        sa.Column("prepare_s", sa.Double(), nullable=True),
        sa.Column("first_call_s", sa.Double(), nullable=True),
        sa.Column("compile_s", sa.Double(), nullable=True),
        sa.Column("compile_cache", sa.String(), nullable=True),
        sa.Column("check_s", sa.Double(), nullable=True),
        sa.Column("warmup_s", sa.Double(), nullable=True),
        sa.Column("timing_s", sa.Double(), nullable=True),
        sa.Column("warmup_calls", sa.BigInteger(), nullable=True),
        sa.Column("steady", sa.Boolean(), nullable=True),
        sa.Column("latency_ms", sa.Double(), nullable=True),
        sa.Column("latency_min_ms", sa.Double(), nullable=True),
        sa.Column("latency_p95_ms", sa.Double(), nullable=True),
        sa.Column("latency_median_low_ms", sa.Double(), nullable=True),
        sa.Column("latency_median_high_ms", sa.Double(), nullable=True),
        sa.Column("latency_samples", sa.BigInteger(), nullable=True),
        sa.Column("period_ms", sa.Double(), nullable=True),
        sa.Column("period_samples", sa.BigInteger(), nullable=True),
        sa.Column("calls_per_block", sa.BigInteger(), nullable=True),
        sa.Column("input_copy_ms", sa.Double(), nullable=True),
        sa.Column("peak_allocated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_reserved_bytes", sa.BigInteger(), nullable=True),
        sa.Column("prepare_peak_allocated_bytes", sa.BigInteger(), nullable=True),
        sa.Column("graph_pool_bytes", sa.BigInteger(), nullable=True),
        sa.Column("process_gpu_bytes", sa.BigInteger(), nullable=True),
        sa.Column("peak_host_bytes", sa.BigInteger(), nullable=True),
        sa.Column("rel_error", sa.Double(), nullable=True),
        sa.Column("graph_breaks", sa.BigInteger(), nullable=True),
        sa.Column("recompiles", sa.BigInteger(), nullable=True),
        sa.Column("cudagraph_skips", sa.BigInteger(), nullable=True),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("memory_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("temperature_c", sa.Integer(), nullable=True),
        sa.Column("power_w", sa.Double(), nullable=True),
        sa.Column("energy_mj", sa.Double(), nullable=True),
        sa.Column("clocks_event_reasons", sa.String(), nullable=True),
        sa.Column("foreign_processes", sa.Integer(), nullable=True),
        sa.Column("extra", sa.JSON(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.id"], name="fk_trial_environment_id_environment"),
        sa.ForeignKeyConstraint(
            ["sweep_id", "cell_key"],
            ["sweep_cell.sweep_id", "sweep_cell.cell_key"],
            name="fk_trial_sweep_id_cell_key_sweep_cell",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_trial"),
        sa.UniqueConstraint(
            "sweep_id",
            "cell_key",
            "environment_id",
            "round",
            "attempt",
            name="uq_trial_sweep_id_cell_key_environment_id_round_attempt",
        ),
    )
    op.create_index("ix_trial_cell_key", "trial", ["cell_key"], unique=False)
    op.create_table(
        "sample",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("timer", sa.String(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("stored", sa.Integer(), nullable=False),
        sa.Column("codec", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.id"], name="fk_sample_trial_id_trial"),
        sa.PrimaryKeyConstraint("trial_id", "timer", name="pk_sample"),
    )
    op.execute(VIEW)


def downgrade() -> None:
    op.execute("DROP VIEW results")
    for table in (
        "result",
        "sample",
        "trial",
        "claim_verdict",
        "baseline",
        "sweep_cell",
        "cell",
        "sweep",
        "environment",
    ):
        op.drop_table(table)
