"""`effbench duet`: measure which of two versions, modes or settings is faster, both alive and timed
in turn."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effbench.analysis.cause import cause_between
from effbench.analysis.duet import FLOOR, TIMES, DuetAnswer
from effbench.cli import options
from effbench.core import outputs
from effbench.core.errors import INTERRUPTED, NothingFoundError, UsageError
from effbench.core.metrics import METRICS
from effbench.core.quantities import ratio_text
from effbench.core.settings import db_option
from effbench.core.table import Column, Table, as_json
from effbench.core.terminal import escape
from effbench.stats.significance import MOST_PAIRS
from effbench.store.secrets import masked_url

if TYPE_CHECKING:
    from effbench.run.client import ForkServer
    from effbench.run.plan import CellRun
    from effbench.run.sweep import Outcome
    from effbench.store.store import Store

HELP = (
    "Measure which of two versions or modes is faster. Both are alive and take turns of a few"
    " milliseconds, so that a slow moment of the host hits both."
)
#: Settings of the sweep, unless they are given. More duets say more than longer ones, because
#: processes differ by more than what a longer timing would average out.
DEFAULTS = (
    f"protocol.rounds={MOST_PAIRS}",
    "protocol.budget_s=1",
    "protocol.enough_interval=0.01",
    "sweep.name=duet",
    "on_failure=ignore",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sides = (
        "override, or several in quotes: default (a mode), folder=../old, 'mode=default threads=1'"
    )
    parser.add_argument("first", metavar="A", help=f"the side to compare with; an {sides}")
    parser.add_argument("second", metavar="B", help="the other side, in the same form")
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OVERRIDE",
        help="overrides of both sides, such as model=mlp bs=8 protocol=quick; protocol.rounds is"
        f" the maximum number of duets (default: {MOST_PAIRS}), which end once the difference is"
        f" known to be inside {FLOOR:.0%}% or beyond it",
    )
    parser.add_argument(
        "--fail-above",
        type=float,
        default=math.inf,
        metavar="PERCENT",
        help="exit with 1 if B is significantly slower than A by more than this percentage",
    )
    options.add_config_dir(parser)
    options.add_format(parser, "json")


def run(args: argparse.Namespace) -> int:
    if not options.is_stdout(args.out):  # measuring takes minutes
        outputs.refuse_database(Path(args.out))
    floors = dict.fromkeys(TIMES, FLOOR)
    first, second = options.side_of(args.first), options.side_of(args.second)
    outcome, answers = measure(args, first, second, floors)
    report(answers, outcome, args)
    if outcome.state != "completed":
        print(f"effbench: interrupted (sweep {outcome.sweep_id})", file=sys.stderr)
        return INTERRUPTED
    trials = [trial for answer in answers for trial in answer.duets.trials]
    has_failed = any(trial.status.is_failure for trial in trials)
    if has_failed or any(answer.is_slower(args.fail_above / 100) for answer in answers):
        return 1
    return 0 if all(answer.tests for answer in answers) else NothingFoundError.exit_code


# --- measuring ---


def command_of(args: argparse.Namespace, first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return the words of a duet of the overrides of both sides, which its sweep records."""
    return ["duet", shlex.join(first), shlex.join(second), *args.words]


def measure(
    args: argparse.Namespace,
    first: Sequence[str],
    second: Sequence[str],
    floors: Mapping[str, float],
    resume: str = "null",
    server: ForkServer | None = None,
) -> tuple[Outcome, list[DuetAnswer]]:
    """Run the duets of the overrides of both sides as a sweep; return how it ended, and the answer
    for each cell. `floors`: as those of StoppingRule; `resume`: the id of the sweep of the same
    duets to resume; `server`: as that of Command. Raises EffbenchError for an error before the
    first trial."""
    from effbench.config.cells import prepare
    from effbench.config.launch import jobs_of
    from effbench.config.overrides import read
    from effbench.run.duets import StoppingRule, allows_duet
    from effbench.run.progress import Progress
    from effbench.run.sweep import Command, open_sweep

    common = [*DEFAULTS, *options.place_of(args), *args.words, f"resume={resume}"]
    old, new = jobs_of(read([*common, *first])), jobs_of(read([*common, *second]))
    if len(old) != len(new):
        raise UsageError(
            "duet: A and B must give one cell each for each cell of the common overrides"
        )
    progress = Progress(quiet=args.format != "table" or args.out is not None)
    command = Command(command_of(args, first, second), {}, server, progress)
    matrix = prepare([*old, *new])
    with open_sweep(matrix.settings, matrix.runs, command) as sweep:
        plan = matrix.plan(sweep.servers, command)
        pairs = paired(plan.runs[: len(old)], plan.runs[len(old) :])
        runs = [pair.first for pair in pairs] + [pair.second for pair in pairs]
        if not all(allows_duet(run.cell) for run in runs):
            progress.note(
                "training, requests and streams: both sides run one after the other, not in turn"
            )
        rule = StoppingRule({run.cell.key: floors for run in runs})
        outcome = sweep.run(replace(plan, runs=runs, duet_rule=rule))
    return outcome, answers_of(outcome, runs, pairs, " ".join(first), " ".join(second))


@dataclass(frozen=True)
class RunPair:
    """The runs of a cell on both sides. If the cells differ, they know each other."""

    first: CellRun
    second: CellRun


def paired(first: Sequence[CellRun | None], second: Sequence[CellRun | None]) -> list[RunPair]:
    """Return the runs of both sides by cell. Raises UsageError if both are the same."""
    pairs = []
    for old, new in zip(first, second, strict=True):
        if old is None or new is None:  # excluded
            continue
        if old == new:
            raise UsageError(
                "duet: A and B are the same cell under the same interpreter; change one of them"
            )
        if old.cell != new.cell:
            old, new = replace(old, partner=new.cell), replace(new, partner=old.cell)
        pairs.append(RunPair(old, new))
    if not pairs:
        raise UsageError("duet: no cell is left on both sides; remove or narrow exclude")
    return pairs


def answers_of(
    outcome: Outcome,
    runs: Sequence[CellRun],
    pairs: Sequence[RunPair],
    first: str,
    second: str,
) -> list[DuetAnswer]:
    """Return the answer for each cell, by the complete rounds of the sweep. `runs`: those of the
    pairs; `first`, `second`: names of the sides."""
    from effbench.core.labels import cell_names
    from effbench.run.duets import Duets
    from effbench.run.resume import recorded_trials
    from effbench.store.store import Store

    names = cell_names(pair.first.cell for pair in pairs)
    answers = []
    with Store.open(outcome.db, mode="read") as store:
        recorded = recorded_trials(store, outcome.sweep_id, outcome.environments, runs)
        for pair in pairs:
            duets = Duets(recorded[pair.first], recorded[pair.second])
            answer = DuetAnswer(names[pair.first.cell.key], first, second, duets)
            answers.append(replace(answer, cause=cause_of(answer, pair, outcome, store)))
    return answers


def cause_of(answer: DuetAnswer, pair: RunPair, outcome: Outcome, store: Store) -> str | None:
    """Return the cause of a significant difference, from the traces of both sides."""
    difference_ms = answer.difference_ms
    if difference_ms is None:
        return None
    before, after = (
        store.traces(outcome.sweep_id, run.cell.key, outcome.environments[run.interpreter])
        for run in (pair.first, pair.second)
    )
    return cause_between(before, after, difference_ms)


# --- output ---


def report(answers: Sequence[DuetAnswer], outcome: Outcome, args: argparse.Namespace) -> None:
    """Write the sentence of each cell, then the figures."""
    notes = list(dict.fromkeys(note for answer in answers for note in answer.notes))
    if args.format == "json":
        document = {
            "sweep": outcome.sweep_id,
            "state": outcome.state,
            "cells": [record_of(answer) for answer in answers],
            "notes": notes,
        }
        options.write(as_json(document), args)
        return
    notes.append(f"sweep {outcome.sweep_id}{db_option(masked_url(outcome.db))}")
    table = table_of(answers)
    with options.console(args) as console:
        for answer in answers:
            cell = f"{answer.cell}: " if len(answers) > 1 else ""
            console.print_line(escape(cell + answer.sentence), "bold")
            if answer.cause:
                console.print_line(escape(f"  {answer.cause}"))
        if table.rows:
            table.print(console)
        for note in notes:
            console.print_line(escape(note), "dim")


def record_of(answer: DuetAnswer) -> dict[str, Any]:
    """Return an answer as plain data; times are in ms per call, ratios are B ÷ A."""
    figures = []
    for metric, test in answer.tests.items():
        figure = {
            "quantity": metric.removesuffix("_ms"),
            "metric": metric,
            "a": test.before,
            "b": test.after,
            "ratio": test.ratio,
            "ci_low": test.low,
            "ci_high": test.high,
            "marked": answer.is_marked,
        }
        figures.append(figure)
    return {
        "cell": answer.cell,
        "sentence": answer.sentence,
        "cause": answer.cause,
        "a": answer.first,
        "b": answer.second,
        "duets": len(answer.duets.counted),
        "figures": figures,
    }


def table_of(answers: Sequence[DuetAnswer]) -> Table:
    """Return the figures of both sides. A `~` marks those of a disturbed host."""
    columns = [
        Column("cell"),
        Column("quantity"),
        Column("a", answers[0].first, numeric=True),
        Column("b", answers[0].second, numeric=True),
        Column("ratio", "B ÷ A", numeric=True),
    ]
    rows = []
    for answer in answers:
        mark = "~" if answer.is_marked else ""
        for metric, test in answer.tests.items():
            row = (
                answer.cell,
                metric.removesuffix("_ms"),
                mark + METRICS[metric].format(test.before),
                mark + METRICS[metric].format(test.after),
                mark + ratio_text(test.ratio, test.low, test.high),
            )
            rows.append(row)
    return Table.of(columns, rows)
