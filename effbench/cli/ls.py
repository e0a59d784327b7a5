"""`effbench ls`: list the sweeps of a database, or a sweep's cells or failures."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from effbench.cli import options
from effbench.core.cell import Result, Status
from effbench.core.errors import UsageError
from effbench.core.labels import cell_names, row_names
from effbench.core.printable import count, tally
from effbench.core.table import Column, Table
from effbench.core.terminal import escape, terminal
from effbench.render.tables import rows_of, unmeasured
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.store.values import ResultKey

HELP = "List the sweeps in the database, or the planned cells or failed results of one sweep."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_sweep(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--cells", action="store_true", help="list every planned cell of a sweep, measured or not"
    )
    which.add_argument(
        "--failures", action="store_true", help="list every result that is not ok, with its reason"
    )
    parser.add_argument(
        "--traceback",
        action="store_true",
        help="list failures with the traceback of each cell's last failed trial, or the end of its"
        " output",
    )


def run(args: argparse.Namespace) -> int:
    shows_failures = args.failures or args.traceback
    if args.sweep != "last" and not (args.cells or shows_failures):
        raise UsageError(
            "ls: without --cells or --failures it lists all sweeps; --sweep needs one of them"
        )
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)  # raises NothingFoundError for an empty database
        if args.cells:
            print_cells(store, sweep)
        elif shows_failures:
            print_failures(store, sweep, args.traceback)
        else:
            print_sweeps(store)
    return 0


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    Table.of([*map(Column, headings)], rows).print(terminal())


def print_sweeps(store: Store) -> None:
    baselines = store.baselines()
    rows = []
    for sweep in store.sweeps():
        names = [baseline.name for baseline in baselines if baseline.sweep_id == sweep.id]
        imported = ", imported" if sweep.imported_at is not None else ""
        rows.append(
            {
                "sweep": sweep.id,
                "name": sweep.name,
                "baseline": ", ".join(dict.fromkeys(names)),  # one for each GPU or CPU
                "started (UTC)": f"{sweep.started_at:%Y-%m-%d %H:%M:%S}",
                "state": sweep.state + imported,
                "protocol": sweep.protocol.get("name", ""),
                "cells": sweep.cells,
                "trials": sweep.trials,
                "statuses": tally(sweep.statuses.items()),
                "label": sweep.label,
            }
        )
    # without a baseline, that column is omitted
    columns = [Column(name, optional=name == "baseline") for name in rows[0]]
    Table(columns, rows).print(terminal())


def print_cells(store: Store, sweep: SweepInfo) -> None:
    """Print the results of a sweep, then the planned cells that have none."""
    results = rows_of(store, sweep)
    planned = store.planned(sweep.id)
    rows = [
        (result.cell_key[:12], name, result.device, str(result.status), result.trials)
        for result, name in zip(results, row_names(results), strict=True)
    ]
    names = cell_names(planned)
    missing = set(unmeasured(store, sweep, results))
    rows += [
        (cell.key[:12], names[cell.key], cell.device, "not run yet", 0)
        for cell in planned
        if cell.key in missing
    ]
    print_table(("cell key", "cell", "device", "status", "trials"), rows)


def print_failures(store: Store, sweep: SweepInfo, traceback: bool) -> None:
    """Print a table of the results that are not ok; with `traceback` each reason followed by its
    traceback."""
    results = rows_of(store, sweep)
    named = zip(row_names(results), results, strict=True)
    failed = {name: result for name, result in named if result.status is not Status.OK}
    if not failed:
        terminal().print(
            f"no failures in sweep {sweep.id}: {count(len(results), 'cell')} ok", highlight=False
        )
    elif traceback:
        print_tracebacks(store, sweep, failed)
    else:
        rows = [(result.status, name, result.reason) for name, result in failed.items()]
        print_table(("status", "cell", "reason"), rows)


def print_tracebacks(store: Store, sweep: SweepInfo, failed: Mapping[str, Result]) -> None:
    """Print the reason and the traceback of the last failed trial of each result, or the end of its
    output."""
    last = {
        ResultKey(trial.cell_key, trial.environment_id): trial
        for trial in store.trials(sweep.id)
        if trial.status is not Status.OK
    }
    console = terminal()
    for name, result in failed.items():
        trial = last[ResultKey(result.cell_key, result.environment_id)]
        extra = trial.extra
        head = f"[yellow]{trial.status}[/] [bold]{escape(name)}[/] round {trial.round + 1}"
        console.print_line(f"{head}: {escape(trial.reason or '')}")
        text = extra.get("traceback") or extra.get("log") or "no traceback and no output recorded"
        for line in str(text).splitlines():
            console.print_line(f"    {escape(line)}")
