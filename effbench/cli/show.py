"""`effbench show`: print a sweep's speedup table; `end_of_sweep` prints the summary of a sweep that
has just run."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from effbench.analysis.coldstart import cold_starts_of
from effbench.analysis.scaling import scalings_of
from effbench.cli import options
from effbench.core.errors import INTERRUPTED, NothingFoundError
from effbench.core.labels import LabelledResults, grouped, label_rows
from effbench.core.metrics import METRICS, SPEEDUPS
from effbench.core.printable import count, listed, tally
from effbench.core.quantities import Better
from effbench.core.settings import db_option
from effbench.core.table import markdown_text
from effbench.core.terminal import Console, escape, terminal
from effbench.render.bottlenecks import (
    NOT_PROFILED,
    WHY_NOT_PROFILED,
    bottleneck_table,
    failure_of,
    largest_parts,
    no_bottlenecks,
    reason_of,
)
from effbench.render.coldstart import sentences as sentences_on_cold_starts
from effbench.render.marks import explain_marks
from effbench.render.reasons import sentence
from effbench.render.remarks import remarks_on
from effbench.render.scaling import scaling_table, sentences
from effbench.render.summary import by_mode, modes_table
from effbench.render.tables import FORMATS, SpeedupTable, rows_of, speedup_table
from effbench.run.resume import resume_command
from effbench.store.secrets import masked_url
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.store.values import ResultKey

if TYPE_CHECKING:
    from effbench.run.sweep import Outcome

HELP = "Print the speedup table of a sweep: a row per model and batch size, a column per mode."
#: Number of cells that a line names before it counts the rest.
MOST_NAMES = 3
#: Metrics below whose tables several devices are compared with one.
SCALED = (*SPEEDUPS, *SPEEDUPS.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_sweep(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--metric",
        nargs="+",
        type=options.metric_of(METRICS),
        metavar="NAME",
        help="metrics to show (default: speedup, of latency and period; latency_ms if nothing has"
        f" one); one of: {', '.join(METRICS)}",
    )
    which.add_argument(
        "--why", action="store_true", help="show each cell's bottleneck and the figures behind it"
    )
    options.add_format(parser, *FORMATS)


def run(args: argparse.Namespace) -> int:
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        rows = label_rows(rows_of(store, sweep))
        remarks = remarks_on(store, sweep, rows)
        parts = largest_parts(store, sweep.id) if args.why else {}
    if not rows:
        raise NothingFoundError(
            f"sweep {sweep.id} has no results yet; effbench ls --cells lists its planned cells"
        )
    if args.why:
        write_bottlenecks(rows, parts, args)
        return 0
    metric, *others = args.metric or [None]
    table = speedup_table(rows, metric, sweep.baseline_mode, others)
    if args.format == "table":
        with options.console(args) as console:
            show(console, sweep, rows, table, remarks)
        return 0
    text = table.render(args.format)
    if args.format == "markdown":
        if table.is_marked:
            text += paragraphs([explain_marks(rows)])
        if table.metrics[0] in SCALED:
            text += paragraphs(sentences(scalings_of(rows)))
    options.write(text, args)
    return 0


def paragraphs(lines: Sequence[str]) -> str:
    """Return Markdown with a paragraph for each line that is not empty."""
    return "".join(f"\n{markdown_text(line)}\n" for line in lines if line)


def write_bottlenecks(
    rows: LabelledResults, parts: Mapping[ResultKey, str], args: argparse.Namespace
) -> None:
    """Write the table of bottlenecks, or one line if there are none. Programs always get rows."""
    table = bottleneck_table(rows, parts)
    if args.format in ("csv", "json"):
        options.write(table.render(args.format), args)
        return
    nothing = no_bottlenecks(rows)
    if nothing is not None and not parts:
        options.write(nothing, args)
        return
    lines = [explain_marks(rows)]
    if nothing is None and any(reason_of(row) == NOT_PROFILED for row in rows):
        lines.insert(0, WHY_NOT_PROFILED)
    if args.format == "markdown":
        options.write(table.render("markdown") + paragraphs(lines), args)
        return
    with options.console(args) as console:
        table.print(console, lines=True)
        for line in filter(None, lines):
            console.print_line(escape(line), "dim")


def show(
    console: Console,
    sweep: SweepInfo,
    rows: LabelledResults,
    table: SpeedupTable,
    remarks: Sequence[str],
) -> None:
    """Print the table with its legend, the winners, reasons, remarks, how cells scale over several
    devices, and the mean speedups."""
    console.print(title_of(sweep, rows), highlight=False)
    if not table.has_figures and all(row.is_ok for row in rows):
        metric = METRICS[table.metrics[0]]
        console.print_line(escape(f"no cell of this sweep has {metric.name} ({metric.title})"))
        return
    table.wide(best=False).print(console, lines=True)
    footnotes = [*about(table), *table.legend()]
    if footnotes:
        console.print(escape(" · ".join(footnotes)), style="dim", highlight=False)
    if table.is_marked:
        console.print_line(escape(explain_marks(rows)), "dim")
    costs = sentences_on_cold_starts(cold_starts_of(rows))
    for text in [*costs, *best_modes(table), *reasons(rows), *remarks]:
        console.print_line(escape(text))
    if table.metrics[0] in SCALED:
        print_scaling(console, rows)
    if table.metrics[0] == "speedup" and len(table.rows) > len(table.metrics):
        means = modes_table(by_mode(rows))
        console.print(f"\n{means.caption}", style="dim")
        means.print(console)


def print_scaling(console: Console, rows: LabelledResults) -> None:
    """Print how cells on several devices compare with one; nothing if no cell can be compared."""
    scalings = scalings_of(rows)
    if not scalings:
        return
    table = scaling_table(scalings)
    console.print(f"\n{table.caption}", style="dim")
    for text in sentences(scalings):
        console.print_line(escape(text))
    table.print(console)


def title_of(sweep: SweepInfo, rows: LabelledResults) -> str:
    """Return the sweep, its label, its machines and its state unless it is complete, as markup."""
    facts = [sweep.label]
    facts += [f"{row.gpu_name or 'CPU'}, torch {row.torch_version}" for row in rows]
    if sweep.state != "completed":
        facts.append(sweep.state)
    name = f"Sweep {sweep.id} {sweep.name or ''}".rstrip()
    known = [escape(fact) for fact in dict.fromkeys(facts) if fact]
    return " · ".join([f"[bold]{escape(name)}[/]", *known])


def about(table: SpeedupTable) -> list[str]:
    """Return what the figures of a table are; nothing if it has none."""
    if not table.has_figures:
        return []
    if table.metrics[0] == "speedup":
        text = f"× against {table.baseline_mode}"
        if table.baseline_mode in table.modes:
            text += ", whose column shows its times"
        return [text]
    texts = []
    for name in table.metrics:
        metric = METRICS[name]
        if not table.has_figures_of(name):
            texts.append(f"{metric.title}: not measured")
            continue
        text = f"{metric.title}: {metric.help}"
        if metric.better is not Better.NEITHER:
            text += f"; {metric.better} is better"
        texts.append(text)
    return texts


def best_modes(table: SpeedupTable) -> list[str]:
    """Return a line for each case that has a winner or a tie, with the reason."""
    decided = [row for row in table.rows if row.winners]
    lines = []
    for case, of_case in grouped(decided, attrgetter("case")).items():
        lines.append(f"{case}: {sentence(of_case)}")
    return lines


def reasons(rows: LabelledResults) -> list[str]:
    """Return a line for each reason of failed cells, then a line with the cells that have unsteady
    trials."""
    failed = [row for row in rows if not row.is_ok]
    lines = []
    for reason, of_reason in grouped(failed, failure_of).items():
        lines.append(f"{listed([row.name for row in of_reason], MOST_NAMES)}: {reason}")
    unsteady = [
        f"{row.name} ({row.unsteady_trials} of {row.trials})"
        for row in rows
        if row.is_ok and row.unsteady_trials
    ]
    if unsteady:
        lines.append(f"unsteady after warm-up (trials): {listed(unsteady, MOST_NAMES)}")
    return lines


# --- the end of a sweep ---


def end_of_sweep(outcome: Outcome) -> int:
    """Print the table, the failures, the database and the next step; return the exit code."""
    console = terminal()
    with Store.open(outcome.db, mode="read") as store:
        sweep = store.find_sweep(outcome.sweep_id)
        rows = label_rows(rows_of(store, sweep))
        remarks = remarks_on(store, sweep, rows)
    if rows:
        show(console, sweep, rows, speedup_table(rows, None, sweep.baseline_mode), remarks)
    db = masked_url(outcome.db)  # without a password, because output ends up in logs
    which = f"--sweep {shlex.quote(sweep.id)}{db_option(db)}"
    has_failed = any(row.status.is_failure for row in rows)
    is_interrupted = outcome.state == "interrupted"
    statuses = Counter(row.status for row in rows)
    measured = tally(statuses.most_common()) or "no result"
    lines = [f"{measured} of {count(sweep.cells, 'cell')} · database {db}"]
    if is_interrupted:
        lines.append(f"interrupted; {how_to_resume(outcome)}")
    else:
        lines.append(f"report: effbench report {which}")
    if has_failed:
        lines.append(f"failures: effbench ls --failures --traceback {which}")
    for line in lines:
        console.print_line(escape(line))
    if is_interrupted:
        return INTERRUPTED
    return int(outcome.on_failure == "fail" and has_failed)


def how_to_resume(outcome: Outcome) -> str:
    command = resume_command(outcome.sweep_id, outcome.db, masked_url(outcome.db))
    return f"resume with: {command}"
