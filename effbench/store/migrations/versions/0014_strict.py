"""STRICT tables on SQLite, and checks of values: the database refuses what is not allowed."""

import re
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

#: tables, each after those that it refers to
TABLES = (
    "environment",
    "sweep",
    "cell",
    "sweep_cell",
    "trial",
    "sample",
    "result",
    "calibration",
    "baseline",
    "acknowledgement",
    "claim_verdict",
)
#: type in SQLite -> type that a STRICT table may have
TYPES = {
    "VARCHAR": "TEXT",
    "DATETIME": "TEXT",
    "JSON": "TEXT",
    "BIGINT": "INTEGER",
    "BOOLEAN": "INTEGER",
    "DOUBLE": "REAL",
}
STATUSES = "'incorrect', 'crashed', 'timeout', 'error', 'oom', 'unsupported', 'degraded', 'ok'"
CHOICES = {
    ("sweep", "state"): "'running', 'completed', 'interrupted', 'failed'",
    ("trial", "status"): STATUSES,
    ("result", "status"): STATUSES,
    ("claim_verdict", "verdict"): (
        "'confirmed', 'refuted', 'depends', 'undecided', 'not measurable here', 'not measured yet'"
    ),
}
#: table -> columns with JSON objects, and with JSON arrays
OBJECTS = {
    "environment": ("flags", "details"),
    "sweep": ("protocol", "host"),
    "cell": ("params",),
    "trial": ("extra",),
    "calibration": ("ceilings", "noise"),
    "claim_verdict": ("measured",),
}
ARRAYS = {"sweep": ("command", "overrides"), "sweep_cell": ("overrides",)}
TIMES = {
    "environment": ("first_seen_at",),
    "sweep": ("started_at", "finished_at", "imported_at"),
    "trial": ("started_at", "recorded_at"),
    "calibration": ("measured_at",),
    "baseline": ("set_at",),
    "acknowledgement": ("acknowledged_at",),
    "claim_verdict": ("judged_at",),
}
INTEGERS = (
    "build_peak_allocated_bytes cudagraph_skips graph_breaks graph_pool_bytes kernels"
    " peak_allocated_bytes peak_reserved_bytes prepare_peak_allocated_bytes process_gpu_bytes"
    " recompiles"
)
#: table -> integers that are not negative
NOT_NEGATIVE = {
    "sweep": "rounds",
    "cell": "bs",
    "sweep_cell": "position",
    "sample": "count stored",
    "trial": f"round attempt {INTEGERS}",
    "result": f"trials {INTEGERS}",
}
#: finite numbers of `trial` and `result` that are not negative
FIGURES = (
    "disturbed_fraction energy_mj enqueue_ms first_call_s flops gpu_busy_ms latency_min_ms"
    " latency_ms latency_p95_ms latency_p99_ms min_bytes period_ms quantization_error rel_error"
    " tokens_per_s tpot_ms tpot_p99_ms ttft_ms"
)
FINITE = {"trial": f"compile_s {FIGURES}", "result": FIGURES}
RELATIONS = {
    ("sample", "stored_of_count"): "stored <= count AND stored <= 5000",
    ("sample", "data"): "length(data) <= 32768",
}


def upgrade() -> None:
    connection = op.get_bind()
    is_sqlite = connection.dialect.name == "sqlite"
    damaged = "stored > count OR stored > 5000 OR length(data) > 32768"
    if is_sqlite:
        damaged += " OR typeof(stored) <> 'integer' OR typeof(data) <> 'blob'"
    connection.execute(sa.text(f"DELETE FROM sample WHERE {damaged}"))
    # the upgrade derives them again
    connection.execute(sa.text("DELETE FROM result"))
    if is_sqlite:
        rebuild(connection)
        return
    for table in TABLES:
        for name, condition in checks(table, is_sqlite=False):
            connection.execute(
                sa.text(f"ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({condition})")
            )


def checks(table: str, is_sqlite: bool) -> Iterator[tuple[str, str]]:
    """Yield name and condition of each check of a table."""
    for column, condition in conditions(table, is_sqlite):
        yield f"ck_{table}_{column}", condition


def conditions(table: str, is_sqlite: bool) -> Iterator[tuple[str, str]]:
    for name, values in CHOICES.items():
        if name[0] == table:
            yield name[1], f"{name[1]} IN ({values})"
    # SQLite's JSON functions are not allowed in the schema of an untrusted file
    for form, pattern, columns in (("object", "{*}", OBJECTS), ("array", "[[]*]", ARRAYS)):
        for column in columns.get(table, ()):
            of_sqlite = f"{column} GLOB '{pattern}'"
            of_postgresql = f"json_typeof({column}) = '{form}'"
            yield column, of_sqlite if is_sqlite else of_postgresql
    for column in TIMES.get(table, ()) if is_sqlite else ():
        yield column, f"julianday({column}) IS NOT NULL OR {column} IS NULL"
    for column in NOT_NEGATIVE.get(table, "").split():
        yield column, f"{column} >= 0"
    for column in FINITE.get(table, "").split():
        yield column, f"{column} BETWEEN 0 AND 1.7976931348623157e+308"
    for name, condition in RELATIONS.items():
        if name[0] == table:
            yield name[1], condition


def rebuild(connection: sa.Connection) -> None:
    """Copy all tables of a SQLite file into STRICT ones. No foreign key is ever broken, because the
    old tables, which refer to each other, go last."""
    schema = sa.text("SELECT name, sql FROM sqlite_master WHERE type = :type AND sql IS NOT NULL")
    tables = {row.name: row.sql for row in connection.execute(schema, {"type": "table"})}
    indexes = {row.name: row.sql for row in connection.execute(schema, {"type": "index"})}
    statements = [f"DROP INDEX {name}" for name in indexes]
    statements += [f"ALTER TABLE {name} RENAME TO old_{name}" for name in TABLES]
    for name in TABLES:
        statements.append(strict(name, tables[name]))
        statements.append(f"INSERT INTO {name} SELECT * FROM old_{name}")
    statements += [f"DROP TABLE old_{name}" for name in reversed(TABLES)]
    for statement in [*statements, *indexes.values()]:
        connection.exec_driver_sql(statement)


def strict(name: str, declaration: str) -> str:
    """Return the declaration of a table as a STRICT one with checks."""
    for old, new in TYPES.items():
        declaration = re.sub(rf"(?<=[\w\"] ){old}\b", new, declaration)
    parts = [f", CONSTRAINT {check} CHECK ({condition})" for check, condition in checks(name, True)]
    body = declaration.rstrip().removesuffix(")")
    return f"{body}{''.join(parts)}) STRICT"
