"""`effbench check`: the gate for CI. Is a sweep as good as its baseline?"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from effbench.analysis.confirm import LEAST_PAIRS
from effbench.analysis.verdicts import Verdict
from effbench.commands import options
from effbench.commands.compare import across_of, add_choice, chosen, limits_of, render, show, wanted_cells
from effbench.commands.show import terminal
from effbench.errors import UsageError
from effbench.regression.compare import Compared, compare_sweeps
from effbench.regression.gate import baseline_of, command_for, failing, verdict_line
from effbench.report import comparison
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

if TYPE_CHECKING:
    from effbench.regression.rerun import Confirmation

HELP = "Hold a sweep against a baseline: exit 1 where a cell became slower or broken, or was not measured."
SUMMARY = "GITHUB_STEP_SUMMARY"
INTERRUPTED = 130
#: Rows of a job summary: beyond this nobody reads on.
MOST_ROWS = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--baseline", required=True, metavar="NAME", help="as effbench baseline set named it")
    options.add_sweep(parser)
    add_choice(parser)
    parser.add_argument("--all", action="store_true", help="also the rows that are the same")
    parser.add_argument("--format", default="table", choices=["table", *comparison.FORMATS], help="(default: table)")
    options.add_out(parser)
    parser.add_argument(
        "--confirm", action="store_true",
        help="run what is slower again before saying so, old and new in turns where both can be run here",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=int,
        default=LEAST_PAIRS,
        metavar="N",
        help="rounds of --confirm (default and least: %(default)s)",
    )
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML to this file")


def run(args: argparse.Namespace) -> int:
    limits = limits_of(args)
    across = across_of(args.across)
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        baseline = baseline_of(store, args.baseline, sweep, args.on, "hardware" in across)
        before = store.find_sweep(baseline.sweep_id)
        compared = compare_sweeps(store, before, sweep, limits, across, args.on, wanted_cells(args.cell))
    confirmation = confirmed(compared, before, sweep, args) if args.confirm else None
    compared = confirmation.compared if confirmation else compared
    report(compared, sweep, args)
    if confirmation and confirmation.interrupted:
        print(f"effbench: interrupted while confirming (sweep {confirmation.sweep_id})", file=sys.stderr)
        return INTERRUPTED
    return 1 if failing(compared) else 0


def confirmed(compared: Compared, before: SweepInfo, sweep: SweepInfo, args: argparse.Namespace) -> Confirmation:
    """The comparison after the re-run of what is slower; only that can be a matter of noise."""
    from effbench.regression.rerun import confirm  # loads what sweeps need

    if args.rounds < LEAST_PAIRS:
        raise UsageError(f"--rounds {args.rounds}: fewer than {LEAST_PAIRS} pairs confirm nothing")
    flagged = [change for change in failing(compared) if change.verdict is Verdict.SLOWER]
    command = ["check", "--baseline", args.baseline, "--sweep", sweep.id, "--confirm"]
    quiet = args.format != "table" and not args.out
    return confirm(compared, flagged, before, sweep, args.db, command, args.rounds, quiet)


def report(compared: Compared, sweep: SweepInfo, args: argparse.Namespace) -> None:
    """What was asked for on standard output, and the files beside it."""
    rows = chosen(compared.changes, args)
    if args.format == "table":
        if args.out:
            raise UsageError("check --out needs a --format such as markdown or json: a table is for the terminal")
        console = terminal()
        show(console, compared, rows, args)
        for line in conclusion(compared, sweep, args):
            console.print(escape(line), highlight=False, soft_wrap=True)
    else:
        options.write(render(args.format, compared, rows, args), args.out)
    if args.junit:
        options.write(comparison.as_junit(compared, compared.changes), args.junit)
    if os.environ.get(SUMMARY):
        add_summary(Path(os.environ[SUMMARY]), compared, sweep, args)


def conclusion(compared: Compared, sweep: SweepInfo, args: argparse.Namespace) -> list[str]:
    """Passed or not, and for each row that fails the command that shows it."""
    failed = failing(compared)
    lines = [verdict_line(compared, failed, args.baseline)]
    commands = {command_for(change, args.baseline, sweep, args.db): change for change in reversed(failed)}
    for command, change in reversed(commands.items()):
        lines += [f"  {comparison.sentence(change)}", f"    {command}"]
    return lines


def add_summary(path: Path, compared: Compared, sweep: SweepInfo, args: argparse.Namespace) -> None:
    """Append a section to the job's summary; other steps write to the same file."""
    failed = failing(compared)
    shown = [change for change in compared.changes if change.verdict != "same"]
    lines = [f"## effbench: {verdict_line(compared, failed, args.baseline)}", ""]
    lines.append(comparison.markdown(compared, shown[:MOST_ROWS], len(compared.changes) - len(shown)))
    if len(shown) > MOST_ROWS:
        lines.append(f"{len(shown) - MOST_ROWS} further rows are left out here.\n")
    commands = dict.fromkeys(command_for(change, args.baseline, sweep, args.db) for change in failed[:MOST_ROWS])
    if commands:
        lines += ["What shows each of them:", "", "```sh", *commands, "```", ""]
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {SUMMARY}={path}: {error.strerror or error}") from error
