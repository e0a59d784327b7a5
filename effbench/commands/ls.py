"""`effbench ls`: the sweeps of a database, the cells of one, or what failed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from effbench.cell import Status
from effbench.commands import options
from effbench.environments import TELLING, labels
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import cell_row, row_names
from effbench.metrics import METRICS
from effbench.store.connect import artifact_home
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.table import Column, Table
from effbench.terminal import escape, terminal

HELP = "Sweeps in the database; with --cells the planned cells of one, with --failures the results that are not ok."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cells", action="store_true", help="every planned cell of a sweep, measured or not")
    which.add_argument("--failures", action="store_true", help="every result that is not ok, with its reason")
    which.add_argument("--artifacts", action="store_true", help="the files that a sweep's trials left to look into")
    last = "with --failures: the traceback of each cell's last failed trial, or else the end of its output"
    parser.add_argument("--traceback", action="store_true", help=last)


def run(args: argparse.Namespace) -> int:
    if args.traceback and not args.failures:
        raise UsageError("ls: --traceback needs --failures; try `effbench ls --failures --traceback`")
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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    terminal().print_table(Table.of([Column(name, optional=name == "baseline") for name in columns], rows))


def unit_of(row: dict[str, Any]) -> tuple[str, str]:
    """Return cell key and environment id of a result or a trial."""
    return row["cell_key"], row["environment_id"]


def names_of(store: Store, sweep: SweepInfo) -> dict[tuple[str, str], str]:
    """Return cell key and environment id -> a unique name, for every planned cell in every environment that it was
    planned for or ran in. The environment id is "" if none is known."""
    ran = (row["id"] for row in store.environments_of(sweep.id))
    ids = dict.fromkeys([*(sweep.host.get("environments") or ()), *ran])
    environments = {row["id"]: row for row in store.environments(ids)}
    added = labels(environments.values())
    rows = {}
    for cell in store.planned(sweep.id):
        for one in [one for one in ids if one in environments] or [""]:
            place = {name: environments[one][name] for name in TELLING} | added[one] if one else {}
            rows[cell.key, one] = {**cell_row(cell), **place, "environment_id": one}
    return dict(zip(rows, row_names(rows.values()), strict=True))


def print_artifacts(store: Store, sweep: SweepInfo, folder: Path) -> None:
    """Print a line for each file, with its cell; then what could not be made, and why."""
    names = names_of(store, sweep)
    # of a round that was tried again the last attempt, whose files exist
    kinds = {"artifacts", "artifact_notes"}
    last = {unit_of(trial): trial["extra"] for trial in store.trials(sweep.id) if kinds & trial["extra"].keys()}
    rows = []
    for unit, extra in last.items():
        for path in (folder / name for name in extra.get("artifacts", ())):
            rows.append((names[unit], f"{path}{'' if path.is_file() else ' (gone)'}"))
        rows += [(names[unit], f"{kind}, none: {why}") for kind, why in extra.get("artifact_notes", {}).items()]
    if not rows:
        raise NothingFoundError(f"sweep {sweep.id} has no artifacts; ask for them: 'artifacts=[trace,code,graph]'")
    print_table(("cell", "file"), rows)


def print_sweeps(store: Store) -> None:
    baselines: dict[str, dict[str, None]] = {}  # sweep -> the names that it has, each once
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
    names = ("sweep", "name", "baseline", "started (UTC)", "state", "protocol", "cells", "trials", "statuses", "label")
    print_table(names, rows)


def print_cells(store: Store, sweep: SweepInfo) -> None:
    devices = {cell.key: cell.device for cell in store.planned(sweep.id)}
    results = {unit_of(row): row for row in store.results(sweep.id)}
    rows = []
    for unit, name in names_of(store, sweep).items():
        row = results.get(unit)
        latency = METRICS["latency_ms"].format(row["latency_ms"]) if row else ""
        measured = (row["status"], row["trials"]) if row else ("not run yet", 0)
        rows.append((unit[0][:12], name, devices[unit[0]], *measured, latency))
    print_table(("cell key", "cell", "device", "status", "trials", "latency"), rows)


def print_failures(store: Store, sweep: SweepInfo, traceback: bool) -> None:
    """Print a line for each result that is not ok, or its reason followed by the traceback."""
    rows = options.rows_of(store, sweep)
    failed = [(row, name) for row, name in zip(rows, row_names(rows), strict=True) if row["status"] != Status.OK]
    console = terminal()
    if not failed:
        console.print(f"no failures in sweep {sweep.id}: {len(rows)} cells ok", highlight=False)
        return
    if not traceback:
        print_table(("status", "cell", "reason"), [(row["status"], name, row["reason"]) for row, name in failed])
        return
    last = {unit_of(trial): trial for trial in store.trials(sweep.id) if trial["status"] != Status.OK}
    for row, name in failed:
        trial = last[unit_of(row)]
        text = trial["extra"].get("traceback") or trial["extra"].get("log") or "no traceback and no output recorded"
        head = f"[yellow]{trial['status']}[/] [bold]{escape(name)}[/] round {trial['round'] + 1}"
        console.print_line(f"{head}: {escape(trial['reason'] or '')}")
        for line in str(text).splitlines():
            console.print_line(f"    {escape(line)}")
