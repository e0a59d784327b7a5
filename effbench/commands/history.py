"""`effbench history`: what changed over all sweeps; `ack` and `acks`: which changes are known and accepted."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from effbench.commands import options
from effbench.commands.show import metric_name
from effbench.comparison.events import Event, History, SeriesId, event_id
from effbench.comparison.history import DEFAULT_METRICS, judgeable
from effbench.comparison.limits import PATTERNS, ExceptionRule
from effbench.comparison.settings import read as read_limits
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import row_names
from effbench.printable import one_line
from effbench.report.history_table import FORMATS, change_text, events_table, read, render, summary
from effbench.store.store import Store
from effbench.table import Column, Table
from effbench.terminal import Console, escape, terminal

HELP = "Change points of every cell over all sweeps: what changed, when, by how much, with what."
ACK_HELP = "Accept changes, so that they are omitted from now on."
NAME_HELP = "only sweeps of this name, or with '' those without one (default: all but re-runs of check --confirm)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--since", metavar="DATE|LABEL|SWEEP", help="only what happened from then on (default: all)")
    metrics = f"instead of the usual ones ({', '.join(DEFAULT_METRICS)}); may be given several times"
    parser.add_argument("--metric", action="append", type=judged_name, metavar="NAME", help=metrics)
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="only cells of this model")
    parser.add_argument("--mode", action="append", default=[], metavar="NAME", help="only cells of this mode")
    parser.add_argument("--host", action="append", default=[], metavar="NAME", help="only what this machine measured")
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    config = "exceptions of compare and check (default: default): `ignore` accepts"
    parser.add_argument("--config", metavar="NAME|FILE", help=config)
    parser.add_argument("--all", action="store_true", help="acknowledged changes as well")
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)
    parts = parser.add_subparsers(dest="what", metavar="[ack | acks]")
    ack = parts.add_parser("ack", description=ACK_HELP)
    patterns = "ids of changes (or their start), or patterns as in exceptions (model=gpt2 metric=compile_*)"
    ack.add_argument("names", nargs="*", metavar="ID|PATTERN", help=patterns)
    ack.add_argument("--reason", metavar="TEXT", help="why it is accepted")
    ack.add_argument("--rm", action="append", default=[], metavar="ID", help="take an acknowledgement back")
    acks = parts.add_parser("acks", description="Every acknowledgement.")
    for part in (ack, acks):
        # also before the subcommand: what was given there must not be undone here
        part.add_argument("--db", default=argparse.SUPPRESS, metavar="URL", help="as above")
        part.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=NAME_HELP)


def judged_name(text: str) -> str:
    name = metric_name(text)
    if name not in judgeable():
        raise argparse.ArgumentTypeError(f"{name} has no history; allowed are {', '.join(judgeable())}")
    return name


def run(args: argparse.Namespace) -> int:
    exceptions = [rule for rule in read_limits(args.config).exceptions if rule.changes.get("ignore")]
    if args.what == "ack":
        return take_back(args) if args.rm else acknowledge(args, exceptions)
    if args.what == "acks":
        return list_acknowledgements(args, exceptions)
    with Store.open(args.db, mode="read") as store:
        if not store.sweeps():
            raise NothingFoundError(
                f"{store.name} holds no sweep yet; `effbench -m model=mlp mode=eager,default` runs one"
            )
        found = read(
            store, args.metric or DEFAULT_METRICS, models=args.model, modes=args.mode, hosts=args.host, name=args.name,
            since=args.since, everything=args.all, exceptions=exceptions,
        )  # fmt: skip
    if args.format != "table":
        options.write(render(found, args.format), args)
    else:
        with options.console(args) as console:
            show(console, found, args.name)
    return 0


def show(console: Console, found: History, name: str | None) -> None:
    if found.events:
        console.print(events_table(found).rich())
    console.print_line(escape(summary(found)))
    if alarms := [event for event in found.changes if event.alarms]:
        named = "" if name is None else f" --name {shlex.quote(name)}"
        accept = f'effbench history ack {found.short_id(alarms[0].id)}{named} --reason "why"'
        console.print_line(escape(f"open: worse, still so, and not acknowledged; accept one: {accept}"), "dim")


# --- ack and acks ---


def acknowledge(args: argparse.Namespace, exceptions: Sequence[ExceptionRule]) -> int:
    reason = (args.reason or "").strip()
    if not args.names or not reason:
        raise UsageError(
            "history ack: name changes by their ids (effbench history shows them) or by patterns such as model=gpt2, "
            'and say why they are accepted: --reason "…"'
        )
    patterns = dict(word.split("=", 1) for word in args.names if "=" in word)
    if unknown := [name for name in patterns if name not in PATTERNS]:
        raise UsageError(f"{unknown[0]}= is no pattern; allowed are {', '.join(PATTERNS)}")
    with Store.open(args.db, mode="read") as store:
        found = read(store, judgeable(), everything=True, name=args.name, exceptions=exceptions)
    chosen = {event.id: event for name in args.names if "=" not in name for event in [meant(name, found)]}
    if patterns:
        rule = ExceptionRule(patterns, {"ignore": True}, "")
        fitting = [event for event in found.changes if event.acknowledged is None and found.is_matched(event, rule)]
        if not fitting:
            raise UsageError(f"no change that is not acknowledged fits {rule}; effbench history --all shows all")
        chosen |= {event.id: event for event in fitting}
    rows = [
        {"cell_key": event.series.cell_key, "hardware": event.series.place, "metric": event.series.metric,
         "sweep_id": event.after}
        for event in chosen.values()
    ]  # fmt: skip
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge([event.acknowledgement for event in chosen.values() if event.acknowledgement is not None])
        store.acknowledge(rows, reason)
    for event in chosen.values():
        cell = one_line(found.names[event.series.cell_key])
        print(f"acknowledged {found.short_id(event.id)}: {change_text(event)} {cell} {event.series.metric}, "
              f"first in {event.after}")  # fmt: skip
    return 0


def meant(name: str, found: History) -> Event:
    """Return the change whose id starts with `name`. Raises UsageError."""
    fitting = [event for event in found.changes if len(name) >= 4 and event.id.startswith(name.casefold())]
    if len(fitting) != 1:
        what = f"{len(fitting)} changes have an id" if fitting else "no change has an id"
        raise UsageError(f"{what} that starts with {name!r}; effbench history --all shows the ids (4 digits or more)")
    return fitting[0]


def take_back(args: argparse.Namespace) -> int:
    if args.names or args.reason:
        raise UsageError("history ack --rm takes an acknowledgement back: it needs no change and no reason")
    with Store.open(args.db, mode="read") as store:
        known = known_acknowledgements(store)
    gone = {}
    for wanted in args.rm:
        fitting = [key for key in known if len(wanted) >= 4 and known[key]["id"].startswith(wanted.casefold())]
        if len(fitting) != 1:
            what = f"{len(fitting)} acknowledgements start" if fitting else "no acknowledgement starts"
            raise UsageError(f"{what} with {wanted!r}; effbench history acks shows all")
        gone[fitting[0]] = known[fitting[0]]
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge(gone)
    for row in gone.values():
        print(f"taken back {row['id'][:6]}: {row['cell']} {row['metric']}")
    return 0


def list_acknowledgements(args: argparse.Namespace, exceptions: Sequence[ExceptionRule]) -> int:
    with Store.open(args.db, mode="read") as store:
        rows = list(known_acknowledgements(store).values())
    rows += [
        {"cell": str(rule), "metric": rule.patterns.get("metric", "all"), "when": "exception", "reason": rule.reason}
        for rule in exceptions
    ]
    if not rows:
        print("nothing is acknowledged")
        return 0
    titles = {
        "id": "id", "cell": "cell", "hardware": "hardware", "metric": "metric", "sweep_id": "first sweep after",
        "when": "acknowledged (UTC)", "reason": "reason",
    }  # fmt: skip
    terminal().print(Table([Column(*title) for title in titles.items()], rows).rich())
    return 0


def known_acknowledgements(store: Store) -> dict[int, dict[str, str]]:
    """Return key of the row -> texts of every acknowledgement; `id` is that of its change."""
    rows = store.acknowledgements()
    cells = store.series(None).cells if rows else {}
    names = dict(zip(cells, row_names(list(cells.values())), strict=True))
    return {
        row["id"]: {
            **row,
            "id": event_id(SeriesId(row["cell_key"], row["hardware"], row["metric"]), row["sweep_id"]),
            "cell": one_line(names[row["cell_key"]]),
            "when": f"{row['acknowledged_at']:%Y-%m-%d %H:%M}",
        }
        for row in rows
    }
