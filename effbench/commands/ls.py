"""`effbench ls`: list the sweeps of a database, or a sweep's cells, failures or artifacts."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from effbench.cell import Status
from effbench.commands import options
from effbench.environments import TELLING, interpreter_of, labels
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import cell_row, label_rows, row_names
from effbench.metrics import METRICS
from effbench.printable import count
from effbench.report.marks import is_marked, signed
from effbench.report.marks import note as marks_note
from effbench.report.tables import rows_of
from effbench.store.connect import artifact_home
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.table import Column, Table
from effbench.terminal import escape, terminal

HELP = (
    "List the sweeps in the database, or the planned cells, failed results or artifacts of one"
    " sweep."
)
#: Returns the cell key and environment id of a result or a trial.
unit_of = itemgetter("cell_key", "environment_id")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--cells", action="store_true", help="list every planned cell of a sweep, measured or not"
    )
    which.add_argument(
        "--failures", action="store_true", help="list every result that is not ok, with its reason"
    )
    which.add_argument(
        "--artifacts", action="store_true", help="list the files that the sweep's trials saved"
    )
    last = (
        "with --failures: add the traceback of each cell's last failed trial, or the end of its"
        " output"
    )
    parser.add_argument("--traceback", action="store_true", help=last)


def run(args: argparse.Namespace) -> int:
    if args.traceback and not args.failures:
        raise UsageError(
            "ls: --traceback needs --failures; try `effbench ls --failures --traceback`"
        )
    if args.sweep != "last" and not (args.cells or args.failures or args.artifacts):
        raise UsageError(
            "ls: --sweep needs --cells, --failures or --artifacts; without them, all sweeps are"
            " listed"
        )
    with Store.open(args.db, mode="read") as store:
        if args.cells:
            print_cells(store, store.find_sweep(args.sweep))
        elif args.failures:
            print_failures(store, store.find_sweep(args.sweep), args.traceback)
        elif args.artifacts:
            print_artifacts(store, store.find_sweep(args.sweep), artifact_home(args.db))
        else:
            print_sweeps(store)
    return 0


def print_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], wide: Collection[str] = ()
) -> None:
    columns = [Column(name, optional=name == "baseline", wide=name in wide) for name in names]
    terminal().print_table(Table.of(columns, rows))


def names_of(store: Store, sweep: SweepInfo) -> dict[tuple[str, str], str]:
    """Return (cell key, environment id) -> unique name for every planned cell, once for each
    environment that it was planned for or ran in. The environment id is "" if no environment is
    known."""
    ran = (row["id"] for row in store.environments_of(sweep.id))
    ids = dict.fromkeys([*(sweep.host.get("environments") or ()), *ran])
    environments = {row["id"]: row for row in store.environments(ids)}
    added = labels(environments.values())
    rows = {}
    for cell in store.planned(sweep.id):
        for key in [key for key in ids if key in environments] or [""]:
            place = {name: environments[key][name] for name in TELLING} | added[key] if key else {}
            rows[cell.key, key] = {**cell_row(cell), **place, "environment_id": key}
    return dict(zip(rows, row_names(rows.values()), strict=True))


def print_artifacts(store: Store, sweep: SweepInfo, folder: Path) -> None:
    """Print each cell's files, and the artifacts that it could not write, with the reason."""
    names = names_of(store, sweep)
    # only the last attempt of a round still has its files
    kinds = {"artifacts", "artifact_notes"}
    last = {
        unit_of(trial): trial["extra"]
        for trial in store.trials(sweep.id)
        if kinds & trial["extra"].keys()
    }
    rows = []
    for unit, extra in last.items():
        for path in (folder / name for name in extra.get("artifacts", ())):
            rows.append((names[unit], f"{path}{'' if path.is_file() else ' (gone)'}"))
        rows += [
            (names[unit], f"no {kind}: {why}")
            for kind, why in extra.get("artifact_notes", {}).items()
        ]
    if not rows:
        raise NothingFoundError(
            f"sweep {sweep.id} has no artifacts; run it with 'artifacts=[trace,code,graph]'"
        )
    print_table(("cell", "file"), rows)


def print_sweeps(store: Store) -> None:
    store.find_sweep("last")  # raises NothingFoundError for an empty database
    # sweep id -> its baseline names, in order and without duplicates
    baselines: dict[str, dict[str, None]] = {}
    for baseline in store.baselines():
        baselines.setdefault(baseline.sweep_id, {})[baseline.name] = None
    rows = [
        (
            sweep.id,
            sweep.name,
            ", ".join(baselines.get(sweep.id, ())),
            str(sweep.started_at)[:19],
            sweep.state + ", imported" * (sweep.imported_at is not None),
            sweep.protocol.get("name", ""),
            sweep.cells,
            sweep.trials,
            ", ".join(f"{number} {status}" for status, number in sweep.statuses.items()),
            sweep.label,
        )
        for sweep in store.sweeps()
    ]
    names = (
        "sweep",
        "name",
        "baseline",
        "started (UTC)",
        "state",
        "protocol",
        "cells",
        "trials",
        "statuses",
        "label",
    )
    print_table(names, rows, wide=("name", "baseline", "protocol", "statuses", "label"))


def print_cells(store: Store, sweep: SweepInfo) -> None:
    devices = {cell.key: cell.device for cell in store.planned(sweep.id)}
    results = {unit_of(row): row for row in store.results(sweep.id)}
    names, rows = names_of(store, sweep), []
    under = {
        row["id"]: interpreter_of(row)
        for row in store.environments({key for _, key in names if key})
    }
    shown = {(cell_key, under[key]) for cell_key, key in results}
    for unit, name in names.items():
        row, place = results.get(unit), (unit[0], under.get(unit[1]))
        if row is None and place in shown:
            continue
        shown.add(place)
        latency = (
            signed(METRICS["latency_ms"].format(row["latency_ms"]), is_marked(row)) if row else ""
        )
        measured = (row["status"], row["trials"]) if row else ("not run yet", 0)
        rows.append((unit[0][:12], name, devices[unit[0]], *measured, latency))
    print_table(("cell key", "cell", "device", "status", "trials", "latency"), rows)
    note = marks_note(label_rows(rows_of(store, sweep)))
    if note:
        terminal().print_line(escape(note), "dim")


def print_failures(store: Store, sweep: SweepInfo, traceback: bool) -> None:
    """Print a table of the results that are not ok; with `traceback` each reason followed by its
    traceback."""
    rows = rows_of(store, sweep)
    failed = [
        (row, name)
        for row, name in zip(rows, row_names(rows), strict=True)
        if row["status"] != Status.OK
    ]
    console = terminal()
    if not failed:
        console.print(
            f"no failures in sweep {sweep.id}: {count(len(rows), 'cell')} ok", highlight=False
        )
        return
    if not traceback:
        print_table(
            ("status", "cell", "reason"),
            [(row["status"], name, row["reason"]) for row, name in failed],
        )
        return
    last = {
        unit_of(trial): trial for trial in store.trials(sweep.id) if trial["status"] != Status.OK
    }
    for row, name in failed:
        trial = last[unit_of(row)]
        text = (
            trial["extra"].get("traceback")
            or trial["extra"].get("log")
            or "no traceback and no output recorded"
        )
        head = f"[yellow]{trial['status']}[/] [bold]{escape(name)}[/] round {trial['round'] + 1}"
        console.print_line(f"{head}: {escape(trial['reason'] or '')}")
        for line in str(text).splitlines():
            console.print_line(f"    {escape(line)}")
