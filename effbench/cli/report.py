"""`effbench report`: write the HTML report of a database."""

from __future__ import annotations

import argparse
from pathlib import Path

from effbench.cli import options
from effbench.core.errors import StoreError
from effbench.store.store import Store

HELP = (
    "Write an HTML report of the database: static files that open from disk or from any web server."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_sweeps(parser, default="all, with the newest of each GPU or CPU on the overview")
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the report (default: dashboards)",
    )


def run(args: argparse.Namespace) -> int:
    from effbench.render import data  # all slow
    from effbench.render.site.build import write_site

    out = Path(args.out or "dashboards")
    with Store.open(args.db, mode="read") as store:
        store.find_sweep("last")
        content = data.read(store, args.db, args.sweep)
    try:
        written = write_site(content, out)
    except OSError as error:
        raise StoreError(f"cannot write the report to {out}: {error.strerror or error}") from error
    print(f"{out / 'index.html'} ({len(written.written)} files): open it in a browser")
    return 0
