"""Databases as earlier revisions of the schema left them, made of one with the newest."""

import re
import sqlite3
from contextlib import closing
from typing import Any

from made_sweeps import loosen, sql

#: Revision -> table -> columns that its migration added.
ADDED = {
    "0008": {"trial": "host_ms disturbed_fraction", "result": "disturbed_fraction"},
    "0009": {
        "trial": "compilation kernel_fingerprint",
        "result": (
            "period_speedup period_speedup_ci_low period_speedup_ci_high gpu_busy_ci_low_ms"
            " gpu_busy_ci_high_ms peak_reserved_cold_bytes compilations"
        ),
    },
    "0010": {
        "trial": "latency_p99_ms quantization_error ttft_ms tpot_ms tpot_p99_ms tokens_per_s",
        "result": (
            "latency_p99_ms quantization_error ttft_ms tpot_ms tpot_p99_ms tokens_per_s"
            " ttft_ci_low_ms ttft_ci_high_ms tpot_ci_low_ms tpot_ci_high_ms"
        ),
    },
    "0011": {
        "trial": "period_median_low_ms period_median_high_ms host_high_ms threads disturbance",
        "result": "marked disturbance",
    },
    "0012": {
        "trial": (
            "pair_speedup pair_speedup_low pair_speedup_high pair_speedup_disturbed pairs"
            " pair_period_speedup pair_period_speedup_low pair_period_speedup_high"
            " pair_period_speedup_disturbed period_pairs pair_disturbance"
        ),
        "result": (
            "speedup_from speedup_disturbance separate_speedup separate_speedup_ci_low"
            " separate_speedup_ci_high separate_period_speedup separate_period_speedup_ci_low"
            " separate_period_speedup_ci_high busy_speedup busy_period_speedup"
        ),
    },
    "0013": {"trial": "host", "result": "hosts"},
    "0015": {"result": "is_baseline"},
}


#: Type of a column of SQLite -> type that it had before revision 0014.
_TYPES = {r"(?<=_at )TEXT\b": "DATETIME", r"\bTEXT\b": "VARCHAR", r"\bREAL\b": "DOUBLE"}


def without_checks(path: Any) -> None:
    """Make it a database of revision 0013, whose tables take any value."""
    if "://" in str(path):
        sql(path, _DROP_CHECKS)
        return
    loosen(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        for name, text in rows.fetchall():
            for new, old in _TYPES.items():
                text = re.sub(new, old, text)
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))
        connection.commit()


_DROP_CHECKS = """
DO $$ DECLARE found record; BEGIN
    FOR found IN SELECT conrelid::regclass AS place, conname FROM pg_constraint
        WHERE contype = 'c' AND conname LIKE 'ck\\_%'
    LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', found.place, found.conname); END LOOP;
END $$
"""


def without_later_columns(path: Any, columns: dict[str, str]) -> None:
    """Remove these columns, separated by blanks, from each table, and make a view without them."""
    sql(path, "DROP VIEW results")
    for table, names in columns.items():
        for name in names.split():
            sql(path, f"ALTER TABLE {table} DROP COLUMN {name}")
    sql(path, "CREATE VIEW results AS SELECT * FROM result")


def lower_to_0010(path: Any) -> None:
    """Make it a database of revision 0010, in which trials and results of a disturbed host are
    `noisy`."""
    without_checks(path)
    sql(
        path,
        "UPDATE trial SET status = 'noisy', reason = disturbance WHERE disturbance IS NOT NULL",
        "UPDATE result SET status = 'noisy', reason = disturbance WHERE marked",
    )
    for revision in ("0011", "0012", "0013", "0015"):
        without_later_columns(path, ADDED[revision])
    sql(path, "UPDATE alembic_version SET version_num = '0010'")
