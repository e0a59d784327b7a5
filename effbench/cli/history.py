"""`effbench history`: list what changed over all sweeps; `ack` and `acks` acknowledge changes and
list these."""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from effbench.analysis.history import (
    DEFAULT_METRICS,
    JUDGED,
    Filters,
    History,
    HistoryEvent,
    SeriesId,
    event_id,
    read,
    short_id,
)
from effbench.analysis.limits import PATTERNS, ExceptionRule, Limits
from effbench.analysis.limits import read as read_limits
from effbench.analysis.matching import names_of
from effbench.cli import options
from effbench.cli.show import metric_name
from effbench.core.errors import UsageError
from effbench.core.printable import one_line
from effbench.core.table import Column, Table
from effbench.core.terminal import Console, escape, terminal
from effbench.render.history_table import FORMATS, change_text, events_table, render, summary
from effbench.store.store import Store

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
    add = parser.add_argument
    add("--since", metavar="DATE|LABEL|SWEEP", help="only changes since then (default: all)")
    metrics = f"metric to judge; may be repeated (default: {', '.join(DEFAULT_METRICS)})"
    add("--metric", action="append", type=judged_name, metavar="NAME", help=metrics)
    for name, text in (
        ("--model", "only cells of this model"),
        ("--mode", "only cells of this mode"),
        ("--host", "only results from this host"),
    ):
        add(name, action="append", default=[], metavar="NAME", help=text)
    add("--name", metavar="NAME", help=NAME_HELP)
    config = (
        "configuration of checks: its limits apply, its `ignore` exceptions acknowledge changes"
        " (default: default)"
    )
    add("--config", metavar="NAME|FILE", help=config)
    add("--all", action="store_true", help="also show acknowledged changes")
    add("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
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
    if args.what == "acks":
        return list_acknowledgements(args)
    if args.what and args.rm:
        return take_back(args)
    limits = read_limits(args.config)
    if args.what:
        return acknowledge(args, limits)
    with Store.open(args.db, mode="read") as store:
        if not store.sweeps():
            store.find_sweep("last")  # raises NothingFoundError with what to do
        past = read(store, args.metric or DEFAULT_METRICS, filters_of(args), limits)
    if args.format != "table":
        options.write(render(past, args.format), args)
    else:
        with options.console(args) as console:
            show(console, past)
    return 0


def filters_of(args: argparse.Namespace, everything: bool = False) -> Filters:
    return Filters(
        models=args.model,
        modes=args.mode,
        hosts=args.host,
        name=args.name,
        since=args.since,
        everything=everything or args.all,
    )


def show(console: Console, past: History) -> None:
    if past.changes:
        console.print_table(events_table(past))
    console.print_line(escape(summary(past)))
    if past.open_changes:
        first = short_id(past.open_changes[0].id)
        # the other options decide which changes there are
        text = (
            "open: still worse and not acknowledged; to accept one, add to this command:"
            f' ack {first} --reason "why"'
        )
        console.print_line(escape(text), "dim")


# --- ack and acks ---


def acknowledge(args: argparse.Namespace, limits: Limits) -> int:
    reason = (args.reason or "").strip()
    if not args.names or not reason:
        raise UsageError(
            "history ack needs changes and a reason; name changes by id (effbench history lists"
            ' them) or by patterns such as model=gpt2, and add --reason "…"'
        )
    with Store.open(args.db, mode="read") as store:
        past = read(store, args.metric or JUDGED, filters_of(args, everything=True), limits)
    chosen = dict.fromkeys([*named_changes(past, args.names), *matched_changes(past, args.names)])
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge(
            event.acknowledgement for event in chosen if event.acknowledgement is not None
        )
        store.acknowledge([row_of(event) for event in chosen], reason)
    for event in chosen:
        cell = one_line(past.names[event.series.cell_key])
        print(
            f"acknowledged {short_id(event.id)}: {change_text(event)} {cell} {event.series.metric},"
            f" first in {event.after_sweep}"
        )
    return 0


def row_of(event: HistoryEvent) -> dict[str, str]:
    """Return what identifies a change in the table of acknowledgements."""
    return {
        "cell_key": event.series.cell_key,
        "hardware": event.series.place,
        "metric": event.series.metric,
        "sweep_id": event.after_sweep,
    }


def named_changes(past: History, words: Iterable[str]) -> list[HistoryEvent]:
    """Return the changes whose ids start like words that are no patterns. Raises UsageError for one
    that is unknown or not confirmed."""
    by_id = {event.id: event for event in past.changes}
    ids = [id_of(word, by_id, "effbench history --all") for word in words if "=" not in word]
    changes = [by_id[change_id] for change_id in ids]
    for event in changes:
        if event.kind == "recent":  # its size is not known yet
            raise UsageError(
                f"{short_id(event.id)} is unconfirmed; acknowledge it if further sweeps confirm it"
            )
    return changes


def matched_changes(past: History, words: Iterable[str]) -> list[HistoryEvent]:
    """Return the confirmed changes that match the patterns among these words and are not
    acknowledged; none without a pattern. Raises UsageError for an unknown pattern, or if no change
    matches."""
    patterns = dict(word.split("=", 1) for word in words if "=" in word)
    if not patterns:
        return []
    for name in patterns:
        if name not in PATTERNS:
            raise UsageError(f"unknown pattern {name}=; choose from {', '.join(PATTERNS)}")
    rule = ExceptionRule(ignore=True, **patterns)  # type: ignore[arg-type]
    changes = [
        event
        for event in past.changes
        if event.kind != "recent" and event.acknowledged is None and past.is_matched(event, rule)
    ]
    if not changes:
        raise UsageError(
            f"no unacknowledged change matches {rule}; effbench history --all lists all changes"
        )
    return changes


def id_of(start: str, ids: Iterable[str], shown_by: str) -> str:
    """Return the id that starts with `start`, 4 digits or more. Raises UsageError unless exactly
    one does."""
    fitting = [known for known in ids if len(start) >= 4 and known.startswith(start.casefold())]
    if len(fitting) != 1:
        raise UsageError(
            f"{len(fitting) or 'no'} ids start with {start!r}; give 4 digits or more ({shown_by})"
        )
    return fitting[0]


@dataclass(frozen=True)
class Acknowledgement:
    """A row of the table of acknowledgements. `change`: the id of its change; `cell`: its name."""

    id: int
    change: str
    cell: str
    hardware: str
    metric: str
    sweep_id: str
    acknowledged_at: dt.datetime
    reason: str

    @classmethod
    def read(cls, store: Store) -> list[Acknowledgement]:
        rows = store.acknowledgements()
        names = names_of(store.series(None).cells) if rows else {}
        known = []
        for row in rows:
            series = SeriesId(row.pop("cell_key"), row["hardware"], row["metric"])
            change = event_id(series, row["sweep_id"])
            known.append(cls(change=change, cell=one_line(names[series.cell_key]), **row))
        return known


def take_back(args: argparse.Namespace) -> int:
    if args.names or args.reason:
        raise UsageError("history ack --rm removes an acknowledgement; omit changes and --reason")
    with Store.open(args.db, mode="read") as store:
        known = {row.change: row for row in Acknowledgement.read(store)}
    gone = [known[id_of(start, known, "effbench history acks")] for start in args.rm]
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge([row.id for row in gone])
    for row in gone:
        print(f"removed acknowledgement {short_id(row.change)}: {row.cell} {row.metric}")
    return 0


def list_acknowledgements(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        names = {sweep.id: sweep.name or "" for sweep in store.sweeps(brief=True)}
        known = Acknowledgement.read(store)
    rows = [vars(row) for row in known if args.name in (None, names.get(row.sweep_id))]
    if not rows:
        print("no acknowledgements")
        return 0
    columns = [
        Column("change", "id", format=short_id),
        *map(Column, ("cell", "hardware", "metric")),
        Column("sweep_id", "first sweep after"),
        Column("acknowledged_at", "acknowledged (UTC)", format="{:%Y-%m-%d %H:%M}".format),
        Column("reason"),
    ]
    terminal().print_table(Table(columns, rows))
    return 0
