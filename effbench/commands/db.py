"""`effbench db upgrade|check`: migrations and integrity."""

from __future__ import annotations

import argparse

from effbench.commands import options
from effbench.printable import one_line
from effbench.store.store import Store

HELP = "Bring a database to this version's schema (upgrade), or look whether it is sound (check)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["upgrade", "check"])
    options.add_db(parser)


def run(args: argparse.Namespace) -> int:
    if args.action == "upgrade":
        before, after = Store.upgrade(args.db)
        print(
            f"{args.db}: schema {after} already"
            if before == after
            else f"{args.db}: schema {before or 'none'} -> {after}"
        )
        return 0
    problems = Store.check(args.db)
    for problem in problems:
        print(one_line(problem))
    if not problems:
        print(f"{args.db}: sound")
    return 1 if problems else 0
