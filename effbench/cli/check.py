"""`effbench check`: the gate for CI, which compares a sweep with its baseline."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from effbench.analysis.cause import name_causes
from effbench.analysis.compare import Compared, compare_sweeps, one_baseline
from effbench.analysis.matching import place_of
from effbench.analysis.verdicts import DISTURBED, FAILING, NOT_JUDGED, Verdict, tally
from effbench.cli import options
from effbench.cli.compare import add_choice, limits_for, write
from effbench.core.errors import INTERRUPTED, NothingFoundError, UsageError
from effbench.core.printable import count, one_line
from effbench.core.settings import DEFAULT_DB
from effbench.render.comparison import CheckDocument
from effbench.stats.significance import LEAST_DUETS, MOST_PAIRS
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

HELP = "Compare a sweep with a baseline; exit with 1 if a cell is slower, broken or missing."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--baseline", required=True, metavar="NAME", help="name set by effbench baseline set"
    )
    options.add_sweep(parser)
    add_choice(parser)
    parser.add_argument(
        "--confirm",
        action="store_true",
        help=(
            "re-run cells that are or may be slower, or are marked (host disturbed), before"
            " reporting, old and new as duets; if a side cannot run here, nothing runs again"
        ),
    )
    parser.add_argument(
        "--rounds",
        type=options.at_least(LEAST_DUETS),
        metavar="N",
        help=f"most rounds of --confirm, at least {LEAST_DUETS} (default: {MOST_PAIRS}); decided"
        " cells stop earlier",
    )
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML to this file")


def run(args: argparse.Namespace) -> int:
    if args.rounds and not args.confirm:
        raise UsageError("--rounds needs --confirm")
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        baseline = baseline_of(
            store,
            args.baseline,
            sweep,
            args.on,
            any_hardware="hardware" in args.across,
        )
        before = store.find_sweep(baseline.sweep_id)
        compared = compare_sweeps(store, before, sweep, limits_for(args), args.across, args.on)
        places = dict.fromkeys(map(place_of, store.environments_of(sweep.id)))
        database = store.name  # without a password, because output ends up in logs
    unchecked = [place for place in places if place not in compared.after.places]
    again = measure_again(compared, words_of(args, sweep, database), args)
    with Store.open(args.db, mode="read") as store:  # a re-run writes to the database
        name_causes(store, compared.changes)
    document = CheckDocument(
        compared,
        args.all,
        unchecked,
        baseline=args.baseline,
        line=verdict_line(compared, unchecked, args.baseline),
        again=again.command,
        hindrance=again.hindrance,
    )
    report(document, args)
    return exit_code(compared, again)


@dataclass(frozen=True)
class Again:
    """How cells are measured again. `sweep_id`: of the re-run, None without one; `command`: that
    measures marked cells again, None if it could not; `hindrance`: why it could not, if it was not
    tried."""

    command: str | None = None
    sweep_id: str | None = None
    hindrance: str | None = None


def measure_again(compared: Compared, words: list[str], args: argparse.Namespace) -> Again:
    """Measure cells again if --confirm is given. `words`: of the command that does so."""
    command = shlex.join(["effbench", *words])
    if args.confirm:
        sweep_id = confirm_rows(compared, words, args)
        if sweep_id is None:
            return Again()
        return Again(command, sweep_id)
    if compared.unjudged:
        hindrance = why_not_confirmed(compared)
        if hindrance is not None:
            return Again(hindrance=hindrance)
    return Again(command)


def exit_code(compared: Compared, again: Again) -> int:
    if compared.interrupted:
        which = f" (sweep {again.sweep_id})" if again.sweep_id else ""
        print(f"effbench: interrupted while confirming{which}", file=sys.stderr)
        return INTERRUPTED
    if compared.failing:
        return 1
    return 0 if compared.judged else NothingFoundError.exit_code


def confirm_rows(
    compared: Compared,
    words: list[str],
    args: argparse.Namespace,
) -> str | None:
    """Run the cells again that are slower, ambiguous or marked; see `confirm`."""
    from effbench.analysis.confirm import Confirmation, confirm  # slow to import

    request = Confirmation(
        compared,
        args.db,
        words,
        args.rounds or MOST_PAIRS,
        quiet=args.format != "table" and not args.out,
    )
    return confirm(request)


def why_not_confirmed(compared: Compared) -> str | None:
    """Return why --confirm would run nothing again, None if it may."""
    from effbench.analysis.confirm import refusal  # slow to import

    return refusal(compared)


def words_of(args: argparse.Namespace, sweep: SweepInfo, database: str) -> list[str]:
    """Return the words of the command that confirms the check, with the given options that decide
    what is compared and which changes count."""
    words = ["check", "--baseline", args.baseline, "--sweep", sweep.id, "--confirm"]
    given = {
        "on": [args.on],
        "across": [",".join(args.across)],
        "config": [args.config],
        "set": args.settings,
        "metric": args.metric or [],
    }
    if database != DEFAULT_DB:
        given["db"] = [database]
    for name, values in given.items():
        for value in filter(None, values):
            words += [f"--{name}", value]
    return words


# --- output ---


def report(document: CheckDocument, args: argparse.Namespace) -> None:
    """Write standard output, and the file of --junit even if the one of --out cannot be written.
    Raises UsageError."""
    lines = []
    # the log of a CI job needs the verdict, too, and rows of CSV do not contain it
    if args.out or args.format == "csv":
        lines.append(document.line)
    if args.format == "csv":
        lines += document.unjudged
    for line in lines:
        print(f"effbench: {one_line(line)}", file=sys.stderr)
    try:
        write(document, args)
    finally:
        if args.junit:
            options.write(document.junit(), args, "junit")


def verdict_line(compared: Compared, unchecked: Sequence[str], name: str) -> str:
    """Return `check failed: 2 slower, 1 broken against main`, `check passed against main`, `check
    not finished against main` or `nothing was checked against main`. Unless it failed, also list
    what was not judged: ignored, ambiguous and marked rows, cells without figures on both sides,
    unchecked hardware."""
    parts = []
    if compared.failing:
        parts.append(f"check failed: {tally(compared.failing)} against {name}")
    elif compared.interrupted:
        parts.append(f"check not finished against {name}")
    elif compared.judged:
        parts.append(f"check passed against {name}")
    else:
        parts.append(f"nothing was checked against {name}")
    if compared.interrupted:
        parts.append(compared.interrupted)
    if not compared.failing:
        parts += overlooked(compared)
    parts += [f"{place} not checked" for place in unchecked]
    return "; ".join(parts)


def overlooked(compared: Compared) -> list[str]:
    """Return what a check without a failing row did not judge."""
    rows = compared.changes
    texts = []
    ignored = [change for change in rows if change.ignored and change.verdict in FAILING]
    if ignored:
        texts.append(f"ignored: {tally(ignored)}")
    if compared.unjudged:
        texts.append(f"{count(len(compared.unjudged), 'cell')} {NOT_JUDGED}: {DISTURBED}")
    unsure = [change for change in rows if change.word == Verdict.AMBIGUOUS]
    if unsure:
        texts.append(f"{len(unsure)} of {len(rows)} rows could not be judged")
    cells, measured = len(compared.cells), len(compared.measured)
    if measured < cells:
        texts.append(f"{measured} of {cells} cells have figures in both sweeps")
    return texts


# --- what is compared ---


def baseline_of(
    store: Store, name: str, sweep: SweepInfo, on: str | None, any_hardware: bool
) -> BaselineInfo:
    """Return the baseline of this name on the sweep's hardware (`any_hardware`: else on any).
    Raises NothingFoundError if the baseline does not exist, UsageError if it is ambiguous."""
    known = store.baselines(name)
    hardware = store.hardware(sweep.id)
    if any_hardware and not any(baseline.hardware in hardware for baseline in known):
        hardware = []
    return one_baseline(known, on, hardware)
