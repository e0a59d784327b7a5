"""Runs what looks slower again, old and new in turns where both can be run here, before it is called so."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effbench.analysis.confirm import LEAST_PAIRS, confirms
from effbench.analysis.halves import SOFTWARE, Half
from effbench.analysis.screen import Change, screen_order
from effbench.analysis.verdicts import Comparison, Verdict
from effbench.errors import UsageError
from effbench.metrics import METRICS, percent, ratio_text
from effbench.regression.compare import Compared, finish, load
from effbench.regression.origin import Origin, current, origin
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo
from effbench.sweeping.conduct import Command, run_cells
from effbench.sweeping.interpreters import Interpreter, Unit
from effbench.sweeping.plan import Settings
from effbench.sweeping.progress import Progress


@dataclass(frozen=True)
class Confirmation:
    """`compared`: as before, with the flagged rows judged again and notes on how. `sweep_id`: of the re-run, None where
    nothing was flagged. `interrupted`: it did not run to its end, and nothing was judged again."""

    compared: Compared
    sweep_id: str | None = None
    interrupted: bool = False


def confirm(
    compared: Compared, flagged: Sequence[Change], before: SweepInfo, after: SweepInfo, db: str,
    command: Sequence[str], rounds: int = LEAST_PAIRS, quiet: bool = False,
) -> Confirmation:  # fmt: skip
    """Run the cells of `flagged` (rows of `compared` that are slower) again, and judge those rows by what comes out.

    Where the baseline's interpreter and revision can be run here, old and new run in turns in the same rounds, and the
    interval over pairs must lie beyond the limit. Where not, the new side alone runs again and is compared with the
    baseline as the sweep was; a note says why. What is not confirmed becomes `ambiguous`. Raises EffbenchError where
    the sweep cannot be run here.
    """
    if not flagged:
        return Confirmation(compared)
    old_facts, new_facts = facts_of(compared.before, before), facts_of(compared.after, after)
    here, moved = current(new_facts, after.id)
    keys = {change.key for change in flagged}
    with Store.open(db, mode="read") as store:
        cells = [cell for cell in store.planned(after.id) if cell.key in keys]
    if len(cells) < len(keys):
        raise UsageError("--confirm runs the same cells again: leave --across dtype and numerics out")
    settings = Settings.with_defaults(
        db=db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        protocol={**after.protocol, "rounds": max(rounds, LEAST_PAIRS), "enough_interval": None},
        baseline_mode=after.baseline_mode,
        on_failure="ignore",
    )
    with origin(old_facts, new_facts or {}, here, cells) as found:
        sides = [one for one in (found.interpreter, here) if one is not None]
        units = [Unit(cell, side) for cell in cells for side in sides]
        outcome = run_cells(
            settings, units, Command([*command], []), None, Progress(quiet=quiet), threading.Event()
        )  # fmt: skip
    if outcome.state != "completed":
        return Confirmation(compared, outcome.sweep_id, interrupted=True)
    with Store.open(db, mode="read") as store:
        again = load(store, store.find_sweep(outcome.sweep_id), None)
    return Confirmation(
        judged_again(compared, flagged, again, outcome.environments, found, here, moved), outcome.sweep_id
    )


def facts_of(half: Half, sweep: SweepInfo) -> Mapping[str, Any] | None:
    """What the sweep says of the interpreter of this side."""
    known = sweep.host.get("environments") or {}
    return next((known[one] for one in half.environments if one in known), None)


def judged_again(
    compared: Compared, flagged: Sequence[Change], again: Half, environments: Mapping[Interpreter, str],
    found: Origin, here: Interpreter, moved: str | None,
) -> Compared:  # fmt: skip
    """`compared` with the flagged rows as the re-run shows them."""
    new = of_environment(again, environments[here])
    why = found.why
    old = compared.before
    if found.interpreter is not None:
        run_again = of_environment(again, environments[found.interpreter])
        changed = software_changed(compared.before, run_again)
        if changed is None:
            old = run_again
        else:
            why = f"the baseline's interpreter is not what it was ({changed})"
    in_turns = old is not compared.before
    limits = replace(compared.limits, by_metric=dict(compared.limits.by_metric))
    floors = {(change.key, change.metric): change.limit or 0.0 for change in flagged}
    fence = (lambda key, metric: 0.0) if in_turns else (lambda key, metric: floors.get((key, metric), 0.0))
    judged = finish(old, new, limits, ("hardware",), fence, in_turns)
    rows = {(change.key, change.metric): change for change in judged.changes}
    whole = {change.key: change for change in judged.changes if change.metric == "status"}
    how = "old and new in turns" if in_turns else "run again"
    changes = []
    asked = {(change.key, change.metric) for change in flagged}
    for change in compared.changes:
        if (change.key, change.metric) in asked:
            row = rows.get((change.key, change.metric), whole.get(change.key))
            change = verdict_after(change, row, in_turns, pairs_in(old, new, change), how)
        changes.append(change)
    notes = [f"{len(asked)} rows were {how}, sweep {again.title}"]
    if why:
        notes.append(f"not in turns: {why}; a drift of the machine between the sessions is not excluded")
    if moved:
        notes.append(moved)
    return replace(compared, changes=screen_order(changes), notes=[*compared.notes, *notes])


def of_environment(half: Half, environment_id: str) -> Half:
    """The part of a sweep that ran in this environment."""
    sides = {key: side for key, side in half.sides.items() if key[1] == environment_id}
    return replace(half, sides=sides, environments={environment_id: half.environments[environment_id]})


def software_changed(before: Half, again: Half) -> str | None:
    """What of the software differs between the baseline and its re-run; None where it is what it was."""
    (now,) = again.environments.values()
    for name in SOFTWARE:
        known = {row[name] for row in before.environments.values()}
        if now[name] not in known:
            return f"{name} {', '.join(sorted(map(str, known)))} → {now[name]}"
    return None


def pairs_in(old: Half, new: Half, change: Change) -> int:
    """Rounds in which both sides have this figure."""
    sides = [side for half in (old, new) for (key, _), side in half.sides.items() if key == change.key]
    if len(sides) != 2:
        return 0
    first, second = ({n for n, v in side.figures.get(change.metric, {}).items() if v is not None} for side in sides)
    return len(first & second)


def verdict_after(change: Change, row: Change | None, in_turns: bool, pairs: int, how: str) -> Change:
    """The flagged row, confirmed or not; the figures stay those of the sweep that is checked."""
    if row is None or row.metric == "status":
        said = f"not confirmed: {row.reason or row.verdict}" if row else "not confirmed: no figure when run again"
        return replace(change, verdict=Verdict.AMBIGUOUS, reason=joined(change.reason, said))
    figure = ratio_text(row.ratio, row.low, row.high)
    if METRICS[change.metric].compare == "ratio" and in_turns and row.low is not None:
        comparison = Comparison(row.ratio, row.low, row.high, row.p_value, row.verdict, row.smallest_slowdown)
        shown = confirms(comparison, pairs, change.limit or 0.0)
        how = f"{how}, {pairs} pairs"
    else:
        shown = row.verdict is Verdict.SLOWER
    if shown:
        return replace(change, reason=joined(change.reason, f"confirmed: {figure} ({how})"))
    beyond = f", not all of it beyond {percent(change.limit)}" if change.limit and row.verdict is Verdict.SLOWER else ""
    said = f"not confirmed: {figure} ({how}){beyond}"
    return replace(change, verdict=Verdict.AMBIGUOUS, reason=joined(change.reason, said))


def joined(*parts: str | None) -> str:
    return "; ".join(part for part in parts if part)
