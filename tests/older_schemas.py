"""Databases as earlier revisions of the schema left them, made of one with the newest."""

import re
import sqlite3
from contextlib import closing
from typing import Any

from made_sweeps import loosen, sql

#: Columns of `trial` that were added after revision 0010, and after revision 0006.
AFTER_0010 = (
    "period_median_low_ms period_median_high_ms host_high_ms threads disturbance pair_speedup"
    " pair_speedup_low pair_speedup_high pair_speedup_disturbed pairs pair_period_speedup"
    " pair_period_speedup_low pair_period_speedup_high pair_period_speedup_disturbed period_pairs"
    " pair_disturbance host collective_ms exposed_collective_ms rank_spread_ms ranks"
    " ranks_peak_allocated_bytes cold_s cold_interpreter_s cold_imports_s cold_device_s"
    " cold_build_s cold_load_s cold_trace_s cold_compile_s cold_autotune_s cold_capture_s"
    " cold_first_call_s steady_call cache_bytes cache_hits cache_misses cache_reuse"
)
AFTER_0006 = (
    "host_ms disturbed_fraction compilation kernel_fingerprint latency_p99_ms quantization_error"
    " ttft_ms tpot_ms tpot_p99_ms tokens_per_s"
)
#: Type of a column of SQLite -> type that it had before revision 0014.
_TYPES = {r"(?<=_at )TEXT\b": "DATETIME", r"\bTEXT\b": "VARCHAR", r"\bREAL\b": "DOUBLE"}


#: The table that revision 0018 added, a table that revision 0016 dropped, and a table and a column
#: that revision 0017 dropped.
_DROPPED = (
    "DROP TABLE trace",
    """
    CREATE TABLE acknowledgement (id INTEGER NOT NULL, cell_key TEXT, hardware TEXT, metric TEXT,
        sweep_id TEXT, reason TEXT, acknowledged_at TEXT,
        CONSTRAINT pk_acknowledgement PRIMARY KEY (id))
    """,
    """
    CREATE TABLE calibration (id INTEGER NOT NULL, environment_id TEXT NOT NULL, ceilings TEXT,
        CONSTRAINT pk_calibration PRIMARY KEY (id),
        FOREIGN KEY(environment_id) REFERENCES environment (id))
    """,
    "ALTER TABLE trial ADD COLUMN min_bytes REAL",
)


def without_checks(path: Any) -> None:
    """Make it a database of revision 0013, whose tables take any value."""
    sql(path, *_DROPPED)
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


def lower_to(path: Any, revision: str, later_columns: str) -> None:
    """Make it a database of this revision, in which trials of a disturbed host are `noisy`, and
    `trial` lacks these columns, separated by blanks."""
    without_checks(path)
    sql(
        path,
        "UPDATE trial SET status = 'noisy', reason = disturbance WHERE disturbance IS NOT NULL",
        "DROP VIEW results",
        *(f"ALTER TABLE trial DROP COLUMN {name}" for name in later_columns.split()),
        "CREATE VIEW results AS SELECT * FROM result",
        f"UPDATE alembic_version SET version_num = '{revision}'",
    )


def lower_to_0010(path: Any) -> None:
    lower_to(path, "0010", AFTER_0010)
