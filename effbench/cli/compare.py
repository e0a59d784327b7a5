"""`effbench compare`: compare two sweeps, or two parts of one, cell by cell and metric by
metric."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Callable, Sequence
from functools import partial

from effbench.analysis.compare import (
    CellSelection,
    Compared,
    compare_parts,
    compare_sweeps,
    find,
)
from effbench.analysis.limits import Limits, check_metric, read
from effbench.analysis.matching import ACROSS, BY_ENVIRONMENT, CellPair
from effbench.analysis.verdicts import Change, Verdict
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
    """Add the options that `compare` and `check` share: which rows, what counts as a change, and
    the output."""
    add = parser.add_argument
    add(
        "--metric",
        action="append",
        metavar="NAME",
        help="compare only this metric; may be repeated (default: all in --config)",
    )
    add(
        "--only",
        type=partial(words_of, "--only", allowed=tuple(Verdict)),
        metavar="VERDICTS",
        help=f"show only these verdicts, separated by commas: {', '.join(sorted(Verdict))}",
    )
    add(
        "--cell",
        metavar="TEXT",
        help="report only cells whose name contains this text or matches it as a glob pattern",
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
    everything = args.all or bool(args.only)
    write(comparison.Document(compared, chosen(compared, args), everything), args)
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
    across = words_of("--across", args.across, ACROSS)
    return CellSelection(across, args.on, wanted_cells(args.cell))


def limits_for(args: argparse.Namespace) -> Limits:
    """Return the limits of the configuration, overridden by the options."""
    limits = read(args.config, args.settings)
    if args.metric:
        limits.metrics = [check_metric(name) for name in dict.fromkeys(args.metric)]
    return limits


def words_of(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the comma-separated words of an option. Raises UsageError for a word that is not in
    `allowed`."""
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if text and not words:
        raise UsageError(f"{option}: no name given; choose from {', '.join(allowed)}")
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option}: unknown name {word}; choose from {', '.join(allowed)}")
    return words


def wanted_cells(text: str | None) -> Callable[[CellPair], bool] | None:
    """Return a function that matches cells: `text` is part of the name in the tables, or a glob
    pattern for it, or the start (6 digits or more) of the cell key. None if `text` is None."""
    if text is None:
        return None

    def fits(pair: CellPair) -> bool:
        is_key = len(text) >= 6 and pair.key.startswith(text)
        return is_key or text in pair.name or fnmatch.fnmatchcase(pair.name, text)

    return fits


def chosen(compared: Compared, args: argparse.Namespace) -> list[Change]:
    """Return the rows whose verdict --only allows."""
    return [change for change in compared.changes if not args.only or change.verdict in args.only]
