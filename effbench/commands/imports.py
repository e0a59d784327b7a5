"""`effbench import`: import whole sweeps from other databases. (`import` cannot name a module.)"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from effbench.commands import options
from effbench.errors import NothingFoundError, StoreError
from effbench.printable import one_line
from effbench.store import Store, connect

if TYPE_CHECKING:
    from effbench.store.source import Source

HELP = "Import whole sweeps from files of `effbench export --whole` or from other databases. Repeating it is safe."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a file that `effbench export --whole` wrote, another effbench database (path or URL), or - for "
        "standard input",
    )
    options.add_db(parser)
    options.add_sweeps(parser)
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also import baselines and acknowledgements of these sweeps; existing ones are kept",
    )
    parser.add_argument("--no-samples", action="store_true", help="omit the raw samples")


def run(args: argparse.Namespace) -> int:
    from effbench.store.source import opened

    tally = Tally()
    for path in args.sources:
        try:
            with opened(path) as source, Store.open(args.db, mode="write") as store:
                tally.take(store, source, args.sweep, baselines=args.baselines, samples=not args.no_samples)
        except (StoreError, NothingFoundError) as error:
            if len(args.sources) == 1:
                raise
            tally.errors.append(str(error))  # the other sources can still be imported
    return tally.end(args.db)


class Tally:
    """Import sources; count the sweeps by outcome and collect the errors."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []

    def take(self, store: Store, source: Source, sweeps: Sequence[str], **parts: bool) -> None:
        """Import sweeps of one source and print a line for each. `parts`: baselines, samples (`transfer.copy`)."""
        from effbench.store.transfer import copy

        for arrival in copy(source, store, source.sweep_ids(sweeps), **parts):
            self.outcomes[arrival.outcome] += 1
            if arrival.reason:
                self.errors.append(arrival.reason)
            name = f" {one_line(arrival.name, 40)}" if arrival.name else ""
            nouns = {table: table.replace("sweep_cell", "planned cell").replace("_", " ") for table in arrival.added}
            added = [counted(number, nouns[table]) for table, number in arrival.added.items()]
            print(f"{arrival.sweep_id}{name}: {', '.join([arrival.outcome, *added])}", flush=True)
            for note in arrival.notes:
                print(f"  {one_line(note)}")

    def end(self, db: str) -> int:
        """Print the totals; raise StoreError if there were errors."""
        if self.errors:
            more = f" (and {counted(len(self.errors) - 1, 'more error')})" if len(self.errors) > 1 else ""
            raise StoreError(self.errors[0] + more)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes.items())
        total = counted(self.outcomes.total(), "sweep")
        print(f"{total}: {counts} · database {connect.describe(connect.parse_url(db))}")
        return 0


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
