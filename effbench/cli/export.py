"""`effbench export`: write the view `results` for other programs, or whole sweeps for other
databases."""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import IO, Any

from effbench.cli import options
from effbench.core.errors import UsageError
from effbench.core.printable import count, csv_value, printable
from effbench.store import RESULT_COLUMNS, Store
from effbench.store.values import result_row

HELP = "Write the view `results` as CSV or Parquet, or whole sweeps for `effbench import`."
FORMATS = ("csv", "parquet", "db")
#: rows of a group in a Parquet file; these are in memory at a time
CHUNK = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweeps(parser)
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="format of the view, or db: a SQLite file of whole sweeps, with plan, environments and"
        " every trial with its samples (default: from the name of --out, else csv); parquet needs"
        " effbench[export]",
    )
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    form = args.format or format_of(args.out)
    if options.is_stdout(args.out) and (
        form == "parquet" or (form == "db" and sys.stdout.isatty())
    ):
        raise UsageError(f"export --format {form} writes a binary file; add --out FILE.{form}")
    if form == "db":
        return write_sweeps(args)
    with Store.open(args.db, mode="read") as store:
        given = args.sweep or ["last"]  # an empty database is an error
        ids = list(dict.fromkeys(store.find_sweep(reference).id for reference in given))
        with options.output(args) as stream:
            rows = map(result_row, store.stream_results(ids if args.sweep else []))
            if options.is_stdout(args.out) and sys.stdout.isatty():
                rows = map(printable_row, rows)
            _WRITERS[form](rows, stream)
    return 0


def format_of(out: str | None) -> str:
    """Return the format that the name of a file says; csv without a name or an extension. Raises
    UsageError for an unknown extension."""
    if out is None or options.is_stdout(out):
        return "csv"
    suffix = Path(out).suffix.removeprefix(".")
    form = {"": "csv", "sqlite": "db"}.get(suffix, suffix)
    if form not in FORMATS:
        allowed = ", ".join(f".{known}" for known in FORMATS)
        raise UsageError(
            f"export --out {out}: unknown extension .{form}; allowed: {allowed}, or any with"
            " --format"
        )
    return form


def printable_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row without characters that a terminal would interpret."""
    return {k: printable(v) if isinstance(v, str) else v for k, v in row.items()}


def with_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with `params` as JSON text."""
    return {**row, "params": json.dumps(row["params"], sort_keys=True)}


def write_csv(rows: Iterable[dict[str, Any]], stream: IO[bytes]) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, RESULT_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: csv_value(value) for name, value in with_text(row).items()})
    text.detach()  # else the stream would be closed with it


def write_parquet(rows: Iterable[dict[str, Any]], stream: IO[bytes]) -> None:
    from effbench.store.schema import RESULT_DTYPES
    from effbench.store.trials import frame_of
    from effbench.store.values import batched

    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow; run pip install 'effbench[export]'") from error
    writer: Any = None
    dtypes = {**RESULT_DTYPES, "started_at": "datetime64[us, UTC]", "params": "string"}
    # the empty chunk gives the schema
    for chunk in chain([[]], batched(map(with_text, rows), CHUNK)):
        table = pa.Table.from_pandas(frame_of(chunk, dtypes), preserve_index=False)
        writer = writer or ParquetWriter(stream, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


_WRITERS = {"csv": write_csv, "parquet": write_parquet}


def write_sweeps(args: argparse.Namespace) -> int:
    """Write whole sweeps as a SQLite file."""
    from effbench.store.source import opened
    from effbench.store.transfer import write_file

    with opened(args.db) as source, tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        ids = source.sweep_ids(args.sweep)
        path = Path(folder) / "sweeps.db"
        write_file(source, ids, path)
        with path.open("rb") as file, options.output(args) as stream:
            shutil.copyfileobj(file, stream)
    if not options.is_stdout(args.out):
        print(f"{count(len(ids), 'whole sweep')} → {args.out}")
    return 0
