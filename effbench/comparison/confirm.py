"""Confirmation: run what looks slower again before it is called so, old and new interleaved if both can be run here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from effbench.comparison.compare import Compared, finish
from effbench.comparison.origin import Origin, current, origin
from effbench.comparison.sides import Side, load, software_changed
from effbench.comparison.verdicts import STATUS, Change, Verdict, ordered, verdict_of_statuses
from effbench.errors import EffbenchError, UsageError
from effbench.metrics import METRICS, percent, ratio_text
from effbench.stats.significance import LEAST_PAIRS, confirms
from effbench.store.sides import CellResult
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo
from effbench.sweeping import resume
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, Settings
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, Outcome, run_cells

FACTS = {"python", "folder", "given", "git_revision", "git_description"}
UNSETTLED = "neither confirmed nor refuted"


@dataclass(frozen=True)
class Confirmation:
    """`compared`: as before, with the flagged rows judged again and notes on how. `sweep_id`: of the re-run, None if
    nothing was run. `failed`: keys of the cells that failed in it. `interrupted`: it did not finish, and nothing was
    judged again."""

    compared: Compared
    sweep_id: str | None = None
    failed: frozenset[str] = frozenset()
    interrupted: bool = False


def confirm(
    compared: Compared, flagged: Sequence[Change], before: SweepInfo, after: SweepInfo, db: str,
    command: Sequence[str], rounds: int = LEAST_PAIRS, quiet: bool = False, trust_imported: bool = False,
) -> Confirmation:  # fmt: skip
    """Run the cells of `flagged` (rows of `compared` that are slower) again, and judge those rows by the re-run.

    If the baseline's interpreter and revision can be run here, old and new run interleaved in the same rounds, and the
    interval over pairs must exceed the limit. If not, only the new side runs again and is compared with the baseline; a
    note says why. What is not confirmed becomes `ambiguous`, a cell that fails now `broken`; if the re-run gives no
    figure, or nothing can be run here, the verdict stays. The cells, interpreter and revision that an imported sweep
    recorded are used only with `trust_imported`. Raises UsageError if old and new are not the same cells.
    """
    if not flagged:
        return Confirmation(compared)

    def not_run(why: str) -> Confirmation:
        return Confirmation(unsettled(compared, flagged, "not run again", f"nothing was run again: {why}"))

    if after.imported_at is not None and not trust_imported:
        return not_run(resume.refusal(after))
    old_facts, new_facts = facts_of(compared.before, before), facts_of(compared.after, after)
    keys = {change.key for change in flagged}
    with Store.open(db, mode="read") as store:
        cells = [cell for cell in store.planned(after.id) if cell.key in keys]
    if len(cells) < len(keys):
        raise UsageError("--confirm runs the same cells again: omit --across dtype and numerics")
    for sweep in (before, after):
        if sweep.imported_at is not None and trust_imported:
            resume.announce(sweep, cells)
    try:
        here, moved = current(new_facts, after.id, cells)
    except UsageError as error:
        return not_run(str(error))
    if moved:
        return not_run(moved)
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

    if before.imported_at is not None and not trust_imported:
        old_side = nullcontext(Origin(None, resume.refusal(before)))
    else:
        software = software_changed(compared.before, compared.after)
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
            return not_run(f"it cannot be run again here: {error}")
    if outcome.state != "completed":
        return interrupted(compared, flagged, outcome.sweep_id)
    with Store.open(db, mode="read") as store:
        again = load(store, store.find_sweep(outcome.sweep_id))
    judged = judged_again(compared, flagged, again, outcome.environments, found, here)
    rows = {(change.key, change.metric) for change in flagged}
    failed = {c.key for c in judged.changes if (c.key, c.metric) in rows and c.verdict is Verdict.BROKEN}
    return Confirmation(judged, outcome.sweep_id, frozenset(failed))


def interrupted(compared: Compared, flagged: Sequence[Change], sweep_id: str | None = None) -> Confirmation:
    """Judge nothing by half a re-run; `sweep_id` is None if it had not begun."""
    said = "the re-run was interrupted"
    note = f"{said}{f' (sweep {sweep_id})' * (sweep_id is not None)}"
    return Confirmation(unsettled(compared, flagged, said, note), sweep_id, interrupted=True)


def unsettled(compared: Compared, flagged: Sequence[Change], why: str, note: str) -> Compared:
    """Return `compared` with the same verdicts; the flagged rows give the reason."""
    rows = {(change.key, change.metric) for change in flagged}
    changes = [
        change.because(f"{UNSETTLED}: {why}") if (change.key, change.metric) in rows else change
        for change in compared.changes
    ]
    return replace(compared, changes=changes, notes=[*compared.notes, note])


def facts_of(side: Side, sweep: SweepInfo) -> Mapping[str, Any] | None:
    """Return what the sweep records of this side's interpreter, None unless it is complete."""
    known = sweep.host.get("environments") or {}
    facts = next((known[one] for one in side.environments if one in known), None)
    return facts if isinstance(facts, dict) and facts.keys() >= FACTS else None


def judged_again(
    compared: Compared, flagged: Sequence[Change], again: Side, environments: Mapping[Interpreter, str],
    found: Origin, here: Interpreter,
) -> Compared:  # fmt: skip
    """Return `compared` with the flagged rows as the re-run shows them."""
    new, why, old = again.within([environments[here]]), found.why, None
    if found.interpreter is not None:
        old = again.within([environments[found.interpreter]])
        changed = software_changed(compared.before, old)
        if changed is not None:
            old, why = None, f"the baseline's interpreter is not what it was ({changed})"
    asked = {(change.key, change.metric): change.limit or 0.0 for change in flagged}

    def rows(before: Side, **options: Any) -> dict[tuple[str, str], Change]:
        judged = finish(before, new, compared.limits, ("hardware",), **options)
        return {(change.key, change.metric): change for change in judged.changes}

    # in one session, interleaved, the noise between sessions does not count; against what the baseline recorded it does
    interleaved = rows(old, interleaved=True) if old else {}
    recorded = rows(compared.before, threshold=lambda key, metric: asked.get((key, metric), 0.0))
    changes = []
    for change in compared.changes:
        key = (change.key, change.metric)
        if key not in asked:
            changes.append(change)
            continue
        now, then = new.result(change.key), old.result(change.key) if old else None
        old_fails = is_worse(compared.before.result(change.key), then)
        if is_worse(compared.after.result(change.key), now):
            changes.append(failed_again(change, now, then if old_fails else None))
        elif then is None or old_fails:
            how = f"run again; the baseline's side did not run: {then}" if old_fails else "run again"
            changes.append(settled(change, row_in(recorded, change), None, how))
        else:
            rounds = [{n for n, v in side.figures.get(change.metric, {}).items() if v is not None}
                      for side in (then, now) if side]  # fmt: skip
            pairs = len(rounds[0] & rounds[1]) if len(rounds) == 2 else 0
            changes.append(settled(change, row_in(interleaved, change), pairs, "old and new in turns"))
    how = "old and new in turns" if old else "the new side alone"
    notes = [f"run again for {len(asked)} row{'s' * (len(asked) != 1)}, {how}: sweep {again.title}"]
    if why:
        notes.append(f"not in turns: {why}; a drift of the machine between the sessions is not excluded")
    return replace(compared, changes=ordered(changes), notes=[*compared.notes, *notes])


def row_in(rows: Mapping[tuple[str, str], Change], change: Change) -> Change | None:
    """Return the row of the same metric, or the one about the whole cell."""
    return rows.get((change.key, change.metric), rows.get((change.key, STATUS)))


def is_worse(before: CellResult | None, now: CellResult | None) -> bool:
    """Return whether it was measured both times, and its status fell a class."""
    return None not in (before, now) and verdict_of_statuses(before.status, now.status) is Verdict.BROKEN


def failed_again(change: Change, now: CellResult, then: CellResult | None) -> Change:
    """Return the flagged row of a cell that fails in the re-run; `then`: the baseline's side, if it fails, too."""
    if then is None:
        return change.because(f"run again: {now}", verdict=Verdict.BROKEN)
    # the machine, or what both depend on: that both fail says nothing of the slowdown that the sweep showed
    return change.because(f"{UNSETTLED}: run again, both sides fail (before {then}; now {now})")


def settled(change: Change, row: Change | None, pairs: int | None, how: str) -> Change:
    """Return the flagged row, confirmed or not; its figures stay those of the checked sweep. The verdict stays if the
    re-run gives no figure. `pairs`: how many, None if only the new side was run."""
    if row is None or (row.metric != STATUS and None in (row.before, row.after)):
        return change.because(f"{UNSETTLED}: no figure when run again", row and row.reason)
    if row.metric == STATUS:
        return change.because(f"not confirmed: {row.reason or row.verdict} when run again", verdict=Verdict.AMBIGUOUS)
    figure = ratio_text(row.ratio, row.low, row.high)
    if METRICS[change.metric].compare == "ratio" and pairs is not None and row.low is not None:
        shown = confirms(row.low, pairs, change.limit or 0.0)
        how = f"{how}, {pairs} pairs"
    else:
        shown = row.verdict is Verdict.SLOWER
    if shown:
        return change.because(f"confirmed: {figure} ({how})")
    beyond = f", not all of it beyond {percent(change.limit)}" if change.limit and row.verdict is Verdict.SLOWER else ""
    return change.because(f"not confirmed: {figure} ({how}){beyond}", verdict=Verdict.AMBIGUOUS)
