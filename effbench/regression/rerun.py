"""Runs what looks slower again, old and new in turns where both can be run here, before it is called so."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from effbench.analysis.confirm import LEAST_PAIRS, confirms
from effbench.analysis.halves import SOFTWARE, Half
from effbench.analysis.screen import STATUS, Change, Side, describe, screen_order
from effbench.analysis.statuses import is_worse
from effbench.analysis.verdicts import Comparison, Verdict
from effbench.errors import EffbenchError, UsageError
from effbench.metrics import METRICS, percent, ratio_text
from effbench.regression.compare import Compared, finish, load
from effbench.regression.origin import Origin, current, origin
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo
from effbench.sweep import trust
from effbench.sweep.interpreters import Interpreter
from effbench.sweep.plan import CellRun, Settings
from effbench.sweep.progress import Progress
from effbench.sweep.run import Command, Outcome, run_cells

FACTS = {"python", "folder", "given", "git_revision", "git_description"}


@dataclass(frozen=True)
class Confirmation:
    """`compared`: as before, with the flagged rows judged again and notes on how. `sweep_id`: of the re-run, None where
    nothing was flagged. `failed`: keys of the cells that failed when run again. `interrupted`: it did not run to its
    end, and nothing was judged again."""

    compared: Compared
    sweep_id: str | None = None
    failed: frozenset[str] = frozenset()
    interrupted: bool = False


def confirm(
    compared: Compared, flagged: Sequence[Change], before: SweepInfo, after: SweepInfo, db: str,
    command: Sequence[str], rounds: int = LEAST_PAIRS, quiet: bool = False, trust_imported: bool = False,
) -> Confirmation:  # fmt: skip
    """Run the cells of `flagged` (rows of `compared` that are slower) again, and judge those rows by what comes out.

    Where the baseline's interpreter and revision can be run here, old and new run in turns in the same rounds, and the
    interval over pairs must lie beyond the limit. Where not, the new side alone runs again and is compared with the
    baseline as the sweep was; a note says why. What is not confirmed becomes `ambiguous`, a cell that fails now
    `broken`; of what the re-run says nothing, or where what the sweep ran cannot be run here, the verdict stays.
    What an imported sweep recorded, its cells as its interpreter and revision, is used only with `trust_imported`.
    Raises UsageError where old and new are not the same cells.
    """
    if not flagged:
        return Confirmation(compared)
    if after.imported_at is not None and not trust_imported:
        return Confirmation(not_run(compared, flagged, trust.refusal(after)))
    old_facts, new_facts = facts_of(compared.before, before), facts_of(compared.after, after)
    keys = {change.key for change in flagged}
    with Store.open(db, mode="read") as store:
        cells = [cell for cell in store.planned(after.id) if cell.key in keys]
    if len(cells) < len(keys):
        raise UsageError("--confirm runs the same cells again: leave --across dtype and numerics out")
    for sweep in (before, after):
        if sweep.imported_at is not None and trust_imported:
            trust.announce(sweep, cells)
    try:
        here, moved = current(new_facts, after.id, cells)
    except UsageError as error:
        return Confirmation(not_run(compared, flagged, str(error)))
    if moved:
        return Confirmation(not_run(compared, flagged, moved))
    settings = Settings.with_defaults(
        db=db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        protocol={**after.protocol, "rounds": max(rounds, LEAST_PAIRS), "enough_interval": None},
        baseline_mode=after.baseline_mode,
        on_failure="ignore",
    )

    def run(*sides: Interpreter) -> Outcome:
        runs = [CellRun(cell, side) for cell in cells for side in sides]
        return run_cells(settings, runs, Command([*command], []), None, Progress(quiet=quiet), threading.Event())

    software = software_changed(compared.before, compared.after)
    if before.imported_at is not None and not trust_imported:
        old_side = nullcontext(Origin(None, trust.refusal(before)))
    else:
        old_side = origin(old_facts, new_facts or {}, here, cells, software)
    with old_side as found:
        try:
            try:
                outcome = run(*(side for side in (found.interpreter, here) if side is not None))
            except EffbenchError as error:
                if found.interpreter is None:
                    raise
                found = Origin(None, f"the baseline's side cannot be run here ({error})")
                outcome = run(here)
        except EffbenchError as error:
            return Confirmation(not_run(compared, flagged, f"it cannot be run again here: {error}"))
    if outcome.state != "completed":
        return interrupted(compared, flagged, outcome.sweep_id)
    with Store.open(db, mode="read") as store:
        again = load(store, store.find_sweep(outcome.sweep_id))
    judged = judged_again(compared, flagged, again, outcome.environments, found, here)
    rows = {(change.key, change.metric) for change in flagged}
    failed = {c.key for c in judged.changes if (c.key, c.metric) in rows and c.verdict is Verdict.BROKEN}
    return Confirmation(judged, outcome.sweep_id, frozenset(failed))


def interrupted(compared: Compared, flagged: Sequence[Change], sweep_id: str | None = None) -> Confirmation:
    """Nothing is judged by half a re-run; `sweep_id` is None where it had not begun."""
    said = "the re-run was interrupted"
    told = unjudged(compared, flagged, said, f"{said}{f' (sweep {sweep_id})' * (sweep_id is not None)}")
    return Confirmation(told, sweep_id, interrupted=True)


def facts_of(half: Half, sweep: SweepInfo) -> Mapping[str, Any] | None:
    """What the sweep says of the interpreter of this side, None unless it says all of it."""
    known = sweep.host.get("environments") or {}
    facts = next((known[one] for one in half.environments if one in known), None)
    return facts if isinstance(facts, dict) and facts.keys() >= FACTS else None


def judged_again(
    compared: Compared, flagged: Sequence[Change], again: Half, environments: Mapping[Interpreter, str],
    found: Origin, here: Interpreter,
) -> Compared:  # fmt: skip
    """`compared` with the flagged rows as the re-run shows them."""
    new = of_environment(again, environments[here])
    why, old = found.why, None
    if found.interpreter is not None:
        old = of_environment(again, environments[found.interpreter])
        changed = software_changed(compared.before, old)
        if changed is not None:
            old, why = None, f"the baseline's interpreter is not what it was ({changed})"
    limits = replace(compared.limits, by_metric=dict(compared.limits.by_metric))
    asked = {(change.key, change.metric): change.limit or 0.0 for change in flagged}
    turned = rows_of(finish(old, new, limits, ("hardware",), no_fence, True)) if old else {}
    # held against what the baseline recorded: the noise between sessions counts again
    held = rows_of(finish(compared.before, new, limits, ("hardware",), lambda *row: asked.get(row, 0.0)))
    changes = []
    for change in compared.changes:
        key = (change.key, change.metric)
        if key not in asked:
            changes.append(change)
            continue
        recorded, now = side_in(compared.before, change.key), side_in(new, change.key)
        then = side_in(old, change.key) if old else None
        old_fails = is_worse(status_in(recorded), status_in(then))
        if is_worse(status_in(side_in(compared.after, change.key)), status_in(now)):
            changes.append(failed_again(change, now, then if old_fails else None))
        elif then is None or old_fails:
            said = f"run again; the baseline's side did not run: {describe(then)}" if old_fails else "run again"
            changes.append(verdict_after(change, row_in(held, change), False, 0, said))
        else:
            pairs = pairs_in(old, new, change)
            changes.append(verdict_after(change, row_in(turned, change), True, pairs, "old and new in turns"))
    how = "old and new in turns" if old else "the new side alone"
    notes = [f"run again for {len(asked)} row{'s' * (len(asked) != 1)}, {how}: sweep {again.title}"]
    if why:
        notes.append(f"not in turns: {why}; a drift of the machine between the sessions is not excluded")
    return replace(compared, changes=screen_order(changes), notes=[*compared.notes, *notes])


def not_run(compared: Compared, flagged: Sequence[Change], why: str) -> Compared:
    """`compared` where nothing could be run again."""
    return unjudged(compared, flagged, "not run again", f"nothing was run again: {why}")


def unjudged(compared: Compared, flagged: Sequence[Change], why: str, note: str) -> Compared:
    """`compared` where the verdicts stay, and the flagged rows say `why`."""
    rows = {(change.key, change.metric) for change in flagged}
    said = f"neither confirmed nor refuted: {why}"
    changes = [
        replace(change, reason=joined(change.reason, said)) if (change.key, change.metric) in rows else change
        for change in compared.changes
    ]
    return replace(compared, changes=changes, notes=[*compared.notes, note])


def no_fence(key: str, metric: str) -> float:
    """Measured in one session, in turns: the noise between sessions does not count."""
    return 0.0


def rows_of(judged: Compared) -> dict[tuple[str, str], Change]:
    return {(change.key, change.metric): change for change in judged.changes}


def row_in(rows: Mapping[tuple[str, str], Change], change: Change) -> Change | None:
    """The row of the same metric, or the one that speaks of the whole cell."""
    return rows.get((change.key, change.metric), rows.get((change.key, STATUS)))


def side_in(half: Half, key: str) -> Side | None:
    return half.side(key, list(half.environments))


def status_in(side: Side | None) -> str | None:
    return side and side.status


def of_environment(half: Half, environment_id: str) -> Half:
    """The part of a sweep that ran in this environment."""
    sides = {key: side for key, side in half.sides.items() if key[1] == environment_id}
    return replace(half, sides=sides, environments={environment_id: half.environments[environment_id]})


def software_changed(before: Half, after: Half) -> str | None:
    """What of the software differs between these two, None where nothing does."""
    for name in SOFTWARE:
        then, now = ({row[name] for row in half.environments.values()} for half in (before, after))
        if not now <= then:
            return f"{name} {', '.join(sorted(map(str, then)))} → {', '.join(sorted(map(str, now)))}"
    return None


def pairs_in(old: Half, new: Half, change: Change) -> int:
    """Rounds in which both sides have this figure."""
    sides = [side for half in (old, new) for (key, _), side in half.sides.items() if key == change.key]
    if len(sides) != 2:
        return 0
    first, second = ({n for n, v in side.figures.get(change.metric, {}).items() if v is not None} for side in sides)
    return len(first & second)


def failed_again(change: Change, now: Side, then: Side | None) -> Change:
    """The flagged row of a cell that fails when it is run again; `then`: the baseline's side, where it fails, too."""
    if then is None:
        return replace(change, verdict=Verdict.BROKEN, reason=joined(change.reason, f"run again: {describe(now)}"))
    # the machine, or what both rest on: that both fail says nothing of the slowdown that the sweep showed
    said = f"neither confirmed nor refuted: run again, both sides fail (before {describe(then)}; now {describe(now)})"
    return replace(change, reason=joined(change.reason, said))


def verdict_after(change: Change, row: Change | None, in_turns: bool, pairs: int, how: str) -> Change:
    """The flagged row, confirmed or not; the figures stay those of the sweep that is checked. Of what the re-run gives
    no figure of the verdict stays, too."""
    if row is None or (row.metric != STATUS and None in (row.before, row.after)):
        said = joined("neither confirmed nor refuted: no figure when run again", row and row.reason)
        return replace(change, reason=joined(change.reason, said))
    if row.metric == STATUS:
        said = f"not confirmed: {row.reason or row.verdict} when run again"
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
