"""`effbench baseline`: name the sweeps that later sweeps are compared with."""

from __future__ import annotations

import argparse

from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.printable import one_line
from effbench.core.settings import db_option
from effbench.core.table import Column, Table
from effbench.core.terminal import terminal
from effbench.store.store import Store

HELP = "Name a sweep as a baseline (set), list the baselines (ls), or remove one (rm)."
ACTIONS = ("set", "ls", "rm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        choices=ACTIONS,
        help="set: name a sweep as a baseline, a name in use moves to this sweep; ls: list all"
        " baselines with their sweeps; rm: remove a baseline, its sweep stays",
    )
    add("name", nargs="?", metavar="NAME", help="name of the baseline, such as main")
    add(
        "sweep",
        nargs="?",
        default="last",
        metavar="SWEEP",
        help="set: id, name, label or last (default: last)",
    )
    add("--note", help="set: free text, shown by ls")


def run(args: argparse.Namespace) -> int:
    if args.action != "ls" and args.name is None:
        raise UsageError(f"baseline {args.action}: name the baseline, such as main")
    # fail without a database: opening to write would create one
    with Store.open(args.db, mode="read") as store:
        if args.action == "ls":
            print_baselines(store)
            return 0
    with Store.open(args.db, mode="write") as store:
        if args.action == "set":
            set_baseline(store, args)
        else:
            remove_baseline(store, args)
    return 0


def set_baseline(store: Store, args: argparse.Namespace) -> None:
    sweep = store.find_sweep(args.sweep)
    before = {known.hardware: known for known in store.baselines() if known.name == args.name}
    for hardware in store.set_baseline(args.name, sweep.id, args.note):
        text = f"baseline {args.name} on {hardware}: sweep {sweep.id}"
        if hardware in before and before[hardware].sweep_id != sweep.id:
            text += f" (was {before[hardware].sweep_id})"
        print(one_line(text))


def print_baselines(store: Store) -> None:
    rows = []
    for baseline in store.baselines():
        name = f" ({baseline.sweep_name})" if baseline.sweep_name else ""
        began = "gone"
        if baseline.started_at is not None:
            began = f"{baseline.started_at:%Y-%m-%d %H:%M}"
        rows.append(
            (
                baseline.name,
                baseline.hardware,
                f"{baseline.sweep_id}{name}",
                baseline.label,
                began,
                f"{baseline.set_at:%Y-%m-%d %H:%M}",
                baseline.note,
            )
        )
    if not rows:
        how = f"effbench baseline set main last{db_option(store.name)}"
        raise NothingFoundError(f"{store.name} has no baseline; `{how}` sets one")
    headings = ("name", "hardware", "sweep", "label", "sweep began (UTC)", "set (UTC)", "note")
    Table.of([*map(Column, headings)], rows).print(terminal())


def remove_baseline(store: Store, args: argparse.Namespace) -> None:
    for removed in store.remove_baseline(args.name):
        print(
            one_line(
                f"removed baseline {removed.name} on {removed.hardware} (sweep {removed.sweep_id})"
            )
        )
