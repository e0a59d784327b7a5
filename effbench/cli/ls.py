"""`effbench ls`: list the sweeps of a database, or a sweep's cells, failures or artifacts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from effbench.cli import options
from effbench.core.cell import Result, Status
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import (
    cell_names,
    grouped,
    label_rows,
    row_names,
)
from effbench.core.metrics import METRICS
from effbench.core.printable import count
from effbench.core.table import Column, Record, Table
from effbench.core.terminal import escape, terminal
from effbench.render import marks
from effbench.render.marks import signed
from effbench.render.tables import rows_of, unmeasured
from effbench.store.connect import artifact_home
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

HELP = (
    "List the sweeps in the database, or the planned cells, failed results or artifacts of one"
    " sweep."
)


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
    parser.add_argument(
        "--traceback",
        action="store_true",
        help=last,
    )


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


def print_table(rows: Sequence[Record]) -> None:
    """Print rows with the same keys, which are the headings; without a baseline, that column is
    omitted."""
    names = rows[0] if rows else ()
    columns = [Column(name, optional=name == "baseline") for name in names]
    terminal().print_table(Table(columns, rows))


def print_artifacts(store: Store, sweep: SweepInfo, folder: Path) -> None:
    """Print each cell's files, and the artifacts that it could not write, with the reason."""
    names = cell_names(store.planned(sweep.id))
    # only the last attempt of a round still has its files
    last = {}
    for trial in store.trials(sweep.id):
        if {"artifacts", "artifact_notes"} & trial["extra"].keys():
            last[unit_of(trial)] = trial
    rows = []
    for trial in last.values():
        name, extra = names[trial["cell_key"]], trial["extra"]
        for file in extra.get("artifacts", ()):
            path = folder / file
            rows.append({"cell": name, "file": str(path) if path.is_file() else f"{path} (gone)"})
        for kind, why in extra.get("artifact_notes", {}).items():
            rows.append({"cell": name, "file": f"no {kind}: {why}"})
    if not rows:
        raise NothingFoundError(
            f"sweep {sweep.id} has no artifacts; run it with 'artifacts=[trace,code,graph]'"
        )
    print_table(rows)


def unit_of(trial: Mapping[str, Any]) -> tuple[str, str]:
    """Return what has one result: a cell in an environment."""
    return trial["cell_key"], trial["environment_id"]


def print_sweeps(store: Store) -> None:
    store.find_sweep("last")  # raises NothingFoundError for an empty database
    baselines = grouped(store.baselines(), lambda baseline: baseline.sweep_id)
    rows = []
    for sweep in store.sweeps():
        names = dict.fromkeys(baseline.name for baseline in baselines.get(sweep.id, ()))
        imported = ", imported" if sweep.imported_at is not None else ""
        statuses = [f"{number} {status}" for status, number in sweep.statuses.items()]
        rows.append(
            {
                "sweep": sweep.id,
                "name": sweep.name,
                "baseline": ", ".join(names),
                "started (UTC)": f"{sweep.started_at:%Y-%m-%d %H:%M:%S}",
                "state": sweep.state + imported,
                "protocol": sweep.protocol.get("name", ""),
                "cells": sweep.cells,
                "trials": sweep.trials,
                "statuses": ", ".join(statuses),
                "label": sweep.label,
            }
        )
    print_table(rows)


def print_cells(store: Store, sweep: SweepInfo) -> None:
    """Print the results of a sweep, then the planned cells that have none."""
    results = rows_of(store, sweep)
    rows = []
    for result, name in zip(results, row_names(results), strict=True):
        latency = METRICS["latency_ms"].format(result.latency_ms)
        rows.append(
            {
                "cell key": result.cell_key[:12],
                "cell": name,
                "device": result.device,
                "status": result.status,
                "trials": result.trials,
                "latency": signed(latency, bool(result.marked)),
            }
        )
    planned = store.planned(sweep.id)
    missing = {cell.key for cell in planned}
    if results:
        missing = set(unmeasured(store, sweep, results))
    names = cell_names(planned)
    for cell in planned:
        if cell.key in missing:
            rows.append(
                {
                    "cell key": cell.key[:12],
                    "cell": names[cell.key],
                    "device": cell.device,
                    "status": "not run yet",
                    "trials": 0,
                    "latency": "",
                }
            )
    print_table(rows)
    note = marks.note(label_rows(results))
    if note:
        terminal().print_line(escape(note), "dim")


def print_failures(store: Store, sweep: SweepInfo, traceback: bool) -> None:
    """Print a table of the results that are not ok; with `traceback` each reason followed by its
    traceback."""
    rows = rows_of(store, sweep)
    failed = {}
    for result, name in zip(rows, row_names(rows), strict=True):
        if result.status is not Status.OK:
            failed[name] = result
    if not failed:
        text = f"no failures in sweep {sweep.id}: {count(len(rows), 'cell')} ok"
        terminal().print(text, highlight=False)
    elif traceback:
        print_tracebacks(store, sweep, failed)
    else:
        table = []
        for name, result in failed.items():
            table.append({"status": result.status, "cell": name, "reason": result.reason})
        print_table(table)


def print_tracebacks(store: Store, sweep: SweepInfo, failed: Mapping[str, Result]) -> None:
    """Print the reason and the traceback of the last failed trial of each result, or the end of its
    output."""
    trials = [trial for trial in store.trials(sweep.id) if trial["status"] != Status.OK]
    last = {unit_of(trial): trial for trial in trials}
    console = terminal()
    for name, result in failed.items():
        trial = last[result.cell_key, result.environment_id]
        extra = trial["extra"]
        head = f"[yellow]{trial['status']}[/] [bold]{escape(name)}[/] round {trial['round'] + 1}"
        console.print_line(f"{head}: {escape(trial['reason'] or '')}")
        text = extra.get("traceback") or extra.get("log") or "no traceback and no output recorded"
        for line in str(text).splitlines():
            console.print_line(f"    {escape(line)}")
