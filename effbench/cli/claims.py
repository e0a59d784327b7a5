"""`effbench claims`: list published claims, each with its newest verdict on each machine."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from effbench.cli import options
from effbench.core.printable import tally
from effbench.core.settings import DEFAULT_DB
from effbench.core.table import Record, Table
from effbench.render.claims import claims_table, entries
from effbench.store.store import Store

HELP = (
    "List published claims about CUDA graphs and torch.compile, each with its newest verdict on"
    " each machine."
)
#: Columns in the terminal; Markdown has all.
COLUMNS = ("claim", "statement", "verdict", "measured", "reason", "machine")
REFERENCE = (
    "reference: shipped; each was measured on one host with an H200 and an Intel Xeon;"
    " `effbench reproduce all` measures your machine"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_format(parser, "markdown", "json")


def run(args: argparse.Namespace) -> int:
    records = entries(stored_verdicts(args.db))
    table = claims_table(records)
    if args.format == "table":
        print_claims(table, records, args)
    else:
        options.write(table.render(args.format), args)
    return 0


def stored_verdicts(db: str) -> list[dict[str, Any]]:
    """Return the verdicts in the database. The default database may be missing, because claims can
    be listed before any measurement."""
    if db == DEFAULT_DB and not Path(db).exists():
        return []
    with Store.open(db, mode="read") as store:
        return store.verdicts()


def print_claims(table: Table, records: Sequence[Record], args: argparse.Namespace) -> None:
    """Print the table's main columns, the number of claims with each verdict, and the origin of
    shipped ones."""
    columns = [column for column in table.columns if column.key in COLUMNS]
    counts = Counter(record["verdict"] for record in records)
    with options.console(args) as console:
        replace(table, columns=columns).print(console, lines=True)
        console.print_line(tally(counts.most_common()))
        if any(record["reference"] for record in records):
            console.print_line(REFERENCE, "dim")
