"""`effbench export`: write the view `results` for other programs, or whole sweeps for other databases."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effbench.commands import options
from effbench.errors import UsageError
from effbench.printable import csv_value
from effbench.store import RESULT_COLUMNS, Store

if TYPE_CHECKING:
    import pandas as pd

HELP = "Write the view `results` as CSV, JSON lines or Parquet; with --whole, write sweeps for `effbench import`."
FORMATS = ("csv", "jsonl", "parquet")
DATABASES = (".db", ".sqlite")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweeps(parser)
    form = "format of the view (default: from the name of --out, else csv); parquet needs effbench[export]"
    parser.add_argument("--format", choices=FORMATS, help=form)
    sweeps = "write a SQLite file with plan, environments and every trial with its samples; implied by --out FILE.db"
    parser.add_argument("--whole", action="store_true", help=sweeps)
    parser.add_argument("--no-samples", action="store_true", help="with --whole: omit the raw samples")
    parser.add_argument("--out", metavar="FILE", help="write to this file instead of standard output")
    options.add_force(parser)


def run(args: argparse.Namespace) -> int:
    if args.whole or (args.out and args.out.endswith(DATABASES) and not args.format):
        if args.format:
            raise UsageError("export --whole writes a SQLite file; omit --format, which is for the view `results`")
        return whole(args)
    if args.no_samples:
        raise UsageError("export --no-samples needs --whole: the view `results` has no samples")
    return view(args)


def view(args: argparse.Namespace) -> int:
    name = (args.out or "").removesuffix(".gz")
    form = args.format or next((form for form in FORMATS if name.endswith(f".{form}")), "csv")
    if form == "parquet" and not args.out:
        raise UsageError("export --format parquet needs --out FILE")
    with Store.open(args.db, mode="read") as store:
        ids = list(dict.fromkeys(store.find_sweep(reference).id for reference in args.sweep)) or [None]
        rows = [row for sweep_id in ids for row in store.results(sweep_id)]
    if form == "jsonl":  # pandas would round
        options.write("".join(json.dumps(row, default=str, allow_nan=False) + "\n" for row in rows), args)
    elif form == "csv":
        frame = frame_of([{**row, "started_at": str(row["started_at"])} for row in rows])
        options.write(frame.map(csv_value).to_csv(index=False, lineterminator="\n"), args)
    else:
        content = as_parquet(frame_of(rows))
        with options.output(args, set(RESULT_COLUMNS)) as stream:
            stream.write(content)
    return 0


def frame_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the rows as a DataFrame with exact values, None for NULL, and `params` as JSON text."""
    import pandas as pd

    rows = [{**row, "params": json.dumps(row["params"], sort_keys=True)} for row in rows]
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS), dtype=object)


def as_parquet(frame: pd.DataFrame) -> bytes:
    from effbench.store.schema import RESULT_DTYPES

    kinds = {**RESULT_DTYPES, "started_at": "datetime64[us, UTC]", "params": "string"}
    content = io.BytesIO()
    try:
        frame.astype(kinds).to_parquet(content, index=False, compression="zstd")
    except ImportError as error:  # pandas needs pyarrow
        raise UsageError("Parquet needs pyarrow; run pip install 'effbench[export]'") from error
    return content.getvalue()


def whole(args: argparse.Namespace) -> int:
    from effbench.store.source import opened
    from effbench.store.transfer import write_file

    if args.out in (None, options.STDOUT) and sys.stdout.isatty():
        raise UsageError("export --whole writes a SQLite file, which a terminal cannot show; add --out FILE.db")
    with opened(args.db) as source, tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        ids = source.sweep_ids(args.sweep)
        path = Path(folder) / "sweeps.db"
        write_file(source, ids, path, samples=not args.no_samples)
        with path.open("rb") as file, options.output(args, {"SQLite"}) as stream:
            shutil.copyfileobj(file, stream)
    if args.out not in (None, options.STDOUT):
        print(f"{len(ids)} whole sweep{'s' * (len(ids) != 1)} -> {args.out}")
    return 0
