"""`effbench reproduce`: run an experiment (or all), print its tables, judge its claims."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.experiments.definition import Experiment, described, find, load_all
from effbench.experiments.judge import Judgement
from effbench.report.claims import TONES, pivot_table, value_text
from effbench.store.store import Store
from effbench.table import TONES as STYLES
from effbench.table import Column, Table
from effbench.terminal import Console, escape, terminal

if TYPE_CHECKING:
    from effbench.experiments.run import Run

HELP = "Run an experiment, or all of them, and judge the claims it decides. What was measured already is not run again."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME",
        help="experiments (or ids of claims, a Python file of your own, which is run, or all), and overrides for all "
        "their sweeps, such as protocol=quick; none: list the experiments",
    )
    options.add_db(parser)
    measuring = parser.add_mutually_exclusive_group()
    measuring.add_argument("--fresh", action="store_true", help="measure again what was measured already")
    measuring.add_argument(
        "--stored",
        action="store_true",
        help="measure nothing: judge what the database holds, of every machine (after a claim was edited)",
    )
    parser.add_argument("--quiet", action="store_true", help="without progress and tables: verdicts only")


def run(args: argparse.Namespace) -> int:
    names = [word for word in args.words if "=" not in word]
    overrides = [word for word in args.words if "=" in word]
    console = terminal()
    if not names:
        if overrides or args.fresh or args.stored:
            raise UsageError("reproduce: which experiment? effbench reproduce lists them; `all` runs all")
        list_experiments(console, load_all())
        return 0
    chosen = find(names)
    from effbench.experiments.run import Machine, Run
    from effbench.launcher.overrides import key_of, value_of
    from effbench.sweeping.client import ForkServer

    settings = {key_of(word): str(value_of(word)) for word in overrides}
    db = settings.get("db", args.db)
    overrides = [word for word in overrides if key_of(word) != "db"]
    counts: Counter[str] = Counter()
    mistakes: list[str] = []
    with closing(ForkServer()) as server:
        if args.stored:
            with Store.open(db, mode="read") as store:
                machines = [Machine.stored(server, row) for row in store.environments()]
        else:
            machines = [Machine.here(server, settings.get("device", "auto"))]
        for experiment, machine in [(experiment, machine) for experiment in chosen for machine in machines]:
            on = f" (on {machine.name})" if args.stored else ""
            console.print_line(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question + on)}")
            try:
                done = Run(experiment, machine, db, overrides, args.fresh, args.quiet).execute()
            except UsageError as error:  # the others can still be run
                if len(chosen) == 1:
                    raise
                console.print_line(f"[red]not run[/]: {escape(str(error))}")
                mistakes.append(f"{experiment.name}: {error}")
                continue
            if done.interrupted:
                raise KeyboardInterrupt
            if done.missing:
                console.print_line(escape(f"not judged: {done.missing}"), "dim")
                continue
            show(console, done)
            counts.update(str(judgement.verdict) for judgement in done.judgements)
            mistakes += done.mistakes
    if len(chosen) > 1:
        console.print_line(escape(", ".join(f"{number} {text}" for text, number in counts.most_common())))
    if mistakes:
        raise UsageError("\n".join(mistakes[:2]))  # the output above has the others
    if args.stored and not counts:
        raise NothingFoundError(f"{db} holds no experiment that was measured completely; omit --stored to measure it")
    return 0


def list_experiments(console: Console, experiments: Sequence[Experiment]) -> None:
    columns = [Column("experiment"), Column("question"), Column("claims"), Column("GPU s", numeric=True)]
    rows = [
        (one.name, one.question, ", ".join(claim.id for claim in one.claims), f"{one.gpu_seconds:.0f}")
        for one in experiments
    ]
    console.print_table(Table.of(columns, rows))
    minutes = sum(one.gpu_seconds for one in experiments) / 60
    console.print_line(escape(f"effbench reproduce NAME; all of them take about {minutes:.0f} minutes of one GPU"))


def show(console: Console, done: Run) -> None:
    """Print tables, verdicts, and the sweeps that the rows are from."""
    for table in () if done.quiet else done.experiment.tables:
        rows = done.input(table.sweep)
        if rows.empty:  # its sweeps mean nothing here
            continue
        try:
            drawn = pivot_table(table, rows).rich(width=console.width)
        except Exception as error:  # the user's function may raise anything
            done.mistakes.append(f"{done.experiment.path}: table {table.title!r}: {described(error)}")
            continue
        drawn.title, drawn.title_justify = escape(table.title), "left"
        console.print(drawn)
    for judgement in done.judgements:
        show_verdict(console, judgement)
    if sweeps := sorted({row["sweep_id"] for row in done.rows_of("rows")}):
        kept = f"; {done.reused} rows were measured before (--fresh measures them again)" if done.reused else ""
        console.print_line(escape(f"rows: sweep {', '.join(sweeps)}{kept}"), "dim")


def show_verdict(console: Console, judgement: Judgement) -> None:
    """Print the claim, its verdict, the figure with its interval, the reason, and the parts."""
    claim, style = judgement.claim, STYLES[TONES[judgement.verdict]] or "none"
    figure = f" · {value_text(judgement.value, claim.unit)}" if judgement.value is not None else ""
    console.print_line(
        f"[bold]{escape(claim.id)}[/] {escape(claim.text)}: [{style}]{judgement.verdict}[/]{escape(figure)}"
        f" · {escape(judgement.reason)}"
    )
    for part in judgement.parts:
        if part.label and part.value is not None:
            holds = {True: "holds", False: "does not hold", None: "open"}[part.holds.holds]
            console.print_line(escape(f"    {part.label}: {value_text(part.value, claim.unit)}, {holds}"), "dim")
    for name, value in judgement.also.items():
        console.print_line(escape(f"    {name}: {value_text(value)}"), "dim")
