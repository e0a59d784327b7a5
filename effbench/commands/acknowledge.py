"""`effbench history ack` and `acks`: changes that are known and accepted, so that they alarm once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from effbench.analysis.limits import PATTERNS, ExceptionRule
from effbench.analysis.row_labels import row_names
from effbench.comparison.events import Event, History, SeriesId, event_id
from effbench.comparison.history import judgeable, matches
from effbench.errors import UsageError, nearest
from effbench.printable import one_line
from effbench.report.history_table import HistoryTable, read
from effbench.store.store import Store
from effbench.table import Column, Table
from effbench.terminal import terminal


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
        rule = ExceptionRule(patterns, {"ignore": True}, "")
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
    rules = [rule for rule in exceptions if rule.changes.get("ignore")]
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
        {"cell": str(rule), "metric": rule.patterns.get("metric", "all"), "when": "exception", "reason": rule.reason}
        for rule in rules
    ]
    terminal().print(Table(columns, rows).rich())
    if any(one["row"] not in holding for one in known):
        print("no: there is no such change now, or not in that sweep; effbench history ack --rm ID takes it back")
    return 0
