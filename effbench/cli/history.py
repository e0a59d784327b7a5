"""`effbench history`: list what changed over all sweeps."""

from __future__ import annotations

import argparse

from effbench.analysis.history import DEFAULT_METRICS, JUDGED, read
from effbench.analysis.limits import read as read_limits
from effbench.cli import options
from effbench.core.terminal import escape
from effbench.render.history_table import FORMATS, changes_table, render, summary
from effbench.store.store import Store

HELP = (
    "List the change points of every cell over all sweeps: what changed, when, by how much, and"
    " what else changed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--metric",
        action="append",
        type=options.metric_of(JUDGED),
        metavar="NAME",
        help=f"metric to judge; may be repeated (default: {', '.join(DEFAULT_METRICS)})",
    )
    add(
        "--name",
        metavar="NAME",
        help="only sweeps with this name (default: all but the re-runs of check --confirm)",
    )
    add(
        "--config",
        metavar="FILE",
        help="YAML file with limits and exceptions that override effbench's, as in checks",
    )
    options.add_format(parser, *FORMATS)


def run(args: argparse.Namespace) -> int:
    limits = read_limits(args.config)
    with Store.open(args.db, mode="read") as store:
        store.find_sweep("last")  # raises NothingFoundError for an empty database
        past = read(store, args.metric or DEFAULT_METRICS, limits, args.name)
    if args.format != "table":
        options.write(render(past, args.format), args)
        return 0
    with options.console(args) as console:
        if past.changes:
            changes_table(past).print(console)
        console.print_line(escape(summary(past)))
    return 0
