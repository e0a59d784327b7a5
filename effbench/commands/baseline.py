"""`effbench baseline`: names for sweeps that later ones are compared with."""

from __future__ import annotations

import argparse

from effbench.commands import options
from effbench.errors import NothingFoundError
from effbench.printable import one_line
from effbench.store.store import Store
from effbench.table import Column, Table
from effbench.terminal import terminal

HELP = "Name a sweep as a baseline (set), list the baselines (ls), or forget one (rm)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="set|ls|rm")
    put = actions.add_parser("set", help="name a sweep; the name moves to it from the sweep that had it")
    put.add_argument("name", help="such as main")
    put.add_argument("sweep", nargs="?", default="last", metavar="SWEEP", help="id, name or last (default: last)")
    put.add_argument("--note", help="free text, shown by ls")
    listed = actions.add_parser("ls", help="all baselines, with their sweeps")
    forget = actions.add_parser("rm", help="forget a name; its sweep stays")
    forget.add_argument("name", metavar="NAME", help="name to forget")
    forget.add_argument("--on", metavar="HARDWARE", help="only on this hardware, by its full name (default: on all)")
    for action in (put, listed, forget):
        options.add_db(action)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read"):  # without a database, naming a sweep must not make one
        pass
    with Store.open(args.db, mode="read" if args.action == "ls" else "write") as store:
        return {"set": put, "ls": listed, "rm": forget}[args.action](store, args)


def put(store: Store, args: argparse.Namespace) -> int:
    sweep = store.find_sweep(args.sweep)
    before = {one.hardware: one.sweep_id for one in store.baselines() if one.name == args.name}
    for hardware in store.set_baseline(args.name, sweep.id, args.note):
        old = before.get(hardware, sweep.id)
        moved = f", before {old}" if old != sweep.id else ""
        print(one_line(f"baseline {args.name} on {hardware}: sweep {sweep.id}{moved}"))
    counts = [f"{number} {status}" for status, number in sorted(sweep.statuses.items()) if status != "ok"]
    if counts or sweep.state != "completed":
        print(f"note: that sweep is {sweep.state} ({', '.join(counts) or 'all measured cells ok'}); cells that failed, "
              "are noisy or were not measured are not guarded (effbench ls --failures)")  # fmt: skip
    return 0


def listed(store: Store, args: argparse.Namespace) -> int:
    rows = []
    for one in store.baselines():
        name = f" ({one.sweep_name})" if one.sweep_name else ""
        rows.append({**vars(one), "sweep": f"{one.sweep_id}{name}"})
    if not rows:
        raise NothingFoundError(f"{store.name} has no baseline; `effbench baseline set main last` sets one")
    columns = [
        *map(Column, ("name", "hardware", "sweep", "label")),
        Column("started_at", "sweep began (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}" if time else "gone"),
        Column("set_at", "set (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}"),
        Column("note"),
    ]
    terminal().print_table(Table(columns, rows))
    return 0


def forget(store: Store, args: argparse.Namespace) -> int:
    for one in store.remove_baseline(args.name, args.on):
        print(one_line(f"baseline {one.name} on {one.hardware} forgotten; it was sweep {one.sweep_id}"))
    return 0
