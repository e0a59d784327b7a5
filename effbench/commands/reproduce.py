"""`effbench reproduce`: run an experiment (or all), print its tables, judge its claims."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from contextlib import closing
from typing import Any

from rich.table import Table

from effbench.analysis.claims import Judgement, Verdict
from effbench.analysis.expression import ExpressionError
from effbench.cell import Status
from effbench.commands import options
from effbench.errors import NothingFoundError, UsageError
from effbench.report.ledger import Pivot, estimate_text, judged_figure, pivot
from effbench.reproduce.experiment import Experiment, find, load_all
from effbench.store.secrets import masked
from effbench.terminal import Console, escape, terminal

HELP = "Run an experiment, or all of them, and judge the claims it decides. What was measured already is not run again."
TONES = {
    Verdict.CONFIRMED: "green", Verdict.REFUTED: "red", Verdict.DEPENDS: "yellow", Verdict.UNDECIDED: "yellow",
    Verdict.NOT_MEASURABLE: "dim", Verdict.NOT_MEASURED: "dim",
}  # fmt: skip
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME",
        help="experiments (or ids of claims, a YAML of your own, or all), and overrides for all their sweeps, such as "
        "protocol=quick; none: the experiments that there are",
    )
    options.add_db(parser)
    parser.add_argument("--fresh", action="store_true", help="measure anew what was measured already")
    parser.add_argument(
        "--stored",
        action="store_true",
        help="measure nothing: judge anew what the database holds, of whatever machine (after a condition was edited)",
    )
    parser.add_argument("--quiet", action="store_true", help="without progress and tables: verdicts only")


def run(args: argparse.Namespace) -> int:
    names = [word for word in args.words if "=" not in word]
    overrides = [word for word in args.words if "=" in word]
    if not names:
        if overrides or args.fresh or args.stored:
            raise UsageError("reproduce: which experiment? effbench reproduce lists them; `all` runs all")
        listing(terminal(), load_all())
        return 0
    chosen = find(names)
    from effbench.reproduce.run import Machine, database_of, reproduce
    from effbench.sweep.client import ForkServer

    db = database_of(overrides, args.db)
    overrides = [word for word in overrides if not word.startswith("db=")]
    console = terminal()
    if args.stored:
        if args.fresh:
            raise UsageError("reproduce: --fresh measures all and --stored nothing: leave one out")
        return judge_what_is_stored(console, chosen, db, overrides, args.quiet)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    device = next((word.partition("=")[2] for word in overrides if word.startswith("device=")), "auto")
    with closing(ForkServer()) as server:
        machine = Machine.learn(server, device)
        for experiment in chosen:
            head(console, experiment)
            if not args.quiet:
                left_out(console, experiment, overrides)
            said = (lambda outcome: None) if args.quiet else (lambda outcome: evidence_line(console, outcome))
            try:
                done = reproduce(experiment, machine, db, overrides, args.fresh, args.quiet, said)
                if done.interrupted:
                    return interrupted(console, args)
                show(console, done, args.quiet)
            except KeyboardInterrupt:  # while evidence was gathered: a sweep ends by itself
                return interrupted(console, args)
            except UsageError as error:  # the others can still be run
                if len(chosen) == 1:
                    raise
                console.print(f"[red]not run[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
                wrong.append(f"{experiment.name}: {error}")
                continue
            counts.update(str(judgement.verdict) for judgement in done.judgements)
            wrong += done.mistakes
    if len(chosen) > 1:
        console.print(", ".join(f"{number} {text}" for text, number in counts.most_common()), highlight=False)
    complain(wrong)
    return 0


def interrupted(console: Console, args: argparse.Namespace) -> int:
    console.print(
        f"interrupted; what was measured is kept, go on with: {escape(again(args))}", highlight=False, soft_wrap=True
    )
    return INTERRUPTED


def again(args: argparse.Namespace) -> str:
    """The same command, as a shell takes it, without a password."""
    options_ = [] if args.db == options.DEFAULT_DB else ["--db", args.db]
    options_ += [f"--{name}" for name in ("fresh", "stored", "quiet") if getattr(args, name)]
    return shlex.join(masked(["effbench", "reproduce", *args.words, *options_]))


def complain(wrong: list[str]) -> None:
    if wrong:
        more = f" (and {len(wrong) - 2} more like these)" if len(wrong) > 2 else ""
        raise UsageError("\n".join(wrong[:2]) + more)


def judge_what_is_stored(console: Console, chosen: list[Experiment], db: str, overrides: list[str], quiet: bool) -> int:
    """Each experiment on each machine that measured all of it."""
    from effbench.reproduce.run import Reproduction
    from effbench.reproduce.stored import judge_stored
    from effbench.store.store import Store
    from effbench.sweep.client import ForkServer

    with Store.open(db, mode="read") as store:
        environments = store.environments()
    wrong: list[str] = []
    judged = 0
    with closing(ForkServer()) as server:
        for experiment in chosen:
            head(console, experiment)
            for environment in environments:
                machine = f"{environment['gpu_name'] or environment['cpu_name']}, torch {environment['torch_version']}"
                done = judge_stored(experiment, environment, server, db, overrides)
                if not isinstance(done, Reproduction):
                    console.print(f"[dim]not judged on {escape(machine)}: {escape(done)}[/]", soft_wrap=True)
                    continue
                console.print(f"on {escape(machine)}", highlight=False, soft_wrap=True)
                show(console, done, quiet)
                wrong += done.mistakes
                judged += 1
    complain(wrong)
    if not judged:
        raise NothingFoundError(f"{db} holds nothing that was measured whole; without --stored the rest is measured")
    return 0


def show(console: Console, done: Any, quiet: bool) -> None:
    """Tables, verdicts, and where the rows are."""
    if done.skipped:
        console.print(f"[yellow]unsupported[/]: {done.skipped}", highlight=False)
    if not quiet:
        tables(console, done)
    for claim, judgement in zip(done.experiment.claims, done.judgements, strict=True):
        verdict(console, claim.text, judgement)
    where(console, done)


def listing(console: Console, experiments: list[Experiment]) -> None:
    drawn = Table(header_style="bold", pad_edge=False)
    for heading, justify in (("experiment", "left"), ("question", "left"), ("claims", "left"), ("GPU s", "right")):
        drawn.add_column(heading, justify=justify)
    for one in experiments:
        claims = ", ".join(claim.id for claim in one.claims)
        drawn.add_row(escape(one.name), escape(one.question), escape(claims), f"{one.gpu_seconds:.0f}")
    console.print(drawn)
    total = sum(one.gpu_seconds for one in experiments)
    console.print(
        f"effbench reproduce NAME; all of them take about {total / 60:.0f} minutes of one GPU", highlight=False
    )


def head(console: Console, experiment: Experiment) -> None:
    console.print(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question)}", highlight=False, soft_wrap=True)


def left_out(console: Console, experiment: Experiment, overrides: list[str]) -> None:
    """What of the experiment does not count beside the user's choice of a group."""
    from effbench.reproduce.run import gone_with_their_group

    words = [word for own in experiment.sweeps.values() for word in gone_with_their_group(own, overrides)]
    if words:
        named = escape(", ".join(dict.fromkeys(words)))
        console.print(
            f"[dim]left out, as you choose otherwise (give it again to keep it): {named}[/]",
            highlight=False,
            soft_wrap=True,
        )


def evidence_line(console: Console, outcome: Any) -> None:
    name = outcome.request.target.replace(":", ".").rpartition(".")[2]
    if outcome.status is not Status.OK:
        console.print(f"[yellow]{outcome.status}[/] {escape(name)}: {escape(str(outcome.reason))}", soft_wrap=True)


def tables(console: Console, done: Any) -> None:
    for table in done.experiment.tables:
        rows = done.scope(table.sweep)
        if not rows.rows:  # its sweeps mean nothing here
            continue
        try:
            made = pivot(table.title, table.value, table.unit, table.rows, table.columns, rows)
        except ExpressionError as error:
            done.mistakes.append(f"table {table.title!r} of {done.experiment.path}: {error}")
        else:
            console.print(drawn(made))


def drawn(made: Pivot) -> Table:
    table = Table(title=escape(made.title), title_justify="left", header_style="bold", pad_edge=False)
    for index, heading in enumerate(made.headings):
        table.add_column(escape(heading), justify="left" if index < made.labels else "right")
    for row in made.rows:
        table.add_row(*map(escape, row))
    return table


def verdict(console: Console, text: str, judgement: Judgement) -> None:
    """The claim, what came of it, the figure with its interval, why, and the parts where they differ."""
    tone = TONES[judgement.verdict]
    figure = f" · {judged_figure(judgement)}" if judgement.value else ""
    console.print(
        f"[bold]{escape(judgement.claim)}[/] {escape(text)}: [{tone}]{judgement.verdict}[/]{escape(figure)}"
        f" · {escape(judgement.reason)}",
        highlight=False,
        soft_wrap=True,
    )
    for part in judgement.parts:
        if part.label and part.value is not None:
            figure = estimate_text(part.value, judgement.unit)
            said = {True: "holds", False: "does not hold", None: "open"}[part.truth]
            console.print(
                f"    [dim]{escape(part.label)}: {escape(figure)}, {said}[/]", highlight=False, soft_wrap=True
            )
    for name, value in judgement.also.items():
        console.print(f"    [dim]{escape(name)}: {escape(estimate_text(value))}[/]", highlight=False, soft_wrap=True)


def where(console: Console, done: Any) -> None:
    """The sweeps that the rows are from."""
    ids = sorted({sweep_id for swept in done.swept.values() for sweep_id in swept.sweep_ids})
    reused = sum(swept.reused for swept in done.swept.values())
    if ids:
        kept = f"; {reused} rows were measured before (--fresh measures them anew)" if reused else ""
        console.print(f"[dim]rows: sweep {', '.join(ids)}{kept}[/]", highlight=False, soft_wrap=True)
