"""`effbench export`: the view `results` as CSV or JSON lines."""

from __future__ import annotations

import argparse
import csv
import io
import json

from effbench.commands import options
from effbench.store import RESULT_COLUMNS, Store

HELP = "The view `results` (all its columns) as CSV or JSON lines."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser, default=None)
    parser.add_argument("--format", default="csv", choices=["csv", "jsonl"], help="(default: csv)")
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        rows = store.results(store.find_sweep(args.sweep).id if args.sweep else None)
    options.write(as_csv(rows) if args.format == "csv" else as_json_lines(rows), args.out)
    return 0


def as_csv(rows: list[dict]) -> str:
    """NULL is an empty field; `params` is its JSON text; times are ISO 8601 in UTC."""
    out = io.StringIO()
    writer = csv.DictWriter(out, RESULT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {**row, "started_at": str(row["started_at"]), "params": json.dumps(row["params"], sort_keys=True)}
        )
    return out.getvalue()


def as_json_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row, default=str, allow_nan=False) + "\n" for row in rows)
