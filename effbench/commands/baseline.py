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
    forget.add_argument("name")
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
        old = before.get(hardware)
        moved = f", before {old}" if old not in (None, sweep.id) else ""
        print(one_line(f"baseline {args.name} on {hardware}: sweep {sweep.id}{moved}"))
    if sweep.state != "completed":
        print(f"note: that sweep is {sweep.state}; cells that it has not measured will be `new` in every comparison")
    failed = {status: number for status, number in sweep.statuses.items() if status != "ok"}
    if failed:
        counts = ", ".join(f"{number} {status}" for status, number in sorted(failed.items()))
        print(f"note: not all of its cells are ok ({counts}); failed and noisy cells are not guarded "
              "(effbench ls --failures)")  # fmt: skip
    return 0


def listed(store: Store, args: argparse.Namespace) -> int:
    found = store.baselines()
    if not found:
        raise NothingFoundError(f"{store.name} has no baseline; `effbench baseline set main last` sets one")
    columns = [
        Column("name"),
        Column("hardware"),
        Column("sweep"),
        Column("label"),
        Column("started_at", "sweep began (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}" if time else "gone"),
        Column("set_at", "set (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}"),
        Column("note"),
    ]
    rows = []
    for baseline in found:
        name = f" ({baseline.sweep_name})" if baseline.sweep_name else ""
        rows.append({**vars(baseline), "sweep": f"{baseline.sweep_id}{name}"})
    terminal().print(Table(columns, rows).rich())
    return 0


def forget(store: Store, args: argparse.Namespace) -> int:
    for baseline in store.remove_baseline(args.name, args.on):
        its = "is gone from this database" if baseline.started_at is None else "stays"
        print(one_line(f"baseline {baseline.name} on {baseline.hardware} forgotten; sweep {baseline.sweep_id} {its}"))
    return 0
