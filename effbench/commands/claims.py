"""`effbench claims`: published claims, each with its newest verdict on each machine."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from effbench.commands import options
from effbench.experiments.definition import Claim, Experiment, load_all, outline
from effbench.report.claims import ABSENT, Entry, claims_table, entries
from effbench.store.store import Store
from effbench.terminal import terminal

HELP = "Published claims about CUDA graphs and torch.compile, each with its newest verdict on each machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--gpu", metavar="TEXT", help="only verdicts of machines whose name has this text in it")
    parser.add_argument("--format", default="table", choices=["table", "markdown", "json"], help="(default: table)")
    parser.add_argument(
        "--experiment", action="append", default=[], metavar="FILE", help="also the claims of an experiment of your own"
    )
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    own = [outline(Path(path)) for path in args.experiment]
    verdicts = []
    if args.db != options.DEFAULT_DB or Path(args.db).exists():  # claims can be read before anything was measured
        with Store.open(args.db, mode="read") as store:
            verdicts = store.verdicts()
    if args.gpu:
        wanted = args.gpu.casefold()
        verdicts = [row for row in verdicts if wanted in (row["gpu_name"] or row["cpu_name"]).casefold()]
    found = entries(claims_of([*load_all(), *own]), verdicts)
    if args.format == "json":
        options.write(json.dumps([entry.record() for entry in found], indent=1, ensure_ascii=False), args)
    elif args.format == "markdown" or args.out:
        options.write(claims_table(found).render("markdown") + published(found), args)
    else:
        console = terminal()
        console.print(claims_table(found).rich(lines=True))
        machines = ", ".join(dict.fromkeys(entry.machine for entry in found if entry.machine)) or ABSENT
        counts = Counter(entry.verdict for entry in found)
        texts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        console.print(f"{texts} · on {machines}", highlight=False)
    return 0


def claims_of(experiments: Iterable[Experiment]) -> list[tuple[str, Claim]]:
    """Return every claim with the name of its experiment."""
    return [(experiment.name, claim) for experiment in experiments for claim in experiment.claims]


def every_entry(store: Store) -> list[Entry]:
    """Return the claims that ship, and those of other experiments that this database holds a verdict of."""
    claims, verdicts = claims_of(load_all()), store.verdicts()
    known = {(name, claim.id) for name, claim in claims}
    others = dict.fromkeys((row["experiment"], row["claim"]) for row in verdicts)
    text = "(a claim of an experiment of your own: its statement is in that experiment's file)"
    claims += [(name, Claim(claim, text)) for name, claim in others if (name, claim) not in known]
    return entries(claims, verdicts)


def published(found: list[Entry]) -> str:
    claims = {entry.claim.id: entry.claim for entry in found if entry.claim.published}.values()
    lines = [f"- {claim.id}: {claim.published}\n" for claim in claims]
    return "\nPublished figures, measured by others on other machines:\n\n" + "".join(lines) if lines else ""
