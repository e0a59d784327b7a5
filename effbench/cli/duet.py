"""`effbench duet`: measure which of two versions, modes or settings is faster, both alive and timed
in turn."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from effbench.analysis.duet import FLOOR, TIMES, DuetAnswer, DuetSide
from effbench.cli import options
from effbench.core import outputs
from effbench.core.errors import INTERRUPTED, NothingFoundError, UsageError
from effbench.core.metrics import METRICS, ratio_text
from effbench.core.settings import DEFAULT_DB, db_option, quoted
from effbench.core.table import Column, Table, as_json, markdown_text
from effbench.core.terminal import escape
from effbench.stats.significance import LEAST_DUETS, MOST_PAIRS
from effbench.store.connect import sqlite_file

if TYPE_CHECKING:
    from effbench.config.cells import Job
    from effbench.run.plan import CellRun
    from effbench.run.sweep import Outcome

HELP = (
    "Measure which of two versions or modes is faster. Both are alive and take turns of a few"
    " milliseconds, so that a slow moment of the host hits both."
)
#: Settings of the sweep, unless they are given.
OWN = (
    f"protocol.rounds={MOST_PAIRS}",
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
    common = "overrides of both sides, such as model=mlp bs=8 protocol=quick"
    parser.add_argument("words", nargs="*", metavar="OVERRIDE", help=common)
    slower = "exit with 1 if B is significantly slower than A by more than this percentage"
    parser.add_argument("--fail-above", type=percentage, metavar="PERCENT", help=slower)
    most = (
        f"most duets, at least {LEAST_DUETS} (default: {MOST_PAIRS}); they end once the difference"
        " is known to be "
    )
    most += f"inside {FLOOR:.0%}% or beyond it"
    parser.add_argument("--rounds", type=options.at_least(LEAST_DUETS), metavar="N", help=most)
    parser.add_argument(
        "--config-dir", metavar="DIR", help="folder with your own YAML files of models and modes"
    )
    options.add_db(parser)
    parser.add_argument(
        "--format", default="table", choices=["table", "markdown", "json"], help="(default: table)"
    )
    options.add_out(parser)


def percentage(text: str) -> float:
    """Return the fraction of `5`, `5%` or `0.5 %`. Raises ArgumentTypeError."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"expected a percentage such as 5, got {text!r}")
    return value / 100


def run(args: argparse.Namespace) -> int:
    if args.out and args.out != options.STDOUT:  # measuring takes minutes
        outputs.refuse_database(Path(args.out), sqlite_file(args.db))
    sides = [side_of(args.first), side_of(args.second)]
    measured = measure(args, sides)
    answers = answers_of(measured, [" ".join(words) for words in sides])
    report(answers, measured.outcome, args)
    return exit_code(answers, measured.outcome, args)


def exit_code(answers: Sequence[DuetAnswer], outcome: Outcome, args: argparse.Namespace) -> int:
    if outcome.state != "completed":
        print(f"effbench: interrupted (sweep {outcome.sweep_id})", file=sys.stderr)
        return INTERRUPTED
    trials = [
        trial
        for answer in answers
        for side in (answer.first, answer.second)
        for trial in side.trials
    ]
    if any(trial.status.is_failure for trial in trials):
        return 1
    if args.fail_above is not None and any(answer.is_slower(args.fail_above) for answer in answers):
        return 1
    return 0 if all(answer.rows for answer in answers) else NothingFoundError.exit_code


# --- measuring ---


@dataclass(frozen=True)
class RunPair:
    """The runs of a cell on both sides. If the cells differ, they know each other."""

    first: CellRun
    second: CellRun


@dataclass(frozen=True)
class MeasuredDuets:
    """A sweep of duets. `pairs`: its runs."""

    outcome: Outcome
    pairs: Sequence[RunPair]


def measure(args: argparse.Namespace, sides: Sequence[Sequence[str]]) -> MeasuredDuets:
    """Run the duets of the overrides of both sides as a sweep. Raises EffbenchError for an error
    before the first trial."""
    from effbench.config.cells import prepare
    from effbench.run.duets import StoppingRule, allows_duet
    from effbench.run.progress import Progress
    from effbench.run.sweep import Command, open_sweep

    common = common_words(args, sides)
    first, second = (jobs_of([*common, *words]) for words in sides)
    if len(first) != len(second):
        raise UsageError(
            "duet: A and B must give one cell each for each cell of the common overrides"
        )
    floors: dict[str, dict[str, float]] = {}
    rule = StoppingRule(floors, needs_both=True)
    progress = Progress(quiet=args.format != "table" or args.out is not None)
    argv = ["duet", args.first, args.second, *args.words]
    command = Command(argv, [], progress=progress, duet_rule=rule)
    matrix = prepare([*first, *second], command)
    with open_sweep(matrix.settings, matrix.runs, command) as sweep:
        plan = matrix.plan(sweep.pools, command)
        pairs = paired(plan.runs[: len(first)], plan.runs[len(first) :])
        runs = [pair.first for pair in pairs] + [pair.second for pair in pairs]
        for cell_run in runs:
            floors[cell_run.cell.key] = dict.fromkeys(TIMES, FLOOR)
        if not all(allows_duet(cell_run.cell) for cell_run in runs):
            progress.note(
                "training, requests and streams: both sides run one after the other, not in turn"
            )
        return MeasuredDuets(sweep.run(replace(plan, runs=runs)), pairs)


def jobs_of(words: Sequence[str]) -> list[Job]:
    """Return the jobs composed from overrides. Raises EffbenchError."""
    from effbench.config.launch import hydra_sweep

    jobs: list[Job] = []
    hydra_sweep(
        ["-m", *words], quiet=True, conductor=lambda composed, command: jobs.extend(composed)
    )
    return jobs


def answers_of(measured: MeasuredDuets, names: Sequence[str]) -> list[DuetAnswer]:
    """Return the answer for each cell, by the complete rounds of the sweep. `names`: of the
    sides."""
    from effbench.core.labels import cell_names
    from effbench.store.store import Store

    outcome = measured.outcome
    with Store.open(outcome.db, mode="read") as store:
        recorded = {
            key: store.history(outcome.sweep_id, key) for key in outcome.environments.values()
        }

    def side(name: str, cell_run: CellRun) -> DuetSide:
        trials = recorded[outcome.environments[cell_run.interpreter]]
        return DuetSide(name, trials.get(cell_run.cell.key, []))

    cells = cell_names(pair.first.cell for pair in measured.pairs)
    answers = []
    for pair in measured.pairs:
        sides = side(names[0], pair.first), side(names[1], pair.second)
        answers.append(DuetAnswer.of(cells[pair.first.cell.key], *sides))
    return answers


def common_words(args: argparse.Namespace, sides: Sequence[Sequence[str]]) -> list[str]:
    """Return the overrides of both sides. Raises UsageError if a setting is given twice or in the
    wrong way."""
    from effbench.config.overrides import key_of

    check_words(sides, args)
    own = [f"protocol.rounds={args.rounds}"] if args.rounds else []
    given = {key_of(word) for word in (*args.words, *own)}
    own += [word for word in OWN if key_of(word) not in given]
    common = [*own, *args.words]
    if args.config_dir:
        common.insert(0, f"--config-dir={args.config_dir}")
    if args.db != DEFAULT_DB:
        common.append(f"db={quoted(args.db)}")
    return common


def check_words(sides: Sequence[Sequence[str]], args: argparse.Namespace) -> None:
    """Raise UsageError if a setting is given twice or in the wrong way."""
    from effbench.config.overrides import key_of

    keys = {key_of(word) for side in sides for word in side}
    common = {key_of(word) for word in args.words}
    for key in keys & common:
        raise UsageError(f"duet: {key} is given for a side and for both; give it once")
    if "db" in keys | common:
        raise UsageError("duet: give the database with --db URL instead of db=")
    if args.rounds and "protocol.rounds" in common:
        raise UsageError(
            "duet: give the number of rounds once, as --rounds N or as protocol.rounds=N"
        )


def side_of(text: str) -> list[str]:
    """Return the overrides of a side; a bare word is a mode. Raises UsageError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"duet: {text!r} is no list of overrides: {error}") from None
    if not words:
        raise UsageError("duet: a side is empty; give an override such as mode=default, or a mode")
    return [word if "=" in word else f"mode={word}" for word in words]


def paired(first: Sequence[CellRun | None], second: Sequence[CellRun | None]) -> list[RunPair]:
    """Return the runs of both sides by cell. Raises UsageError if both are the same."""
    pairs = []
    for old, new in zip(first, second, strict=True):
        if old is None or new is None:  # excluded, or in another shard
            continue
        if old == new:
            raise UsageError(
                "duet: A and B are the same cell under the same interpreter; change one of them"
            )
        pair = RunPair(old, new)
        if old.cell != new.cell:
            pair = RunPair(replace(old, partner=new.cell), replace(new, partner=old.cell))
        pairs.append(pair)
    if not pairs:
        raise UsageError("duet: no cell is left on both sides; remove or narrow exclude")
    return pairs


# --- output ---


def report(answers: Sequence[DuetAnswer], outcome: Outcome, args: argparse.Namespace) -> None:
    """Write the sentence of each cell, then the figures."""
    if args.format == "json":
        options.write(as_json(document(answers, outcome)), args)
        return
    sentences = [answer.sentence for answer in answers]
    if len(answers) > 1:
        sentences = [f"{answer.cell}: {answer.sentence}" for answer in answers]
    notes = [*notes_of(answers), f"sweep {outcome.sweep_id}{db_option(args.db)}"]
    table = table_of(answers)
    if args.format == "markdown":
        parts = [*map(markdown_text, sentences), table.render("markdown").rstrip()]
        parts += map(markdown_text, notes)
        options.write("\n\n".join(filter(None, parts)) + "\n", args)
        return
    with options.console(args) as console:
        for line in sentences:
            console.print_line(escape(line), "bold")
        if table.rows:
            console.print_table(table)
        for note in notes:
            console.print_line(escape(note), "dim")


def notes_of(answers: Sequence[DuetAnswer]) -> list[str]:
    """Return what limits the answers, each once."""
    notes: dict[str, None] = {}
    for answer in answers:
        for text in (*answer.first.remarks, *answer.second.remarks):
            notes[text] = None
        for reason in answer.alone:
            notes[f"some rounds were not timed in turn: {reason}"] = None
    return list(notes)


def table_of(answers: Sequence[DuetAnswer]) -> Table:
    """Return the figures of both sides. A `~` marks those of a disturbed host."""
    columns = [
        Column("cell"),
        Column("quantity"),
        Column("first", answers[0].first.name, numeric=True),
        Column("second", answers[0].second.name, numeric=True),
        Column("ratio", "B ÷ A", numeric=True),
    ]
    if len(answers) == 1:
        columns = columns[1:]
    rows = []
    for answer in answers:
        for row in answer.rows:
            mark = ""
            if row.is_marked:
                mark = "~"
            text = METRICS[row.metric].format
            figures = {
                "cell": answer.cell,
                "quantity": row.metric.removesuffix("_ms"),
                "first": f"{mark}{text(row.first)}",
                "second": f"{mark}{text(row.second)}",
                "ratio": f"{mark}{ratio_text(row.test.ratio, row.test.low, row.test.high)}",
            }
            rows.append(figures)
    return Table(columns, rows)


def document(answers: Sequence[DuetAnswer], outcome: Outcome) -> dict[str, Any]:
    """Return the answers as plain data; times are in ms per call, ratios are B ÷ A."""
    cells = []
    for answer in answers:
        figures = []
        for row in answer.rows:
            figures.append(
                {
                    "quantity": row.metric.removesuffix("_ms"),
                    "metric": row.metric,
                    "a": row.first,
                    "b": row.second,
                    "ratio": row.test.ratio,
                    "ci_low": row.test.low,
                    "ci_high": row.test.high,
                    "marked": row.is_marked,
                }
            )
        cells.append(
            {
                "cell": answer.cell,
                "sentence": answer.sentence,
                "a": answer.first.name,
                "b": answer.second.name,
                "duets": answer.duets,
                "figures": figures,
            }
        )
    return {
        "sweep": outcome.sweep_id,
        "state": outcome.state,
        "cells": cells,
        "notes": notes_of(answers),
    }
