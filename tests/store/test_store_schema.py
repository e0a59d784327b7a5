"""The schema: declared, migrated and shown by the view."""

import dataclasses
import re
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from effbench.analysis.summary import Summary
from effbench.cell import Environment, Trial
from effbench.store import HEAD_REVISION, RESULT_COLUMNS, SweepInfo, schema
from effbench.store.migrate import config, migrate

VIEW_COLUMNS = """
sweep_id, sweep_name, label, started_at, model, bs, mode, dtype, phase, device, status, reason, trials,
latency_ms, latency_ci_low_ms, latency_ci_high_ms, latency_min_ms, latency_p95_ms,
period_ms, period_ci_low_ms, period_ci_high_ms, throughput_per_s,
speedup, speedup_ci_low, speedup_ci_high, gpu_busy_ms, kernels, gpu_idle_fraction, enqueue_ms, bound,
compile_cold_s, compile_warm_s, first_call_s, break_even_calls,
build_peak_allocated_bytes, prepare_peak_allocated_bytes, peak_allocated_bytes, peak_reserved_bytes,
graph_pool_bytes, process_gpu_bytes, memory_ratio,
energy_mj, rel_error, graph_breaks, recompiles, cudagraph_skips, flops, min_bytes, roofline_fraction, unsteady_trials,
gpu_name, torch_version, python, environment_id, cell_key, params
"""


@pytest.fixture
def migrated():
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection)
        yield connection
    engine.dispose()


def test_migrations_make_the_declared_schema(migrated):
    context = MigrationContext.configure(migrated, opts={"compare_type": True, "compare_server_default": True})
    assert compare_metadata(context, schema.Base.metadata) == []


def test_downgrade_leaves_nothing_behind(migrated):
    from alembic import command

    made = config()
    made.attributes["connection"] = migrated
    command.downgrade(made, "base")
    found = migrated.exec_driver_sql("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").scalars().all()
    assert set(found) <= {"alembic_version"}


def test_the_revisions_are_alembics():
    script = ScriptDirectory.from_config(config())
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == schema.REVISIONS


def test_the_view_has_the_columns_of_the_contract_in_their_order(migrated):
    expected = re.findall(r"\w+", VIEW_COLUMNS)
    found = migrated.exec_driver_sql("SELECT * FROM results")
    assert list(found.keys()) == expected
    assert list(RESULT_COLUMNS) == expected


def test_a_column_for_every_field():
    trial = {field.name for field in dataclasses.fields(Trial)} - {"samples"}
    assert set(schema.TrialRow.__table__.columns.keys()) - trial == {"id", "sweep_id", "environment_id", "recorded_at"}
    assert trial <= set(schema.TrialRow.__table__.columns.keys())
    summary = {field.name for field in dataclasses.fields(Summary)}
    keys = {"sweep_id", "cell_key", "environment_id"}
    assert set(schema.ResultRow.__table__.columns.keys()) == summary | keys
    info = {field.name for field in dataclasses.fields(SweepInfo)} - {"cells", "trials", "statuses"}
    assert set(schema.SweepRow.__table__.columns.keys()) == info
    environment = {field.name for field in dataclasses.fields(Environment)}
    assert set(schema.EnvironmentRow.__table__.columns.keys()) == environment | {"id", "details", "first_seen_at"}


def test_the_migration_is_frozen_and_the_view_is_portable():
    text = (Path(schema.__file__).parent / "migrations" / "versions" / "0001_initial.py").read_text(encoding="utf-8")
    assert "create_all" not in text
    assert "effbench" not in text
    from sqlalchemy.dialects import postgresql

    for table in schema.Base.metadata.sorted_tables:
        assert str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        for constraint in (*table.constraints, *table.indexes):
            assert len(str(constraint.name)) <= 63  # PostgreSQL cuts longer names off


def test_what_a_database_forbids(store, cell, begin, path):
    begin(store, [cell()])
    raw = sqlite3.connect(path)
    try:
        raw.execute("PRAGMA foreign_keys = ON")
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        with pytest.raises(sqlite3.IntegrityError):
            raw.execute("INSERT INTO sweep_cell VALUES ('nowhere', 'nothing', 0, NULL)")
    finally:
        raw.close()
