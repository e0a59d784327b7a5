"""`effbench db upgrade|check`: upgrade the schema, or check the rows."""

from __future__ import annotations

import argparse

from effbench.cli import options
from effbench.core.printable import one_line
from effbench.store import connect, maintenance

HELP = "Upgrade a database to this version's schema, or check its rows."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=["upgrade", "check"], help="upgrade the schema, or check its rows"
    )
    options.add_db(parser)


def run(args: argparse.Namespace) -> int:
    name = connect.describe(connect.parse_url(args.db))
    if args.action == "check":
        return check(args.db, name)
    upgrade(args.db, name)
    return 0


def upgrade(db: str, name: str) -> None:
    before, after = maintenance.upgrade(db)
    if before == after:
        print(f"{name}: schema is already {after}")
        return
    text = f"{name}: schema {before or 'none'} → {after}"
    copy = maintenance.copy_before(db, before) if before else None
    if copy:
        text += f"; the file as it was: {copy}"
    print(text)


def check(db: str, name: str) -> int:
    """Print the faults of the database; return the exit code."""
    try:
        faults = maintenance.check(db)
    except connect.DamagedError as error:
        faults = str(error).splitlines()
    for fault in faults or [f"{name}: no faults found"]:
        print(one_line(fault))
    return 1 if faults else 0
