"""Run cells again that are or may be slower, with old and new interleaved if both can run here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effbench.cell import Cell
from effbench.comparison.compare import Compared, Confirmation, finish
from effbench.comparison.limits import STATUS
from effbench.comparison.origin import current, origin
from effbench.comparison.rerun_progress import (
    RerunProgress,
    TrialSeconds,
    duration_text,
    expected_s,
    seconds_of_trials,
)
from effbench.comparison.sides import Side, load, software_changed
from effbench.comparison.verdicts import (
    LEAST_COMPILATIONS,
    Change,
    Verdict,
    joined,
    ordered,
    shared_rounds,
    verdict_of_statuses,
)
from effbench.environments import hardware_of
from effbench.errors import EffbenchError, UsageError
from effbench.metrics import METRICS, percent, ratio_text
from effbench.printable import count
from effbench.stats.significance import LEAST_DUETS, LEAST_PAIRS, MOST_PAIRS, confirms
from effbench.store.sides import PER_TRIAL, CellResult
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo
from effbench.sweeping import resume
from effbench.sweeping.devices import slots_of
from effbench.sweeping.duets import StoppingRule, allows_duet
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, Settings, is_of_duet, recorded_settings
from effbench.sweeping.pool import Pools, gpus_of
from effbench.sweeping.run import Command, Outcome, run_cells

#: Recorded facts of an interpreter (`Interpreter.facts`) that a re-run needs.
FACTS = {"python", "folder", "given", "git_revision", "git_description"}
UNSETTLED = "neither confirmed nor refuted"
#: How old and new ran.
ALTERNATING, AS_DUET = "old and new alternating", "old and new as duets"


@dataclass(frozen=True)
class Rerun:
    """How a re-run ended. `here`: the interpreter of the new side; `there`: that of the baseline's
    side, None if it did not run, and then `why_alone` gives the reason."""

    outcome: Outcome
    here: Interpreter
    there: Interpreter | None = None
    why_alone: str | None = None

    @property
    def is_partial(self) -> bool:
        return self.outcome.state != "completed"


def confirm(
    compared: Compared,
    before: SweepInfo,
    after: SweepInfo,
    db: str,
    command: Sequence[str],
    rounds: int = MOST_PAIRS,
    quiet: bool = False,
) -> Confirmation:
    """Run cells again that are slower, ambiguous beyond the floor, or marked; update their rows in
    `compared`, and add a note.

    If the baseline's interpreter and revision can run here, old and new run in the same rounds, as
    duets if the cell allows it, and the interval over pairs must exceed the floor. Otherwise only
    the new side of slower and of marked cells runs, and is compared with the baseline. Other rows
    become `ambiguous`, or `same` if they were ambiguous and pairs exclude a change; rows of cells
    that now fail become `broken`; marked rows get the verdict of the re-run. Without a figure, or
    if nothing can run here, the verdict stays. If the re-run is interrupted, its complete pairs
    count.

    Raises UsageError if the sides differ in their cells.
    """
    flagged = [change for change in compared.changes if is_flagged(change)]
    done = Confirmation()
    if not flagged:
        return done
    keys = {change.key for change in flagged}
    with Store.open(db, mode="read") as store:
        cells = [cell for cell in store.planned(after.id) if cell.key in keys]
        seconds = seconds_of_trials(store, [before.id, after.id], cells)
    if len(cells) < len(keys):
        raise UsageError(
            "--confirm needs the same cells on both sides; omit --across dtype and numerics"
        )
    settings = settings_of(after, db, rounds)
    progress = RerunProgress(quiet=quiet)
    rule = StoppingRule(floors_of(compared, flagged))

    def run(cells: Sequence[Cell], *sides: Interpreter) -> Outcome:
        def check(pools: Pools) -> None:
            same_machine(compared, sides[-1], pools)
            progress.announce(
                plan_text(cells, len(sides), settings, seconds, slots_in(pools, cells, settings))
            )

        runs = [CellRun(cell, side) for cell in cells for side in sides]
        return run_cells(
            settings, runs, Command([*command], [], progress=progress, duet_rule=rule), check
        )

    progress.announce(
        f"running {count(len(cells), 'cell')} again; Ctrl-C judges them by the rounds that are"
        " complete"
    )
    why = "the re-run was interrupted"
    rerun = None
    try:
        rerun = run_again(compared, before, after, cells, run)
        done.sweep_id = rerun.outcome.sweep_id
    # before the re-run began, or a second one: the first verdicts are still reported
    except KeyboardInterrupt:
        compared.interrupted = why
    except EffbenchError as error:
        why = f"nothing was run again: {error}"
    if rerun is None:
        leave(flagged)
        compared.notes.append(why)
        return done
    ids = rerun.outcome.environments
    old_id = ids[rerun.there] if rerun.there else None
    with Store.open(db, mode="read") as store:
        again = load(store, store.find_sweep(rerun.outcome.sweep_id))
        duets = duets_in(store, rerun.outcome.sweep_id, old_id, ids[rerun.here])
    if rerun.is_partial:
        compared.interrupted = partial_text(again, rerun, cells, rounds)
        compared.notes.append(f"{compared.interrupted} (sweep {again.title})")
    judge_again(
        compared, flagged, again, ids[rerun.here], old_id, rerun.why_alone, rerun.is_partial, duets
    )
    done.failed = {change.key for change in flagged if change.verdict is Verdict.BROKEN}
    slower = [change for change in flagged if change.verdict is Verdict.SLOWER]
    done.confirmed = {change.key for change in slower if UNSETTLED not in (change.reason or "")}
    if rerun.there:
        done.by = "folder" if rerun.there.folder != rerun.here.folder else "python"
    return done


def is_flagged(change: Change) -> bool:
    """Return whether the row's cell runs again."""
    return not change.ignored and (may_be_slower(change) or change.is_unjudged)


def settings_of(after: SweepInfo, db: str, rounds: int) -> Settings:
    """Return the settings of the re-run: those of the checked sweep, with more rounds."""
    more = {
        "eliminate": None,
        "compilations": max(after.protocol.get("compilations", 1), LEAST_COMPILATIONS),
    }
    recorded = recorded_settings(after)
    return Settings.with_defaults(
        db=db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        # cells that are known within ± 1 % stop early, and no mode depends on another
        protocol={**after.protocol, "rounds": rounds, "enough_interval": 0.01, **more},
        baseline_mode=after.baseline_mode,
        on_failure="ignore",
        timeout_s=recorded.timeout_s,
        isolation=recorded.isolation,
    )


def floors_of(compared: Compared, flagged: Iterable[Change]) -> dict[str, dict[str, float]]:
    """Return cell key -> metric -> relative change that counts, of the ratios that duets have to
    decide."""
    floors: dict[str, dict[str, float]] = {}
    for change in flagged:
        of_cell = floors.setdefault(change.key, {})
        if change.metric in PER_TRIAL and METRICS[change.metric].compare == "ratio":
            of_cell[change.metric] = compared.limits.of(change.about, change.metric).floor
    return floors


def duets_in(store: Store, sweep_id: str, old_id: str | None, new_id: str) -> set[str]:
    """Return the keys of the cells whose measured trials of both environments were all timed in
    turn."""
    if old_id is None:
        return set()
    sides = [store.history(sweep_id, environment_id) for environment_id in (old_id, new_id)]
    keys = sides[0].keys() & sides[1].keys()
    return {key for key in keys if all(is_of_duet(trial) for side in sides for trial in side[key])}


def slots_in(pools: Pools, cells: Sequence[Cell], settings: Settings) -> int:
    return len(slots_of(gpus_of(pools), cells, settings.executor))


def plan_text(
    cells: Sequence[Cell], sides: int, settings: Settings, seconds: TrialSeconds, slots: int
) -> str:
    """Return how many rounds the cells run again, and how long that takes."""
    most, compilations = settings.protocol.rounds, settings.protocol.compilations
    are_duets = sides > 1 and settings.protocol.duet and all(map(allows_duet, cells))
    least, what = (LEAST_DUETS, "duets") if are_duets else (LEAST_PAIRS, "rounds")
    text = f"{least} to {most} {what}" if most > least else f"{most} {what}"
    if are_duets:
        text += " of old and new"
    else:
        text += f", {ALTERNATING if sides > 1 else 'the new side alone'}"
    least_s, most_s = (
        expected_s(seconds, cells, sides, number, compilations, min(slots, len(cells)))
        for number in (min(least, most), most)
    )
    if least_s is None or most_s is None:
        return f"{text}; duration unknown"
    shortest, longest = duration_text(least_s), duration_text(most_s)
    return (
        f"{text}: about {longest}"
        if shortest == longest
        else f"{text}: about {shortest} to {longest}"
    )


def partial_text(again: Side, rerun: Rerun, cells: Sequence[Cell], rounds: int) -> str:
    """Return `the re-run was interrupted after 14 of 20 rounds; verdicts use complete pairs`."""
    ids = rerun.outcome.environments
    sides = [again.within([ids[place]]) for place in (rerun.there, rerun.here) if place is not None]
    complete = max(rounds_of([side.result(cell.key) for side in sides]) for cell in cells)
    what = "pairs" if rerun.there else "rounds"
    text = f"the re-run was interrupted after {complete} of {count(rounds, 'round')}"
    return f"{text}; verdicts use complete {what}" if complete else text


def rounds_of(results: Sequence[CellResult | None]) -> int:
    """Return the number of rounds that all these results of a cell have."""
    return shared_rounds("latency_ms", *results) if all(results) else 0


def leave(changes: Iterable[Change]) -> None:
    """Note that these rows were not run again; their verdicts stay."""
    for change in changes:
        change.reason = joined(change.reason, f"{UNSETTLED}: not run again")


def same_machine(compared: Compared, here: Interpreter, pools: Pools) -> None:
    """Raise UsageError if `here`, the new side, has other hardware or software than the sweep, for
    example on the login node of a cluster: its figures could refute any change."""
    environment = vars(pools[here].environment)
    if (hardware := hardware_of(environment)) != compared.hardware:
        raise UsageError(f"this machine has {hardware}, not {compared.hardware}")
    if changed := software_changed(
        compared.after, replace(compared.after, environments={"": environment})
    ):
        raise UsageError(f"the software is not that of the sweep ({changed})")


def run_again(
    compared: Compared,
    before: SweepInfo,
    after: SweepInfo,
    cells: Sequence[Cell],
    run: Callable[..., Outcome],
) -> Rerun:
    """Run the cells on the new side and, if possible, alternating on the baseline's side."""
    refusal = resume.refusal(after)
    if refusal:
        raise UsageError(refusal)
    old_facts, new_facts = facts_of(compared.before, before), facts_of(compared.after, after)
    here = current(new_facts, after.id, cells, after.started_at)
    try:
        refusal = resume.refusal(before)
        if refusal:
            raise UsageError(refusal)
        software = software_changed(compared.before, compared.after)
        with origin(old_facts, new_facts, here, cells, software) as there:
            return Rerun(run(cells, there, here), here, there)
    except EffbenchError as error:
        keys = {
            change.key
            for change in compared.changes
            if is_flagged(change) and needs_no_pairs(change)
        }
        chosen = [cell for cell in cells if cell.key in keys]
        if not chosen:
            raise
        return Rerun(run(chosen, here), here, why_alone=str(error))


def needs_no_pairs(change: Change) -> bool:
    """Return whether the new side alone can settle a row that runs again: a slower row, or one of
    which only the new side is marked. Without pairs, ambiguous rows stay so."""
    if change.is_unjudged:
        return not change.marked_before
    return change.verdict is Verdict.SLOWER


def may_be_slower(change: Change) -> bool:
    """Return whether the row is slower, or ambiguous beyond its floor (or the factor of a compile
    time)."""
    if change.verdict is not Verdict.AMBIGUOUS or change.ratio is None:
        return change.verdict is Verdict.SLOWER
    limit = change.limit if METRICS[change.metric].compare == "bound" else change.floor
    return limit is not None and change.ratio > 1 + limit


def facts_of(side: Side, sweep: SweepInfo) -> Mapping[str, Any] | None:
    """Return the facts that the sweep records of this side's interpreter; None if they are
    incomplete."""
    known = sweep.host.get("environments") or {}
    facts = next((known[key] for key in side.environments if key in known), None)
    return facts if isinstance(facts, dict) and facts.keys() >= FACTS else None


def judge_again(
    compared: Compared,
    flagged: Sequence[Change],
    again: Side,
    new_id: str,
    old_id: str | None,
    why: str | None,
    is_partial: bool = False,
    duets: Collection[str] = (),
) -> None:
    """Update the flagged rows by the re-run, and add notes. `new_id`, `old_id`: the re-run's
    environments on the new and on the baseline's side; `why`: the reason if the baseline's side did
    not run; `is_partial`: the re-run was interrupted; `duets`: the keys of the cells that ran as
    duets."""
    new, old = again.within([new_id]), again.within([old_id]) if old_id else None
    if old and (changed := software_changed(compared.before, old)):
        old, why = None, f"the baseline's interpreter has changed ({changed})"
    flagged = [change for change in flagged if old or needs_no_pairs(change)]
    if is_partial:
        leave(change for change in flagged if not has_ended(change, new, old))
        flagged = [change for change in flagged if has_ended(change, new, old)]
    limits = {(change.key, change.metric): change.limit or 0.0 for change in flagged}

    def rows(before: Side, **options: Any) -> dict[tuple[str, str], Change]:
        judged = finish(before, new, compared.limits, ("hardware",), **options)
        return {(change.key, change.metric): change for change in judged.changes}

    # the noise between sessions only matters against the baseline's recorded figures, not in one
    # interleaved session
    interleaved = rows(old, interleaved=True) if old and flagged else {}
    recorded = rows(compared.before, thresholds=limits) if flagged else {}
    for change in flagged:
        now, then = new.result(change.key), old.result(change.key) if old else None
        old_fails = is_worse(compared.before.result(change.key), then)
        # if both sides fail, the cause may be the machine or a shared dependency: this neither
        # confirms nor refutes
        if is_worse(compared.after.result(change.key), now):
            both = (
                old_fails and f"{UNSETTLED}: run again, both sides fail (before {then}; now {now})"
            )
            change.reason = joined(change.reason, both or f"run again: {now}")
            change.verdict = change.verdict if both else Verdict.BROKEN
        elif then is None or old_fails:
            how = (
                f"run again; the baseline's side did not run: {then}" if old_fails else "run again"
            )
            settle(change, recorded, how)
        else:
            pairs = shared_rounds(change.metric, then, now)
            if change.key in duets:
                settle(change, interleaved, AS_DUET, pairs, LEAST_DUETS)
            else:
                settle(change, interleaved, ALTERNATING, pairs)
    compared.changes = ordered(compared.changes)
    how = ALTERNATING if old else "the new side alone"
    if old and all(change.key in duets for change in flagged):
        how = AS_DUET
    compared.notes.append(f"rows run again: {len(flagged)}, {how}: sweep {again.title}")
    if why:
        compared.notes.append(
            f"not alternating: {why}; the machine may have drifted between the sessions"
        )


def has_ended(change: Change, new: Side, old: Side | None) -> bool:
    """Return whether an interrupted re-run can settle the row: both sides have a result, and its
    metric does not need all compilations."""
    results = (
        [new.result(change.key)]
        if old is None
        else [new.result(change.key), old.result(change.key)]
    )
    return all(results) and change.metric in PER_TRIAL


def is_worse(before: CellResult | None, now: CellResult | None) -> bool:
    """Return whether the cell was measured both times, and now has a worse class of status."""
    return (
        None not in (before, now)
        and verdict_of_statuses(before.status, now.status) is Verdict.BROKEN
    )


def settle(
    change: Change,
    rows: Mapping[tuple[str, str], Change],
    how: str,
    pairs: int | None = None,
    least: int = LEAST_PAIRS,
) -> None:
    """Confirm or clear the flagged row by the rows of the re-run; its figures remain those of the
    checked sweep. The verdict stays if the re-run gives no figure, is marked or has too few pairs.
    `pairs`: their number, None if only the new side ran; `least`: how many are enough."""
    is_paired = change.metric in PER_TRIAL  # others have one figure per compilation or sweep
    row, why = rows.get((change.key, change.metric), rows.get((change.key, STATUS))), None
    if row is None or (row.metric != STATUS and None in (row.before, row.after)):
        why = joined("no figure when run again", row and row.reason)
    elif row.is_unjudged and pairs is None and row.marked_before:
        why = row.disturbance  # of the baseline, which did not run again
    elif row.is_unjudged:
        why = f"{row.disturbance}, when run again"
    elif row.metric != STATUS and is_paired and pairs is not None and pairs < least:
        why = f"{figures_text(row)}, but only {pairs} pairs ({how})"
    if why:
        change.reason = joined(change.reason, f"{UNSETTLED}: {why}")
        return
    if row.metric == STATUS:
        is_shown, text = False, f"{row.reason or row.verdict} when run again"
    else:
        is_shown = row.verdict is Verdict.SLOWER and (pairs is not None or needs_no_pairs(change))
        if (
            is_paired
            and METRICS[change.metric].compare == "ratio"
            and pairs is not None
            and row.low is not None
        ):
            # pairs do not drift, so the floor counts; but among many ambiguous rows some are beyond
            # it by chance
            is_shown = confirms(row.low, pairs, row.limit, least) and Verdict.SLOWER in (
                row.verdict,
                change.verdict,
            )
            what = "duets" if how == AS_DUET else "pairs"
            change.limit, how = row.limit, f"{how}, {pairs} {what}"
        text = f"{figures_text(row)} ({how})"
        low, limit, kernels = row.low or 0.0, change.limit or 0.0, row.kernels
        if not is_shown and pairs is None and row.verdict is Verdict.SLOWER:
            text += ", but only pairs confirm an ambiguous row"
        elif not is_shown and low > 1 + limit:  # the row's reason contains the kernels
            text, kernels = f"{text}, but {row.reason}", None
        elif not is_shown and (row.verdict is Verdict.SLOWER or low > 1.0):
            text += f", not significantly beyond {percent(limit)}"
        text = joined(text, kernels if row.verdict is not Verdict.SAME else None)
    if change.is_unjudged:
        settle_unjudged(change, row, is_shown, text)
        return
    change.reason = joined(change.reason, f"{'confirmed' if is_shown else 'not confirmed'}: {text}")
    is_refuted = (
        change.verdict is Verdict.AMBIGUOUS and pairs is not None and row.verdict is Verdict.SAME
    )
    change.verdict = (
        Verdict.SLOWER if is_shown else Verdict.SAME if is_refuted else Verdict.AMBIGUOUS
    )


def settle_unjudged(change: Change, row: Change, is_slower: bool, text: str) -> None:
    """Give a marked row the verdict of the re-run, whose figures are not marked."""
    change.reason = joined(change.reason, f"measured again: {text}")
    change.disturbance = None
    if is_slower:
        change.verdict = Verdict.SLOWER
    elif row.verdict in (Verdict.SAME, Verdict.FASTER):
        change.verdict = row.verdict
    else:
        change.verdict = Verdict.AMBIGUOUS


def figures_text(row: Change) -> str:
    """Return the ratio of a row with both figures; the figures themselves if it has none, as that
    of a count of 0."""
    form = METRICS[row.metric].format
    return ratio_text(row.ratio, row.low, row.high) or f"{form(row.before)} → {form(row.after)}"
