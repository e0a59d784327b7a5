"""`effbench history ack` and `acks`: changes that are known and accepted, so that they alarm once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from effbench.analysis.events import Event, History, SeriesId, event_id
from effbench.analysis.history import judgeable
from effbench.analysis.row_labels import row_names
from effbench.commands.past import table_of
from effbench.errors import UsageError
from effbench.printable import one_line
from effbench.report.history_table import HistoryTable
from effbench.store.store import Store
from effbench.terminal import escape, terminal


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
        grid.add_row(*(escape(text) for text in texts), when, holds, escape(one["reason"]))
    terminal().print(grid)
    if any(one["row"] not in holding for one in known):
        print("no: there is no such change now, or not in that sweep; effbench history ack --rm ID takes it back")
    return 0
