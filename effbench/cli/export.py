"""`effbench export`: write the view `results` for other programs, or whole sweeps for other
databases."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from effbench.cli import options
from effbench.core import outputs
from effbench.core.errors import UsageError
from effbench.core.printable import count, csv_value
from effbench.store import RESULT_COLUMNS, Store
from effbench.store.values import result_row

HELP = "Write the view `results` as CSV, or whole sweeps for `effbench import`."
#: Extension of a file -> its format.
FORMATS = {".csv": "csv", ".db": "db", ".sqlite": "db"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_sweeps(parser)
    parser.add_argument(
        "--format",
        choices=["csv", "db"],
        help="format of the view, or db: a SQLite file of whole sweeps, with plan, environments and"
        " every trial with its samples and trace (default: from the name of --out, else csv)",
    )
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    form = args.format or format_of(args.out)
    if form == "db":
        return write_sweeps(args)
    with Store.open(args.db, mode="read") as store:
        store.find_sweep("last")  # an empty database is an error
        ids = [store.find_sweep(reference).id for reference in args.sweep]
        rows = [result_row(result) for result in store.results(*ids)]
    options.write(csv_text(rows), args)
    return 0


def format_of(out: str | None) -> str:
    """Return the format of a file by its name: CSV without an extension. Raises UsageError for
    another extension than those of FORMATS."""
    suffix = Path(out or "").suffix
    if suffix and suffix not in FORMATS:
        raise UsageError(
            f"export: --out {out}: expected a name that ends in {', '.join(FORMATS)}; for another"
            " name add --format csv or --format db"
        )
    return FORMATS.get(suffix, "csv")


def csv_text(rows: Iterable[dict[str, Any]]) -> str:
    """Return the rows as CSV, `params` as JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, RESULT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        row["params"] = json.dumps(row["params"], sort_keys=True)
        writer.writerow({name: csv_value(value) for name, value in row.items()})
    return text.getvalue()


def write_sweeps(args: argparse.Namespace) -> int:
    """Write whole sweeps as a SQLite file."""
    from effbench.store.source import opened
    from effbench.store.transfer import write_file

    if args.out is None:
        raise UsageError("export --format db writes a binary file; add --out FILE.db")
    with opened(args.db) as source, tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        ids = source.sweep_ids(args.sweep)
        path = Path(folder) / "sweeps.db"
        write_file(source, ids, path)
        with path.open("rb") as file, outputs.output(Path(args.out)) as stream:
            shutil.copyfileobj(file, stream)
    if not options.is_stdout(args.out):
        print(f"{count(len(ids), 'whole sweep')} → {args.out}")
    return 0
