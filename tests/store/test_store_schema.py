"""The schema: tables, the view, and how both follow from the table of metrics."""

import dataclasses
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql

import effbench
from effbench.cell import Environment, Trial, digest
from effbench.store import HEAD_REVISION, RESULT_COLUMNS, SweepInfo, schema
from effbench.store.maintenance import migrations

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


#: Changes with every table and the view. Who changes the schema adds a migration, its revision, and this.
DIGEST = "a5934ec267ae3f4d"


def test_the_schema_is_that_of_its_revision():
    tables = [str(sa.schema.CreateTable(table)) for table in schema.Base.metadata.sorted_tables]
    assert digest([HEAD_REVISION, *tables, str(schema.VIEW_QUERY)])[:16] == DIGEST


def test_the_revisions_are_alembics():
    script = ScriptDirectory.from_config(migrations())
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == schema.REVISIONS


def test_the_view_has_the_columns_of_the_contract_in_their_order(store):
    expected = re.findall(r"\w+", VIEW_COLUMNS)
    assert list(RESULT_COLUMNS) == expected
    with store._reading() as connection:
        assert list(connection.exec_driver_sql("SELECT * FROM results").keys()) == expected


def test_a_column_for_every_field():
    fields = {kind: {field.name for field in dataclasses.fields(kind)} for kind in (Trial, SweepInfo, Environment)}
    trial = fields[Trial] - {"samples"}
    assert set(schema.TRIAL.columns.keys()) - trial == {"id", "sweep_id", "environment_id", "recorded_at"}
    assert trial <= set(schema.TRIAL.columns.keys())
    assert set(schema.SWEEP.columns.keys()) == fields[SweepInfo] - {"cells", "trials", "statuses"}
    assert set(schema.ENVIRONMENT.columns.keys()) == fields[Environment] | {"id", "details", "first_seen_at"}


def test_the_schema_is_portable():
    for table in schema.Base.metadata.sorted_tables:
        assert str(sa.schema.CreateTable(table).compile(dialect=postgresql.dialect()))
        for constraint in (*table.constraints, *table.indexes):
            assert len(str(constraint.name)) <= 63  # PostgreSQL cuts longer names off


MADE_UP = """
import sys
from effbench import metrics
row = metrics.Metric("l2_hits", "L2 hits", "", metrics.HIGHER, "exact", "hits of a call", kind=int, combine="max")
metrics.METRICS["l2_hits"] = row
metrics.TRIAL_METRICS += (row,)
metrics.RESULT_FIGURES["l2_hits"] = int

from effbench import cli
from effbench.cell import Cell, Environment, Status, Trial
from effbench.store import Store

cell = Cell({"name": "mlp"}, 1, {"name": "eager"}, "float32", "inference", "cpu")
with Store.open("x.db", mode="write") as store:
    sweep = store.begin_sweep(name=None, label=None, command=[], overrides=[], protocol={}, baseline_mode="eager",
                              seed=0, git_revision=None, host={}, plan=[cell], rounds=2)
    here = store.add_environment(Environment(None, None, None, None, "2", None, "3", "cpu", "linux"), {})
    for number in range(2):
        store.record(sweep, here, Trial(cell.key, number, Status.OK, latency_ms=1.0, l2_hits=41 + number))
    assert store.results()[0]["l2_hits"] == 42
for words in (["show", "--metric", "l2_hits"], ["export"], ["db", "check"]):
    assert cli.run([*words, "--db", "x.db"]) == 0
"""


def test_a_metric_is_one_row(tmp_path):
    """From the trial to the view, `show` and `export`."""
    env = {**os.environ, "PYTHONPATH": str(Path(effbench.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", MADE_UP], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, table = done.stdout.split("sweep_id", 1)
    assert "L2 hits" in shown and "42" in shown
    assert ",l2_hits," in table.splitlines()[0] and ",42," in table


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
