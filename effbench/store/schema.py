"""The tables, and the view `results`, as typed declarations; measured columns come from `metrics.py`.

Times are UTC; a physical column carries its unit in its name. A new database is made from these declarations. A change
needs a migration in `store/migrations` for existing ones, and its revision here.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from effbench.metrics import RESULT_FIGURES, TRIAL_METRICS

#: revisions that `effbench db upgrade` starts from, oldest first; here so that opening a database spares alembic
REVISIONS = ("0006",)
HEAD_REVISION = REVISIONS[-1]
STATES = ("running", "completed", "interrupted", "failed")


def utc(value: dt.datetime) -> dt.datetime:
    """A time as aware UTC; one without a zone is UTC."""
    return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)


class UtcDateTime(sa.TypeDecorator[dt.datetime]):
    """An aware UTC datetime; SQLite keeps it without its zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        if value is None:
            return None
        return utc(value).replace(tzinfo=None) if dialect.name == "sqlite" else utc(value)

    def process_result_value(self, value: dt.datetime | None, dialect: sa.Dialect) -> dt.datetime | None:
        return None if value is None else utc(value)


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


def measured(kinds: Mapping[str, type]) -> Iterator[sa.Column]:
    """Yield a column, NULL where it does not apply, for each quantity of `metrics.py`."""
    types = {float: sa.Double, int: sa.BigInteger, bool: sa.Boolean, str: sa.String}
    return (sa.Column(name, types[kind]) for name, kind in kinds.items())


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
    details: Mapped[dict[str, Any]]  # more facts, as first seen
    first_seen_at: Mapped[dt.datetime]


class SweepRow(Base):
    """One invocation that plans cells."""

    __tablename__ = "sweep"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str | None] = mapped_column(index=True)
    label: Mapped[str | None]
    state: Mapped[str]  # one of STATES
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
    imported_at: Mapped[dt.datetime | None]  # NULL: measured into this database


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
    """What a sweep planned, in order. `overrides` plan the cell again; NULL where they are unknown."""

    __tablename__ = "sweep_cell"
    __table_args__ = (sa.UniqueConstraint("sweep_id", "position"),)

    sweep_id: Mapped[str] = mapped_column(sa.ForeignKey("sweep.id"), primary_key=True)
    cell_key: Mapped[str] = mapped_column(sa.ForeignKey("cell.key"), primary_key=True, index=True)
    position: Mapped[int]
    overrides: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))


class TrialRow(Base):
    """The facts of one trial: a column for each scalar of `cell.Trial`; everything else in `extra`."""

    __table__ = sa.Table(
        "trial",
        Base.metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("sweep_id", sa.String, nullable=False),
        sa.Column("cell_key", sa.String, nullable=False, index=True),
        sa.Column("environment_id", sa.String, sa.ForeignKey("environment.id"), nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("phase", sa.String),
        sa.Column("started_at", UtcDateTime),
        *measured({metric.name: metric.kind for metric in TRIAL_METRICS}),
        sa.Column("extra", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("recorded_at", UtcDateTime, nullable=False),
        sa.UniqueConstraint("sweep_id", "cell_key", "environment_id", "round", "attempt"),
        sa.ForeignKeyConstraint(["sweep_id", "cell_key"], ["sweep_cell.sweep_id", "sweep_cell.cell_key"]),
    )


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

    __table__ = sa.Table(
        "result",
        Base.metadata,
        sa.Column("sweep_id", sa.String, primary_key=True),
        sa.Column("cell_key", sa.String, primary_key=True, index=True),
        sa.Column("environment_id", sa.String, sa.ForeignKey("environment.id"), primary_key=True),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("trials", sa.Integer, nullable=False),
        *measured(RESULT_FIGURES),
        sa.ForeignKeyConstraint(["sweep_id", "cell_key"], ["sweep_cell.sweep_id", "sweep_cell.cell_key"]),
    )


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


ENVIRONMENT, SWEEP, CELL, PLANNED, TRIAL, SAMPLE, RESULT, CALIBRATION, BASELINE, ACKNOWLEDGEMENT, VERDICT = (
    row.__table__
    for row in (
        EnvironmentRow, SweepRow, CellRow, SweepCellRow, TrialRow, SampleRow, ResultRow, CalibrationRow, BaselineRow,
        AcknowledgementRow, ClaimVerdictRow,
    )
)  # fmt: skip

#: column of the view `results` -> the column that it shows
_SHOWN = {
    "sweep_id": SWEEP.c.id,
    "sweep_name": SWEEP.c.name,
    "label": SWEEP.c.label,
    "started_at": SWEEP.c.started_at,
    **{name: CELL.c[name] for name in ("model", "bs", "mode", "dtype", "phase", "device")},
    **{name: RESULT.c[name] for name in ("status", "reason", "trials", *RESULT_FIGURES)},
    **{name: ENVIRONMENT.c[name] for name in ("gpu_name", "torch_version", "python")},
    "environment_id": ENVIRONMENT.c.id,
    "cell_key": CELL.c.key,
    "params": CELL.c.params,
}
#: the view `results`, declared for reading; its own metadata keeps it out of the tables
RESULTS = sa.Table("results", sa.MetaData(), *(sa.Column(name, column.type) for name, column in _SHOWN.items()))
RESULT_COLUMNS = tuple(_SHOWN)
VIEW_QUERY = (
    sa.select(*(column.label(name) for name, column in _SHOWN.items()))
    .select_from(RESULT)
    .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
    .join(CELL, CELL.c.key == RESULT.c.cell_key)
    .join(ENVIRONMENT, ENVIRONMENT.c.id == RESULT.c.environment_id)
)


#: alembic's own table; declared so that a new database spares alembic
_REVISION = sa.Table("alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True))


def make(connection: sa.Connection) -> None:
    """Create the tables and the view in an empty database, with the newest revision."""
    Base.metadata.create_all(connection)
    connection.execute(sa.DDL(f"CREATE VIEW results AS {VIEW_QUERY.compile(dialect=connection.dialect)}"))
    _REVISION.create(connection, checkfirst=True)
    connection.execute(sa.insert(_REVISION).values(version_num=HEAD_REVISION))
