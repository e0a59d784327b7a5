"""`effbench report`: one self-contained page of a sweep."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from effbench.analysis.interpreters import labels
from effbench.commands import options
from effbench.errors import StoreError
from effbench.store.store import Store

HELP = "Write the report of a sweep as one self-contained HTML page."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    parser.add_argument("--out", default="dashboards", metavar="DIR", help="folder of the page (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        frame = store.results_frame(sweep.id)
        environments = store.environments(frame["environment_id"].unique())
    names = labels(environments)
    for column in dict.fromkeys(column for one in names.values() for column in one):
        frame[column] = [names[one][column] for one in frame["environment_id"]]
    from effbench.report.page import write_report

    try:
        page = write_report(frame, dataclasses.asdict(sweep), environments, Path(args.out), args.db)
    except OSError as error:
        raise StoreError(f"cannot write the report to {args.out}: {error.strerror or error}") from error
    print(f"{page} ({page.stat().st_size / 2**20:.1f} MiB): open it in a browser")
    return 0
