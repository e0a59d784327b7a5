"""`effbench show`: the speedup table of a sweep in the terminal; also what is printed at the end of a sweep."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.measure import Measurement
from rich.table import Table as RichTable

from effbench.cell import Status
from effbench.commands import options
from effbench.errors import NothingFoundError, nearest
from effbench.labels import LabelledRow, label_rows
from effbench.metrics import METRICS, Better
from effbench.report.mode_scores import describe, score
from effbench.report.tables import FORMATS, NO_REASON, SpeedupTable, bottleneck_table, rows_of, speedup_table
from effbench.store.store import Store
from effbench.sweeping.resume import resume_command
from effbench.terminal import Console, escape, terminal

HELP = "The speedup table of a sweep: rows model × bs, columns modes."
#: Cells that are named where one line is about several.
MOST_NAMES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    parser.add_argument(
        "--metric",
        type=metric_name,
        metavar="NAME",
        help="what the table shows (default: speedup, or latency_ms if nothing has a speedup); one of: "
        + ", ".join(METRICS),
    )
    parser.add_argument("--why", action="store_true", help="what bounds each cell, with the figures that show it")
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)


def metric_name(text: str) -> str:
    if text not in METRICS:
        near = nearest(text, METRICS)
        raise argparse.ArgumentTypeError(f"unknown metric {text!r}" + (f": did you mean {near}?" if near else ""))
    return text


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = label_rows(rows_of(store, sweep))
    if not rows:
        raise NothingFoundError(f"sweep {sweep.id} has no results yet; effbench ls --cells lists what it planned")
    table = bottleneck_table(rows) if args.why else table_of(rows, args.metric, sweep.baseline_mode)
    if args.format != "table":
        options.write(table.render(args.format), args)
        return 0
    with options.console(args) as console:
        if args.why:
            console.print(table.rich(lines=True))
        else:
            show(console, sweep, rows, table)
    return 0


def table_of(rows: Sequence[LabelledRow], metric: str | None, baseline_mode: str) -> SpeedupTable:
    """The table of a metric; by default of speedups, or of latencies if nothing has a speedup."""
    if metric is None:
        metric = "speedup" if any(row.source["speedup"] is not None for row in rows) else "latency_ms"
    return speedup_table(rows, metric, baseline_mode)


def show(console: Console, sweep: Any, rows: Sequence[LabelledRow], table: SpeedupTable) -> None:
    """Print title, table, legend and reasons."""
    name = f" {sweep.name}" if sweep.name else ""
    label = f" · {sweep.label}" if sweep.label else ""
    places = (f"{row.source['gpu_name'] or 'CPU'}, torch {row.source['torch_version']}" for row in rows)
    state = "" if sweep.state == "completed" else f" · {sweep.state}"
    title = (
        f"[bold]Sweep {sweep.id}{escape(name)}[/]{escape(label)} · {escape(', '.join(dict.fromkeys(places)))}{state}"
    )
    console.print(title, highlight=False)
    console.print(fitting_table(console, table))
    marks = table.legend("★")
    if table.metric == "speedup":
        text = f"× against {escape(table.baseline_mode)} (its column shows the latency)"
        console.print(" · ".join([text, *marks]), style="dim", highlight=False)
        over_all(console, rows)
    else:
        metric = METRICS[table.metric]
        direction = "" if metric.better is Better.NEITHER else f"; {metric.better} is better"
        console.print(f"{metric.title}: {metric.help}{direction}", style="dim", highlight=False)
        if marks:
            console.print(" · ".join(marks), style="dim", highlight=False)
        if all(entry.value is None for entry in table.entries):
            console.print("nothing in this sweep has this figure", style="dim", highlight=False)
    reasons(console, rows)


def over_all(console: Console, rows: Sequence[LabelledRow]) -> None:
    """Print the geometric mean of each mode if there is more than one point to average; training and inference apart,
    and so are environments."""
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        groups.setdefault((str(row.source["phase"]), row.where), {}).setdefault(row.mode, []).append(row.source)
    phases = {phase for phase, _ in groups}
    for (phase, where), modes in groups.items():
        scores = {mode: score(own) for mode, own in modes.items()}
        texts = [f"{escape(mode)} {describe(found)}" for mode, found in scores.items() if found.value != 1.0]
        if texts and max(found.averaged for found in scores.values()) > 1:
            what = (f" in {phase}" if len(phases) > 1 else "") + (f" ({escape(where)})" if where else "")
            line = f"geometric mean of the speedups{what}: " + " · ".join(texts)
            console.print_line(line)


def fitting_table(console: Console, table: SpeedupTable) -> RichTable:
    """A column for each mode; in a narrow terminal the interval below the value, or else a line for each entry."""
    unbounded = console.options.update(max_width=10_000)
    wide = table.wide(marked=True)
    for stacked in (False, True):
        drawn = wide.rich(lines=True, stacked=stacked)
        if Measurement.get(console, unbounded, drawn).maximum <= console.width:
            return drawn
    return table.long().rich(lines=True)


def reasons(console: Console, rows: Sequence[LabelledRow]) -> None:
    """Print every result that is not ok, with its reason; each reason once with its cells."""
    groups: dict[tuple[str, str], list[str]] = {}
    unsteady = []
    for row in rows:
        source = row.source
        if source["status"] != Status.OK:
            groups.setdefault((source["status"], source["reason"] or NO_REASON), []).append(row.name)
        elif source["unsteady_trials"]:
            unsteady.append(f"{row.name} ({source['unsteady_trials']} of {source['trials']})")
    for (status, reason), cells in groups.items():
        console.print_line(f"[yellow]{status}[/] {escape(listed(cells))}: {escape(reason)}")
    if unsteady:
        console.print_line(f"[dim]not steady after warm-up, trials: {escape(listed(unsteady))}[/]")


def listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def end_of_sweep(outcome: Any) -> int:
    """Print the table, what failed, where the database is and what to do next. Returns the exit code."""
    console = terminal()
    with Store.open(outcome.db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        rows = label_rows(rows_of(store, sweep))
        db = store.name  # without a password: this goes into logs
    if rows:
        show(console, sweep, rows, table_of(rows, None, sweep.baseline_mode))
    counts = Counter(row.source["status"] for row in rows)
    numbers = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "no result"
    option = [] if outcome.db == options.DEFAULT_DB else ["--db", db]
    environments = len({row.source["environment_id"] for row in rows})
    where = f" in {environments} environments" if environments > 1 else ""
    console.print_line(f"{numbers} of {sweep.cells} cells{where} · database {db}")
    if outcome.state == "interrupted":
        again = resume_command(sweep.id, outcome.db, db, is_imported=sweep.imported_at is not None)
        console.print_line(f"interrupted; go on with: {escape(again)}")
        return options.INTERRUPTED
    report = shlex.join(["effbench", "report", *option, "--sweep", sweep.id])
    console.print_line(f"report: {escape(report)}")
    failed = any(Status(status).is_failure for status in counts)
    return 1 if failed and outcome.on_failure == "fail" else 0
