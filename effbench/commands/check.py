"""`effbench check`: the gate for CI, which compares a sweep with its baseline."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from effbench.commands import options
from effbench.commands.compare import (
    add_choice,
    chosen,
    limits_for,
    render,
    show,
    wanted_cells,
    words_of,
)
from effbench.comparison.compare import Compared, Confirmation, compare_sweeps, one_baseline
from effbench.comparison.sides import ACROSS, machine_names, machine_of
from effbench.comparison.verdicts import DISTURBED, FAILING, NOT_JUDGED, Change, Verdict, counted
from effbench.config import DEFAULT_DB
from effbench.errors import INTERRUPTED, EffbenchError, NothingFoundError, UsageError
from effbench.outputs import refuse_database
from effbench.printable import count, one_line
from effbench.report import comparison
from effbench.stats.significance import LEAST_DUETS, MOST_PAIRS
from effbench.store.connect import sqlite_file
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo
from effbench.terminal import escape

HELP = "Compare a sweep with a baseline; exit with 1 if a cell is slower, broken or missing."
SUMMARY = "GITHUB_STEP_SUMMARY"
PLACES = ("on", "across")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_db(parser)
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
            " reporting; old and new run as duets if both can run here"
        ),
    )
    most = (
        f"most rounds of --confirm, at least {LEAST_DUETS} (default: {MOST_PAIRS}); decided cells"
        " stop earlier"
    )
    parser.add_argument("--rounds", type=options.at_least(LEAST_DUETS), metavar="N", help=most)
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit XML to this file")


def run(args: argparse.Namespace) -> int:
    if args.rounds and not args.confirm:
        raise UsageError("--rounds needs --confirm")
    try:
        check = compared_with_baseline(args)
        if args.confirm:
            check.confirmation = confirmed(check, args)
    except EffbenchError as error:
        # the CI job's page must explain why there is no verdict
        if os.environ.get(SUMMARY):
            with contextlib.suppress(UsageError):  # the first error matters, and is raised below
                add_summary(comparison.not_checked(str(error), args.baseline), args.db)
        raise
    report(check, args)
    compared = check.compared
    if compared.interrupted:
        again = f" (sweep {check.confirmation.sweep_id})" if check.confirmation.sweep_id else ""
        print(f"effbench: interrupted while confirming{again}", file=sys.stderr)
        return INTERRUPTED
    if compared.failing:
        return 1
    return 0 if compared.judged else NothingFoundError.exit_code


@dataclass
class Check:
    """A comparison of a sweep with its baseline, and the re-run that confirmed it. `database`: its
    name without a password, because output ends up in logs."""

    compared: Compared
    before: SweepInfo
    sweep: SweepInfo
    database: str
    args: argparse.Namespace
    confirmation: Confirmation = field(default_factory=Confirmation)

    def command(self, words: Sequence[str]) -> str:
        database = [] if self.database == DEFAULT_DB else ["--db", self.database]
        return shlex.join(["effbench", *words, *database])

    def shows(self, change: Change) -> str:
        """Return the command that shows a row, with the figures of the re-run if there was one."""
        done = self.confirmation
        if change.key in done.failed and done.sweep_id:
            return self.command(["ls", "--failures", "--sweep", done.sweep_id])
        sides, options_given = [self.before.id, self.sweep.id], given(self.args)
        if change.key in done.confirmed and done.sweep_id:
            sides = [done.sweep_id, "--by", done.by] if done.by else [self.before.id, done.sweep_id]
            # both sides of one sweep ran on one machine
            options_given = given(self.args, () if done.by else PLACES)
        return self.command(["compare", *sides, "--cell", change.key[:12], "--all", *options_given])

    @property
    def again(self) -> str:
        """The command that measures marked cells again."""
        words = ["check", "--baseline", self.args.baseline, "--sweep", self.sweep.id, "--confirm"]
        return self.command([*words, *given(self.args)])


def compared_with_baseline(args: argparse.Namespace) -> Check:
    """Return the comparison of the sweep with its baseline."""
    limits, across = limits_for(args), words_of("--across", args.across, ACROSS)
    with Store.open(args.db, mode="read") as store:
        sweep = store.find_sweep(args.sweep)
        before = store.find_sweep(
            baseline_of(store, args.baseline, sweep, args.on, "hardware" in across).sweep_id
        )
        compared = compare_sweeps(
            store, before, sweep, limits, across, args.on, wanted_cells(args.cell)
        )
        machines = machine_names(machine_of(row) for row in store.environments_of(sweep.id))
        compared.unchecked = [
            text for machine, text in machines.items() if machine not in compared.after.machines
        ]
        return Check(compared, before, sweep, store.name, args)


def confirmed(check: Check, args: argparse.Namespace) -> Confirmation:
    """Run the cells again that are slower, ambiguous or marked."""
    from effbench.comparison.confirm import confirm  # slow to import

    words = ["check", "--baseline", args.baseline, "--sweep", check.sweep.id, "--confirm"]
    most = args.rounds or MOST_PAIRS
    quiet = args.format != "table" and not args.out
    return confirm(check.compared, check.before, check.sweep, args.db, words, most, quiet)


def given(args: argparse.Namespace, places: Sequence[str] = PLACES) -> list[str]:
    """Return the given options that decide what is compared (`places`) and which changes count."""
    pairs = [(f"--{name}", getattr(args, name)) for name in (*places, "config", "floor")]
    pairs += [("--set", setting) for setting in args.settings] + [
        ("--metric", name) for name in args.metric or ()
    ]
    return [word for option, value in pairs if value for word in (option, value)]


# --- output ---


def report(check: Check, args: argparse.Namespace) -> None:
    """Write standard output and the requested files. If one of them cannot be written, write the
    others, then raise UsageError."""
    compared, shows = check.compared, check.shows
    rows, failed = chosen(compared.changes, args), compared.failing
    line = verdict_line(compared, args.baseline)
    if args.out:  # the log of a CI job needs the verdict, too
        print(f"effbench: {one_line(line)}", file=sys.stderr)
    try:
        if os.environ.get(SUMMARY):
            text = comparison.check_markdown(
                compared, compared.changes, failed, line, shows, again=check.again
            )
            add_summary(text, args.db)
    finally:
        try:
            if args.junit:
                options.write(comparison.as_junit(compared, compared.changes, shows), args, "junit")
        finally:
            if args.format != "table":
                options.write(as_text(check, rows, line, args), args)
            else:
                with options.console(args) as console:
                    show(console, compared, rows, args, is_gate=True)
                    unjudged = comparison.unjudged_text(compared, check.again)
                    for text in filter(
                        None, (unjudged, line, *comparison.commands(failed, shows, "  "))
                    ):
                        console.print_line(escape(text))


def as_text(check: Check, rows: Sequence[Change], line: str, args: argparse.Namespace) -> str:
    compared, shows = check.compared, check.shows
    if args.format == "markdown":
        everything, again = args.all, check.again
        return comparison.check_markdown(
            compared, rows, compared.failing, line, shows, everything, again
        )
    if args.format == "junit":
        return comparison.as_junit(compared, rows, shows)
    if args.format == "json":
        failing = [
            {"cell_key": row.key, "metric": row.metric, "command": shows(row)}
            for row in compared.failing
        ]
        more = {"passed": compared.passed, "failing": failing, "unchecked": compared.unchecked}
        more["unjudged"] = [
            {"cell_key": row.key, "cell": row.name, "reason": row.disturbance}
            for row in compared.unjudged.values()
        ]
        more["measure_again"] = check.again if compared.unjudged else None
        return comparison.as_json(compared, rows, baseline=args.baseline, **more)
    for machine in compared.unchecked:  # the rows do not contain it
        print(f"effbench: {one_line(machine)} not checked", file=sys.stderr)
    if unjudged := comparison.unjudged_text(compared, check.again):
        print(f"effbench: {one_line(unjudged)}", file=sys.stderr)
    return render(compared, rows, args)


def add_summary(text: str, db: str) -> None:
    """Append a section to the job's summary; other steps write to the same file."""
    path = Path(os.environ[SUMMARY])
    try:
        refuse_database(path, sqlite_file(db))
        with path.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {SUMMARY}={path}: {error.strerror or error}") from error


def verdict_line(compared: Compared, name: str) -> str:
    """Return `check failed: 2 slower, 1 broken against main`, `check passed against main`, `check
    not finished against main` or `nothing was checked against main`. Unless it failed, also list
    what was not judged: ignored, ambiguous and marked rows, cells without figures on both sides,
    unchecked hardware."""
    rows, failed = compared.changes, compared.failing
    if failed:
        parts = [f"check failed: {counted(failed)} against {name}"]
        parts += [compared.interrupted] if compared.interrupted else []
    elif compared.interrupted:
        parts = [f"check not finished against {name}: {compared.interrupted}"]
    elif compared.judged:
        parts = [f"check passed against {name}"]
    else:
        parts = [f"nothing was checked against {name}"]
    if not failed:
        if overlooked := [
            change for change in rows if change.ignored and change.verdict in FAILING
        ]:
            parts.append(f"ignored: {counted(overlooked)}")
        if compared.unjudged:
            parts.append(f"{count(len(compared.unjudged), 'cell')} {NOT_JUDGED}: {DISTURBED}")
        if unsure := sum(
            change.verdict is Verdict.AMBIGUOUS and not change.is_unjudged for change in rows
        ):
            parts.append(f"{unsure} of {len(rows)} rows could not be judged")
        times = [change for change in rows if change.metric == "latency_ms"]
        if times and all(change.verdict is Verdict.AMBIGUOUS for change in times):
            parts.append("no latency could be judged")
        cells = {change.key for change in rows}
        if len(compared.measured) < len(cells):
            parts.append(
                f"{len(compared.measured)} of {len(cells)} cells have figures in both sweeps"
            )
    return "; ".join([*parts, *(f"{machine} not checked" for machine in compared.unchecked)])


# --- what is compared ---


def baseline_of(
    store: Store, name: str, sweep: SweepInfo, on: str | None, any_hardware: bool
) -> BaselineInfo:
    """Return the baseline of this name on the sweep's hardware (`any_hardware`: else on any).
    Raises NothingFoundError if the baseline does not exist, UsageError if it is ambiguous."""
    known = store.baselines(name)
    hardware = store.hardware(sweep.id)
    if not hardware:
        raise NothingFoundError(f"sweep {sweep.id} has no trial yet: there is nothing to check")
    if any_hardware and not any(baseline.hardware in hardware for baseline in known):
        hardware = []
    return one_baseline(known, on, hardware)
