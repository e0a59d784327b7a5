"""`effbench reproduce`: run one or all experiments and judge their claims."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from typing import TYPE_CHECKING

from effbench.claims.definition import (
    find,
    name_of,
    question_of,
    shipped_files,
    shipped_verdicts,
)
from effbench.claims.judge import Judgement
from effbench.core.errors import ConfigError, UsageError
from effbench.core.labels import grouped
from effbench.core.settings import Config
from effbench.core.table import TONES as STYLES
from effbench.core.table import Column, Table
from effbench.core.terminal import Console, escape, terminal
from effbench.render.claims import TONES, value_text

if TYPE_CHECKING:
    from effbench.claims.run import Reproduction
    from effbench.config.overrides import CommandLine

HELP = "Run one or all experiments and judge the claims that they test."

#: Settings of a sweep that an experiment refuses: it measures all its cells, in
#: effbench's own interpreter.
REFUSED = ("resume", "python", "folder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME",
        help="experiments, ids of claims, your own Python file (it is executed) or all; and"
        " overrides for all sweeps, such as protocol=quick (default: list the experiments)",
    )
    parser.add_argument("--quiet", action="store_true", help="print only verdicts, no progress")


def run(args: argparse.Namespace) -> int:
    names = [word for word in args.words if "=" not in word]
    overrides = [word for word in args.words if "=" in word]
    if names:
        reproduce(args, names, overrides)
        return 0
    if overrides:
        raise UsageError(
            "reproduce: no experiment given; name one (effbench reproduce lists them) or all"
        )
    list_experiments(terminal())
    return 0


def reproduce(args: argparse.Namespace, names: Sequence[str], words: Sequence[str]) -> None:
    """Run the experiments and print the verdicts. Raises UsageError if a claim or an experiment has
    a mistake, after the others have run."""
    from effbench.claims.run import Reproduction
    from effbench.config.overrides import read  # slow
    from effbench.run.client import ForkServer
    from effbench.run.probe import describe_machine

    line = read(words)
    check_settings(line)
    experiments = find(names)
    console = terminal()
    db = line.values.get("db", args.db)
    overrides = {key: text for key, text in line.stored().items() if key != "db"}
    mistakes: list[str] = []
    with closing(ForkServer()) as server:
        probed = describe_machine(server, line.values.get("device", "auto"))
        for experiment in experiments:
            console.print_line(f"[bold]{escape(experiment.name)}[/]: {escape(experiment.question)}")
            done = Reproduction(experiment, server, probed, db, overrides, args.quiet)
            try:
                done.execute()
            except UsageError as error:  # the other experiments can still run
                mistakes.append(f"{experiment.name}: {error}")
                continue
            show(console, done)
            mistakes += done.mistakes
    if mistakes:
        raise UsageError("\n".join(mistakes))


def check_settings(line: CommandLine) -> None:
    """Raise ConfigError for unknown settings; Hydra checks them only if there is a sweep."""
    known = [setting.name for setting in fields(Config) if setting.name not in REFUSED]
    for word in line.words:
        if word.section not in (*known, "hydra"):
            raise ConfigError(
                f"reproduce takes no setting {word.section!r}; it takes {', '.join(known)}"
            )


def list_experiments(console: Console) -> None:
    """Print the shipped experiments. Their files are read and not run, which would import torch."""
    columns = [
        Column("experiment"),
        Column("question"),
        Column("claims"),
        Column("GPU s", numeric=True),
    ]
    claims = grouped(shipped_verdicts(), lambda record: record["experiment"])
    rows = []
    total_s = 0
    for path in shipped_files():
        text = path.read_text(encoding="utf-8")
        name = name_of(path)
        seconds = re.search(r"^GPU_SECONDS = (\d+)$", text, re.M)
        spent_s = int(seconds[1]) if seconds else 0
        total_s += spent_s
        question = question_of(ast.get_docstring(ast.parse(text)))
        ids = ", ".join(record["claim"] for record in claims.get(name, ()))
        rows.append((name, question, ids, spent_s))
    Table.of(columns, rows).print(console)
    minutes = f"{total_s / 60:.0f} minutes"
    console.print_line(
        escape(f"run one: effbench reproduce NAME; all take about {minutes} on one GPU")
    )


def show(console: Console, done: Reproduction) -> None:
    """Print the verdicts of an experiment, and its sweeps."""
    for judgement in done.judgements:
        show_verdict(console, judgement)
    sweeps = sorted({result.sweep_id for result in done.results_of("rows")})
    if sweeps:
        console.print_line(escape(f"sweeps: {', '.join(sweeps)}"), "dim")


def show_verdict(console: Console, judgement: Judgement) -> None:
    """Print the claim, its verdict, the figure with its interval, the reason, and further
    figures."""
    claim, style = judgement.claim, STYLES[TONES.get(judgement.verdict, "")] or "none"
    figure = ""
    if not judgement.value.is_missing:
        figure = f" · {value_text(judgement.value, claim.unit)}"
    statement = escape(claim.text.removesuffix("."))
    console.print_line(
        f"[bold]{escape(claim.id)}[/] {statement}: [{style}]{judgement.verdict}[/]{escape(figure)}"
        f" · {escape(judgement.reason)}"
    )
    for name, value in judgement.also.items():
        console.print_line(escape(f"    {name}: {value_text(value)}"), "dim")
