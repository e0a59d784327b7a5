"""The gate: which baseline a sweep is held against, and whether it passes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from effbench.analysis.halves import meant, said, seat_of
from effbench.analysis.screen import Change
from effbench.analysis.verdicts import Verdict
from effbench.config import DEFAULT_DB
from effbench.errors import NothingFoundError, UsageError
from effbench.regression.compare import Compared, still_there
from effbench.store.baselines import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo


def baseline_of(store: Store, name: str, sweep: SweepInfo, on: str | None, any_hardware: bool) -> BaselineInfo:
    """The baseline of this name for the hardware of the sweep; `on`: which of it, or an interpreter.

    Raises NothingFoundError where there is none, UsageError where it is not clear which, or where it is the sweep.
    """
    known = store.baselines(name)
    hardware = store.hardware(sweep.id)
    if not hardware:
        raise NothingFoundError(f"sweep {sweep.id} has no trial yet: there is nothing to check")
    fitting = [one for one in known if one.hardware in hardware]
    # of all hardware that is known here: what names an L4 that has no baseline is no L40S; nothing: an interpreter
    asked = meant(on, [*hardware, *(one.hardware for one in known)]) if on is not None else []
    if asked:
        fitting = [one for one in fitting if one.hardware in asked]
    if not fitting and any_hardware and len(known) == 1:
        fitting = known
    there = ", ".join(one.hardware for one in known)
    if not fitting:
        raise NothingFoundError(
            f"baseline {name!r} is set on {there}, and sweep {sweep.id} ran on {', '.join(hardware)}"
            + (f"; not both on {on!r}" if asked else "")
            + f"; set one there: effbench baseline set {name} SWEEP"
        )
    if len(fitting) > 1:
        shared = ", ".join(one.hardware for one in fitting)
        raise UsageError(f"sweep {sweep.id} and baseline {name!r} share {shared}: choose one with --on")
    if still_there(fitting[0]).sweep_id == sweep.id:
        raise UsageError(f"sweep {sweep.id} is the baseline {name!r} itself: run another one, then check that")
    return fitting[0]


def failing(compared: Compared) -> list[Change]:
    """The rows that make a check fail, what matters most first."""
    return [change for change in compared.changes if change.gates]


def unchecked(store: Store, sweep: SweepInfo, compared: Compared) -> list[str]:
    """Hardware, with the interpreter where one was chosen, that the sweep ran on and the check did not look at."""
    looked_at = {seat_of(row) for row in compared.after.environments.values()}
    seats = dict.fromkeys(seat_of(row) for row in store.environments_of(sweep.id))
    return [said([seat], seats) for seat in seats if seat not in looked_at]


def command_for(
    change: Change, before: str, sweep: SweepInfo, db: str, options: Sequence[str] = (),
    failed_again: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    """What a user types to look at this row and its neighbours, with the same verdicts. `before`: id of the baseline's
    sweep; `db`: without a password, it goes into logs; `options`: those of the check that decide what is compared;
    `failed_again`: cell key -> the sweep in which it failed when it was run again."""
    if change.key in failed_again:
        words = ["effbench", "ls", "--failures", "--sweep", failed_again[change.key]]
    else:
        words = ["effbench", "compare", before, sweep.id, "--cell", change.key[:12], "--all", *options]
    return " ".join(shlex.quote(word) for word in [*words, *(["--db", db] if db != DEFAULT_DB else [])])


def verdict_line(compared: Compared, failed: Sequence[Change], name: str) -> str:
    """`check failed: 2 slower, 1 broken against main` or `check passed against main`, and what a check that passed has
    not judged: rows that are ignored or open, cells without figures to compare, hardware."""
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
    return "; ".join([*parts, *(f"{seat} not checked" for seat in compared.unchecked)])


def counted(changes: Sequence[Change]) -> str:
    """`2 slower, 1 broken`, in the order of the rows."""
    found = Counter(change.verdict for change in changes)
    return ", ".join(f"{number} {verdict}" for verdict, number in found.items())
