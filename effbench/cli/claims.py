"""`effbench claims`: list published claims, each with its newest verdict on each machine."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from effbench.claims.definition import Claim, Experiment, load_all, outline
from effbench.cli import options
from effbench.core.environments import hardware_of
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.settings import DEFAULT_DB
from effbench.render.claims import claims_table, entries, shipped_verdicts
from effbench.store.store import Store

HELP = (
    "List published claims about CUDA graphs and torch.compile, each with its newest verdict on"
    " each machine."
)
#: Columns in the terminal; Markdown has all.
COLUMNS = ("claim", "statement", "verdict", "measured", "why", "machine")
REFERENCE = (
    "reference: shipped; each was measured on one host with an H200 and an Intel Xeon;"
    " `effbench reproduce all` measures your machine"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument(
        "--gpu",
        metavar="TEXT",
        help="only verdicts of GPUs (or CPUs) whose name contains this text",
    )
    parser.add_argument(
        "--format", default="table", choices=["table", "markdown", "json"], help="(default: table)"
    )
    parser.add_argument(
        "--experiment",
        action="append",
        default=[],
        metavar="FILE",
        help="list only the claims of your own experiment; may be repeated",
    )
    options.add_out(parser)


def run(args: argparse.Namespace) -> int:
    records = records_of(args)
    table = claims_table(records)
    if args.format != "table":
        options.write(table.render(args.format), args)
        return 0
    columns = [column for column in table.columns if column.key in COLUMNS]
    counts = Counter(record["verdict"] for record in records)
    texts = [f"{count} {verdict}" for verdict, count in counts.most_common()]
    with options.console(args) as console:
        console.print_table(replace(table, columns=columns), lines=True)
        console.print_line(", ".join(texts))
        if any(record["reference"] for record in records):
            console.print_line(REFERENCE, "dim")
    return 0


def records_of(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the records of the claims that the command line asks for."""
    experiments = own_experiments(args.experiment)
    verdicts: list[dict[str, Any]] = []
    reference = shipped_verdicts()
    known = {reference_hardware(record) for record in reference} - {""}
    # the claims can be listed before any measurement
    if args.db != DEFAULT_DB or Path(args.db).exists():
        with Store.open(args.db, mode="read") as store:
            verdicts = store.verdicts()
            known |= {hardware_of(row) for row in store.environments()}
    if args.gpu:
        named = hardware_with(args.gpu, known)
        verdicts = [row for row in verdicts if hardware_of(row) in named]
        reference = [record for record in reference if reference_hardware(record) in named]
    files = {experiment.name: experiment.path for experiment in experiments}
    return entries(claims_of(experiments or load_all()), verdicts, reference, files)


def hardware_with(text: str, known: Collection[str]) -> list[str]:
    """Return the names of hardware that contain a text. Raises UsageError without any."""
    named = [name for name in known if text.casefold() in name.casefold()]
    if named:
        return named
    raise UsageError(f"no GPU or CPU has {text!r} in its name; known: {', '.join(sorted(known))}")


def own_experiments(files: Sequence[str]) -> list[Experiment]:
    """Return the outlines of the user's experiments. Raises UsageError for two of one name,
    NothingFoundError for files without a claim."""
    paths = {Path(file).resolve(): Path(file) for file in files}
    experiments = [outline(path) for path in paths.values()]
    if len({experiment.name for experiment in experiments}) < len(experiments):
        raise UsageError(f"{', '.join(files)}: files of different experiments need different names")
    if experiments and not claims_of(experiments):
        raise NothingFoundError(f"no claim in {', '.join(files)}")
    return experiments


def reference_hardware(record: Mapping[str, str | None]) -> str:
    """Return the name of the GPU of a shipped verdict; empty without one."""
    return (record["machine"] or "").partition(",")[0]


def claims_of(experiments: Iterable[Experiment]) -> list[tuple[str, Claim]]:
    """Return (name of the experiment, claim) for every claim."""
    return [(experiment.name, claim) for experiment in experiments for claim in experiment.claims]


def every_entry(store: Store) -> list[dict[str, Any]]:
    """Return the claims that ship with effbench, and other claims that have a verdict in this
    database."""
    claims, verdicts = claims_of(load_all()), store.verdicts()
    known = {(name, claim.id) for name, claim in claims}
    others = dict.fromkeys((row["experiment"], row["claim"]) for row in verdicts)
    text = "(claim of your own experiment; its file has the statement)"
    claims += [(name, Claim(claim, text)) for name, claim in others if (name, claim) not in known]
    return entries(claims, verdicts, shipped_verdicts())
