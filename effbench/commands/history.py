"""`effbench history`: list what changed over all sweeps; `ack` and `acks` acknowledge changes and
list these."""

from __future__ import annotations

import argparse
import datetime as dt
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from effbench.commands import options
from effbench.commands.show import metric_name
from effbench.comparison.history import (
    DEFAULT_METRICS,
    JUDGED,
    Event,
    History,
    SeriesId,
    event_id,
    short_id,
)
from effbench.comparison.limits import PATTERNS, ExceptionRule, Limits
from effbench.comparison.limits import read as read_limits
from effbench.comparison.matching import names_of
from effbench.config import DEFAULT_DB
from effbench.errors import UsageError
from effbench.printable import one_line
from effbench.report.history_table import (
    FORMATS,
    Filters,
    change_text,
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
        help="also show acknowledged changes",
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
            show(console, past, args)
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


def show(console: Console, past: History, args: argparse.Namespace) -> None:
    if past.changes:
        console.print_table(events_table(past))
    console.print_line(escape(summary(past)))
    alarms = [event for event in past.changes if event.alarms]
    if not alarms:
        return
    # like the name, hosts and limits decide which changes there are
    words = ["effbench", "history"]
    for host in args.host:
        words += ["--host", host]
    if args.config:
        words += ["--config", args.config]
    words += ["ack", short_id(alarms[0].id)]
    if args.name is not None:
        words += ["--name", args.name]
    if args.db != DEFAULT_DB:
        words += ["--db", masked_url(args.db)]
    console.print_line(
        escape(
            "open: still worse and not acknowledged; to accept one:"
            f' {shlex.join(words)} --reason "why"'
        ),
        "dim",
    )


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
    chosen = named_changes(past, args.names)
    rule = rule_of(args.names)
    if rule is not None:
        chosen += [event for event in matched_changes(past, rule) if event not in chosen]
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


def row_of(event: Event) -> dict[str, str]:
    """Return what identifies a change in the table of acknowledgements."""
    return {
        "cell_key": event.series.cell_key,
        "hardware": event.series.place,
        "metric": event.series.metric,
        "sweep_id": event.after_sweep,
    }


def rule_of(words: Iterable[str]) -> ExceptionRule | None:
    """Return the patterns among these words; None without any. Raises UsageError for an unknown
    one."""
    patterns = dict(word.split("=", 1) for word in words if "=" in word)
    for name in patterns:
        if name not in PATTERNS:
            raise UsageError(f"unknown pattern {name}=; choose from {', '.join(PATTERNS)}")
    if not patterns:
        return None
    rule = ExceptionRule(ignore=True)
    for name, pattern in patterns.items():
        setattr(rule, name, pattern)
    return rule


def named_changes(past: History, words: Iterable[str]) -> list[Event]:
    """Return the changes whose ids start like words that are no patterns. Raises UsageError for one
    that is unknown or not confirmed."""
    by_id = {event.id: event for event in past.changes}
    ids = [id_of(word, by_id, "effbench history --all") for word in words if "=" not in word]
    changes = [by_id[change_id] for change_id in dict.fromkeys(ids)]
    for event in changes:
        if event.kind == "recent":  # its size is not known yet
            raise UsageError(
                f"{short_id(event.id)} is unconfirmed; acknowledge it if further sweeps confirm it"
            )
    return changes


def matched_changes(past: History, rule: ExceptionRule) -> list[Event]:
    """Return the confirmed changes that match and are not acknowledged. Raises UsageError if there
    are none."""
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
