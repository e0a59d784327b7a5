"""`effbench import`: import whole sweeps from other databases. (`import` cannot name a module.)"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from effbench.cli import options
from effbench.core.errors import NothingFoundError, StoreError
from effbench.core.printable import count, one_line
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
    options.add_db(parser)
    options.add_sweeps(parser)
    parser.add_argument(
        "--join",
        metavar="NAME",
        help="join the imported sweeps, each of another host with the same GPU, into one sweep NAME"
        " with intervals over hosts; by default the newest sweep of each source",
    )


@dataclass
class Imported:
    """What has arrived from all sources."""

    outcomes: Counter[str] = field(default_factory=Counter)
    sweep_ids: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    imported = Imported()
    for path in args.sources:
        try:
            take(path, args, imported)
        except (StoreError, NothingFoundError) as error:
            if len(args.sources) == 1:
                raise
            imported.errors.append(str(error))  # the other sources can still be imported
    if imported.errors:
        raise StoreError("\n".join(imported.errors))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in imported.outcomes.items())
    database = connect.describe(connect.parse_url(args.db))
    print(f"{count(imported.outcomes.total(), 'sweep')}: {counts} · database {database}")
    if args.join is not None:
        join(args.db, imported.sweep_ids, args.join)
    return 0


def take(path: str, args: argparse.Namespace, imported: Imported) -> None:
    """Import the sweeps of a source that the command line names. Raises StoreError if it cannot be
    read, NothingFoundError if it lacks one of them."""
    from effbench.store.source import opened
    from effbench.store.transfer import copy

    references = args.sweep or []
    if not references and args.join is not None:
        references = ["last"]
    with connect.existing(f"{path}: no such file"), opened(path) as source:
        # an unknown sweep must fail before the database is created
        ids = source.sweep_ids(references)
        imported.sweep_ids += ids
        with Store.open(args.db, mode="write", bulk=True) as store:
            for arrival in copy(source, store, ids):
                imported.outcomes[arrival.outcome] += 1
                if arrival.reason:
                    imported.errors.append(arrival.reason)
                show(arrival)


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
    said: list[str] = [arrival.outcome]
    for table, number in arrival.added.items():
        if number:
            noun = table.replace("sweep_cell", "planned cell").replace("_", " ")
            said.append(count(number, noun))
    print(f"{arrival.sweep_id}{name}: {', '.join(said)}", flush=True)
    if arrival.note is not None:
        print(f"  {arrival.note}")
