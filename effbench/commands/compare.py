"""`effbench compare`: two sweeps cell by cell and metric by metric, or two halves of one."""

from __future__ import annotations

import argparse
import fnmatch
import io
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from effbench.analysis.halves import ACROSS
from effbench.analysis.limits import check_metric
from effbench.analysis.screen import STATUS, Change, Pair
from effbench.analysis.verdicts import Verdict
from effbench.commands import options
from effbench.errors import UsageError
from effbench.regression.compare import BY_ENVIRONMENT, Compared, compare_halves, compare_sweeps, find
from effbench.regression.settings import read
from effbench.report import comparison
from effbench.store.store import Store
from effbench.terminal import PLAIN_WIDTH, Console, escape, terminal

HELP = "Two sweeps against each other, cell by cell and metric by metric; with --by the two halves of one."
TONES = {
    Verdict.BROKEN: "bold red", Verdict.SLOWER: "red", Verdict.MISSING: "yellow", Verdict.AMBIGUOUS: "dim",
    Verdict.FIXED: "green", Verdict.FASTER: "green", Verdict.NEW: "cyan",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "sweeps", nargs="+", metavar="SWEEP",
        help="before and after: ids, names, baselines or last; with --by one sweep",
    )  # fmt: skip
    parser.add_argument(
        "--by", metavar="NAME",
        help=f"compare the halves of one sweep: {', '.join(BY_ENVIRONMENT)}, or a parameter such as dtype",
    )  # fmt: skip
    parser.add_argument(
        "--values", nargs=2, metavar=("BEFORE", "AFTER"), help="which two of --by, where there are more (or the order)"
    )
    add_choice(parser)
    parser.add_argument("--all", action="store_true", help="also the rows that are the same")
    parser.add_argument("--format", default="table", choices=["table", *comparison.FORMATS], help="(default: table)")
    options.add_out(parser)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """What `compare` and `check` share: which rows, and what counts as a change."""
    parser.add_argument(
        "--metric", action="append", metavar="NAME", help="only this metric; may be repeated (default: all of config)"
    )
    parser.add_argument(
        "--only", metavar="VERDICTS", help=f"only rows with these verdicts, with commas: {', '.join(Verdict)}"
    )
    parser.add_argument(
        "--cell", metavar="TEXT", help="tell only of cells whose name has this text, or fits it as a pattern"
    )
    parser.add_argument(
        "--floor",
        metavar="SIZE",
        help="least relative change that counts, of times, energy and memory of every cell: 3%% or 0.03",
    )
    parser.add_argument(
        "--on", metavar="NAME", help="only trials on this hardware or by this interpreter; a part of the name will do"
    )
    parser.add_argument(
        "--across", metavar="NAMES", default="", help=f"compare although these differ, with commas: {', '.join(ACROSS)}"
    )
    parser.add_argument(
        "--config",
        metavar="NAME|FILE",
        help="limits and exceptions: a file, or a name below conf/check (default: default)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="settings", help="a setting of it, on top"
    )


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        compared = compare(store, args)
    rows = chosen(compared.changes, args)
    if args.format == "table":
        text = io.StringIO()
        show(Console(file=text, width=PLAIN_WIDTH) if args.out else terminal(), compared, rows, args)
        if args.out:
            options.write(text.getvalue(), args)
    else:
        options.write(render(args.format, compared, rows, args), args)
    return 0


def compare(store: Store, args: argparse.Namespace) -> Compared:
    """What the arguments ask for. Raises UsageError, ConfigError, NothingFoundError."""
    limits = limits_of(args)
    keep = wanted_cells(args.cell)
    if args.by:
        if len(args.sweeps) != 1:
            raise UsageError("compare --by takes one sweep, whose halves are compared")
        sweep = find(store, args.sweeps[0], args.on)
        if args.across:
            raise UsageError("--across is for two sweeps: the halves of one differ in what --by names and nothing else")
        return compare_halves(store, sweep, args.by, limits, args.values or (), args.on, keep)
    if args.values:
        raise UsageError("--values names the two halves of --by, which is not given")
    if len(args.sweeps) != 2:
        raise UsageError("compare takes two sweeps, before and after; or one with --by (effbench ls lists them)")
    before, after = (find(store, reference, args.on) for reference in args.sweeps)
    return compare_sweeps(store, before, after, limits, across_of(args.across), args.on, keep)


def limits_of(args: argparse.Namespace) -> Any:
    """Limits of the configuration, with what the options say on top."""
    limits = read(args.config, args.settings)
    if args.floor:
        limits.floor_for_all = fraction(args.floor)
        limits.source = f"{limits.source}, --floor {args.floor}"
    if args.metric:
        limits.metrics = tuple(check_metric(name) for name in dict.fromkeys(args.metric))
    return limits


def fraction(text: str) -> float:
    """`3%` and `0.03` are the same."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise UsageError(f"--floor {text}: give a size such as 3% or 0.03") from error
    if not 0 <= value < 1:
        raise UsageError(f"--floor {text} is {value:.0%}: give a share below 100 %, such as 3% or 0.03")
    return value


def across_of(text: str) -> tuple[str, ...]:
    names = tuple(word for word in text.replace(" ", "").split(",") if word)
    for name in names:
        if name not in ACROSS:
            raise UsageError(f"--across {name} is not possible; it takes {', '.join(ACROSS)}")
    return names


def wanted_cells(text: str | None) -> Callable[[Pair], bool] | None:
    """By a part of the name in the tables or of `model bs=… mode dtype`, by a pattern of it, or by the start of the
    key."""
    if text is None:
        return None

    def fits(pair: Pair) -> bool:
        names = (pair.name, "{model} bs={bs} {mode} {dtype}".format_map(pair.about))
        fitting = any(text in name or fnmatch.fnmatchcase(name, text) for name in names)
        return fitting or (len(text) >= 6 and pair.key.startswith(text))

    return fits


def chosen(changes: Sequence[Change], args: argparse.Namespace) -> list[Change]:
    """The rows that --only asks for."""
    if not args.only:
        return list(changes)
    wanted = [word for word in args.only.replace(" ", "").split(",") if word]
    for word in wanted:
        if word not in tuple(Verdict):
            raise UsageError(f"--only {word}: a verdict is one of {', '.join(Verdict)}")
    return [change for change in changes if change.verdict in wanted]


def render(format: str, compared: Compared, rows: Sequence[Change], args: argparse.Namespace) -> str:
    if format == "json":
        return comparison.as_json(compared, rows)
    if format == "csv":
        return comparison.as_csv(rows)
    if format == "junit":
        return comparison.as_junit(compared, rows)
    shown = visible(rows, args)
    return comparison.markdown(compared, shown, len(rows) - len(shown))


def visible(rows: Sequence[Change], args: argparse.Namespace) -> list[Change]:
    """For people: what is the same is counted, not listed, unless it was asked for; one that fails on both sides is."""
    if args.all or args.only:
        return list(rows)
    return [change for change in rows if change.verdict is not Verdict.SAME or change.metric == STATUS]


def show(console: Console, compared: Compared, rows: Sequence[Change], args: argparse.Namespace) -> None:
    """Title, what differs, the rows, a line for each mode, and what these sweeps could have shown."""
    console.print(f"[bold]{escape(comparison.heading(compared))}[/]", highlight=False, soft_wrap=True)
    for text in compared.differences:
        console.print(f"  {escape(text)}", style="yellow", highlight=False, soft_wrap=True)
    shown = visible(rows, args)
    if shown:
        console.print(table_of(shown))
    hidden = len(rows) - len(shown)
    more = f" ({hidden} rows that are the same are not shown: --all)" if hidden else ""
    console.print(f"{comparison.counts_text(compared)}{more}", highlight=False, soft_wrap=True)
    for line in comparison.mode_lines(compared):
        console.print(escape(line), highlight=False, soft_wrap=True)
    if said := comparison.sensitivity(compared):
        console.print(escape(said), style="dim", highlight=False, soft_wrap=True)
    for line in comparison.limits_line(compared):
        console.print(escape(line), style="dim", highlight=False, soft_wrap=True)
    for note in compared.notes:
        console.print(f"note: {escape(note)}", style="yellow", highlight=False, soft_wrap=True)


def table_of(rows: Sequence[Change]) -> Table:
    drawn = Table(header_style="bold", pad_edge=False)
    cells = [comparison.cells_of(change) for change in rows]
    used = comparison.columns_used(cells)
    for n in used:
        justify = "right" if comparison.NUMERIC[n] else "left"
        drawn.add_column(comparison.HEADINGS[n], justify=justify, overflow="fold")
    for change, row in zip(rows, cells, strict=True):
        drawn.add_row(*(escape(row[n]) for n in used), style=TONES.get(change.verdict, ""))
    return drawn
