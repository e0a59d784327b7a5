"""`effbench db upgrade`: upgrade the schema of a database."""

from __future__ import annotations

import argparse

from effbench.store import connect, maintenance

HELP = "Upgrade a database to this version's schema."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["upgrade"], help="upgrade the schema")


def run(args: argparse.Namespace) -> int:
    name = connect.describe(args.db)
    before, after = maintenance.upgrade(args.db)
    if before == after:
        print(f"{name}: schema is already {after}")
        return 0
    text = f"{name}: schema {before or 'none'} → {after}"
    if before:
        text += f"; the file as it was: {maintenance.copy_before(args.db, before)}"
    print(text)
    return 0
