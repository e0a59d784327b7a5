"""`effbench import`: import whole sweeps from other databases. (`import` cannot name a module.)"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from effbench.cli import options
from effbench.core.errors import NothingFoundError, StoreError
from effbench.core.printable import count, one_line, tally
from effbench.store import Store, connect

if TYPE_CHECKING:
    from effbench.store.transfer import Arrival

HELP = (
    "Import whole sweeps from files of `effbench export` or from other databases. Repeating it is"
    " safe."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a file of `effbench export --out FILE.db`, or another effbench database (path or"
        " URL)",
    )
    options.add_sweeps(parser)
    parser.add_argument(
        "--join",
        metavar="NAME",
        help="join the imported sweeps, each of another host with the same GPU, into one sweep NAME"
        " with intervals over hosts; by default the newest sweep of each source",
    )


def run(args: argparse.Namespace) -> int:
    outcomes: Counter[str] = Counter()
    sweep_ids: list[str] = []
    errors: list[str] = []
    for path in args.sources:
        try:
            for arrival in take(path, args):
                show(arrival)
                sweep_ids.append(arrival.sweep_id)
                outcomes[arrival.outcome] += 1
                if arrival.reason:
                    errors.append(arrival.reason)
        except (StoreError, NothingFoundError) as error:
            if len(args.sources) == 1:
                raise
            errors.append(str(error))  # the other sources can still be imported
    if errors:
        raise StoreError("\n".join(errors))
    numbers = tally(outcomes.items())
    database = connect.describe(args.db)
    print(f"{count(outcomes.total(), 'sweep')}: {numbers} · database {database}")
    if args.join is not None:
        join(args.db, sweep_ids, args.join)
    return 0


def take(path: str, args: argparse.Namespace) -> Iterator[Arrival]:
    """Import the sweeps of a source that the command line names, and yield what has become of each.
    Raises StoreError if it cannot be read, NothingFoundError if it lacks one of them."""
    from effbench.store.source import opened
    from effbench.store.transfer import copy

    references = args.sweep
    if not references and args.join is not None:
        references = ["last"]
    file = connect.sqlite_file(path)
    if file is not None and not file.exists():
        raise StoreError(f"{path}: no such file")
    with opened(path) as source:
        # an unknown sweep must fail before the database is created
        ids = source.sweep_ids(references)
        with Store.open(args.db, mode="write", bulk=True) as store:
            yield from copy(source, store, ids)


def join(db: str, sweep_ids: list[str], name: str) -> None:
    with Store.open(db, mode="write") as store:
        joined = store.join(sweep_ids, name)
    hosts = f"{len(joined.hosts)} hosts ({', '.join(joined.hosts)})"
    cells = count(joined.cells, "cell")
    print(one_line(f"{joined.id} {joined.name}: joined, {hosts}, {cells}"))
    if joined.omitted:
        print(f"  omitted: {count(joined.omitted, 'cell')} that only some of the sweeps planned")


def show(arrival: Arrival) -> None:
    name = f" {one_line(arrival.name, 40)}" if arrival.name else ""
    trials = f", {count(arrival.trials, 'trial')}" if arrival.trials else ""
    print(f"{arrival.sweep_id}{name}: {arrival.outcome}{trials}", flush=True)
