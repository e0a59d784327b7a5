"""`effbench db upgrade|check`: upgrade the schema, or check the rows."""

from __future__ import annotations

import argparse

from effbench.cli import options
from effbench.core.errors import UsageError
from effbench.core.printable import one_line
from effbench.store import connect, maintenance

HELP = "Upgrade a database to this version's schema, or check its rows."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["upgrade", "check"], help="upgrade the schema, or check its rows"
    )
    options.add_db(parser)
    newest = f"the newest {maintenance.NEWEST:,} trials"
    deep = f"check: read all trials with their samples and results, not only {newest}"
    parser.add_argument("--deep", action="store_true", help=deep)


def run(args: argparse.Namespace) -> int:
    if args.action == "check":
        return check(args.db, args.deep)
    if args.deep:
        raise UsageError("--deep only applies to effbench db check")
    upgrade(args.db)
    return 0


def upgrade(db: str) -> None:
    name = connect.describe(connect.parse_url(db))
    before, after = maintenance.upgrade(db)
    if before == after:
        print(f"{name}: schema is already {after}")
        return
    text = f"{name}: schema {before or 'none'} → {after}"
    copy = maintenance.copy_before(db, before) if before else None
    if copy:
        text += f"; the file as it was: {copy}"
    print(text)


def check(db: str, deep: bool) -> int:
    """Print the faults of the database; return the exit code."""
    try:
        faults = maintenance.check(db, deep=deep)
    except connect.DamagedError as error:
        faults = str(error).splitlines()
    for fault in faults:
        print(one_line(fault))
    if faults:
        return 1
    text = f"{connect.describe(connect.parse_url(db))}: no faults found"
    if not deep:
        text += f"; --deep also reads trials before the newest {maintenance.NEWEST:,}"
    print(text)
    return 0
