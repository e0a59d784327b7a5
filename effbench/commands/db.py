"""`effbench db upgrade|check`: upgrade the schema, or check the rows."""

from __future__ import annotations

import argparse

from effbench.commands import options
from effbench.errors import UsageError
from effbench.printable import one_line
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
    name = connect.describe(connect.parse_url(args.db))
    if args.action == "upgrade":
        if args.deep:
            raise UsageError("--deep only applies to effbench db check")
        before, after = maintenance.upgrade(args.db)
        change = (
            f"schema is already {after}"
            if before == after
            else f"schema {before or 'none'} → {after}"
        )
        copy = maintenance.copy_before(args.db, before) if before not in (None, after) else None
        print(f"{name}: {change}" + (f"; the file as it was: {copy}" if copy else ""))
        return 0
    try:
        problems = maintenance.check(args.db, deep=args.deep)
    except connect.DamagedError as error:
        problems = str(error).splitlines()
    for problem in problems:
        print(one_line(problem))
    if not problems:
        older = (
            ""
            if args.deep
            else f"; --deep also reads trials before the newest {maintenance.NEWEST:,}"
        )
        print(f"{name}: no faults found{older}")
    return 1 if problems else 0
