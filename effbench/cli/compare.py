"""`effbench compare`: compare two sweeps, or two parts of one, cell by cell and metric by
metric."""

from __future__ import annotations

import argparse

from effbench.analysis.cause import name_causes
from effbench.analysis.compare import Compared, compare_parts, compare_sweeps, find
from effbench.analysis.limits import COMPARED, Limits, read
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
        type=options.metric_of(COMPARED),
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
        type=differing_names,
        default=(),
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


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        compared = compare(store, args)
        name_causes(store, compared.changes)
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
    limits = limits_for(args)
    before, *rest = args.sweeps
    if args.values and not args.by:
        raise UsageError("--values needs --by; add --by NAME or omit --values")
    if args.by and (rest or args.across):
        raise UsageError(
            "compare --by compares two parts of one sweep, which differ only in --by; name one"
            " sweep, and omit --across"
        )
    if args.by:
        sweep = find(store, before, args.on)
        return compare_parts(store, sweep, args.by, limits, args.values or (), args.on)
    if len(rest) != 1:
        raise UsageError(
            "compare takes two sweeps, before and after, or one with --by; effbench ls lists the"
            " sweeps"
        )
    old, new = (find(store, reference, args.on) for reference in args.sweeps)
    return compare_sweeps(store, old, new, limits, args.across, args.on)


def limits_for(args: argparse.Namespace) -> Limits:
    """Return the limits of the configuration, overridden by the options."""
    limits = read(args.config, args.settings)
    if args.metric:
        limits.metrics = list(dict.fromkeys(args.metric))
    return limits


def differing_names(text: str) -> tuple[str, ...]:
    """Return the comma-separated words of --across."""
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in ACROSS:
            raise argparse.ArgumentTypeError(
                f"unknown name {word!r}; choose from {', '.join(ACROSS)}"
            )
    return words
