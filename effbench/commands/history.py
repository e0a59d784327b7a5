"""`effbench history`: what changed over all sweeps; `ack` and `acks`: what of it is known and accepted."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import Any

from effbench.commands import options
from effbench.commands.show import metric_name
from effbench.comparison.events import Event, History, SeriesId, event_id
from effbench.comparison.history import DEFAULT_METRICS, judgeable, matches
from effbench.comparison.limits import PATTERNS, STATUS, ExceptionRule
from effbench.comparison.limits import read as read_limits
from effbench.errors import NothingFoundError, UsageError, nearest
from effbench.labels import row_names
from effbench.printable import one_line
from effbench.report.history_table import FORMATS, HistoryTable, read
from effbench.store.store import Store
from effbench.table import Column, Table
from effbench.terminal import Console, escape, terminal

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
    else:
        with options.console(args) as console:
            show(console, table)
    return 0


def show(console: Console, table: HistoryTable) -> None:
    for title, changes in table.tables():
        console.print_line(escape(title), "bold")
        console.print(changes.rich())
    for title, lines in table.sections():
        console.print_line(escape(title), "bold")
        for text in lines:
            console.print_line(escape(text))
    console.print_line(escape(table.summary()))
    if table.found.sweeps:
        console.print_line(escape(table.verdict()))
    alarms = [event for event in table.confirmed if event.alarms]
    if alarms:
        cells = [(event.series.cell_key, event.series.place) for event in alarms]
        named = "" if table.name is None else f" --name {shlex.quote(table.name)}"
        together = " --together" if cells[0] in cells[1:] else ""
        accept = f'effbench history ack {table.short[alarms[0].id]}{named}{together} --reason "why"'
        console.print_line(escape(f"! is worse, still so, and not acknowledged; accept it: {accept}"), "dim")


# --- ack and acks ---


def acknowledge(args: argparse.Namespace, exceptions: Sequence[ExceptionRule]) -> int:
    if args.rm:
        if args.names or args.reason:
            raise UsageError("history ack --rm takes an acknowledgement back: it needs no change and no reason")
        return take_back(args)
    if not args.names and args.sweep is None:
        raise UsageError(
            "history ack: name a change by its id (effbench history shows it), a cell by its key or by patterns such "
            "as model=gpt2, or a sweep by --sweep"
        )
    if not (args.reason or "").strip():
        raise UsageError('history ack: say why it is accepted: --reason "…"')
    with Store.open(args.db, mode="read") as store:
        table = read(store, judgeable(), everything=True, name=args.name, exceptions=exceptions)
        cells = store.series(None).cells
        sweep = None if args.sweep is None else sweep_of(args.sweep, store, table)
    candidates = [
        event
        for event in table.found.events
        if (not args.metric or event.series.metric in args.metric) and (sweep is None or sweep in may_be(event, table))
    ]
    chosen: dict[str, Event] = {}
    for name in (name for name in args.names if "=" not in name):
        chosen |= {event.id: event for event in meant(name, table, candidates)}
    patterns = patterns_of([name for name in args.names if "=" in name])
    if patterns or not args.names:
        rule = ExceptionRule(**patterns, ignore=True)
        fitting = [
            event
            for event in candidates
            if event.acknowledged is None and matches(rule, event, cells[event.series.cell_key])
        ]
        if not fitting:
            what = f"fits {rule}" if patterns else f"came with {args.sweep}"
            raise UsageError(f"no change that is not acknowledged {what}; effbench history --all shows all")
        chosen |= {event.id: event for event in fitting}
    if args.together:
        chosen |= {other.id: other for event in list(chosen.values()) for other in together_with(event, table)}
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge([event.acknowledgement for event in chosen.values() if event.acknowledgement is not None])
        store.acknowledge(
            [
                {"cell_key": event.series.cell_key, "hardware": event.series.place, "metric": event.series.metric,
                 "sweep_id": event.after}
                for event in chosen.values()
            ],
            args.reason.strip(),
        )  # fmt: skip
    for event in chosen.values():
        print(f"acknowledged {table.short[event.id]}: {table.change(event)} {table.cell(event.series)} "
              f"{event.series.metric}, first in {event.after}")  # fmt: skip
    return 0


def patterns_of(words: Sequence[str]) -> dict[str, str]:
    """Return patterns written as in an exception: `model=gpt2`, `metric=compile_*`. Raises UsageError."""
    found = dict(word.split("=", 1) for word in words)
    for name in found:
        if name not in PATTERNS:
            near = nearest(name, PATTERNS)
            raise UsageError(f"{name}= is no pattern; " + (f"did you mean {near}=?" if near else ", ".join(PATTERNS)))
    return found


def meant(name: str, table: HistoryTable, candidates: Sequence[Event]) -> list[Event]:
    """Return the events that `name` means: the start of one id, or the start of a cell's key. Raises UsageError."""
    wanted = name.casefold()
    by_id = [event for event in candidates if event.id.startswith(wanted)] if len(wanted) >= 4 else []
    if len({event.id for event in by_id}) > 1:
        raise UsageError(f"{name} is the start of {len(by_id)} ids: {', '.join(table.short[e.id] for e in by_id[:4])}")
    if by_id:
        return by_id
    keys = sorted({key for key in table.names if len(wanted) >= 6 and key.startswith(wanted)})
    if len(keys) > 1:
        raise UsageError(f"{name} is the start of {len(keys)} cells' keys; give more of it")
    of_cell = [event for event in candidates if keys and event.series.cell_key == keys[0]]
    # what is acknowledged already in a cell stays as it is
    of_cell = [event for event in of_cell if event.acknowledged is None] or of_cell
    if of_cell:
        return of_cell
    if keys:
        raise UsageError(f"{table.names[keys[0]]} has no change that fits; effbench history --all shows all")
    raise UsageError(
        f"no change has an id that starts with {name!r}, and no cell such a key; effbench history shows them"
    )


def may_be(event: Event, table: HistoryTable) -> list[str]:
    """Return the sweeps one of which is the first after the change."""
    ids = list(table.sweeps)
    return ids[ids.index(event.earliest or event.after) : ids.index(event.latest or event.after) + 1]


def together_with(event: Event, table: HistoryTable) -> list[Event]:
    """Return what is not acknowledged and changed in the same cell, at the same place, at the same time."""
    own = set(may_be(event, table))
    return [
        other
        for other in table.found.events
        if (other.series.cell_key, other.series.place) == (event.series.cell_key, event.series.place)
        and other.acknowledged is None
        and own.intersection(may_be(other, table))
    ]


def sweep_of(reference: str, store: Store, table: HistoryTable) -> str:
    """Return the id of a sweep, also by its label. Raises UsageError if several have it, NothingFoundError if none."""
    labelled = [sweep_id for sweep_id, sweep in table.sweeps.items() if sweep["label"] == reference]
    if len(labelled) > 1:
        raise UsageError(f"{len(labelled)} sweeps have the label {reference!r}: {', '.join(labelled[-4:])}; give an id")
    return labelled[0] if labelled else store.find_sweep(reference).id


def take_back(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        known = described(store)
    gone = []
    for wanted in args.rm:
        fitting = [one for one in known if len(wanted) >= 4 and one["id"].startswith(wanted.casefold())]
        if len(fitting) != 1:
            there = ", ".join(one["id"][:6] for one in known[:8]) or "none"
            what = f"{len(fitting)} acknowledgements start" if fitting else "no acknowledgement starts"
            raise UsageError(f"{what} with {wanted!r}; there are: {there}")
        gone.append(fitting[0])
    with Store.open(args.db, mode="write") as store:
        store.unacknowledge([one["row"] for one in gone])
    for one in gone:
        print(f"taken back {one['id'][:6]}: {one_line(one['cell'])} {one['metric']}")
    return 0


def described(store: Store) -> list[dict[str, Any]]:
    """Return every acknowledgement with the id of its change, and its cell's name."""
    rows = store.acknowledgements()
    cells = store.series(None).cells if rows else {}
    names = dict(zip(cells, row_names(list(cells.values())), strict=True))
    return [
        {
            **row,
            "row": row["id"],
            "id": event_id(SeriesId(row["cell_key"], row["hardware"], row["metric"]), row["sweep_id"]),
            "cell": names[row["cell_key"]],
        }
        for row in rows
    ]


def acknowledgements(args: argparse.Namespace, exceptions: Sequence[ExceptionRule]) -> int:
    with Store.open(args.db, mode="read") as store:
        known = described(store)
        found = read(store, judgeable(), everything=True, name=args.name).found if known else History()
    rules = [rule for rule in exceptions if rule.ignore]
    if not known and not rules:
        print("nothing is acknowledged")
        return 0
    holding = {event.acknowledgement for event in found.events}
    columns = [Column("id"), Column("cell"), Column("hardware"), Column("metric"), Column("sweep", "first sweep after"),
               Column("when", "acknowledged (UTC)"), Column("holds"), Column("reason")]  # fmt: skip
    rows = [
        {**one, "id": one["id"][:6], "sweep": one["sweep_id"], "when": f"{one['acknowledged_at']:%Y-%m-%d %H:%M}",
         "holds": "yes" if one["row"] in holding else "no"}
        for one in known
    ]  # fmt: skip
    rows += [
        {"cell": str(rule), "metric": rule.metric or "all", "when": "exception", "reason": rule.reason}
        for rule in rules
    ]
    terminal().print(Table(columns, rows).rich())
    if any(one["row"] not in holding for one in known):
        print("no: there is no such change now, or not in that sweep; effbench history ack --rm ID takes it back")
    return 0
