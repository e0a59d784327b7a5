"""`effbench report`: the site of a database."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from effbench.commands import options
from effbench.errors import StoreError
from effbench.store.store import Store

HELP = "Write the site of a database: plain files that open from disk or from any web server."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser, default=None)
    parser.add_argument("--out", default="dashboards", metavar="DIR", help="folder of the site (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    with Store.open(args.db, mode="read") as store:
        from effbench.commands.material import gather
        from effbench.report.site.build import write_site

        material = gather(store, args.db, [args.sweep] if args.sweep else [])
        try:
            written = write_site(material, Path(args.out))
        except OSError as error:
            raise StoreError(f"cannot write the site to {args.out}: {error.strerror or error}") from error
    size = written.size() / 2**20
    print(
        f"{Path(args.out) / 'index.html'} ({len(written.written)} files, {size:.1f} MiB, "
        f"{time.perf_counter() - began:.1f} s): open it in a browser"
    )
    return 0
