"""`effbench import`: whole sweeps from files and other databases. (`import` is no name for a module.)"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from effbench.commands import options
from effbench.errors import EffbenchError, NothingFoundError, StoreError
from effbench.printable import one_line
from effbench.report.history_table import LABEL
from effbench.store import Store
from effbench.store.sources import found, opened
from effbench.store.transfer import Arrival, load

HELP = "Whole sweeps from files that `effbench export --whole` wrote, or from another database; twice does no harm."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="JSON lines (.jsonl, .jsonl.gz), a Parquet folder, a folder of these, - for standard input, or another "
        "effbench database (a path or URL)",
    )
    options.add_db(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="ID|NAME|last",
        help="of a database: which sweep; may be given several times (default: all)",
    )
    parser.add_argument(
        "--baselines",
        action="store_true",
        help="also the baselines and acknowledgements of these sweeps; what is set here already stays",
    )
    parser.add_argument("--no-samples", action="store_true", help="leave the raw samples out")


def run(args: argparse.Namespace) -> int:
    sources = [one for source in args.sources for one in found(source)]
    tally = Tally()
    with Store.open(args.db, mode="write") as store:
        for source in sources:
            try:
                take(
                    source,
                    store,
                    tally,
                    sweeps=args.sweep,
                    baselines=args.baselines,
                    samples=not args.no_samples,
                )
            except (StoreError, NothingFoundError) as error:
                if len(sources) == 1:
                    raise
                tally.failed(error)  # the other sources are as good as before
    return tally.end(args.db)


def take(
    source: str,
    store: Store,
    tally: Tally,
    *,
    sweeps: Sequence[str] = (),
    baselines: bool = False,
    samples: bool = True,
    option: str = "--db",
) -> None:
    """Import one source and print a line for each of its sweeps. `option`: by which the database was named."""
    with opened(source, store, sweeps=sweeps, samples=samples, option=option) as records:
        for arrival in load(store, records, baselines=baselines, samples=samples):
            tally.add(arrival)


class Tally:
    """What was said about each sweep, and about all."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.errors: list[str] = []

    def add(self, arrival: Arrival) -> None:
        self.outcomes[arrival.outcome] += 1
        if arrival.reason:
            self.errors.append(arrival.reason)
        name = f" {one_line(arrival.name, LABEL)}" if arrival.name else ""
        print(f"{arrival.sweep_id}{name}: {said(arrival)}", flush=True)
        for note in arrival.notes:
            print(f"  {one_line(note)}")

    def failed(self, error: EffbenchError) -> None:
        self.errors.append(str(error))

    def end(self, db: str) -> int:
        """Print the sum; raises the errors that there were, or NothingFoundError where there was no sweep at all."""
        total = self.outcomes.total()
        if self.errors:
            more = f" (and {len(self.errors) - 1} more errors)" if len(self.errors) > 1 else ""
            raise StoreError(self.errors[0] + more)
        if not total:
            raise NothingFoundError("there is no sweep in what was named")
        words = {"imported": "imported", "completed": "completed", "present": "already there"}
        counts = ", ".join(f"{self.outcomes[key]} {word}" for key, word in words.items() if self.outcomes[key])
        from effbench.store import connect

        print(f"{total} sweep{'s' * (total != 1)}: {counts} · database {connect.describe(connect.parse_url(db))}")
        return 0


def said(arrival: Arrival) -> str:
    """What became of a sweep, in words."""
    extra = ", ".join(counted(count, what) for what, count in sorted(arrival.added.items()))
    cells, trials = counted(arrival.cells, "cells"), counted(arrival.trials, "trials")
    extra = f", with {extra}" if extra else ""
    if arrival.outcome == "refused":
        return "refused, nothing of it was written"
    if arrival.outcome == "imported":
        return f"imported, {cells}, {trials}{extra}"
    if arrival.outcome == "present":
        return f"already there, {counted(arrival.total, 'trials')}"
    parts = [f"{cells} more"] if arrival.cells else []
    parts += [f"{trials} more, {arrival.total} now"] if arrival.trials else []
    parts += [f"{arrival.state[0]} -> {arrival.state[1]}"] if arrival.state else []
    return f"completed: {', '.join(parts)}{extra if parts else extra.removeprefix(', with ')}"


def counted(number: int, what: str) -> str:
    """`what` is a plural: `1 trial`, `2 trials`."""
    return f"{number} {what.removesuffix('s') if number == 1 else what}"
