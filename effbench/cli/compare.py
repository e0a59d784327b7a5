"""`effbench compare`: compare two sweeps, or two parts of one, cell by cell and metric by
metric."""

from __future__ import annotations

import argparse

from effbench.analysis.compare import (
    CellSelection,
    Compared,
    compare_parts,
    compare_sweeps,
    find,
)
from effbench.analysis.limits import Limits, check_metric, read
from effbench.analysis.matching import ACROSS, BY_ENVIRONMENT
from effbench.cli import options
from effbench.core.errors import NothingFoundError, UsageError
from effbench.render import comparison
from effbench.store.store import Store

HELP = (
    "Compare two sweeps cell by cell and metric by metric; with --by, compare two parts of one"
    " sweep."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "sweeps",
        nargs="+",
        metavar="SWEEP",
        help="sweeps before and after: ids, names, labels, baselines or last; with --by, one sweep",
    )
    parser.add_argument(
        "--by",
        metavar="NAME",
        help=f"compare two parts of one sweep: {', '.join(BY_ENVIRONMENT)}, or a parameter such as"
        " dtype",
    )
    parser.add_argument(
        "--values",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="the two values of --by to compare, in this order; a folder or interpreter may be a"
        " path; needed if there are more",
    )
    add_choice(parser)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compare` and `check` share: what is compared, what counts as a change,
    and the output."""
    add = parser.add_argument
    add(
        "--metric",
        action="append",
        metavar="NAME",
        help="compare only this metric; may be repeated (default: all in --config)",
    )
    add(
        "--on",
        metavar="NAME",
        help="use only trials on this hardware, interpreter or folder; part of the name is enough",
    )
    add(
        "--across",
        default="",
        metavar="NAMES",
        help=f"compare even if these differ, separated by commas: {', '.join(ACROSS)}",
    )
    add(
        "--config",
        metavar="FILE",
        help="YAML file with limits and exceptions that override effbench's",
    )
    add(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="override a setting, such as floor=3%% or limits.latency_ms.floor=0.05",
    )
    add("--all", action="store_true", help="show all rows, also those with the verdict same")
    options.add_format(parser, *comparison.FORMATS)
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        compared = compare(store, args)
    write(comparison.Document(compared, args.all), args)
    return 0 if compared.changes else NothingFoundError.exit_code  # no cell has these metrics


def write(document: comparison.Document, args: argparse.Namespace) -> None:
    """Write a comparison or a check in the requested format."""
    if args.format == "table":
        with options.console(args) as console:
            document.print(console)
    else:
        options.write(document.render(args.format), args)


def compare(store: Store, args: argparse.Namespace) -> Compared:
    """Return the comparison that the arguments request. Raises UsageError, ConfigError,
    NothingFoundError."""
    limits, selection = limits_for(args), selection_of(args)
    if args.by and len(args.sweeps) != 1:
        raise UsageError(
            f"compare --by compares two parts of one sweep; name one sweep, not {len(args.sweeps)}"
        )
    if args.by and args.across:
        raise UsageError(
            "--across needs two sweeps; omit it: with --by, the two parts differ only in --by"
        )
    if args.values and not args.by:
        raise UsageError("--values needs --by; add --by NAME or omit --values")
    if args.by:
        sweep = find(store, args.sweeps[0], args.on, args.sweeps[0])
        return compare_parts(store, sweep, args.by, limits, args.values or (), selection)
    if len(args.sweeps) != 2:
        raise UsageError(
            "compare takes two sweeps, before and after, or one with --by; effbench ls lists the"
            " sweeps"
        )
    before, after = args.sweeps
    old, new = find(store, before, args.on, after), find(store, after, args.on, before)
    return compare_sweeps(store, old, new, limits, selection)


def selection_of(args: argparse.Namespace) -> CellSelection:
    return CellSelection(differing_names(args.across), args.on)


def limits_for(args: argparse.Namespace) -> Limits:
    """Return the limits of the configuration, overridden by the options."""
    limits = read(args.config, args.settings)
    if args.metric:
        limits.metrics = [check_metric(name) for name in dict.fromkeys(args.metric)]
    return limits


def differing_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated words of --across. Raises UsageError for one that is not in
    ACROSS."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    allowed = ", ".join(ACROSS)
    if text and not words:
        raise UsageError(f"--across: no name given; choose from {allowed}")
    for word in words:
        if word not in ACROSS:
            raise UsageError(f"--across: unknown name {word}; choose from {allowed}")
    return words
