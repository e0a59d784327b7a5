"""The tables and the view `results`; measured columns come from `metrics.py`.

Times are UTC; the names of physical quantities end with their unit. The database itself refuses
values of another type (SQLite's tables are STRICT) or out of range, so that nothing else needs to
check them. New databases are created from these declarations, and an upgrade compares earlier ones
with them. docs/reference/extending.md tells how to add a metric.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Connection, ForeignKey, Integer, LargeBinary, Text, select
from sqlalchemy.ext.compiler import compiles

from effbench.core.cell import Status
from effbench.core.metrics import RESULT_FIGURES, TRIAL_METRICS
from effbench.core.trace import BYTES_LIMIT

#: revisions that `effbench db upgrade` accepts, oldest first
REVISIONS = tuple(f"{number:04}" for number in range(6, 22))
HEAD_REVISION = REVISIONS[-1]
#: restricted because folders are named after sweeps
SWEEP_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
STATES = ("running", "completed", "interrupted", "failed")


class ClaimVerdict(StrEnum):
    """The verdict on a published claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    DEPENDS = "depends"  # true in a stated part of the matrix
    UNDECIDED = "undecided"  # the intervals leave it open
    NOT_MEASURABLE = "not measurable here"
    NOT_MEASURED = "not measured yet"


#: column -> allowed values
CHOICES = {"state": STATES, "status": tuple(Status), "verdict": tuple(ClaimVerdict)}
#: columns that must not be negative, besides the quantities with a title
COUNTS = {"bs", "rounds", "position", "round", "attempt", "trials", "count", "stored", "compile_s"}
#: columns with a JSON array; all others hold objects
LISTS = {"command", "overrides"}
#: the largest finite number
LARGEST = 1.7976931348623157e308
#: most samples that a timer of a trial stores, and most bytes of them
SAMPLE_LIMIT, BLOB_LIMIT = 5000, 2**15


def utc(value: dt.datetime) -> dt.datetime:
    """Return a time as aware UTC; a time without zone is taken as UTC."""
    if value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC)
    return value.astimezone(dt.UTC)


class Boolean(sa.Boolean):
    """A boolean that a STRICT table of SQLite can hold, too."""


class Json(sa.JSON):
    """JSON that a STRICT table of SQLite can hold, too."""


class UtcDateTime(sa.TypeDecorator[dt.datetime]):
    """An aware UTC datetime, which SQLite stores without its zone, also in a STRICT table."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(
        self, value: dt.datetime | None, dialect: sa.Dialect
    ) -> dt.datetime | None:
        return None if value is None else utc(value)

    process_result_value = process_bind_param


@compiles(Boolean, "sqlite")
def _integer(*_: object, **__: object) -> str:
    return "INTEGER"


@compiles(Json, "sqlite")
@compiles(UtcDateTime, "sqlite")
def _text(*_: object, **__: object) -> str:
    return "TEXT"


METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
BIG_INTEGER = sa.BigInteger().with_variant(Integer(), "sqlite")
DOUBLE: sa.Double[float] = sa.Double().with_variant(sa.REAL(), "sqlite")
BOOLEAN = Boolean()
JSON = Json(none_as_null=True)
TYPES: dict[type, sa.types.TypeEngine[Any]] = {
    float: DOUBLE,
    int: BIG_INTEGER,
    bool: BOOLEAN,
    str: Text(),
}
#: quantities that must not be negative
NOT_NEGATIVE = COUNTS | {metric.name for metric in TRIAL_METRICS if metric.title}


def table(name: str, *parts: Any) -> sa.Table:
    """Declare a table with its columns and constraints, and a check of each column's range."""
    flat: list[Any] = []
    for part in parts:
        flat += part if isinstance(part, list) else [part]
    checks: list[sa.Constraint] = []
    for part in flat:
        if isinstance(part, Column):
            checks += checks_of(part)
    return sa.Table(name, METADATA, *flat, *checks, sqlite_strict=True)


def checks_of(column: Column[Any]) -> Iterator[sa.Constraint]:
    """Yield the constraints on the values of a column."""
    name, kind = column.name, column.type
    if name in CHOICES:
        allowed = ", ".join(f"'{value}'" for value in CHOICES[name])
        yield sa.CheckConstraint(f"{name} IN ({allowed})", name=name)
    elif isinstance(kind, sa.JSON):
        form, pattern = "object", "{*}"
        if name in LISTS:
            form, pattern = "array", "[[]*]"
        # SQLite's JSON functions are not allowed in the schema of an untrusted file
        yield sa.CheckConstraint(f"{name} GLOB '{pattern}'", name=name).ddl_if(dialect="sqlite")
        is_form = f"json_typeof({name}) = '{form}'"
        yield sa.CheckConstraint(is_form, name=name).ddl_if(dialect="postgresql")
    elif isinstance(kind, UtcDateTime):
        is_time = f"julianday({name}) IS NOT NULL OR {name} IS NULL"
        yield sa.CheckConstraint(is_time, name=name).ddl_if(dialect="sqlite")
    elif name in NOT_NEGATIVE:
        valid = f"{name} >= 0"
        if isinstance(kind, sa.Double):
            valid = f"{name} BETWEEN 0 AND {LARGEST}"
        yield sa.CheckConstraint(valid, name=name)


def required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def measured(kinds: Mapping[str, type]) -> list[Column[Any]]:
    """Return a nullable column for each quantity of `metrics.py`."""
    return [Column(name, TYPES[kind]) for name, kind in kinds.items()]


def in_plan() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["sweep_id", "cell_key"], ["sweep_cell.sweep_id", "sweep_cell.cell_key"]
    )


#: fingerprint of hardware and software; `id` is the start of its hash
ENVIRONMENT = table(
    "environment",
    Column("id", Text, primary_key=True),
    optional(Text, "gpu_name"),
    optional(BIG_INTEGER, "gpu_memory_bytes"),
    optional(Text, "driver_version", "cuda_version"),
    required(Text, "torch_version"),
    optional(Text, "triton_version"),
    required(Text, "python", "cpu_name", "platform"),
    required(JSON, "flags"),
    required(JSON, "details"),  # further facts, never updated
    required(UtcDateTime, "first_seen_at"),
)

#: one invocation of effbench that plans cells
SWEEP = table(
    "sweep",
    Column("id", Text, primary_key=True),
    Column("name", Text, index=True),
    optional(Text, "label"),
    required(Text, "state"),  # one of STATES
    Column("started_at", UtcDateTime, index=True, nullable=False),
    optional(UtcDateTime, "finished_at"),
    required(JSON, "command", "overrides", "protocol"),
    required(Text, "baseline_mode"),
    required(BIG_INTEGER, "seed"),
    required(Integer, "rounds"),
    optional(Text, "git_revision"),
    required(JSON, "host"),
    optional(UtcDateTime, "imported_at"),  # NULL: measured into this database
)

#: one point of the matrix; `comparison_key` hashes everything but the mode: cells that share it are
#: compared
CELL = table(
    "cell",
    Column("key", Text, primary_key=True),
    Column("comparison_key", Text, index=True, nullable=False),
    required(Text, "model"),
    required(BIG_INTEGER, "bs"),
    required(Text, "mode", "dtype", "phase", "device"),
    required(JSON, "params"),
)

#: the cells that a sweep planned, in order; `overrides` reproduce the cell, NULL if they are
#: unknown
PLANNED = table(
    "sweep_cell",
    Column("sweep_id", Text, ForeignKey("sweep.id"), primary_key=True),
    Column("cell_key", Text, ForeignKey("cell.key"), primary_key=True, index=True),
    required(Integer, "position"),
    optional(JSON, "overrides"),
    sa.UniqueConstraint("sweep_id", "position"),
)

#: the facts of one trial: a column for each scalar of `cell.Trial`; everything else in `extra`
TRIAL = table(
    "trial",
    Column("id", Integer, primary_key=True, autoincrement=True),
    required(Text, "sweep_id"),
    Column("cell_key", Text, index=True, nullable=False),
    Column("environment_id", Text, ForeignKey("environment.id"), nullable=False),
    required(Integer, "round", "attempt"),
    required(Text, "status"),
    optional(Text, "reason", "phase"),
    optional(UtcDateTime, "started_at"),
    measured({metric.name: metric.kind for metric in TRIAL_METRICS}),
    required(JSON, "extra"),
    required(UtcDateTime, "recorded_at"),
    sa.UniqueConstraint("sweep_id", "cell_key", "environment_id", "round", "attempt"),
    in_plan(),
)

#: raw samples of one timer of one trial, in order; `count` were taken, `stored` of them are kept
SAMPLE = table(
    "sample",
    Column("trial_id", Integer, ForeignKey("trial.id"), primary_key=True),
    Column("timer", Text, primary_key=True),
    required(Integer, "count", "stored"),
    required(Text, "codec"),
    required(LargeBinary, "data"),
    sa.CheckConstraint(f"stored <= count AND stored <= {SAMPLE_LIMIT}", name="stored_of_count"),
    sa.CheckConstraint(f"length(data) <= {BLOB_LIMIT}", name="data"),
)

#: what ran in a call of one trial, in order: a compressed `trace.Trace`
TRACE = table(
    "trace",
    Column("trial_id", Integer, ForeignKey("trial.id"), primary_key=True),
    required(Text, "codec"),
    required(LargeBinary, "data"),
    sa.CheckConstraint(f"length(data) <= {BYTES_LIMIT}", name="data"),
)

#: the summary of a cell in a sweep and environment; it can be rebuilt from the trials
RESULT = table(
    "result",
    Column("sweep_id", Text, primary_key=True),
    Column("cell_key", Text, primary_key=True, index=True),
    Column("environment_id", Text, ForeignKey("environment.id"), primary_key=True),
    required(Text, "status"),
    optional(Text, "reason"),
    required(Integer, "trials"),
    measured(RESULT_FIGURES),
    in_plan(),
)

#: a named sweep that later sweeps on the same `hardware` (GPU, or else CPU) are compared with
BASELINE = table(
    "baseline",
    Column("name", Text, primary_key=True),
    Column("hardware", Text, primary_key=True),
    Column("sweep_id", Text, ForeignKey("sweep.id"), nullable=False),
    required(UtcDateTime, "set_at"),
    optional(Text, "note"),
)

#: one verdict on a claim; `measured`: figure, interval, parts, evidence and all sweeps that were
#: used; `sweep_id`: the newest of these sweeps, NULL if only evidence of checks was used
VERDICT = table(
    "claim_verdict",
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("claim", Text, index=True, nullable=False),
    required(Text, "experiment"),
    Column("sweep_id", Text, ForeignKey("sweep.id")),
    Column("environment_id", Text, ForeignKey("environment.id"), nullable=False),
    required(Text, "verdict"),
    optional(Text, "reason"),
    required(JSON, "measured"),
    required(UtcDateTime, "judged_at"),
)

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
#: the view `results`, declared for queries; separate metadata keeps it out of METADATA's tables
RESULTS = sa.Table(
    "results", sa.MetaData(), *(Column(name, column.type) for name, column in _SHOWN.items())
)
RESULT_COLUMNS = tuple(_SHOWN)
_DTYPES = {
    bool: "boolean",
    int: "Int64",
    float: "float64",
    str: "string",
}
#: column of the view `results` -> its dtype in pandas, whatever the rows hold
RESULT_DTYPES = {name: _DTYPES[RESULT_FIGURES.get(name, str)] for name in RESULT_COLUMNS} | {
    "started_at": "datetime64[ns, UTC]",
    "bs": "Int64",
    "trials": "Int64",
    "params": "object",
}
VIEW_QUERY = (
    select(*(column.label(name) for name, column in _SHOWN.items()))
    .select_from(RESULT)
    .join(SWEEP, SWEEP.c.id == RESULT.c.sweep_id)
    .join(CELL, CELL.c.key == RESULT.c.cell_key)
    .join(ENVIRONMENT, ENVIRONMENT.c.id == RESULT.c.environment_id)
)
#: the revision of the database; apart from METADATA, because it stays when tables are renewed
_REVISION = sa.Table(
    "alembic_version", sa.MetaData(), Column("version_num", sa.String(32), primary_key=True)
)


def lock(connection: Connection) -> None:
    """Wait for other processes that create or upgrade the schema. In SQLite each transaction that
    writes has waited."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(20823501)"))


def make(connection: Connection) -> str:
    """Create the tables and the view in a database without them; return its revision, which is the
    newest."""
    METADATA.create_all(connection)
    view = VIEW_QUERY.compile(dialect=connection.dialect)
    connection.exec_driver_sql(f"CREATE VIEW results AS {view}")
    _REVISION.create(connection, checkfirst=True)
    connection.execute(sa.delete(_REVISION))
    connection.execute(sa.insert(_REVISION).values(version_num=HEAD_REVISION))
    return HEAD_REVISION
