"""`effbench history`: what changed over all sweeps, and what of it is known."""

from __future__ import annotations

import argparse
import io
import shlex
from collections.abc import Sequence

from rich.table import Table

from effbench.analysis.events import STATUS, Event
from effbench.analysis.history import DEFAULT_METRICS, judgeable
from effbench.commands import options
from effbench.commands.acknowledge import acknowledge, acknowledgements
from effbench.commands.past import table_of
from effbench.commands.show import metric_name
from effbench.errors import NothingFoundError
from effbench.report.history_table import FORMATS, HEADINGS, HistoryTable
from effbench.store.store import Store
from effbench.terminal import PLAIN_WIDTH, Console, escape, terminal

HELP = "Change points of every cell over all sweeps: what changed, when, by how much, with what."
ACK_HELP = "Accept changes, so that they are left out from now on: by their ids, or all of a cell."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--since", metavar="DATE|LABEL|SWEEP", help="only what happened from then on (default: all)")
    parser.add_argument(
        "--metric", action="append", type=judged_name, metavar="NAME",
        help=f"instead of the usual ones ({', '.join(DEFAULT_METRICS)}); may be given several times",
    )  # fmt: skip
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="only cells of this model")
    parser.add_argument("--mode", action="append", default=[], metavar="NAME", help="only cells of this mode")
    parser.add_argument("--host", action="append", default=[], metavar="NAME", help="only what this machine measured")
    add_name(parser, None)
    parser.add_argument("--all", action="store_true", help="acknowledged changes as well")
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)
    parts = parser.add_subparsers(dest="what", metavar="[ack | acks]")
    ack = parts.add_parser("ack", description=ACK_HELP)
    ack.add_argument("names", nargs="*", metavar="ID|CELL", help="ids of changes, or the start of a cell's key")
    ack.add_argument("--reason", metavar="TEXT", help="why it is accepted")
    ack.add_argument(
        "--metric", action="append", type=acked_name, default=argparse.SUPPRESS, metavar="NAME",
        help="of a cell: only this metric",
    )  # fmt: skip
    ack.add_argument(
        "--sweep", metavar="SWEEP",
        help="of a cell: only what may have come with this sweep (id, label, name); without a name all that may",
    )  # fmt: skip
    ack.add_argument(
        "--together", action="store_true", help="also what changed in the same cell at the same time, by other metrics"
    )
    ack.add_argument("--rm", action="append", default=[], metavar="ID", help="take an acknowledgement back")
    acks = parts.add_parser("acks", description="Every acknowledgement.")
    for part in (ack, acks):
        part.error = lambda message: parser.error(message)  # type: ignore[method-assign] - in effbench's own words
        # also before the subcommand: what was given there must not be undone here
        part.add_argument("--db", default=argparse.SUPPRESS, metavar="URL", help="as above")
        add_name(part, argparse.SUPPRESS)


def add_name(parser: argparse.ArgumentParser, default: str | None) -> None:
    parser.add_argument(
        "--name", default=default, metavar="NAME",
        help="only sweeps of this name, or with '' those without one (default: all but re-runs of check --confirm)",
    )  # fmt: skip


def judged_name(text: str) -> str:
    name = metric_name(text)
    if name not in judgeable():
        raise argparse.ArgumentTypeError(f"{name} has no history; allowed are {', '.join(judgeable())}")
    return name


def acked_name(text: str) -> str:
    return STATUS if text == STATUS else judged_name(text)


def run(args: argparse.Namespace) -> int:
    if args.what == "ack":
        return acknowledge(args)
    if args.what == "acks":
        return acknowledgements(args)
    with Store.open(args.db, mode="read") as store:
        if not store.sweeps():
            raise NothingFoundError(
                f"{store.name} holds no sweep yet; `effbench -m model=mlp mode=eager,default` runs one"
            )
        table = table_of(
            store, args.metric or DEFAULT_METRICS, args.model, args.mode, args.since, args.all, args.host, args.name
        )
    if args.format != "table":
        options.write(table.render(args.format), args)
    elif args.out:
        text = io.StringIO()
        show(Console(file=text, width=PLAIN_WIDTH), table)
        options.write(text.getvalue(), args)
    else:
        show(terminal(), table)
    return 0


def show(console: Console, table: HistoryTable) -> None:
    for title, events in (("Changes", table.confirmed), ("Recent, unconfirmed", table.recent)):
        if events:
            console.print(f"[bold]{title}[/]", highlight=False)
            console.print(drawn(table, events))
    for section in table.sections():
        console.print(f"[bold]{section.title}[/]", highlight=False)
        for line in section.lines:
            console.print(escape(line), highlight=False, soft_wrap=True)
    console.print(escape(table.summary()), highlight=False, soft_wrap=True)
    if table.found.sweeps:
        console.print(escape(table.verdict()), highlight=False, soft_wrap=True)
    alarms = [event for event in table.confirmed if event.alarms]
    if alarms:
        several = any(
            (one.series.cell_key, one.series.place) == (alarms[0].series.cell_key, alarms[0].series.place)
            for one in alarms[1:]
        )
        line = "" if table.name is None else f" --name {shlex.quote(table.name)}"
        console.print(
            f"! is worse, still so, and acknowledged by nobody; accept it: "
            f'effbench history ack {table.short[alarms[0].id]}{line}{" --together" if several else ""} --reason "why"',
            style="dim",
            highlight=False,
            soft_wrap=True,
        )


def drawn(table: HistoryTable, events: Sequence[Event]) -> Table:
    grid = Table(header_style="bold", pad_edge=False, box=None)
    for heading in HEADINGS:
        grid.add_column(heading, overflow="fold", no_wrap=heading == "id")
    for event in events:
        first, change, *rest = map(escape, table.row(event))
        tone = "bold red" if event.alarms else "green" if event.worse is False else "none"
        grid.add_row(first, f"[{tone}]{change}[/]", *rest, style="dim" if event.acknowledged is not None else "")
    return grid
