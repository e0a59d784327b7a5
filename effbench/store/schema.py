"""The tables, and the view `results`, as typed declarations.

Times are UTC; a physical column carries its unit in its name. The migrations in `store/migrations` make these tables
in explicit DDL; a test holds that both agree. A change here needs a new revision, and `HEAD_REVISION` with it.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: every revision of the schema, oldest first; kept here so that opening a database does not import alembic
REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
HEAD_REVISION = REVISIONS[-1]


class UtcDateTime(sa.TypeDecorator[dt.datetime]):
    """An aware UTC datetime; SQLite keeps it without its zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        value = value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


class Base(DeclarativeBase):
    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - the name and shape that SQLAlchemy asks for
        float: sa.Double(),
        dict[str, Any]: sa.JSON(none_as_null=True),
        list[str]: sa.JSON(),
        dt.datetime: UtcDateTime(),
    }


class EnvironmentRow(Base):
    """Fingerprint of hardware and software; `id` is the start of its hash."""

    __tablename__ = "environment"

    id: Mapped[str] = mapped_column(primary_key=True)
    gpu_name: Mapped[str | None]
    gpu_memory_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    driver_version: Mapped[str | None]
    cuda_version: Mapped[str | None]
    torch_version: Mapped[str]
    triton_version: Mapped[str | None]
    python: Mapped[str]
    cpu_name: Mapped[str]
    platform: Mapped[str]
    flags: Mapped[dict[str, Any]]
    details: Mapped[dict[str, Any]]  # seen beside the fingerprint, the first time
    first_seen_at: Mapped[dt.datetime]


class SweepRow(Base):
    """One invocation that plans cells."""

    __tablename__ = "sweep"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(index=True)
    label: Mapped[str | None]
    state: Mapped[str]  # running, completed, interrupted, failed
    started_at: Mapped[dt.datetime] = mapped_column(index=True)
    finished_at: Mapped[dt.datetime | None]
    command: Mapped[list[str]]
    overrides: Mapped[list[str]]
    protocol: Mapped[dict[str, Any]]
    baseline_mode: Mapped[str]
    seed: Mapped[int] = mapped_column(sa.BigInteger)
    rounds: Mapped[int]
    git_revision: Mapped[str | None]
    host: Mapped[dict[str, Any]]
    imported_at: Mapped[dt.datetime | None]  # NULL: swept into this database; never part of a bundle


class CellRow(Base):
    """One point of the matrix. `comparison_key` hashes everything but the mode: cells that share it are compared."""

    __tablename__ = "cell"

    key: Mapped[str] = mapped_column(primary_key=True)
    comparison_key: Mapped[str] = mapped_column(index=True)
    model: Mapped[str]
    bs: Mapped[int] = mapped_column(sa.BigInteger)
    mode: Mapped[str]
    dtype: Mapped[str]
    phase: Mapped[str]
    device: Mapped[str]
    params: Mapped[dict[str, Any]]


class SweepCellRow(Base):
    """What a sweep planned, in order. `overrides` plan the cell again; NULL if they are unknown."""

    __tablename__ = "sweep_cell"
    __table_args__ = (sa.UniqueConstraint("sweep_id", "position"),)

    sweep_id: Mapped[str] = mapped_column(sa.ForeignKey("sweep.id"), primary_key=True)
    cell_key: Mapped[str] = mapped_column(sa.ForeignKey("cell.key"), primary_key=True, index=True)
    position: Mapped[int]
    overrides: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))


class TrialRow(Base):
    """The raw facts of one trial: a column for each scalar of `cell.Trial`; everything else in `extra`."""

    __tablename__ = "trial"
    __table_args__ = (
        sa.UniqueConstraint("sweep_id", "cell_key", "environment_id", "round", "attempt"),
        sa.ForeignKeyConstraint(["sweep_id", "cell_key"], ["sweep_cell.sweep_id", "sweep_cell.cell_key"]),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    sweep_id: Mapped[str]
    cell_key: Mapped[str] = mapped_column(index=True)
    environment_id: Mapped[str] = mapped_column(sa.ForeignKey("environment.id"))
    round: Mapped[int]
    attempt: Mapped[int]
    status: Mapped[str]
    reason: Mapped[str | None] = mapped_column(sa.Text)
    phase: Mapped[str | None]
    started_at: Mapped[dt.datetime | None]
    gpu_index: Mapped[int | None]
    gpu_uuid: Mapped[str | None]
    pid: Mapped[int | None] = mapped_column(sa.BigInteger)
    wall_s: Mapped[float | None]
    overhead_s: Mapped[float | None]
    build_s: Mapped[float | None]
    prepare_s: Mapped[float | None]
    first_call_s: Mapped[float | None]
    compile_s: Mapped[float | None]
    compile_cache: Mapped[str | None]
    check_s: Mapped[float | None]
    warmup_s: Mapped[float | None]
    timing_s: Mapped[float | None]
    warmup_calls: Mapped[int | None] = mapped_column(sa.BigInteger)
    steady: Mapped[bool | None]
    latency_ms: Mapped[float | None]
    latency_min_ms: Mapped[float | None]
    latency_p95_ms: Mapped[float | None]
    latency_median_low_ms: Mapped[float | None]
    latency_median_high_ms: Mapped[float | None]
    latency_samples: Mapped[int | None] = mapped_column(sa.BigInteger)
    enqueue_ms: Mapped[float | None]
    period_ms: Mapped[float | None]
    period_samples: Mapped[int | None] = mapped_column(sa.BigInteger)
    calls_per_block: Mapped[int | None] = mapped_column(sa.BigInteger)
    input_copy_ms: Mapped[float | None]
    discarded_blocks: Mapped[int | None]
    build_peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    peak_reserved_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    prepare_peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    graph_pool_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    process_gpu_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    peak_host_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    rel_error: Mapped[float | None]
    graph_breaks: Mapped[int | None] = mapped_column(sa.BigInteger)
    recompiles: Mapped[int | None] = mapped_column(sa.BigInteger)
    cudagraph_skips: Mapped[int | None] = mapped_column(sa.BigInteger)
    gpu_busy_ms: Mapped[float | None]
    kernels: Mapped[int | None] = mapped_column(sa.BigInteger)
    flops: Mapped[float | None]
    min_bytes: Mapped[float | None]
    compute_floor_ms: Mapped[float | None]
    memory_floor_ms: Mapped[float | None]
    sm_clock_mhz: Mapped[int | None]
    memory_clock_mhz: Mapped[int | None]
    temperature_c: Mapped[int | None]
    power_w: Mapped[float | None]
    energy_mj: Mapped[float | None]
    clocks_event_reasons: Mapped[str | None]
    foreign_processes: Mapped[int | None]
    extra: Mapped[dict[str, Any]]
    recorded_at: Mapped[dt.datetime]


class SampleRow(Base):
    """Raw samples of one timer of one trial, in order. `count` were taken, `stored` of them are kept."""

    __tablename__ = "sample"

    trial_id: Mapped[int] = mapped_column(sa.ForeignKey("trial.id"), primary_key=True)
    timer: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int]
    stored: Mapped[int]
    codec: Mapped[str]
    data: Mapped[bytes]


class ResultRow(Base):
    """The summary of a cell in a sweep and environment: derived, can be rebuilt from the trials."""

    __tablename__ = "result"
    __table_args__ = (
        sa.ForeignKeyConstraint(["sweep_id", "cell_key"], ["sweep_cell.sweep_id", "sweep_cell.cell_key"]),
    )

    sweep_id: Mapped[str] = mapped_column(primary_key=True)
    cell_key: Mapped[str] = mapped_column(primary_key=True, index=True)
    environment_id: Mapped[str] = mapped_column(sa.ForeignKey("environment.id"), primary_key=True)
    status: Mapped[str]
    reason: Mapped[str | None] = mapped_column(sa.Text)
    trials: Mapped[int]
    latency_ms: Mapped[float | None]
    latency_ci_low_ms: Mapped[float | None]
    latency_ci_high_ms: Mapped[float | None]
    latency_min_ms: Mapped[float | None]
    latency_p95_ms: Mapped[float | None]
    period_ms: Mapped[float | None]
    period_ci_low_ms: Mapped[float | None]
    period_ci_high_ms: Mapped[float | None]
    throughput_per_s: Mapped[float | None]
    speedup: Mapped[float | None]
    speedup_ci_low: Mapped[float | None]
    speedup_ci_high: Mapped[float | None]
    gpu_busy_ms: Mapped[float | None]
    kernels: Mapped[int | None] = mapped_column(sa.BigInteger)
    gpu_idle_fraction: Mapped[float | None]
    enqueue_ms: Mapped[float | None]
    bound: Mapped[str | None]
    compile_cold_s: Mapped[float | None]
    compile_warm_s: Mapped[float | None]
    first_call_s: Mapped[float | None]
    break_even_calls: Mapped[int | None] = mapped_column(sa.BigInteger)
    build_peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    prepare_peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    peak_allocated_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    peak_reserved_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    graph_pool_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    process_gpu_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    memory_ratio: Mapped[float | None]
    energy_mj: Mapped[float | None]
    rel_error: Mapped[float | None]
    graph_breaks: Mapped[int | None] = mapped_column(sa.BigInteger)
    recompiles: Mapped[int | None] = mapped_column(sa.BigInteger)
    cudagraph_skips: Mapped[int | None] = mapped_column(sa.BigInteger)
    flops: Mapped[float | None]
    min_bytes: Mapped[float | None]
    roofline_fraction: Mapped[float | None]
    unsteady_trials: Mapped[int | None]


class CalibrationRow(Base):
    """What a machine was measured to be capable of (`ceilings`) and how its figures spread (`noise`); newest counts."""

    __tablename__ = "calibration"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    environment_id: Mapped[str] = mapped_column(sa.ForeignKey("environment.id"), index=True)
    gpu_uuid: Mapped[str | None]
    measured_at: Mapped[dt.datetime]
    ceilings: Mapped[dict[str, Any] | None]
    noise: Mapped[dict[str, Any] | None]


class BaselineRow(Base):
    """A name for a sweep that later sweeps on the same `hardware` (GPU, without one the CPU) are compared with."""

    __tablename__ = "baseline"

    name: Mapped[str] = mapped_column(primary_key=True)
    hardware: Mapped[str] = mapped_column(primary_key=True)
    sweep_id: Mapped[str] = mapped_column(sa.ForeignKey("sweep.id"))
    set_at: Mapped[dt.datetime]
    note: Mapped[str | None] = mapped_column(sa.Text)


class AcknowledgementRow(Base):
    """A change in the history of a cell that is known and accepted; `sweep_id`: the first sweep after it."""

    __tablename__ = "acknowledgement"
    __table_args__ = (sa.UniqueConstraint("cell_key", "hardware", "metric", "sweep_id"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    cell_key: Mapped[str] = mapped_column(sa.ForeignKey("cell.key"))
    hardware: Mapped[str]
    metric: Mapped[str]
    sweep_id: Mapped[str] = mapped_column(sa.ForeignKey("sweep.id"))
    reason: Mapped[str] = mapped_column(sa.Text)
    acknowledged_at: Mapped[dt.datetime]


class ClaimVerdictRow(Base):
    """What one judgement said of a claim. `measured`: figure, interval, parts, evidence and all sweeps it rests on;
    `sweep_id`: the newest of these, NULL where it rests on evidence alone."""

    __tablename__ = "claim_verdict"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    claim: Mapped[str] = mapped_column(index=True)
    experiment: Mapped[str]
    sweep_id: Mapped[str | None] = mapped_column(sa.ForeignKey("sweep.id"))
    environment_id: Mapped[str] = mapped_column(sa.ForeignKey("environment.id"))
    verdict: Mapped[str]
    reason: Mapped[str | None] = mapped_column(sa.Text)
    measured: Mapped[dict[str, Any]]
    judged_at: Mapped[dt.datetime]


#: the view `results`, declared for reading; its own metadata keeps it out of the tables that are compared
RESULTS = sa.Table(
    "results",
    sa.MetaData(),
    sa.Column("sweep_id", sa.String),
    sa.Column("sweep_name", sa.String),
    sa.Column("label", sa.String),
    sa.Column("started_at", UtcDateTime),
    sa.Column("model", sa.String),
    sa.Column("bs", sa.BigInteger),
    sa.Column("mode", sa.String),
    sa.Column("dtype", sa.String),
    sa.Column("phase", sa.String),
    sa.Column("device", sa.String),
    sa.Column("status", sa.String),
    sa.Column("reason", sa.Text),
    sa.Column("trials", sa.Integer),
    sa.Column("latency_ms", sa.Double),
    sa.Column("latency_ci_low_ms", sa.Double),
    sa.Column("latency_ci_high_ms", sa.Double),
    sa.Column("latency_min_ms", sa.Double),
    sa.Column("latency_p95_ms", sa.Double),
    sa.Column("period_ms", sa.Double),
    sa.Column("period_ci_low_ms", sa.Double),
    sa.Column("period_ci_high_ms", sa.Double),
    sa.Column("throughput_per_s", sa.Double),
    sa.Column("speedup", sa.Double),
    sa.Column("speedup_ci_low", sa.Double),
    sa.Column("speedup_ci_high", sa.Double),
    sa.Column("gpu_busy_ms", sa.Double),
    sa.Column("kernels", sa.BigInteger),
    sa.Column("gpu_idle_fraction", sa.Double),
    sa.Column("enqueue_ms", sa.Double),
    sa.Column("bound", sa.String),
    sa.Column("compile_cold_s", sa.Double),
    sa.Column("compile_warm_s", sa.Double),
    sa.Column("first_call_s", sa.Double),
    sa.Column("break_even_calls", sa.BigInteger),
    sa.Column("build_peak_allocated_bytes", sa.BigInteger),
    sa.Column("prepare_peak_allocated_bytes", sa.BigInteger),
    sa.Column("peak_allocated_bytes", sa.BigInteger),
    sa.Column("peak_reserved_bytes", sa.BigInteger),
    sa.Column("graph_pool_bytes", sa.BigInteger),
    sa.Column("process_gpu_bytes", sa.BigInteger),
    sa.Column("memory_ratio", sa.Double),
    sa.Column("energy_mj", sa.Double),
    sa.Column("rel_error", sa.Double),
    sa.Column("graph_breaks", sa.BigInteger),
    sa.Column("recompiles", sa.BigInteger),
    sa.Column("cudagraph_skips", sa.BigInteger),
    sa.Column("flops", sa.Double),
    sa.Column("min_bytes", sa.Double),
    sa.Column("roofline_fraction", sa.Double),
    sa.Column("unsteady_trials", sa.Integer),
    sa.Column("gpu_name", sa.String),
    sa.Column("torch_version", sa.String),
    sa.Column("python", sa.String),
    sa.Column("environment_id", sa.String),
    sa.Column("cell_key", sa.String),
    sa.Column("params", sa.JSON),
)
RESULT_COLUMNS: tuple[str, ...] = tuple(column.name for column in RESULTS.columns)
TEXT_COLUMNS = frozenset(column.name for column in RESULTS.columns if isinstance(column.type, sa.String))
