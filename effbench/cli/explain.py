"""`effbench explain`: explain where the time went between two cells of stored sweeps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations

from effbench.analysis.cell_pairs import Words, pairs_for
from effbench.cli import options
from effbench.core.errors import NothingFoundError
from effbench.core.table import as_json
from effbench.render.explain import print_reports, report_of
from effbench.store.store import Store

HELP = (
    "Explain where the time went between two cells of stored sweeps, such as two modes: by default"
    " the reference mode and the best mode of each row."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[A B] [OVERRIDE]",
        help="the sides, two values of one setting: two modes, dtype=float32 dtype=bfloat16,"
        " sweep=main sweep=last, gpu=H100 gpu=H200, folder=../old folder=., or several in quotes; a"
        " single mode is compared with the reference mode. Other words choose cells of both sides:"
        " model=mlp bs=8",
    )
    options.add_sweep(parser)
    options.add_format(parser, "json")


def run(args: argparse.Namespace) -> int:
    first, second = sides_of(args.words, args.sweep)
    with Store.open(args.db, mode="read") as store:
        reports = [report_of(store, pair) for pair in pairs_for(store, first, second)]
    if args.format == "json":
        options.write(as_json({"cells": [report.record() for report in reports]}), args)
    else:
        with options.console(args) as console:
            print_reports(reports, console)
    if any(report.explanation for report in reports):
        return 0
    return NothingFoundError.exit_code


def sides_of(texts: Sequence[str], sweep: str) -> list[Words]:
    """Return the settings of both sides: those of two words with the same setting, and of all other
    words. A bare word is a mode. Raises UsageError."""
    words = [dict(word.split("=", 1) for word in options.side_of(text)) for text in texts]
    first: Words = {}
    second: Words = {}
    if texts and "=" not in texts[0]:
        second = words[0]
    for one, other in combinations(words, 2):
        if one.keys() & other.keys():
            first, second = one, other
            break
    common = {"sweep": sweep}
    for settings in words:
        if settings is not first and settings is not second:
            common |= settings
    return [{**common, **first}, {**common, **second}]
