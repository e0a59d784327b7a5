"""`effbench check`: the gate for CI. Is a sweep as good as its baseline?"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from effbench.commands import options
from effbench.commands.compare import across_of, add_choice, chosen, limits_for, render, show, wanted_cells
from effbench.comparison.compare import Compared, compare_sweeps, existing
from effbench.comparison.sides import machine_names, machine_of, matching
from effbench.comparison.verdicts import Change, Verdict, counted
from effbench.config import DEFAULT_DB
from effbench.errors import EffbenchError, NothingFoundError, UsageError
from effbench.outputs import refuse_database
from effbench.printable import one_line
from effbench.report import comparison
from effbench.stats.significance import LEAST_PAIRS
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.sweeping import resume
from effbench.terminal import escape, terminal

if TYPE_CHECKING:
    from effbench.comparison.confirm import Confirmation

HELP = "Compare a sweep with a baseline: exit 1 if a cell is slower or broken, or was not measured."
SUMMARY = "GITHUB_STEP_SUMMARY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
    parser.add_argument("--baseline", required=True, metavar="NAME", help="as effbench baseline set named it")
    options.add_sweep(parser)
    add_choice(parser)
    parser.add_argument(
        "--confirm", action="store_true",
        help="run what is slower again before reporting it, old and new in turns if both can be run here",
    )  # fmt: skip
    parser.add_argument(resume.FLAG, action="store_true", help=f"with --confirm: {resume.HELP}")
    parser.add_argument(
        "--rounds",
        type=int,
        default=LEAST_PAIRS,
        metavar="N",
        help="rounds of --confirm (default and least: %(default)s)",
    )
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML to this file")


def run(args: argparse.Namespace) -> int:
    try:
        compared, shows, confirmation = checked(args)
    except EffbenchError as error:
        # readers of the job's page must learn why there is no verdict
        if os.environ.get(SUMMARY):
            with contextlib.suppress(UsageError):  # the error that counts is the first
                add_summary(comparison.not_checked(str(error), args.baseline), args.db)
        raise
    report(compared, shows, args)
    if confirmation and confirmation.interrupted:
        sweep = f" (sweep {confirmation.sweep_id})" if confirmation.sweep_id else ""
        print(f"effbench: interrupted while confirming{sweep}", file=sys.stderr)
        return options.INTERRUPTED
    return 1 if failing(compared) else 0


def checked(args: argparse.Namespace) -> tuple[Compared, comparison.Shows, Confirmation | None]:
    """Return the comparison, the command that shows a row of it, and what `--confirm` did, if asked for."""
    if args.out and args.format == "table":
        raise UsageError("check --out needs a --format such as markdown or json: a table is for the terminal")
    limits = limits_for(args)
    across = across_of(args.across)
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        baseline = baseline_of(store, args.baseline, sweep, args.on, "hardware" in across)
        before = store.find_sweep(baseline.sweep_id)
        compared = compare_sweeps(store, before, sweep, limits, across, args.on, wanted_cells(args.cell))
        compared.unchecked = unchecked(store, sweep, compared)
        compared.notes += [
            f"not checked: {machine}, where this sweep ran as well; it needs a baseline there and a check with --on"
            for machine in compared.unchecked
        ]
        name = store.name
    confirmation = confirmed(compared, before, sweep, args) if args.confirm else None
    compared = confirmation.compared if confirmation else compared
    again = {} if confirmation is None else dict.fromkeys(confirmation.failed, confirmation.sweep_id)
    shows = partial(command_for, before=before.id, sweep=sweep, db=name, options=given(args), failed_again=again)
    return compared, shows, confirmation


def confirmed(compared: Compared, before: SweepInfo, sweep: SweepInfo, args: argparse.Namespace) -> Confirmation:
    """Return the comparison after the re-run of what is slower; only that can be a matter of noise."""
    from effbench.comparison import confirm  # loads what sweeps need

    if args.rounds < LEAST_PAIRS:
        raise UsageError(f"--rounds {args.rounds}: fewer than {LEAST_PAIRS} pairs confirm nothing")
    flagged = [change for change in failing(compared) if change.verdict is Verdict.SLOWER]
    command = ["check", "--baseline", args.baseline, "--sweep", sweep.id, "--confirm"]
    command += [resume.FLAG] if args.trust_imported else []
    quiet = args.format != "table" and not args.out
    try:
        return confirm.confirm(
            compared, flagged, before, sweep, args.db, command, args.rounds, quiet, args.trust_imported
        )
    except KeyboardInterrupt:  # before it could begin: what the sweep showed is reported all the same
        return confirm.interrupted(compared, flagged)


def given(args: argparse.Namespace) -> list[str]:
    """Return the options that decide what is compared with what, and what counts, as they were given."""
    words = []
    for option in ("on", "across", "config", "floor"):
        words += [f"--{option}", value] if (value := getattr(args, option)) else []
    words += [word for setting in args.settings for word in ("--set", setting)]
    return words + [word for metric in args.metric or () for word in ("--metric", metric)]


def report(compared: Compared, shows: comparison.Shows, args: argparse.Namespace) -> None:
    """Write standard output, and the files that were asked for. `shows`: the command that shows a row.

    A file that cannot be written keeps no other from being written, and the job's summary has the verdict. Raises
    UsageError at the end.
    """
    rows = chosen(compared.changes, args)
    failed = failing(compared)
    line = verdict_line(compared, failed, args.baseline)
    errors: list[UsageError] = []

    def keep(write: Callable[..., None], *what: Any) -> None:
        try:
            write(*what)
        except UsageError as error:
            errors.append(error)

    if os.environ.get(SUMMARY):
        keep(add_summary, comparison.check_markdown(compared, compared.changes, failed, line, shows), args.db)
    if args.format == "table":
        console = terminal()
        show(console, compared, rows, args)
        for text in comparison.check_lines(line, failed, shows):
            console.print_line(escape(text))
    else:
        if args.format == "markdown":
            text = comparison.check_markdown(compared, rows, failed, line, shows, everything=args.all)
        elif args.format == "junit":
            text = comparison.as_junit(compared, rows, shows)
        elif args.format == "json":
            commands = [{"cell_key": one.key, "metric": one.metric, "command": shows(one)} for one in failed]
            more = {"baseline": args.baseline, "passed": not failed, "failing": commands}
            text = comparison.as_json(compared, rows, **more, unchecked=compared.unchecked)
        else:
            text = render(compared, rows, args)
            for machine in compared.unchecked:  # the rows do not contain it
                print(f"effbench: {one_line(machine)} not checked", file=sys.stderr)
        keep(options.write, text, args)
    if args.junit:
        keep(options.write, comparison.as_junit(compared, compared.changes, shows), args, "junit")
    if errors:
        raise UsageError("; ".join(map(str, errors)))


def add_summary(text: str, db: str) -> None:
    """Append a section to the job's summary; other steps write to the same file."""
    path = Path(os.environ[SUMMARY])
    try:
        refuse_database(path, options.database_file(db))
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {SUMMARY}={path}: {error.strerror or error}") from error


# --- which baseline a sweep is held against, and whether it passes ---


def baseline_of(store: Store, name: str, sweep: SweepInfo, on: str | None, any_hardware: bool) -> BaselineInfo:
    """Return the baseline of this name for the hardware of the sweep; `on`: which of it, or an interpreter.

    Raises NothingFoundError if there is none, UsageError if it is ambiguous, or is the sweep itself.
    """
    known = store.baselines(name)
    hardware = store.hardware(sweep.id)
    if not hardware:
        raise NothingFoundError(f"sweep {sweep.id} has no trial yet: there is nothing to check")
    fitting = [one for one in known if one.hardware in hardware]
    # among all known hardware: an L4 without a baseline is no L40S; no match: it may name an interpreter
    asked = matching(on, [*hardware, *(one.hardware for one in known)]) if on is not None else []
    if asked:
        fitting = [one for one in fitting if one.hardware in asked]
    if not fitting and any_hardware and len(known) == 1:
        fitting = known
    if not fitting:
        there = ", ".join(one.hardware for one in known)
        raise NothingFoundError(
            f"baseline {name!r} is set on {there}, and sweep {sweep.id} ran on {', '.join(hardware)}"
            + (f"; not both on {on!r}" if asked else "")
            + f"; set one there: effbench baseline set {name} SWEEP"
        )
    if len(fitting) > 1:
        shared = ", ".join(one.hardware for one in fitting)
        raise UsageError(f"sweep {sweep.id} and baseline {name!r} share {shared}: choose one with --on")
    if existing(fitting[0]).sweep_id == sweep.id:
        raise UsageError(f"sweep {sweep.id} is the baseline {name!r} itself: run another one, then check that")
    return fitting[0]


def failing(compared: Compared) -> list[Change]:
    """Return the rows that make a check fail, what matters most first."""
    return [change for change in compared.changes if change.gates]


def unchecked(store: Store, sweep: SweepInfo, compared: Compared) -> list[str]:
    """Return the hardware, with the interpreter if one was chosen, that the sweep ran on and the check did not see."""
    checked = {machine_of(row) for row in compared.after.environments.values()}
    machines = dict.fromkeys(machine_of(row) for row in store.environments_of(sweep.id))
    return [machine_names([machine], machines) for machine in machines if machine not in checked]


def command_for(
    change: Change, before: str, sweep: SweepInfo, db: str, options: Sequence[str] = (),
    failed_again: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """Return the command that shows this row and its neighbours, with the same verdicts. `before`: id of the baseline's
    sweep; `db`: without a password, as it goes into logs; `options`: those of the check that decide what is compared;
    `failed_again`: cell key -> the sweep in which it failed when it was run again."""
    if change.key in failed_again:
        words = ["effbench", "ls", "--failures", "--sweep", failed_again[change.key]]
    else:
        words = ["effbench", "compare", before, sweep.id, "--cell", change.key[:12], "--all", *options]
    return shlex.join([*words, *(["--db", db] if db != DEFAULT_DB else [])])


def verdict_line(compared: Compared, failed: Sequence[Change], name: str) -> str:
    """Return `check failed: 2 slower, 1 broken against main` or `check passed against main`, with what a passed check
    has not judged: rows that are ignored or ambiguous, cells without figures to compare, hardware."""
    if failed:
        parts = [f"check failed: {counted(failed)} against {name}"]
    else:
        parts = [f"check passed against {name}"]
        rows = compared.changes
        if overlooked := [change for change in rows if change.is_overlooked]:
            parts.append(f"ignored: {counted(overlooked)}")
        if open_rows := sum(change.verdict is Verdict.AMBIGUOUS for change in rows):
            parts.append(f"{open_rows} of {len(rows)} rows could not be judged")
        cells = {change.key for change in rows}
        judged = {change.key for change in rows if None not in (change.before, change.after)}
        if len(judged) < len(cells):
            have = f"{len(judged)} of {len(cells)} cells have" if len(cells) > 1 else "the only cell has no"
            parts.append(f"{have} figures to compare")
    return "; ".join([*parts, *(f"{machine} not checked" for machine in compared.unchecked)])
