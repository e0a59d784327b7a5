"""`effbench claims`: the ledger, each claim with its newest verdict on each machine."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from rich.table import Table

from effbench.commands import options
from effbench.commands.reproduce import TONES
from effbench.report.ledger import ABSENT, HEADINGS, entries, render, row_of
from effbench.reproduce.experiment import load, load_all
from effbench.store.store import Store
from effbench.terminal import escape, terminal

HELP = "The ledger of claims about CUDA graphs and torch.compile, each with its newest verdict on each machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--gpu", metavar="TEXT", help="only verdicts of machines whose name has this text in it")
    parser.add_argument("--format", default="table", choices=["table", "markdown", "json"], help="(default: table)")
    parser.add_argument(
        "--experiment", action="append", default=[], metavar="FILE", help="also the claims of a YAML of your own"
    )
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    experiments = [*load_all(), *(load(Path(path)) for path in args.experiment)]
    claims = [(experiment.name, claim) for experiment in experiments for claim in experiment.claims]
    verdicts = []
    if args.db != options.DEFAULT_DB or Path(args.db).exists():  # the ledger can be read before anything was measured
        with Store.open(args.db, mode="read") as store:
            verdicts = store.verdicts()
    if args.gpu:
        wanted = args.gpu.casefold()
        verdicts = [row for row in verdicts if wanted in (row["gpu_name"] or row["cpu_name"]).casefold()]
    found = entries(claims, verdicts)
    if args.format != "table" or args.out:
        args.format = "markdown" if args.format == "table" else args.format
        options.write(render(found, args.format), args)
        return 0
    drawn = Table(header_style="bold", pad_edge=False, show_lines=True)
    several = len({entry.machine for entry in found if entry.machine}) > 1
    shown = HEADINGS if several else HEADINGS[:-1]
    for heading in shown:
        drawn.add_column(heading)
    for entry in found:
        claim, text, verdict, *rest = row_of(entry)
        tone = TONES.get(entry.verdict, "none")  # of a later effbench
        drawn.add_row(
            escape(claim), escape(text), f"[{tone}]{escape(verdict)}[/]", *map(escape, rest[: len(shown) - 3])
        )
    console = terminal()
    console.print(drawn)
    machines = ", ".join(dict.fromkeys(entry.machine for entry in found if entry.machine)) or ABSENT
    counts = Counter(entry.verdict for entry in found)
    console.print(f"{', '.join(f'{n} {text}' for text, n in counts.most_common())} · on {machines}", highlight=False)
    return 0
