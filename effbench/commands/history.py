"""`effbench history`: list what changed over all sweeps; `ack` and `acks` acknowledge changes and
list these."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable
from typing import Any

from effbench.commands import options
from effbench.commands.show import metric_name
from effbench.comparison.events import History, SeriesId, event_id, short_id
from effbench.comparison.history import DEFAULT_METRICS, JUDGED
from effbench.comparison.limits import PATTERNS, ExceptionRule, Limits
from effbench.comparison.limits import read as read_limits
from effbench.errors import UsageError
from effbench.labels import row_names
from effbench.printable import one_line
from effbench.report.history_table import (
    FORMATS,
    change_text,
    coming_and_going,
    events_table,
    read,
    render,
    summary,
)
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.table import Column, Table
from effbench.terminal import Console, escape, terminal

HELP = (
    "List the change points of every cell over all sweeps: what changed, when, by how much, and"
    " what else changed."
)
NAME_HELP = (
    "only sweeps with this name; '' for unnamed sweeps (default: all but the re-runs of check"
    " --confirm)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "--since", metavar="DATE|LABEL|SWEEP", help="only changes since then (default: all)"
    )
    metrics = f"metric to judge; may be repeated (default: {', '.join(DEFAULT_METRICS)})"
    parser.add_argument("--metric", action="append", type=judged_name, metavar="NAME", help=metrics)
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="only cells of this model"
    )
    parser.add_argument(
        "--mode", action="append", default=[], metavar="NAME", help="only cells of this mode"
    )
    parser.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="only results from this host"
    )
    parser.add_argument("--name", metavar="NAME", help=NAME_HELP)
    config = (
        "configuration of checks: its limits apply, its `ignore` exceptions acknowledge changes"
        " (default: default)"
    )
    parser.add_argument("--config", metavar="NAME|FILE", help=config)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show acknowledged changes, and the names of all new cells",
    )
    parser.add_argument(
        "--format", default="table", choices=["table", *FORMATS], help="(default: table)"
    )
    options.add_out(parser)
    parts = parser.add_subparsers(
        dest="what", metavar="[ack | acks]", help="acknowledge changes, or list these"
    )
    ack = parts.add_parser("ack", description="Acknowledge changes; history then omits them.")
    patterns = (
        "ids of changes (or their start), or patterns as in exceptions: model=gpt2 metric=compile_*"
    )
    ack.add_argument("names", nargs="*", metavar="ID|PATTERN", help=patterns)
    ack.add_argument("--reason", metavar="TEXT", help="why the changes are accepted")
    ack.add_argument(
        "--rm", action="append", default=[], metavar="ID", help="remove an acknowledgement"
    )
    acks = parts.add_parser("acks", description="List all acknowledgements.")
    for part in (ack, acks):
        # both options may also precede the subcommand; a default here would overwrite them
        part.add_argument(
            "--db", default=argparse.SUPPRESS, metavar="URL", help="see effbench history --help"
        )
        part.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help=NAME_HELP)


def judged_name(text: str) -> str:
    name = metric_name(text)
    if name not in JUDGED:
        raise argparse.ArgumentTypeError(f"{name} has no history; allowed are {', '.join(JUDGED)}")
    return name


def run(args: argparse.Namespace) -> int:
    limits = read_limits(args.config)
    if args.what:
        if args.what == "acks":
            return list_acknowledgements(args)
        return take_back(args) if args.rm else acknowledge(args, limits)
    with Store.open(args.db, mode="read") as store:
        if not store.sweeps():
            store.find_sweep("last")  # raises NothingFoundError with what to do
        found = read(
            store,
            args.metric or DEFAULT_METRICS,
            models=args.model,
            modes=args.mode,
            hosts=args.host,
            name=args.name,
            since=args.since,
            everything=args.all,
            limits=limits,
        )
    if args.format != "table":
        options.write(render(found, args.format), args)
    else:
        with options.console(args) as console:
            show(console, found, args)
    return 0


def show(console: Console, found: History, args: argparse.Namespace) -> None:
    if events := found.without("new", "dead"):
        console.print_table(events_table(found, events))
    for line in coming_and_going(found, *([None] if args.all else [])):
        console.print_line(escape(line))
    console.print_line(escape(summary(found)))
    if alarms := [event for event in found.changes if event.alarms]:
        # like the name, hosts and limits decide which changes there are
        first = "".join(f" --host {shlex.quote(host)}" for host in args.host)
        first += f" --config {shlex.quote(args.config)}" if args.config else ""
        named = "" if args.name is None else f" --name {shlex.quote(args.name)}"
        db = "" if args.db == options.DEFAULT_DB else f" --db {shlex.quote(masked_url(args.db))}"
        accept = f'effbench history{first} ack {short_id(alarms[0].id)}{named}{db} --reason "why"'
        console.print_line(
            escape(f"open: still worse and not acknowledged; to accept one: {accept}"), "dim"
        )


# --- ack and acks ---


def acknowledge(args: argparse.Namespace, limits: Limits) -> int:
    reason = (args.reason or "").strip()
    if not args.names or not reason:
        raise UsageError(
            "history ack needs changes and a reason; name changes by id (effbench history lists"
            ' them) or by patterns such as model=gpt2, and add --reason "…"'
        )
    patterns = dict(word.split("=", 1) for word in args.names if "=" in word)
    if unknown := [name for name in patterns if name not in PATTERNS]:
        raise UsageError(f"unknown pattern {unknown[0]}=; choose from {', '.join(PATTERNS)}")
    with Store.open(args.db, mode="read") as store:
        found = read(
            store,
            args.metric or JUDGED,
            models=args.model,
            modes=args.mode,
            hosts=args.host,
            name=args.name,
            since=args.since,
            everything=True,
            limits=limits,
        )
    changes = {event.id: event for event in found.changes}
    ids = [meant(name, changes, "effbench history --all") for name in args.names if "=" not in name]
    chosen = {name: changes[name] for name in ids}
    # its size is not known yet
    if unsure := [name for name, event in chosen.items() if event.kind == "recent"]:
        raise UsageError(
            f"{short_id(unsure[0])} is unconfirmed; acknowledge it if further sweeps confirm it"
        )
    if patterns:
        rule = ExceptionRule(**patterns, ignore=True)
        known = [
            event
            for event in found.changes
            if event.kind != "recent" and event.acknowledged is None
        ]
        fitting = [event for event in known if found.is_matched(event, rule)]
        if not fitting:
            raise UsageError(
                f"no unacknowledged change matches {rule}; effbench history --all lists all changes"
            )
        chosen |= {event.id: event for event in fitting}
    rows = [
        {
            "cell_key": event.series.cell_key,
            "hardware": event.series.place,
            "metric": event.series.metric,
            "sweep_id": event.after_sweep,
        }
        for event in chosen.values()
    ]
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge(
            [
                event.acknowledgement
                for event in chosen.values()
                if event.acknowledgement is not None
            ]
        )
        store.acknowledge(rows, reason)
    for event in chosen.values():
        cell = one_line(found.names[event.series.cell_key])
        print(
            f"acknowledged {short_id(event.id)}: {change_text(event)} {cell} {event.series.metric},"
            f" first in {event.after_sweep}"
        )
    return 0


def meant(start: str, ids: Iterable[str], shown_by: str) -> str:
    """Return the id that starts with `start`, 4 digits or more. Raises UsageError unless exactly
    one does."""
    fitting = [known for known in ids if len(start) >= 4 and known.startswith(start.casefold())]
    if len(fitting) != 1:
        raise UsageError(
            f"{len(fitting) or 'no'} ids start with {start!r}; give 4 digits or more ({shown_by})"
        )
    return fitting[0]


def take_back(args: argparse.Namespace) -> int:
    if args.names or args.reason:
        raise UsageError("history ack --rm removes an acknowledgement; omit changes and --reason")
    with Store.open(args.db, mode="read") as store:
        known = {row["change"]: row for row in known_acknowledgements(store)}
    gone = [known[meant(start, known, "effbench history acks")] for start in args.rm]
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge([row["id"] for row in gone])
    for row in gone:
        print(f"removed acknowledgement {short_id(row['change'])}: {row['cell']} {row['metric']}")
    return 0


def list_acknowledgements(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        names = {sweep.id: sweep.name or "" for sweep in store.sweeps(brief=True)}
        rows = [
            row
            for row in known_acknowledgements(store)
            if args.name in (None, names.get(row["sweep_id"]))
        ]
    if not rows:
        print("no acknowledgements")
        return 0
    columns = [
        Column("change", "id", format=short_id),
        *(Column(name) for name in ("cell", "hardware", "metric")),
        Column("sweep_id", "first sweep after"),
        Column(
            "acknowledged_at", "acknowledged (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}"
        ),
        Column("reason"),
    ]
    terminal().print_table(Table(columns, rows))
    return 0


def known_acknowledgements(store: Store) -> list[dict[str, Any]]:
    """Return every row of `acknowledgement`, with `change` (the id of its change) and `cell` (its
    name)."""
    rows = store.acknowledgements()
    cells = store.series(None).cells if rows else {}
    names = dict(zip(cells, row_names(list(cells.values())), strict=True))
    for row in rows:
        row["change"] = event_id(
            SeriesId(row["cell_key"], row["hardware"], row["metric"]), row["sweep_id"]
        )
        row["cell"] = one_line(names[row["cell_key"]])
    return rows
