"""The gate: which baseline a sweep is held against, and whether it passes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from effbench.comparison.compare import Compared, existing
from effbench.comparison.sides import machine_names, machine_of, matching
from effbench.comparison.verdicts import Change, Verdict
from effbench.config import DEFAULT_DB
from effbench.errors import NothingFoundError, UsageError
from effbench.store.decisions import BaselineInfo
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo


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


def counted(changes: Sequence[Change]) -> str:
    """Return `2 slower, 1 broken`, in the order of the rows."""
    return ", ".join(f"{number} {verdict}" for verdict, number in Counter(one.verdict for one in changes).items())
