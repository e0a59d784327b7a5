"""`effbench compare`: compare two sweeps, or two parts of one, cell by cell and metric by
metric."""

from __future__ import annotations

import argparse
import fnmatch
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from effbench.analysis.compare import (
    CellSelection,
    Compared,
    compare_parts,
    compare_sweeps,
    find,
)
from effbench.analysis.limits import STATUS, Limits, check_metric, limits_of, read
from effbench.analysis.matching import ACROSS, BY_ENVIRONMENT, CellPair
from effbench.analysis.verdicts import Change, Verdict, counted
from effbench.cli import options
from effbench.core.errors import ConfigError, NothingFoundError, UsageError
from effbench.core.terminal import Console, escape
from effbench.render import comparison
from effbench.store.store import Store

#: Rows of cells that only one side has, to print; more are only counted.
MOST_UNMATCHED = 10
HELP = (
    "Compare two sweeps cell by cell and metric by metric; with --by, compare two parts of one"
    " sweep."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    sweeps = "sweeps before and after: ids, names, labels, baselines or last; with --by, one sweep"
    parser.add_argument("sweeps", nargs="+", metavar="SWEEP", help=sweeps)
    parts = (
        f"compare two parts of one sweep: {', '.join(BY_ENVIRONMENT)}, or a parameter such as dtype"
    )
    parser.add_argument("--by", metavar="NAME", help=parts)
    values = (
        "the two values of --by to compare, in this order; part of a value is enough, and a folder"
        " or interpreter may be a path; needed if there are more"
    )
    parser.add_argument("--values", nargs=2, metavar=("BEFORE", "AFTER"), help=values)
    add_choice(parser)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that `compare` and `check` share: which rows, what counts as a change, and
    the output."""
    add = parser.add_argument
    metric = "compare only this metric; may be repeated (default: all in --config)"
    add("--metric", action="append", metavar="NAME", help=metric)
    verdicts = f"show only these verdicts, separated by commas: {', '.join(sorted(Verdict))}"
    allowed = partial(words_of, "--only", allowed=tuple(Verdict))
    add("--only", type=allowed, metavar="VERDICTS", help=verdicts)
    cell = "report only cells whose name contains this text or matches it as a glob pattern"
    add("--cell", metavar="TEXT", help=cell)
    floor = "smallest relative change of times, energy and memory that counts: 3%% or 0.03"
    add("--floor", metavar="SIZE", help=floor)
    on = "use only trials on this hardware, interpreter or folder; part of the name is enough"
    add("--on", metavar="NAME", help=on)
    across = f"compare even if these differ, separated by commas: {', '.join(ACROSS)}"
    add("--across", default="", metavar="NAMES", help=across)
    config = "limits and exceptions: a file, or a name in conf/check (default: default)"
    add("--config", metavar="NAME|FILE", help=config)
    setting = "override a setting of --config"
    add(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="KEY=VALUE",
        help=setting,
    )
    add("--all", action="store_true", help="show all rows, also those with the verdict same")
    formats = ["table", *comparison.FORMATS]
    add("--format", default="table", choices=formats, help="(default: table)")
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        compared = compare(store, args)
    rows = chosen(compared.changes, args)
    if args.format == "table":
        with options.console(args) as console:
            show(console, compared, rows, args)
    else:
        shown, omitted = visible(rows, args)
        if args.format == "markdown":
            text = comparison.markdown(compared, shown, omitted)
        elif args.format == "json":
            text = comparison.as_json(compared, rows)
        elif args.format == "csv":
            text = comparison.as_csv(rows)
        else:
            text = comparison.as_junit(compared, rows)
        options.write(text, args)
    return 0 if compared.changes else NothingFoundError.exit_code  # no cell has these metrics


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
    if args.floor:
        try:
            limits.set_every_floor(limits_of({"floor": args.floor}).floor)
        except ConfigError as error:
            raise UsageError(f"--{error}") from error
        limits.source = f"{limits.source}, --floor {args.floor}"
    if args.metric:
        limits.metrics = [check_metric(name) for name in dict.fromkeys(args.metric)]
    return limits


def words_of(option: str, text: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the comma-separated words of an option. Raises UsageError for a word that is not in
    `allowed`."""
    words = tuple(word.strip() for word in (text or "").split(",") if word.strip())
    if text and not words:
        raise UsageError(f"{option}: no name given; choose from {', '.join(allowed)}")
    for word in words:
        if word not in allowed:
            raise UsageError(f"{option}: unknown name {word}; choose from {', '.join(allowed)}")
    return words


def wanted_cells(text: str | None) -> Callable[[CellPair], bool] | None:
    """Return a function that matches cells: `text` is part of, or a glob pattern for, the name in
    the tables or `model bs=… mode dtype`; or it is the start (6 digits or more) of the cell key.
    None if `text` is None."""
    if text is None:
        return None

    def fits(pair: CellPair) -> bool:
        about = pair.about
        names = (pair.name, f"{about.model} bs={about.bs} {about.mode} {about.dtype}")
        is_key = len(text) >= 6 and pair.key.startswith(text)
        return is_key or any(text in name or fnmatch.fnmatchcase(name, text) for name in names)

    return fits


def chosen(changes: Sequence[Change], args: argparse.Namespace) -> list[Change]:
    """Return the rows whose verdict --only allows."""
    return [change for change in changes if not args.only or change.verdict in args.only]


def visible(
    rows: Sequence[Change], args: argparse.Namespace, is_gate: bool = False
) -> tuple[list[Change], str]:
    """Return the rows to print, and the numbers of the others: `same` ones that do not fail on both
    sides, and `new` or `missing` ones if there are many, because the sweeps have different
    matrices. --all and --only omit none; nor does a gate omit rows that make it fail."""
    if args.all or args.only:
        return [*rows], ""
    numbers = Counter(change.verdict for change in rows)
    shown, omitted = [], []
    for change in rows:
        is_one_sided = change.verdict in (Verdict.NEW, Verdict.MISSING)
        is_one_of_many = is_one_sided and numbers[change.verdict] > MOST_UNMATCHED
        is_same = change.verdict is Verdict.SAME and change.metric != STATUS
        if is_same or (is_one_of_many and not (is_gate and change.gates)):
            omitted.append(change)
        else:
            shown.append(change)
    return shown, counted(omitted)


def show(
    console: Console,
    compared: Compared,
    rows: Sequence[Change],
    args: argparse.Namespace,
    is_gate: bool = False,
) -> None:
    """Print title, differences, rows, a line for each mode, and the smallest change these sweeps
    can detect."""
    console.print_line(escape(comparison.heading(compared)), "bold")
    for text in compared.differences:
        console.print_line(f"  {escape(text)}", "yellow")
    shown, omitted = visible(rows, args, is_gate)
    if shown:
        console.print_table(comparison.table_of(shown))
    more = f" (the table omits {omitted}; --all shows all rows)" if omitted else ""
    for text in (f"{comparison.counts_text(compared)}{more}", *comparison.summary_lines(compared)):
        console.print_line(escape(text))
    for note in compared.notes:
        console.print_line(f"note: {escape(note)}", "yellow")
