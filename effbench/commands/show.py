"""`effbench show`: the speedup table of a sweep in the terminal; also what is printed at the end of a sweep."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from effbench.cell import Status
from effbench.commands import options
from effbench.errors import NothingFoundError
from effbench.metrics import METRICS
from effbench.report.speedup_table import FORMATS, SpeedupTable, speedup_table
from effbench.store.store import Store

HELP = "The speedup table of a sweep: rows model × bs, columns modes."
MARKS = "★ best of its row · n.s. not significant: the interval holds 1 · (low–high) 95 % interval over processes"
TONES = {"best": "bold green", "unsure": "dim", "status": "yellow", "plain": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    parser.add_argument("--metric", default="speedup", choices=list(METRICS), metavar="NAME",
                        help=f"what the table shows (default: speedup); one of: {', '.join(METRICS)}")  # fmt: skip
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = store.results(sweep.id)
    if not rows:
        raise NothingFoundError(f"sweep {sweep.id} has no results yet; effbench ls --cells lists what it planned")
    table = speedup_table(rows, args.metric, sweep.baseline_mode)
    if args.format != "table":
        options.write(table.render(args.format), args.out)
        return 0
    if args.out:
        with open(args.out, "w") as file:
            show(Console(file=file, width=160), sweep, rows, table)
    else:
        show(Console(), sweep, rows, table)
    return 0


def show(console: Console, sweep: Any, rows: list[dict[str, Any]], table: SpeedupTable) -> None:
    """Title, table, legend and reasons."""
    name = f" {sweep.name}" if sweep.name else ""
    label = f" · {sweep.label}" if sweep.label else ""
    where = ", ".join(dict.fromkeys(f"{row['gpu_name'] or 'CPU'}, torch {row['torch_version']}" for row in rows))
    state = "" if sweep.state == "completed" else f" · {sweep.state}"
    console.print(f"[bold]Sweep {sweep.id}{escape(name)}[/]{escape(label)} · {where}{state}", highlight=False)
    console.print(rich_table(table), soft_wrap=not console.is_terminal)
    if table.metric == "speedup":
        console.print(f"× against {table.baseline_mode} (its column shows the latency) · {MARKS}", style="dim", highlight=False)
    else:
        metric = METRICS[table.metric]
        console.print(f"{metric.title}: {metric.help}; {metric.better} is better", style="dim", highlight=False)
    reasons(console, rows)


def rich_table(table: SpeedupTable) -> Table:
    """The pivot for a terminal; a model's name is shown once for its rows."""
    drawn = Table(header_style="bold", pad_edge=False)
    for name in table.label_names:
        drawn.add_column(escape(name), justify="right" if name == "bs" else "left", no_wrap=True)
    for mode in table.modes:
        drawn.add_column(escape(mode), justify="right")
    before: list[Any] = []
    for row in table.rows:
        labels = list(row.labels.values())
        if before and labels[0] != before[0]:
            drawn.add_section()
        shown = ["" if before and i == 0 and label == before[0] else escape(str(label)) for i, label in enumerate(labels)]
        before = labels
        entries = []
        for mode in table.modes:
            entry = row.cells[mode]
            text = escape(entry.text) + (" ★" if entry.best else "")
            entries.append(f"[{TONES[entry.tone]}]{text}[/]" if TONES[entry.tone] else text)
        drawn.add_row(*shown, *entries)
    return drawn


def reasons(console: Console, rows: list[dict[str, Any]]) -> None:
    """Every result that is not ok, with why; the same reason is said once with the cells it holds for."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["status"] != Status.OK:
            groups.setdefault((row["status"], row["reason"] or "no reason recorded"), []).append(
                f"{row['model']} bs={row['bs']} {row['mode']}"
            )
    for (status, reason), cells in groups.items():
        named = ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")
        console.print(f"[yellow]{status}[/] {escape(named)}: {escape(reason)}", highlight=False, soft_wrap=True)


def end_of_sweep(outcome: Any) -> int:
    """The table, what failed, where the database is and what to do next. Returns the exit code."""
    console = Console()
    with Store.open(outcome.db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        rows = store.results(sweep.id)
    if rows:
        show(console, sweep, rows, speedup_table(rows, "speedup", sweep.baseline_mode))
    counts = Counter(row["status"] for row in rows)
    said = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "no result"
    option = "" if outcome.db == options.DEFAULT_DB else f" --db '{outcome.db}'"
    setting = "" if outcome.db == options.DEFAULT_DB else f" 'db=\"{outcome.db}\"'" if "?" in outcome.db else f" db={outcome.db}"
    console.print(f"{said} of {sweep.cells} cells · database {outcome.db}", highlight=False, soft_wrap=True)
    if outcome.state == "interrupted":
        console.print(f"interrupted; go on with: effbench -m resume={sweep.id}{setting}", highlight=False, soft_wrap=True)
        return 130
    console.print(f"report: effbench report{option} --sweep {sweep.id}", highlight=False, soft_wrap=True)
    failed = any(Status(row["status"]).is_failure for row in rows)
    return 1 if failed and outcome.on_failure == "fail" else 0
