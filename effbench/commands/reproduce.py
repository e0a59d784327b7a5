"""`effbench reproduce`: run an experiment (or all), print its tables, judge its claims."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from effbench.cell import Status
from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.experiments.definition import Experiment, find, load_all
from effbench.experiments.judge import Judgement
from effbench.report.claims import TONES, pivot_table, value_text
from effbench.store.secrets import masked
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
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured already")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="measure nothing: judge what the database holds, of every machine (after a claim was edited)",
    )
    parser.add_argument("--quiet", action="store_true", help="without progress and tables: verdicts only")


def run(args: argparse.Namespace) -> int:
    names = [word for word in args.words if "=" not in word]
    overrides = [word for word in args.words if "=" in word]
    if not names:
        if overrides or args.fresh or args.stored:
            raise UsageError("reproduce: which experiment? effbench reproduce lists them; `all` runs all")
        list_experiments(terminal(), load_all())
        return 0
    if args.fresh and args.stored:
        raise UsageError("reproduce: --fresh measures all and --stored nothing: omit one")
    chosen = find(names)
    from effbench.launcher.overrides import key_of, value_of

    db = next((str(value_of(word)) for word in overrides if key_of(word) == "db"), args.db)
    overrides = [word for word in overrides if not word.startswith("db=")]
    if args.stored:
        return judge_again(terminal(), chosen, db, overrides, args.quiet)
    return measure(terminal(), chosen, db, overrides, args)


def measure(
    console: Console, chosen: Sequence[Experiment], db: str, overrides: list[str], args: argparse.Namespace
) -> int:
    from effbench.experiments.run import Machine, replaced_with_group, reproduce
    from effbench.sweeping.checks import CheckOutcome
    from effbench.sweeping.client import ForkServer

    def report(outcome: CheckOutcome) -> None:
        if not args.quiet and outcome.status is not Status.OK:
            name = outcome.request.target.rpartition(":")[2]
            text = f"[yellow]{outcome.status}[/] {escape(name)}: {escape(str(outcome.reason))}"
            console.print_line(text)

    counts: Counter[str] = Counter()
    mistakes: list[str] = []
    device = next((word.partition("=")[2] for word in overrides if word.startswith("device=")), "auto")
    with closing(ForkServer()) as server:
        machine = Machine.probe(server, device)
        for experiment in chosen:
            heading(console, experiment)
            omitted = [word for words in experiment.sweeps.values() for word in replaced_with_group(words, overrides)]
            if omitted and not args.quiet:
                console.print_line(
                    escape(f"omitted, as you replace its group: {', '.join(dict.fromkeys(omitted))}"), "dim"
                )
            try:
                done = reproduce(experiment, machine, db, overrides, args.fresh, args.quiet, report)
                if done.interrupted:
                    return interrupted(console, args)
                show(console, done, args.quiet)
            except KeyboardInterrupt:  # in a check: a sweep ends by itself
                return interrupted(console, args)
            except UsageError as error:  # the others can still be run
                if len(chosen) == 1:
                    raise
                console.print_line(f"[red]not run[/]: {escape(str(error))}")
                mistakes.append(f"{experiment.name}: {error}")
                continue
            counts.update(str(judgement.verdict) for judgement in done.judgements)
            mistakes += done.mistakes
    if len(chosen) > 1:
        console.print_line(escape(", ".join(f"{number} {text}" for text, number in counts.most_common())))
    refuse(mistakes)
    return 0


def judge_again(console: Console, chosen: Sequence[Experiment], db: str, overrides: Sequence[str], quiet: bool) -> int:
    """Judge each experiment on each machine that measured all of it."""
    from effbench.experiments.run import judge_stored
    from effbench.store.store import Store
    from effbench.sweeping.client import ForkServer

    with Store.open(db, mode="read") as store:
        environments = store.environments()
    mistakes: list[str] = []
    judged = 0
    with closing(ForkServer()) as server:
        for experiment in chosen:
            heading(console, experiment)
            for environment in environments:
                machine = f"{environment['gpu_name'] or environment['cpu_name']}, torch {environment['torch_version']}"
                done = judge_stored(experiment, environment, server, db, overrides)
                if done.missing:
                    console.print_line(escape(f"not judged on {machine}: {done.missing}"), "dim")
                    continue
                console.print_line(escape(f"on {machine}"))
                show(console, done, quiet)
                mistakes += done.mistakes
                judged += 1
    refuse(mistakes)
    if not judged:
        raise NothingFoundError(f"{db} holds no experiment that was measured completely; omit --stored to measure it")
    return 0


def interrupted(console: Console, args: argparse.Namespace) -> int:
    console.print_line(escape(f"interrupted; what was measured is kept, continue with: {again(args)}"))
    return options.INTERRUPTED


def again(args: argparse.Namespace) -> str:
    """The same command for a shell, without a password."""
    flags = [] if args.db == options.DEFAULT_DB else ["--db", args.db]
    flags += [f"--{name}" for name in ("fresh", "stored", "quiet") if getattr(args, name)]
    return shlex.join(masked(["effbench", "reproduce", *args.words, *flags]))


def refuse(mistakes: Sequence[str]) -> None:
    if mistakes:
        more = f" (and {len(mistakes) - 2} more)" if len(mistakes) > 2 else ""
        raise UsageError("\n".join(mistakes[:2]) + more)


def list_experiments(console: Console, experiments: Sequence[Experiment]) -> None:
    columns = [Column("experiment"), Column("question"), Column("claims"), Column("GPU s", numeric=True)]
    rows = [
        {
            "experiment": one.name,
            "question": one.question,
            "claims": ", ".join(claim.id for claim in one.claims),
            "GPU s": f"{one.gpu_seconds:.0f}",
        }
        for one in experiments
    ]
    console.print(Table(columns, rows).rich())
    minutes = sum(one.gpu_seconds for one in experiments) / 60
    console.print_line(escape(f"effbench reproduce NAME; all of them take about {minutes:.0f} minutes of one GPU"))


def heading(console: Console, experiment: Experiment) -> None:
    console.print_line(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question)}")


def show(console: Console, done: Run, quiet: bool) -> None:
    """Print tables, verdicts, and the sweeps that the rows are from."""
    if done.skipped:
        console.print(f"[yellow]unsupported[/]: {done.skipped}", highlight=False)
    for table in () if quiet else done.experiment.tables:
        rows = done.input(table.sweep)
        if rows.empty:  # its sweeps mean nothing here
            continue
        try:
            drawn = pivot_table(table, rows).rich()
        except Exception as error:
            done.mistakes.append(f"{done.experiment.path}: table {table.title!r}: {type(error).__name__}: {error}")
            continue
        drawn.title, drawn.title_justify = escape(table.title), "left"
        console.print(drawn)
    for claim, judgement in zip(done.experiment.claims, done.judgements, strict=True):
        show_verdict(console, claim.text, judgement)
    results = done.results("rows")
    if results.sweep_ids:
        reused = sum(swept.reused for swept in done.swept.values())
        kept = f"; {reused} rows were measured before (--fresh measures them again)" if reused else ""
        console.print_line(escape(f"rows: sweep {', '.join(results.sweep_ids)}{kept}"), "dim")


def show_verdict(console: Console, text: str, judgement: Judgement) -> None:
    """The claim, its verdict, the figure with its interval, why, and the parts."""
    style = STYLES[TONES[judgement.verdict]]
    figure = f" · {value_text(judgement.value, judgement.unit)}" if judgement.value is not None else ""
    console.print_line(
        f"[bold]{escape(judgement.claim)}[/] {escape(text)}: [{style}]{judgement.verdict}[/]{escape(figure)}"
        f" · {escape(judgement.reason)}"
    )
    for part in judgement.parts:
        if part.label and part.value is not None:
            holds = {True: "holds", False: "does not hold", None: "open"}[part.holds.holds]
            console.print_line(escape(f"    {part.label}: {value_text(part.value, judgement.unit)}, {holds}"), "dim")
    for name, value in judgement.also.items():
        console.print_line(escape(f"    {name}: {value_text(value)}"), "dim")
