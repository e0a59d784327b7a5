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
from effbench.labels import cell_names, row_names
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
    which.add_argument(
        "--failures", action="store_true", help="every result of a sweep that is not ok, with its reason"
    )
    parser.add_argument(
        "--traceback", action="store_true",
        help="with --failures: the traceback of each cell's last failed trial, or else the end of its output",
    )  # fmt: skip
    which.add_argument("--artifacts", action="store_true", help="the files that a sweep's trials left to look into")


def run(args: argparse.Namespace) -> int:
    if args.traceback and not args.failures:
        raise UsageError("ls: --traceback needs --failures; try `effbench ls --failures --traceback`")
    with Store.open(args.db, mode="read") as store:
        if args.cells:
            print_cells(store, args.sweep)
        elif args.failures:
            print_failures(store, args.sweep, args.traceback)
        elif args.artifacts:
            print_artifacts(store, args.sweep, artifact_home(args.db))
        else:
            print_sweeps(store)
    return 0


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    terminal().print(Table([Column(name) for name in columns], records).rich())


def print_artifacts(store: Store, reference: str, folder: Path) -> None:
    """Print a line a file, with its cell; then what could not be made, and why."""
    sweep = store.find_sweep(reference)
    names = names_of(store, sweep)
    trials = store.trials(sweep.id)
    rows = []
    # of a round that was tried again the last attempt, whose files exist
    last = {unit_of(trial): trial for trial in trials if {"artifacts", "artifact_notes"} & trial["extra"].keys()}
    for unit, trial in last.items():
        for name in trial["extra"].get("artifacts", ()):
            path = folder / name
            rows.append((names[unit], kind_of(name), f"{path}{'' if path.is_file() else ' (gone)'}"))
        for kind, why in trial["extra"].get("artifact_notes", {}).items():
            rows.append((names[unit], kind, f"none: {why}"))
    if not rows:
        raise NothingFoundError(f"sweep {sweep.id} has no artifacts; ask for them: 'artifacts=[trace,code,graph]'")
    print_table(("cell", "kind", "file"), rows)


def unit_of(row: dict[str, Any]) -> tuple[str, str]:
    """Cell key and environment id of a result or a trial."""
    return row["cell_key"], row["environment_id"]


def names_of(store: Store, sweep: SweepInfo) -> dict[tuple[str, str], str]:
    """Cell key and environment id -> a name, for every planned cell in every environment that it was planned for or ran
    in; with what tells the environments apart where there are several. An environment id of "" where none is known."""
    cells = {cell.key: cell for cell in store.planned(sweep.id)}
    ran = (trial["environment_id"] for trial in store.trials(sweep.id))
    ids = dict.fromkeys([*(sweep.host.get("environments") or ()), *ran])
    environments = {row["id"]: row for row in store.environments(ids)}
    if len(environments) < 2:
        return {(key, one): name for key, name in cell_names(cells.values()).items() for one in environments or [""]}
    added = labels(environments.values())
    units = [(key, one) for key in cells for one in ids if one in environments]
    rows = [
        {"model": cells[key].model_name, "bs": cells[key].bs, "mode": cells[key].mode_name, "dtype": cells[key].dtype,
         "phase": cells[key].phase, "device": cells[key].device, "params": cells[key].params(), "environment_id": one,
         **{name: environments[one][name] for name in TELLING}, **added[one]}
        for key, one in units
    ]  # fmt: skip
    return dict(zip(units, row_names(rows), strict=True))


def kind_of(name: str) -> str:
    """What a file is, by its name."""
    stem = name.rpartition("/")[2].partition(".")[0].rstrip("0123456789").rstrip("-")
    return {"memory": "snapshot", "cuda-graph": "graph"}.get(stem, stem)


def print_sweeps(store: Store) -> None:
    baselines: dict[str, dict[str, None]] = {}  # sweep -> the names that it has, each once
    for baseline in store.baselines():
        baselines.setdefault(baseline.sweep_id, {})[baseline.name] = None
    rows = [
        {
            "sweep": sweep.id,
            "name": sweep.name,
            "baseline": ", ".join(baselines.get(sweep.id, ())),
            "started (UTC)": str(sweep.started_at)[:19],
            "state": sweep.state + ", imported" * (sweep.imported_at is not None),
            "protocol": sweep.protocol.get("name", ""),
            "cells": sweep.cells,
            "trials": sweep.trials,
            "statuses": ", ".join(f"{number} {status}" for status, number in sweep.statuses.items()),
            "label": sweep.label,
        }
        for sweep in store.sweeps()
    ]
    names = ["sweep", "name", "baseline", "started (UTC)", "state", "protocol", "cells", "trials", "statuses", "label"]
    columns = [Column(name, optional=name == "baseline") for name in names]
    terminal().print(Table(columns, rows).rich())


def print_cells(store: Store, reference: str) -> None:
    sweep = store.find_sweep(reference)
    devices = {cell.key: cell.device for cell in store.planned(sweep.id)}
    results = {unit_of(row): row for row in store.results(sweep.id)}
    rows = []
    for unit, name in names_of(store, sweep).items():
        row = results.get(unit)
        measured = ("not run yet", 0, "")
        if row is not None:
            measured = (row["status"], row["trials"], METRICS["latency_ms"].format(row["latency_ms"]))
        rows.append((unit[0][:12], name, devices[unit[0]], *measured))
    print_table(("cell key", "cell", "device", "status", "trials", "latency"), rows)


def print_failures(store: Store, reference: str, traceback: bool) -> None:
    """A line for each result that is not ok, or its reason followed by the traceback."""
    sweep = store.find_sweep(reference)
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
