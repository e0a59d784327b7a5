"""The schema: tables, the view, and how both follow from the table of metrics."""

import os
import subprocess
import sys
from pathlib import Path

import made_sweeps
import sqlalchemy as sa
from alembic.script import ScriptDirectory

import effbench
from effbench.cell import digest
from effbench.store import HEAD_REVISION, schema
from effbench.store.maintenance import migrations

#: Changes with every table and the view. Who changes the schema adds a migration, its revision, and this.
DIGEST = "a5934ec267ae3f4d"


def test_the_schema_is_that_of_its_revision():
    tables = [str(sa.schema.CreateTable(table)) for table in schema.METADATA.sorted_tables]
    assert digest([HEAD_REVISION, *tables, str(schema.VIEW_QUERY)])[:16] == DIGEST


def test_the_revisions_are_alembics():
    script = ScriptDirectory.from_config(migrations())
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == schema.REVISIONS


MADE_UP = """
from effbench import metrics
row = metrics.Metric("l2_hits", "L2 hits", "", metrics.HIGHER, "exact", "hits of a call", kind=int, combine="max")
metrics.METRICS["l2_hits"] = row
metrics.TRIAL_METRICS += (row,)
metrics.RESULT_FIGURES["l2_hits"] = int

from effbench import cli
from made_sweeps import Made, a_cell

Made("x.db").sweep({a_cell(): {"l2_hits": [41, 42]}}, rounds=2)
for words in (["show", "--metric", "l2_hits"], ["export"], ["db", "check"]):
    assert cli.run([*words, "--db", "x.db"]) == 0
"""


def test_a_metric_is_one_row(tmp_path):
    """From the trial to the view, `show` and `export`."""
    folders = [Path(module.__file__).parent for module in (made_sweeps, effbench)]
    env = {**os.environ, "PYTHONPATH": f"{folders[0]}:{folders[1].parent}"}
    done = subprocess.run([sys.executable, "-c", MADE_UP], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, table = done.stdout.split("sweep_id", 1)
    assert "L2 hits" in shown and "42" in shown
    assert ",l2_hits," in table.splitlines()[0] and ",42," in table
