"""`effbench show`: the speedup table of a sweep in the terminal; also what is printed at the end of a sweep."""

from __future__ import annotations

import argparse
import difflib
import io
import shlex
from collections import Counter
from typing import Any

from rich.measure import Measurement
from rich.table import Table

from effbench.analysis.scores import describe, score
from effbench.analysis.swept import row_names, swept_rows
from effbench.cell import Status
from effbench.commands import options
from effbench.errors import NothingFoundError
from effbench.metrics import METRICS, Better
from effbench.report.speedup_table import FORMATS, Entry, SpeedupTable, speedup_table
from effbench.report.why_table import why_table
from effbench.store.store import Store
from effbench.sweep.trust import resume_command
from effbench.terminal import PLAIN_WIDTH, Console, escape, terminal

HELP = "The speedup table of a sweep: rows model × bs, columns modes."
TONES = {"best": "bold green", "unsure": "dim", "status": "yellow", "plain": ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    options.add_sweep(parser)
    parser.add_argument(
        "--metric",
        type=metric_name,
        metavar="NAME",
        help="what the table shows (default: speedup, or latency_ms where nothing has a speedup); one of: "
        + ", ".join(METRICS),
    )
    parser.add_argument("--why", action="store_true", help="what bounds each cell, with the figures that say so")
    parser.add_argument("--format", default="table", choices=["table", *FORMATS], help="(default: table)")
    options.add_out(parser)


def metric_name(text: str) -> str:
    if text not in METRICS:
        near = difflib.get_close_matches(text, METRICS, n=1)
        raise argparse.ArgumentTypeError(f"unknown metric {text!r}" + (f": did you mean {near[0]}?" if near else ""))
    return text


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = options.rows_of(store, sweep)
    if not rows:
        raise NothingFoundError(f"sweep {sweep.id} has no results yet; effbench ls --cells lists what it planned")
    if args.why:
        return explain(args, rows)
    table = table_of(rows, args.metric, sweep.baseline_mode)
    if args.format != "table":
        options.write(table.render(args.format), args)
        return 0
    if args.out:
        text = io.StringIO()
        show(Console(file=text, width=PLAIN_WIDTH), sweep, rows, table)
        options.write(text.getvalue(), args)
    else:
        show(terminal(), sweep, rows, table)
    return 0


def explain(args: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    """A line for each cell: its figures, and why they are what they are."""
    table = why_table(rows)
    if args.format != "table":
        options.write(table.render(args.format), args)
        return 0
    drawn = Table(header_style="bold", pad_edge=False)
    for heading, numeric in zip(table.headings, table.numeric, strict=True):
        drawn.add_column(escape(heading), justify="right" if numeric else "left")
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    if args.out:
        text = io.StringIO()
        Console(file=text, width=PLAIN_WIDTH).print(drawn)
        options.write(text.getvalue(), args)
    else:
        terminal().print(drawn)
    return 0


def table_of(rows: list[dict[str, Any]], metric: str | None, baseline_mode: str) -> SpeedupTable:
    """The table of a metric; of none given the speedups, or the latencies where nothing has a speedup."""
    if metric is None:
        metric = "speedup" if any(row["speedup"] is not None for row in rows) else "latency_ms"
    return speedup_table(rows, metric, baseline_mode)


def show(console: Console, sweep: Any, rows: list[dict[str, Any]], table: SpeedupTable) -> None:
    """Title, table, legend and reasons."""
    name = f" {sweep.name}" if sweep.name else ""
    label = f" · {sweep.label}" if sweep.label else ""
    where = ", ".join(dict.fromkeys(f"{row['gpu_name'] or 'CPU'}, torch {row['torch_version']}" for row in rows))
    state = "" if sweep.state == "completed" else f" · {sweep.state}"
    console.print(f"[bold]Sweep {sweep.id}{escape(name)}[/]{escape(label)} · {escape(where)}{state}", highlight=False)
    console.print(fitting_table(console, table))
    if table.metric == "speedup":
        console.print(legend(table), style="dim", highlight=False)
        over_all(console, rows)
    else:
        metric = METRICS[table.metric]
        direction = "" if metric.better is Better.NEITHER else f"; {metric.better} is better"
        console.print(f"{metric.title}: {metric.help}{direction}", style="dim", highlight=False)
        if marks := table.legend("★"):
            console.print(" · ".join(marks), style="dim", highlight=False)
        if all(entry.value is None for row in table.rows for entry in row.cells.values()):
            console.print("nothing in this sweep has this figure", style="dim", highlight=False)
    reasons(console, rows)


def over_all(console: Console, rows: list[dict[str, Any]]) -> None:
    """The geometric mean of each mode, where there is more than one point to average; training and inference apart, and
    so are environments."""
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    for row in swept_rows(rows):
        group = groups.setdefault((str(row.source.get("phase")), row.where), {})
        group.setdefault(row.mode, []).append(row.source)
    phases = {phase for phase, _ in groups}
    for (phase, where), modes in groups.items():
        said = {mode: score(own) for mode, own in modes.items()}
        if max(found.averaged for found in said.values()) < 2:
            continue
        texts = [f"{escape(mode)} {describe(found)}" for mode, found in said.items() if found.value != 1.0]
        if not texts:
            continue
        what = (f" in {phase}" if len(phases) > 1 else "") + (f" ({escape(where)})" if where else "")
        console.print(f"geometric mean of the speedups{what}: " + " · ".join(texts), highlight=False, soft_wrap=True)


def legend(table: SpeedupTable) -> str:
    """Explain the figures, and the marks that the table has."""
    return " · ".join([f"× against {escape(table.baseline_mode)} (its column shows the latency)", *table.legend("★")])


def fitting_table(console: Console, table: SpeedupTable) -> Table:
    """On one line an entry; where that is too wide, the interval below the value; then a line for each entry."""
    unbounded = console.options.update(max_width=10_000)
    for drawn in (wide_table(table), wide_table(table, two_lines=True)):
        if Measurement.get(console, unbounded, drawn).maximum <= console.width:
            return drawn
    return long_table(table)


def wide_table(table: SpeedupTable, two_lines: bool = False) -> Table:
    """A column a mode; a model's name is shown once for its rows."""
    drawn = table_with_labels(table)
    for mode in table.modes:
        drawn.add_column(escape(mode), justify="right")
    before: list[Any] = []
    for row in table.rows:
        labels = list(row.labels.values())
        if before and labels[0] != before[0]:
            drawn.add_section()
        texts = (entry_text(row.cells[mode], "\n" if two_lines else " ") for mode in table.modes)
        drawn.add_row(*labels_shown(labels, before), *texts)
        before = labels
    return drawn


def long_table(table: SpeedupTable) -> Table:
    """A line for each entry: fits where the columns do not."""
    drawn = table_with_labels(table)
    drawn.add_column("mode")
    drawn.add_column(table.metric, justify="right")
    before: list[Any] = []
    for row in table.rows:
        labels = list(row.labels.values())
        if before:
            drawn.add_section()
        for index, mode in enumerate(table.modes):
            shown = labels_shown(labels, before) if index == 0 else [""] * len(labels)
            drawn.add_row(*shown, escape(mode), entry_text(row.cells[mode], " "))
        before = labels
    return drawn


def table_with_labels(table: SpeedupTable) -> Table:
    drawn = Table(header_style="bold", pad_edge=False)
    for name in table.label_names:
        drawn.add_column(escape(name), justify="right" if name == "bs" else "left")
    return drawn


def labels_shown(labels: list[Any], before: list[Any]) -> list[str]:
    """The first label is left away where it repeats the row above."""
    return ["" if before and i == 0 and label == before[0] else escape(str(label)) for i, label in enumerate(labels)]


def entry_text(entry: Entry, separator: str) -> str:
    """Markup of one entry, `separator` between the value and its interval."""
    value, bracket, rest = entry.text.partition(" (")
    interval, _, mark = rest.partition(")")
    text = escape(value + mark) + (" ★" if entry.best else "")
    if bracket:
        text += f"{separator}({escape(interval)})"
    return f"[{TONES[entry.tone]}]{text}[/]" if TONES[entry.tone] else text


def reasons(console: Console, rows: list[dict[str, Any]]) -> None:
    """Every result that is not ok, with why; the same reason is said once with the cells it holds for."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row, name in zip(rows, row_names(rows), strict=True):
        if row["status"] != Status.OK:
            groups.setdefault((row["status"], row["reason"] or "no reason recorded"), []).append(name)
    for (status, reason), cells in groups.items():
        named = ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")
        console.print(f"[yellow]{status}[/] {escape(named)}: {escape(reason)}", highlight=False, soft_wrap=True)
    unsteady = [
        f"{name} ({row['unsteady_trials']} of {row['trials']})"
        for row, name in zip(rows, row_names(rows), strict=True)
        if row["status"] == Status.OK and row["unsteady_trials"]
    ]
    if unsteady:
        named = ", ".join(unsteady[:3]) + (f" and {len(unsteady) - 3} more" if len(unsteady) > 3 else "")
        console.print(f"[dim]not steady after warm-up, trials: {escape(named)}[/]", highlight=False, soft_wrap=True)


def end_of_sweep(outcome: Any) -> int:
    """The table, what failed, where the database is and what to do next. Returns the exit code."""
    console = terminal()
    with Store.open(outcome.db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        rows = options.rows_of(store, sweep)
        db = store.name  # without a password: this goes into logs
    if rows:
        show(console, sweep, rows, table_of(rows, None, sweep.baseline_mode))
    counts = Counter(row["status"] for row in rows)
    said = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "no result"
    option = [] if outcome.db == options.DEFAULT_DB else ["--db", db]
    environments = len({row["environment_id"] for row in rows})
    where = f" in {environments} environments" if environments > 1 else ""
    console.print(f"{said} of {sweep.cells} cells{where} · database {db}", highlight=False, soft_wrap=True)
    if outcome.state == "interrupted":
        again = resume_command(sweep.id, outcome.db, db, is_imported=sweep.imported_at is not None)
        console.print(f"interrupted; go on with: {escape(again)}", highlight=False, soft_wrap=True)
        return 130
    report = shlex.join(["effbench", "report", *option, "--sweep", sweep.id])
    console.print(f"report: {escape(report)}", highlight=False, soft_wrap=True)
    failed = any(Status(row["status"]).is_failure for row in rows)
    return 1 if failed and outcome.on_failure == "fail" else 0
