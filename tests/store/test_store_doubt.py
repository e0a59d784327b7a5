"""The condition with which the database finds rows that may be invalid."""

import pytest
import sqlalchemy as sa

from effbench.store.schema import METADATA
from effbench.store.soundness import any_text, doubtful, raw, sound_value

#: SQL of values that some columns must not have
VALUES = [
    "NULL", "''", "'größe'", "'nul' || char(0)", "x'ff'", "CAST(x'ff41' AS TEXT)", "CAST(x'41c3' AS TEXT)",
    "zeroblob(32769)", "0", "-1", "2", "1.5", "1e999", "-1e999", "2147483648", "'ok'", "'{}'", "'[]'", "'{'",
    "printf('%.*c', 1100000, 'x')",
    *(f"'{time}'" for time in ("2026-02-31 00:00:00.000000", "2026-02-03 25:00:00.000000", "1969-12-31 23:00:00.000000",
                               "2026-02-03 00:00:00.00000x", "2200-01-01 00:00:00.000000", "2026", "now")),
]  # fmt: skip


@pytest.mark.parametrize("name", METADATA.tables)
def test_no_invalid_value_is_beyond_doubt(name, loose):
    table, invalid = METADATA.tables[name], 0
    query = raw(table).add_columns(doubtful(table, "sqlite")).order_by(sa.text("rowid")).limit(1)
    kinds = {(repr(column.type), column.nullable): column for column in table.columns if column.name != "id"}
    choices = [column for column in table.columns if column.name in ("status", "state", "verdict", "round", "attempt")]
    engine = sa.create_engine(f"sqlite:///{loose}")
    with engine.connect() as connection:
        any_text(connection)
        for column in {*kinds.values(), *choices}:
            for value in VALUES:
                change = f"SET {column.name} = {value} WHERE rowid = (SELECT min(rowid) FROM {name})"
                connection.exec_driver_sql(f"UPDATE OR IGNORE {name} {change}")
                row = connection.execute(query).one()
                connection.rollback()
                try:
                    sound_value(column, row._mapping[column.name])
                except ValueError:
                    invalid += 1
                    assert row.doubt, (column.name, value)
    engine.dispose()
    assert invalid
