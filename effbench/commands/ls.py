"""`effbench ls`: list the sweeps of a database, or a sweep's cells, failures or artifacts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from effbench.cell import Result, Status
from effbench.commands import options
from effbench.environments import TELLING, interpreter_of, labels
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import (
    grouped,
    label_rows,
    row_names,
)
from effbench.metrics import METRICS
from effbench.printable import count
from effbench.report.marks import note as marks_note
from effbench.report.marks import signed
from effbench.report.tables import rows_of
from effbench.store.connect import artifact_home
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.table import Column, Record, Table
from effbench.terminal import escape, terminal

HELP = (
    "List the sweeps in the database, or the planned cells, failed results or artifacts of one"
    " sweep."
)


class Unit(NamedTuple):
    """What has one result: a cell in an environment."""

    cell_key: str
    environment_id: str

    @classmethod
    def of(cls, result: Result) -> Unit:
        return cls(result.cell_key, result.environment_id)

    @classmethod
    def of_trial(cls, row: Mapping[str, Any]) -> Unit:
        return cls(row["cell_key"], row["environment_id"])


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


def names_of(store: Store, sweep: SweepInfo) -> dict[Unit, str]:
    """Return the unique name of every planned cell, once for each environment that it was planned
    for or ran in. The environment id is "" if no environment is known."""
    ran = [row["id"] for row in store.environments_of(sweep.id)]
    ids = dict.fromkeys([*(sweep.host.get("environments") or ()), *ran])
    environments = {row["id"]: row for row in store.environments(ids)}
    added = labels(environments.values())
    known = [key for key in ids if key in environments]
    identities = {}
    for cell in store.planned(sweep.id):
        for key in known or [""]:
            identity = cell.identity()
            if key:
                facts: dict[str, Any] = {name: environments[key][name] for name in TELLING}
                facts |= added[key]
                identity = replace(identity, environment_id=key, **facts)
            identities[Unit(cell.key, key)] = identity
    return dict(zip(identities, row_names(identities.values()), strict=True))


def print_artifacts(store: Store, sweep: SweepInfo, folder: Path) -> None:
    """Print each cell's files, and the artifacts that it could not write, with the reason."""
    names = names_of(store, sweep)
    # only the last attempt of a round still has its files
    last = {}
    for trial in store.trials(sweep.id):
        if {"artifacts", "artifact_notes"} & trial["extra"].keys():
            last[Unit.of_trial(trial)] = trial["extra"]
    rows = []
    for unit, extra in last.items():
        for name in extra.get("artifacts", ()):
            path = folder / name
            text = str(path) if path.is_file() else f"{path} (gone)"
            rows.append({"cell": names[unit], "file": text})
        for kind, why in extra.get("artifact_notes", {}).items():
            rows.append({"cell": names[unit], "file": f"no {kind}: {why}"})
    if not rows:
        raise NothingFoundError(
            f"sweep {sweep.id} has no artifacts; run it with 'artifacts=[trace,code,graph]'"
        )
    print_table(rows)


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
    devices = {cell.key: cell.device for cell in store.planned(sweep.id)}
    results = {Unit.of(result): result for result in store.results(sweep.id)}
    names = names_of(store, sweep)
    known = store.environments({unit.environment_id for unit in names if unit.environment_id})
    interpreters = {row["id"]: interpreter_of(row) for row in known}

    def place(unit: Unit) -> tuple[str, tuple[str | None, ...] | None]:
        return unit.cell_key, interpreters.get(unit.environment_id)

    shown = set(map(place, results))
    rows = []
    for unit, name in names.items():
        result = results.get(unit)
        if result is None and place(unit) in shown:
            continue
        shown.add(place(unit))
        status, trials, latency = "not run yet", 0, ""
        if result is not None:
            status, trials = str(result.status), result.trials
            text = METRICS["latency_ms"].format(result.latency_ms)
            latency = signed(text, bool(result.marked))
        rows.append(
            {
                "cell key": unit.cell_key[:12],
                "cell": name,
                "device": devices[unit.cell_key],
                "status": status,
                "trials": trials,
                "latency": latency,
            }
        )
    print_table(rows)
    note = marks_note(label_rows(rows_of(store, sweep)))
    if note:
        terminal().print_line(escape(note), "dim")


def print_failures(store: Store, sweep: SweepInfo, traceback: bool) -> None:
    """Print a table of the results that are not ok; with `traceback` each reason followed by its
    traceback."""
    rows = rows_of(store, sweep)
    failed = {}
    for row, name in zip(rows, row_names(rows), strict=True):
        if row.status is not Status.OK:
            failed[name] = row
    if not failed:
        text = f"no failures in sweep {sweep.id}: {count(len(rows), 'cell')} ok"
        terminal().print(text, highlight=False)
    elif traceback:
        print_tracebacks(store, sweep, {name: Unit.of(row) for name, row in failed.items()})
    else:
        table = []
        for name, row in failed.items():
            table.append({"status": row.status, "cell": name, "reason": row.reason})
        print_table(table)


def print_tracebacks(store: Store, sweep: SweepInfo, failed: Mapping[str, Unit]) -> None:
    """Print the reason and the traceback of the last failed trial of each result, or the end of its
    output."""
    trials = [trial for trial in store.trials(sweep.id) if trial["status"] != Status.OK]
    last = {Unit.of_trial(trial): trial for trial in trials}
    console = terminal()
    for name, unit in failed.items():
        trial = last[unit]
        extra = trial["extra"]
        head = f"[yellow]{trial['status']}[/] [bold]{escape(name)}[/] round {trial['round'] + 1}"
        console.print_line(f"{head}: {escape(trial['reason'] or '')}")
        text = extra.get("traceback") or extra.get("log") or "no traceback and no output recorded"
        for line in str(text).splitlines():
            console.print_line(f"    {escape(line)}")
