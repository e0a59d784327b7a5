"""`effbench history`: what changed over all sweeps, and what of it is acknowledged."""

from __future__ import annotations

import argparse
import io
import shlex

from effbench.commands import options
from effbench.commands.acknowledge import acknowledge, acknowledgements
from effbench.commands.show import metric_name
from effbench.comparison.history import DEFAULT_METRICS, judgeable
from effbench.comparison.settings import read as read_limits
from effbench.comparison.verdicts import STATUS
from effbench.errors import NothingFoundError
from effbench.report.history_table import FORMATS, HistoryTable, read
from effbench.store.store import Store
from effbench.terminal import PLAIN_WIDTH, Console, escape, terminal

HELP = "Change points of every cell over all sweeps: what changed, when, by how much, with what."
ACK_HELP = "Accept changes, so that they are omitted from now on."


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
    parser.add_argument(
        "--config", metavar="NAME|FILE", help="exceptions of compare and check (default: default): `ignore` accepts"
    )
    parser.add_argument("--all", action="store_true", help="acknowledged changes as well")
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)
    parts = parser.add_subparsers(dest="what", metavar="[ack | acks]")
    ack = parts.add_parser("ack", description=ACK_HELP)
    ack.add_argument(
        "names", nargs="*", metavar="ID|CELL|PATTERN",
        help="ids of changes, the start of a cell's key, or patterns as in exceptions (model=gpt2 metric=compile_*)",
    )  # fmt: skip
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
    exceptions = read_limits(args.config).exceptions
    if args.what == "ack":
        return acknowledge(args, exceptions)
    if args.what == "acks":
        return acknowledgements(args, exceptions)
    with Store.open(args.db, mode="read") as store:
        if not store.sweeps():
            raise NothingFoundError(
                f"{store.name} holds no sweep yet; `effbench -m model=mlp mode=eager,default` runs one"
            )
        metrics = args.metric or DEFAULT_METRICS
        table = read(
            store, metrics, args.model, args.mode, args.since, args.all, args.host, args.name, exceptions
        )  # fmt: skip
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
    def line(text: str, style: str = "") -> None:
        console.print(escape(text), style=style, highlight=False, soft_wrap=True)

    for title, changes in table.tables():
        line(title, "bold")
        console.print(changes.rich())
    for title, lines in table.sections():
        line(title, "bold")
        for text in lines:
            line(text)
    line(table.summary())
    if table.found.sweeps:
        line(table.verdict())
    alarms = [event for event in table.confirmed if event.alarms]
    if alarms:
        cells = [(event.series.cell_key, event.series.place) for event in alarms]
        named = "" if table.name is None else f" --name {shlex.quote(table.name)}"
        together = " --together" if cells[0] in cells[1:] else ""
        line(
            f"! is worse, still so, and not acknowledged; accept it: "
            f'effbench history ack {table.short[alarms[0].id]}{named}{together} --reason "why"',
            "dim",
        )
