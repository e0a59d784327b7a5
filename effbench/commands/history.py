"""`effbench history`: what changed over all sweeps, and what of it is known."""

from __future__ import annotations

import argparse
import datetime as dt
import io
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from effbench.analysis.events import STATUS, Event, History, SeriesId, event_id
from effbench.analysis.history import DEFAULT_METRICS, columns_of, history, judgeable
from effbench.analysis.swept import row_names
from effbench.commands import options
from effbench.commands.show import PLAIN_WIDTH, metric_name, terminal
from effbench.errors import NothingFoundError, UsageError
from effbench.report.history_table import FORMATS, HEADINGS, HistoryTable, one_line
from effbench.store.series import Series
from effbench.store.store import Store

HELP = "Change points of every cell over all sweeps: what changed, when, by how much, with what."
#: Names of sweeps that a message tells.
MOST_NAMES = 8
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
        options.write(table.render(args.format), args.out)
    elif args.out:
        text = io.StringIO()
        show(Console(file=text, width=PLAIN_WIDTH), table)
        options.write(text.getvalue(), args.out)
    else:
        show(terminal(), table)
    return 0


def table_of(
    store: Store,
    metrics: Sequence[str],
    models: Sequence[str] = (),
    modes: Sequence[str] = (),
    since: str | None = None,
    everything: bool = False,
    hosts: Sequence[str] = (),
    name: str | None = None,
) -> HistoryTable:
    """Judge what the database holds, re-runs excepted; leave out what is older than `since` or, but for `everything`,
    acknowledged. `name`: of the sweeps that are looked at (empty: those without one); None is all."""
    series = store.series(columns_of(metrics), models, modes).without_reruns()
    if not series.cells and (models or modes):
        raise UsageError(_no_cells(store, models, modes))
    if hosts:
        series = of_hosts(series, hosts)
    if name is not None:
        series = of_line(series, name)
    found = history(series, metrics, store.acknowledgements())
    if since is not None:
        position = position_of(since, series.sweeps)
        found = newer(found, position, [sweep["id"] for sweep in series.sweeps])
    if not everything:
        shown = [event for event in found.events if event.acknowledged is None]
        found = replace(found, events=shown, left_out=len(found.events) - len(shown))
    rows = list(series.cells.values())
    names = dict(zip(series.cells, row_names(rows), strict=True))
    return HistoryTable(found, names, {sweep["id"]: sweep for sweep in series.sweeps}, name)


def of_hosts(series: Series, hosts: Sequence[str]) -> Series:
    """What these machines measured. Raises UsageError for one that measured nothing."""
    host_of = {sweep["id"]: (sweep["host"] or {}).get("hostname") for sweep in series.sweeps}
    known = sorted({name for name in host_of.values() if name})
    if unknown := [name for name in hosts if name not in known]:
        raise UsageError(f"no sweep of host {unknown[0]}; there are {', '.join(known) or 'none with a name'}")
    return series.of({sweep_id for sweep_id, host in host_of.items() if host in hosts})


def of_line(series: Series, name: str) -> Series:
    """What the sweeps of this name measured (empty: those without one). Raises UsageError where there is none."""
    name_of = {sweep["id"]: sweep["name"] or "" for sweep in series.sweeps}
    own = {sweep_id for sweep_id, one in name_of.items() if one == name}
    if own or not name_of:
        return series.of(own)
    known = list(dict.fromkeys(one or "some without a name" for one in reversed(name_of.values())))
    there = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    raise UsageError(f"{f'no sweep has the name {name}' if name else 'every sweep has a name'}; there are {there}")


def _no_cells(store: Store, models: Sequence[str], modes: Sequence[str]) -> str:
    known = store.series(None).cells.values()
    there = [
        f"{what}s {', '.join(sorted({cell[what] for cell in known})) or 'none'}"
        for what, asked in (("model", models), ("mode", modes))
        if asked
    ]
    return f"no cell with {' and '.join([*models, *modes])} in {store.name}; there are {' and '.join(there)}"


def position_of(since: str, sweeps: Sequence[dict[str, Any]]) -> int:
    """Place of the first sweep that `since` means: an id, a label, a name, a date (UTC), the start of an id."""
    for key in ("id", "label", "name"):
        for index, sweep in enumerate(sweeps):
            if sweep[key] == since:
                return index
    try:
        date = dt.datetime.fromisoformat(since)
    except ValueError:
        date = None
    if date is not None:
        date = date if date.tzinfo else date.replace(tzinfo=dt.UTC)
        return next((index for index, sweep in enumerate(sweeps) if sweep["started_at"] >= date), len(sweeps))
    for index, sweep in enumerate(sweeps):
        if since and sweep["id"].startswith(since):
            return index
    raise UsageError(f"--since {since!r} is no date (2026-03-01), and no id, label or name of a sweep; effbench ls")


def newer(found: History, position: int, ids: Sequence[str]) -> History:
    """What happened from the sweep at `position` on."""
    recent = set(ids[position:])
    return replace(
        found,
        events=[event for event in found.events if event.position >= position],
        flapping=[one for one in found.flapping if one.last in recent],
        new=[one for one in found.new if one.sweep in recent],
    )


# --- in the terminal ---


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


# --- acknowledgements ---


def acknowledge(args: argparse.Namespace) -> int:
    if args.rm:
        if args.names or args.reason:
            raise UsageError("history ack --rm takes an acknowledgement back: it needs no change and no reason")
        return take_back(args)
    if not args.names and args.sweep is None:
        raise UsageError(
            "history ack: name a change by its id (effbench history shows it), a cell by its key, or a sweep by --sweep"
        )
    if not (args.reason or "").strip():
        raise UsageError('history ack: say why it is accepted: --reason "…"')
    with Store.open(args.db, mode="read") as store:
        table = table_of(store, judgeable(), everything=True, name=args.name)
        sweep = None if args.sweep is None else sweep_of(args.sweep, store, table)
    chosen: dict[str, Event] = {}
    for name in args.names:
        chosen |= {event.id: event for event in meant(name, table, args.metric, sweep)}
    if not args.names:
        chosen = {event.id: event for event in chosen_by(table, args.metric, sweep) if event.acknowledged is None}
        if not chosen:
            raise UsageError(
                f"no change that is not acknowledged came with {args.sweep}; effbench history --all shows all"
            )
    if args.together:
        chosen |= {event.id: event for event in fellows(list(chosen.values()), table)}
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
        key, change, cell, metric, *_ = table.row(event)
        print(f"acknowledged {key}: {change.removeprefix('! ')} {cell} {metric}, first in {event.after}")
    return 0


def meant(name: str, table: HistoryTable, metrics: Sequence[str] | None, sweep: str | None) -> list[Event]:
    """The events that `name` means: the start of one id, or the start of a cell's key. Raises UsageError for none."""
    wanted = name.casefold()
    events = chosen_by(table, metrics, sweep)
    by_id = [event for event in events if event.id.startswith(wanted)] if len(wanted) >= 4 else []
    if len({event.id for event in by_id}) > 1:
        raise UsageError(f"{name} is the start of {len(by_id)} ids: {', '.join(table.short[e.id] for e in by_id[:4])}")
    if by_id:
        return by_id
    keys = sorted({key for key in table.names if len(wanted) >= 6 and key.startswith(wanted)})
    if len(keys) > 1:
        raise UsageError(f"{name} is the start of {len(keys)} cells' keys; give more of it")
    of_cell = [event for event in events if keys and event.series.cell_key == keys[0]]
    # of a cell what is known already stays as it is
    of_cell = [event for event in of_cell if event.acknowledged is None] or of_cell
    if of_cell:
        return of_cell
    if keys:
        raise UsageError(f"{table.names[keys[0]]} has no change that fits; effbench history --all shows all")
    raise UsageError(
        f"no change has an id that starts with {name!r}, and no cell such a key; effbench history shows them"
    )


def chosen_by(table: HistoryTable, metrics: Sequence[str] | None, sweep: str | None) -> list[Event]:
    """The events of these metrics (None: all) that may have come with this sweep (None: any)."""
    return [
        event
        for event in table.found.events
        if (not metrics or event.series.metric in metrics) and (sweep is None or sweep in whereabouts(event, table))
    ]


def whereabouts(event: Event, table: HistoryTable) -> list[str]:
    """The sweeps of which one is the first after the change."""
    ids = list(table.sweeps)
    return ids[ids.index(event.earliest or event.after) : ids.index(event.latest or event.after) + 1]


def fellows(events: Sequence[Event], table: HistoryTable) -> list[Event]:
    """What is not acknowledged and changed in the cells of these events, where they are, at the same time."""
    found = []
    for event in events:
        own = set(whereabouts(event, table))
        found += [
            other
            for other in table.found.events
            if (other.series.cell_key, other.series.place) == (event.series.cell_key, event.series.place)
            and other.acknowledged is None
            and own.intersection(whereabouts(other, table))
        ]
    return found


def sweep_of(reference: str, store: Store, table: HistoryTable) -> str:
    """The id of a sweep, also by its label. Raises UsageError where several have it, NothingFoundError for none."""
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
    """Every acknowledgement with the id that its change has, and its cell's name."""
    rows = store.acknowledgements()
    cells = store.series(None).cells if rows else {}
    names = dict(zip(cells, row_names(list(cells.values())), strict=True))
    return [
        {
            "id": event_id(SeriesId(row["cell_key"], row["hardware"], row["metric"]), row["sweep_id"]),
            "row": row["id"],
            "cell": names[row["cell_key"]],
            **{key: row[key] for key in ("hardware", "metric", "sweep_id", "reason", "acknowledged_at")},
        }
        for row in rows
    ]


def acknowledgements(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        known = described(store)
        found = table_of(store, judgeable(), everything=True, name=args.name).found if known else History()
    if not known:
        print("nothing is acknowledged")
        return 0
    holding = {event.acknowledgement for event in found.events}
    grid = Table(header_style="bold", pad_edge=False, box=None)
    for heading in ("id", "cell", "hardware", "metric", "first sweep after", "acknowledged (UTC)", "holds", "reason"):
        grid.add_column(heading, overflow="fold")
    for one in known:
        texts = (one["id"][:6], one["cell"], one["hardware"], one["metric"], one["sweep_id"])
        when, holds = f"{one['acknowledged_at']:%Y-%m-%d %H:%M}", "yes" if one["row"] in holding else "no"
        grid.add_row(*(escape(one_line(text)) for text in texts), when, holds, escape(one_line(one["reason"])))
    terminal().print(grid)
    if any(one["row"] not in holding for one in known):
        print("no: there is no such change now, or not in that sweep; effbench history ack --rm ID takes it back")
    return 0
