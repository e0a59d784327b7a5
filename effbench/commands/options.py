"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effbench.analysis.interpreters import labelled
from effbench.config import DEFAULT_DB
from effbench.errors import UsageError
from effbench.printable import printable

if TYPE_CHECKING:
    from effbench.store.store import Store
    from effbench.store.sweeps import SweepInfo


def add_db(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--db", default=DEFAULT_DB, metavar="URL", help="database: a path or any SQLAlchemy URL (default: %(default)s)"
    )


def add_sweep(parser: argparse.ArgumentParser, default: str | None = "last") -> None:
    parser.add_argument(
        "--sweep",
        default=default,
        metavar="ID|NAME|last",
        help=f"which sweep: its id, a unique part of it from the left, its name, or last (default: {default or 'all'})",
    )


def rows_of(store: Store, sweep: SweepInfo) -> list[dict[str, Any]]:
    """The view's rows of a sweep; where it has several interpreters each cell's in the order in which these were given,
    and labelled by them."""
    rows = store.results(sweep.id)
    rank = {one: index for index, one in enumerate(sweep.host.get("environments") or ())}
    place: dict[str, int] = {}
    for row in rows:
        place.setdefault(row["cell_key"], len(place))
    rows.sort(key=lambda row: (place[row["cell_key"]], rank.get(row["environment_id"], len(rank))))
    return labelled(rows, store.environments(row["environment_id"] for row in rows))


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", help="write to this file instead of standard output")


def write(text: str, out: str | None) -> None:
    """To standard output, or to a file whose folder is made."""
    if out is None:
        text = printable(text) if sys.stdout.isatty() else text  # files and pipes get the data as it is
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        return
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror or error}") from error
