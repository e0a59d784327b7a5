"""`effbench reproduce`: run one or all experiments, print their tables and judge their claims."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from typing import TYPE_CHECKING

from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.experiments.definition import Experiment, Pivot, find, load_all
from effbench.experiments.judge import Judgement
from effbench.printable import describe
from effbench.report.claims import TONES, pivot_table, value_text
from effbench.table import TONES as STYLES
from effbench.table import Column, Table
from effbench.terminal import Console, escape, terminal

if TYPE_CHECKING:
    from effbench.experiments.run import Machine, Run

HELP = "Run one or all experiments and judge the claims that they test. Stored results are reused."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = (
        "experiments, ids of claims, your own Python file (it is executed) or all; and overrides"
        " for all sweeps, such as protocol=quick (default: list the experiments)"
    )
    parser.add_argument("words", nargs="*", metavar="NAME", help=words)
    options.add_db(parser)
    measuring = parser.add_mutually_exclusive_group()
    measuring.add_argument(
        "--fresh", action="store_true", help="measure everything again, also stored results"
    )
    stored = (
        "measure nothing; judge the stored results of every machine, for example after editing a"
        " claim"
    )
    measuring.add_argument("--stored", action="store_true", help=stored)
    parser.add_argument(
        "--quiet", action="store_true", help="print only verdicts, no progress and tables"
    )


def run(args: argparse.Namespace) -> int:
    names = [word for word in args.words if "=" not in word]
    overrides = [word for word in args.words if "=" in word]
    console = terminal()
    if names:
        reproduce(args, find(names), overrides, console)
        return 0
    if overrides or args.fresh or args.stored:
        raise UsageError(
            "reproduce: no experiment given; name one (effbench reproduce lists them) or all"
        )
    list_experiments(console, load_all())
    return 0


def reproduce(
    args: argparse.Namespace,
    experiments: Sequence[Experiment],
    overrides: Sequence[str],
    console: Console,
) -> None:
    """Run the experiments on this machine, or with --stored judge the results of every machine.
    Raises UsageError if a claim or an experiment has a mistake, after the others have run."""
    from effbench.experiments.run import Machine, Run
    from effbench.launcher.overrides import key_of, value_of
    from effbench.sweeping.client import ForkServer

    settings = {key_of(word): str(value_of(word)) for word in overrides}
    db = settings.pop("db", args.db)
    overrides = [word for word in overrides if key_of(word) in settings]
    counts: Counter[str] = Counter()
    mistakes: list[str] = []
    with closing(ForkServer()) as server:
        device = settings.get("device", "auto")
        machines = Machine.all_stored(server, db) if args.stored else [Machine.here(server, device)]
        for experiment, machine in product(experiments, machines):
            print_title(console, experiment, machine, machines)
            try:
                done = Run(experiment, machine, db, overrides, args.fresh, args.quiet).execute()
            except UsageError as error:  # the other experiments can still run
                if len(experiments) == 1:
                    raise
                console.print_line(f"[red]not run[/]: {escape(str(error))}")
                mistakes.append(f"{experiment.name}: {error}")
                continue
            show(console, done)
            counts.update(str(judgement.verdict) for judgement in done.judgements)
            mistakes += done.mistakes
    if len(experiments) > 1:
        print_counts(console, counts)
    if mistakes:
        raise UsageError("\n".join(mistakes[:2]))  # the output above has the others
    if args.stored:
        check_not_empty(counts, db)


def check_not_empty(counts: Counter[str], db: str) -> None:
    if not counts:
        raise NothingFoundError(
            f"no complete results of these experiments in {db}; repeat the overrides of the"
            " measurement, such as protocol=quick, or omit --stored to measure"
        )


def print_counts(console: Console, counts: Counter[str]) -> None:
    texts = [f"{number} {verdict}" for verdict, number in counts.most_common()]
    console.print_line(escape(", ".join(texts)))


def print_title(
    console: Console, experiment: Experiment, machine: Machine, machines: Sequence[Machine]
) -> None:
    """Print the question; for stored results also the machine, with its environment if another one
    has the same name."""
    title = experiment.question
    if machine.probed is None:
        names = [other.name for other in machines]
        is_unique = names.count(machine.name) == 1
        environment = "" if is_unique else f", environment {machine.environment_id}"
        title += f" (on {machine.name}{environment})"
    console.print_line(f"[bold]{escape(experiment.name)}[/]: {escape(title)}")


def list_experiments(console: Console, experiments: Sequence[Experiment]) -> None:
    columns = [
        Column("experiment"),
        Column("question"),
        Column("claims"),
        Column("GPU s", numeric=True),
    ]
    rows = [
        (
            item.name,
            item.question,
            ", ".join(claim.id for claim in item.claims),
            f"{item.gpu_seconds:.0f}",
        )
        for item in experiments
    ]
    console.print_table(Table.of(columns, rows))
    minutes = sum(item.gpu_seconds for item in experiments) / 60
    console.print_line(
        escape(f"run one: effbench reproduce NAME; all take about {minutes:.0f} minutes on one GPU")
    )


def show(console: Console, done: Run) -> None:
    """Print the tables, the verdicts, and the sweeps that the rows come from. Raises
    KeyboardInterrupt if a sweep was interrupted."""
    if done.interrupted:
        raise KeyboardInterrupt
    if done.missing:
        console.print_line(escape(f"not judged: {done.missing}"), "dim")
        return
    if not done.quiet:
        for pivot in done.experiment.tables:
            show_table(console, done, pivot)
    for judgement in done.judgements:
        show_verdict(console, judgement)
    sweeps = sorted({row.sweep_id for row in done.rows_of("rows")})
    if sweeps:
        reused = f"; {done.reused} rows reused (--fresh measures them again)" if done.reused else ""
        console.print_line(escape(f"sweeps: {', '.join(sweeps)}{reused}"), "dim")


def show_table(console: Console, done: Run, pivot: Pivot) -> None:
    rows = done.frame(pivot.sweep)
    if rows.empty:  # its sweeps do not apply to this machine
        return
    try:
        table = pivot_table(pivot, rows, done.frame(pivot.sweep, with_marks=True))
    except Exception as error:  # the user's function may raise anything
        path = done.experiment.path
        done.mistakes.append(f"{path}: table {pivot.title!r}: {describe(error)}")
        return
    console.print_line(escape(pivot.title), "italic")
    console.print_table(table)


def show_verdict(console: Console, judgement: Judgement) -> None:
    """Print the claim, its verdict, the figure with its interval, the reason, and the verdict on
    each part."""
    claim, style = judgement.claim, STYLES[TONES[judgement.verdict]] or "none"
    figure = ""
    if judgement.value is not None:
        figure = f" · {value_text(judgement.value, claim.unit)}"
    statement = escape(claim.text.removesuffix("."))
    console.print_line(
        f"[bold]{escape(claim.id)}[/] {statement}: [{style}]{judgement.verdict}[/]{escape(figure)}"
        f" · {escape(judgement.reason)}"
    )
    holds = {True: "holds", False: "does not hold", None: "open"}
    for part in judgement.parts:
        if part.label and part.value is not None:
            text = f"{value_text(part.value, claim.unit)}, {holds[part.outcome.holds]}"
            console.print_line(escape(f"    {part.label}: {text}"), "dim")
    for name, value in judgement.also.items():
        console.print_line(escape(f"    {name}: {value_text(value)}"), "dim")
