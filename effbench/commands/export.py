"""`effbench export`: the view `results` for other programs, or whole sweeps for other databases."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
from contextlib import closing
from pathlib import Path

from effbench.commands import options
from effbench.commands.imports import Tally, take
from effbench.errors import NothingFoundError, UsageError
from effbench.store import RESULT_COLUMNS, Store
from effbench.store.bundle import header
from effbench.store.collect import collect

HELP = "The view `results` as CSV, JSON lines or Parquet; with --whole whole sweeps, which `effbench import` takes."
FORMATS = ("csv", "jsonl", "parquet")
WHOLE_FORMATS = ("jsonl", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="ID|NAME|last",
        help="which sweep: its id, a unique part of it from the left, its name, or last; may be given several times "
        "(default: all)",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="(default: by the name of --out, else csv, with --whole jsonl); Parquet needs effbench[export]",
    )
    parser.add_argument(
        "--whole", action="store_true", help="whole sweeps: plan, environments, every trial with its samples"
    )
    parser.add_argument("--no-samples", action="store_true", help="with --whole: without the raw samples")
    parser.add_argument("--to", metavar="URL", help="whole sweeps straight into another database, as import does")
    parser.add_argument(
        "--out", metavar="FILE", help="write there instead of standard output; whole sweeps as Parquet are a folder"
    )
    options.add_force(parser)


def run(args: argparse.Namespace) -> int:
    if args.to is not None:
        if args.out or args.format:
            raise UsageError("export --to writes into a database; --out and --format are for files")
        return into_database(args)
    if args.whole:
        return whole(args)
    if args.no_samples:
        raise UsageError("export --no-samples is for --whole: the view has no samples")
    return view(args)


def view(args: argparse.Namespace) -> int:
    form = args.format or format_of(args.out, FORMATS) or "csv"
    if form == "parquet" and not args.out:
        raise UsageError("export --format parquet needs --out FILE")
    with Store.open(args.db, mode="read") as store:
        ids = chosen(store, args.sweep) if args.sweep else [None]
        rows = [row for sweep_id in ids for row in store.results(sweep_id)]
    if form == "parquet":
        from effbench.store.bundle_parquet import view_bytes
        from effbench.store.schema import RESULTS

        content = view_bytes(rows, RESULTS)
        with options.output(args, set(RESULT_COLUMNS)) as stream:
            stream.write(content)
    else:
        options.write(as_csv(rows) if form == "csv" else as_json_lines(rows), args)
    return 0


def whole(args: argparse.Namespace) -> int:
    form = args.format or format_of(args.out, WHOLE_FORMATS) or "jsonl"
    if form not in WHOLE_FORMATS:
        raise UsageError(f"export --whole writes {' or '.join(WHOLE_FORMATS)}, not {form}")
    if form == "parquet" and not args.out:
        raise UsageError("export --whole --format parquet needs --out FOLDER")
    samples = not args.no_samples
    with Store.open(args.db, mode="read") as store:
        ids = chosen(store, args.sweep)
        with closing(collect(store, ids, samples=samples)) as records:
            if form == "parquet":
                from effbench.store.bundle_parquet import write_folder

                write_folder(Path(args.out), records, samples=samples, force=args.force)
            else:
                from effbench.store.bundle_files import write_lines

                with options.output(args, set(header(samples))) as stream:
                    write_lines(stream, records, samples=samples)
    if args.out not in (None, options.STDOUT):
        print(f"{len(ids)} whole sweep{'s' * (len(ids) != 1)} -> {args.out}")
    return 0


def into_database(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        chosen(store, args.sweep)  # before anything is made at the other end
    tally = Tally()
    with Store.open(args.to, mode="write") as store:
        take(args.db, store, tally, sweeps=args.sweep, samples=not args.no_samples, option="--to")
    return tally.end(args.to)


def chosen(store: Store, references: list[str]) -> list[str]:
    """The ids that are asked for, each once; without references all, oldest first."""
    if references:
        return list(dict.fromkeys(store.find_sweep(reference).id for reference in references))
    ids = [sweep.id for sweep in reversed(store.sweeps())]
    if not ids:
        raise NothingFoundError(f"{store.name} holds no sweep yet; `effbench -m model=mlp mode=eager,default` runs one")
    return ids


def format_of(out: str | None, formats: tuple[str, ...]) -> str | None:
    """The format that a file's name asks for; a folder is Parquet."""
    if not out:
        return None
    name = out.removesuffix(".gz")
    is_folder = out.endswith("/") or os.path.isdir(out)  # noqa: PTH112 - False for a name that cannot be looked up
    if formats is WHOLE_FORMATS and is_folder:
        return "parquet"
    return next((form for form in formats if name.endswith(f".{form}")), None)


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
