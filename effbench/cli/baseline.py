"""`effbench baseline`: name the sweeps that later sweeps are compared with."""

from __future__ import annotations

import argparse

from effbench.cli import options
from effbench.core.errors import NothingFoundError
from effbench.core.printable import count, one_line
from effbench.core.settings import db_option
from effbench.core.table import Column, Table
from effbench.core.terminal import terminal
from effbench.store.store import Store

HELP = "Name a sweep as a baseline (set), list the baselines (ls), or remove one (rm)."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="set|ls|rm")
    put = actions.add_parser(
        "set", help="name a sweep as a baseline; a name in use moves to this sweep"
    )
    put.add_argument("name", help="name of the baseline, such as main")
    put.add_argument(
        "sweep",
        nargs="?",
        default="last",
        metavar="SWEEP",
        help="id, name, label or last (default: last)",
    )
    put.add_argument("--note", help="free text, shown by ls")
    listed = actions.add_parser("ls", help="list all baselines with their sweeps")
    forget = actions.add_parser("rm", help="remove a baseline; its sweep stays")
    forget.add_argument("name", metavar="NAME", help="baseline to remove")
    forget.add_argument(
        "--on",
        metavar="HARDWARE",
        help="full name of the hardware to remove it from (default: all)",
    )
    for action in (put, listed, forget):
        options.add_db(action)


def run(args: argparse.Namespace) -> int:
    # fail without a database: opening to write would create one
    with Store.open(args.db, mode="read"):
        pass
    with Store.open(args.db, mode="read" if args.action == "ls" else "write") as store:
        return {"set": put, "ls": listed, "rm": forget}[args.action](store, args)


def put(store: Store, args: argparse.Namespace) -> int:
    sweep = store.find_sweep(args.sweep)
    before = {
        known.hardware: known.sweep_id for known in store.baselines() if known.name == args.name
    }
    for hardware in store.set_baseline(args.name, sweep.id, args.note):
        old = before.get(hardware, sweep.id)
        moved = f" (was {old})" if old != sweep.id else ""
        print(one_line(f"baseline {args.name} on {hardware}: sweep {sweep.id}{moved}"))
    counts = [
        f"{number} {status}" for status, number in sorted(sweep.statuses.items()) if status != "ok"
    ]
    if counts or sweep.state != "completed":
        what = ", ".join(counts) or "all measured cells ok"
        failures = f"effbench ls --failures --sweep {sweep.id}{db_option(store.name)}"
        print(
            f"note: that sweep is {sweep.state} ({what}); cells that failed or were not measured"
            f" are not guarded ({failures})"
        )
    results = store.results(sweep.id)
    marked = sum(bool(result.marked) for result in results)
    if marked:
        print(
            f"note: {marked} of {count(len(results), 'result')} marked (host disturbed): their"
            " times are not guarded; measure again when the machine is quiet"
        )
    return 0


def listed(store: Store, args: argparse.Namespace) -> int:
    rows = []
    for baseline in store.baselines():
        name = f" ({baseline.sweep_name})" if baseline.sweep_name else ""
        rows.append({**vars(baseline), "sweep": f"{baseline.sweep_id}{name}"})
    if not rows:
        how = f"effbench baseline set main last{db_option(store.name)}"
        raise NothingFoundError(f"{store.name} has no baseline; `{how}` sets one")
    columns = [
        *map(Column, ("name", "hardware", "sweep", "label")),
        Column(
            "started_at",
            "sweep began (UTC)",
            format=lambda time: f"{time:%Y-%m-%d %H:%M}" if time else "gone",
        ),
        Column("set_at", "set (UTC)", format=lambda time: f"{time:%Y-%m-%d %H:%M}"),
        Column("note"),
    ]
    terminal().print_table(Table(columns, rows))
    return 0


def forget(store: Store, args: argparse.Namespace) -> int:
    for removed in store.remove_baseline(args.name, args.on):
        print(
            one_line(
                f"removed baseline {removed.name} on {removed.hardware} (sweep {removed.sweep_id})"
            )
        )
    return 0
