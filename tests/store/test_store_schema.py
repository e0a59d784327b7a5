"""The schema changes with a migration, never without one."""

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from effbench.cell import digest
from effbench.store import HEAD_REVISION, schema
from effbench.store.maintenance import migrations

#: Changes with every table and the view. Who changes the schema adds a migration, its revision, and this.
DIGEST = "98719341a62d21cc"


def test_the_schema_is_that_of_its_revision():
    tables = [str(sa.schema.CreateTable(table)) for table in schema.METADATA.sorted_tables]
    assert digest([HEAD_REVISION, *tables, str(schema.VIEW_QUERY)])[:16] == DIGEST


def test_the_revisions_are_alembics():
    script = ScriptDirectory.from_config(migrations())
    assert script.get_heads() == [HEAD_REVISION]
    assert tuple(step.revision for step in script.walk_revisions())[::-1] == schema.REVISIONS
