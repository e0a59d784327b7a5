"""Run cells again that are or may be slower, with old and new interleaved if both can run here."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effbench.analysis.compare import CellSelection, Compared, Comparer
from effbench.analysis.duet import reasons_alone
from effbench.analysis.limits import STATUS
from effbench.analysis.matching import LEAST_COMPILATIONS, Side, load, software_changed
from effbench.analysis.origin import current, origin
from effbench.analysis.verdicts import (
    Change,
    Verdict,
    joined,
    ordered,
    shared_rounds,
    status_of,
    verdict_of_statuses,
)
from effbench.core.cell import Cell, StoredEnvironment
from effbench.core.errors import EffbenchError, UsageError
from effbench.core.metrics import METRICS, percent, ratio_text
from effbench.core.printable import between, count
from effbench.run import resume
from effbench.run.duets import StoppingRule, allows_duet
from effbench.run.estimate import Durations, TrialKind
from effbench.run.interpreters import Interpreter
from effbench.run.plan import (
    CellRun,
    PlannedTrial,
    Settings,
    SweepPlan,
    is_of_duet,
    recorded_settings,
)
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.run.sweep import Command, Outcome, open_sweep, planned_slots
from effbench.stats.significance import LEAST_DUETS, LEAST_PAIRS, MOST_PAIRS, confirms
from effbench.store.sides import PER_TRIAL, CellResult
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo

#: Recorded facts of an interpreter (`Interpreter.facts`) that a re-run needs.
FACTS = {"python", "folder", "given", "git_revision", "git_description"}
UNSETTLED = "neither confirmed nor refuted"
#: How old and new ran.
ALTERNATING, AS_DUET = "old and new alternating", "old and new as duets"
#: Rows by cell key and metric.
Rows = Mapping[tuple[str, str], Change]


@dataclass(frozen=True)
class Confirmation:
    """A check whose cells run again. `command`: its words; `rounds`: most rounds of the re-run."""

    compared: Compared
    before: SweepInfo
    after: SweepInfo
    db: str
    command: Sequence[str]
    rounds: int = MOST_PAIRS
    quiet: bool = False


@dataclass(frozen=True)
class Rerun:
    """What a re-run measured on the new side and on the baseline's side, which did not run if it is
    None; then `why_alone` gives the reason. `is_partial`: it was interrupted; `duets`: the keys of
    the cells that ran as duets; `not_in_turn`: why others did not."""

    sweep_id: str
    new: Side
    old: Side | None = None
    why_alone: str | None = None
    is_partial: bool = False
    duets: Collection[str] = ()
    not_in_turn: Sequence[str] = ()

    @property
    def sides(self) -> list[Side]:
        return [side for side in (self.old, self.new) if side is not None]

    @property
    def notes(self) -> list[str]:
        """How the sides ran, unless in turn."""
        notes = [f"some rounds were not timed in turn: {reason}" for reason in self.not_in_turn]
        if self.why_alone:
            drift = "the machine may have drifted between the sessions"
            notes.append(f"not alternating: {self.why_alone}; {drift}")
        return notes

    def has_ended(self, change: Change) -> bool:
        """Return whether an interrupted re-run can settle the row: both sides have a result, and
        its metric does not need all compilations."""
        results = [side.result(change.key) for side in self.sides]
        return None not in results and change.metric in PER_TRIAL

    def rounds_of(self, key: str) -> int:
        """Return the number of rounds that all sides of a cell have."""
        return shared_rounds("latency_ms", *(side.result(key) for side in self.sides))


@dataclass(frozen=True)
class How:
    """How a row ran again. `pairs`: their number, None if only the new side ran; `least`: how many
    are enough."""

    text: str
    pairs: int | None = None
    least: int = LEAST_PAIRS


def confirm(request: Confirmation) -> str | None:
    """Run cells again that are slower, ambiguous beyond the floor, or marked; update their rows in
    the comparison, and add notes. Return the id of the re-run, None if nothing ran.

    If the baseline's interpreter and revision can run here, old and new run in the same rounds, as
    duets if the cell allows it, and the interval over pairs must exceed the floor. Otherwise only
    the new side of slower and of marked cells runs, and is compared with the baseline. Other rows
    become `ambiguous`, or `same` if they were ambiguous and pairs exclude a change; rows of cells
    that now fail become `broken`; marked rows get the verdict of the re-run. Without a figure, or
    if nothing can run here, the verdict stays. If the re-run is interrupted, its complete pairs
    count.

    Raises UsageError if the sides differ in their cells.
    """
    compared = request.compared
    flagged = [change for change in compared.changes if is_flagged(change)]
    if not flagged:
        return None
    keys = {change.key for change in flagged}
    with Store.open(request.db, mode="read") as store:
        cells = [cell for cell in store.planned(request.after.id) if cell.key in keys]
    if len(cells) < len(keys):
        raise UsageError(
            "--confirm needs the same cells on both sides; omit --across dtype and numerics"
        )
    try:
        rerun = run_again(request, cells)
    # before the re-run began, or a second one: the first verdicts are still reported
    except KeyboardInterrupt:
        why = compared.interrupted = "the re-run was interrupted"
    except EffbenchError as error:
        why = f"nothing was run again: {error}"
    else:
        if rerun.is_partial:
            complete = max(map(rerun.rounds_of, keys))
            compared.interrupted = (
                f"the re-run was interrupted after {complete} of {count(request.rounds, 'round')}"
            )
        judge_again(compared, flagged, rerun)
        return rerun.sweep_id
    leave(flagged)
    compared.notes.append(why)
    return None


def is_flagged(change: Change) -> bool:
    """Return whether the row's cell runs again."""
    return not change.ignored and (may_be_slower(change) or change.is_unjudged)


def may_be_slower(change: Change) -> bool:
    """Return whether the row is slower, or ambiguous beyond its floor (or the factor of a compile
    time)."""
    if change.verdict is not Verdict.AMBIGUOUS or change.ratio is None:
        return change.verdict is Verdict.SLOWER
    limit = change.floor
    if METRICS[change.metric].compare == "bound":
        limit = change.limit
    return limit is not None and change.ratio > 1 + limit


def needs_no_pairs(change: Change) -> bool:
    """Return whether the new side alone can settle a row that runs again: a slower row, or one of
    which only the new side is marked. Without pairs, ambiguous rows stay so."""
    if change.is_unjudged:
        return not change.marked_before
    return change.verdict is Verdict.SLOWER


def leave(changes: Iterable[Change]) -> None:
    """Note that these rows were not run again; their verdicts stay."""
    for change in changes:
        change.add_reason(f"{UNSETTLED}: not run again")


# --- running ---


class RerunProgress(Progress):
    """The progress of a re-run. If it is quiet, because standard output gets a document, what it
    announces and the time left at the start of each further round go to standard error."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.is_document = quiet
        self.round = 0

    def announce(self, text: str) -> None:
        if self.is_document:
            print(f"effbench: {text}", file=sys.stderr, flush=True)
        else:
            self.note(text)

    def started(self, slot: str, trial: PlannedTrial) -> None:
        super().started(slot, trial)
        with self.lock:
            is_next_round = trial.round > self.round
            self.round = max(self.round, trial.round)
            left = self.left()
        if self.is_document and is_next_round and left:
            self.announce(f"{self.round_of(trial)}: {left[0]}")


def run_again(request: Confirmation, cells: Sequence[Cell]) -> Rerun:
    """Run the cells on the new side and, if possible, alternating on the baseline's side. Raises
    EffbenchError if they cannot run here."""
    compared, before, after = request.compared, request.before, request.after
    check_own(after)
    new_facts = facts_of(compared.after)
    here = current(new_facts, after.id, cells, after.started_at)
    try:
        check_own(before)
        software = software_changed(compared.before, compared.after)
        facts = facts_of(compared.before)
        with origin(facts, new_facts or {}, here, cells, software) as there:
            outcome = run(request, cells, there, here)
            return read(request.db, outcome, here, there)
    except EffbenchError as error:
        alone = {
            change.key
            for change in compared.changes
            if is_flagged(change) and needs_no_pairs(change)
        }
        chosen = [cell for cell in cells if cell.key in alone]
        if not chosen:
            raise
        outcome = run(request, chosen, here)
        return replace(read(request.db, outcome, here), why_alone=str(error))


def run(request: Confirmation, cells: Sequence[Cell], *sides: Interpreter) -> Outcome:
    """Run these cells under the interpreters of these sides, the new one last."""
    settings = settings_of(request.after, request.db, request.rounds)
    plan = rounds_of_rerun(cells, settings, len(sides))
    progress = RerunProgress(quiet=request.quiet)
    progress.announce(
        f"running {count(len(cells), 'cell')} again, {plan.text};"
        " Ctrl-C judges them by the rounds that are complete"
    )
    rule = StoppingRule(floors_of(request.compared))
    command = Command([*request.command], [], progress=progress, duet_rule=rule)
    runs = [CellRun(cell, side) for cell in cells for side in sides]
    with open_sweep(settings, runs, command) as sweep:
        same_machine(request.compared, sides[-1], sweep.pools)
        slots = planned_slots(settings, sweep.pools, cells)
        parallel = min(len(slots), len(cells)) / len(sides)
        durations = durations_of(request)
        progress.announce(f"duration: {plan.duration(cells, settings, durations, parallel)}")
        return sweep.run(SweepPlan(runs))


def read(db: str, outcome: Outcome, here: Interpreter, there: Interpreter | None = None) -> Rerun:
    """Return what a re-run recorded."""
    sweep_id = outcome.sweep_id
    is_partial = outcome.state != "completed"
    new_id = outcome.environments[here]
    with Store.open(db, mode="read") as store:
        whole = load(store, store.find_sweep(sweep_id))
        new = whole.within([new_id])
        if there is None:
            return Rerun(sweep_id, new, is_partial=is_partial)
        old_id = outcome.environments[there]
        sides = [store.history(sweep_id, environment_id) for environment_id in (old_id, new_id)]
    trials = {key: [*sides[0][key], *sides[1][key]] for key in sides[0].keys() & sides[1].keys()}
    return Rerun(
        sweep_id,
        new,
        whole.within([old_id]),
        is_partial=is_partial,
        duets={key for key, of_cell in trials.items() if all(map(is_of_duet, of_cell))},
        not_in_turn=reasons_alone(trial for of_cell in trials.values() for trial in of_cell),
    )


def durations_of(request: Confirmation) -> Durations:
    """Return how long the trials of the checked sweep took."""
    with Store.open(request.db, mode="read") as store:
        environments = [known.id for known in store.environments_of(request.after.id)]
        return Durations.of(store.durations([request.after.id], environments))


@dataclass(frozen=True)
class RerunRounds:
    """How often cells run again, from `least` to `most` times. `kind`: `duets of old and new`."""

    least: int
    most: int
    kind: str

    @property
    def text(self) -> str:
        """Such as `3 to 20 duets of old and new`."""
        if self.most <= self.least:
            return f"{self.most} {self.kind}"
        return f"{self.least} to {self.most} {self.kind}"

    def duration(
        self, cells: Iterable[Cell], settings: Settings, durations: Durations, parallel: float
    ) -> str:
        """Return how long this takes, such as `40 s to 4 min`. `parallel`: the number of trials
        that run at the same time, divided by the number of sides."""
        low_s = high_s = 0.0
        for cell in cells:
            cold_s = durations.expected_s(TrialKind.of(cell, is_cold=True))
            warm_s = durations.expected_s(TrialKind.of(cell, is_cold=False))
            if cold_s is None or warm_s is None:
                return "unknown, because no earlier trial of these cells is known"
            for round in range(self.most):
                trial_s = warm_s
                if round < settings.protocol.compilations:
                    trial_s = cold_s
                high_s += trial_s
                if round < self.least:
                    low_s += trial_s
        return between(low_s / parallel, high_s / parallel)


def rounds_of_rerun(cells: Sequence[Cell], settings: Settings, sides: int) -> RerunRounds:
    """Return how often the cells run again on so many sides."""
    most = settings.protocol.rounds
    if sides == 1:
        return RerunRounds(LEAST_PAIRS, most, "rounds, the new side alone")
    if settings.protocol.duet and all(map(allows_duet, cells)):
        return RerunRounds(LEAST_DUETS, most, "duets of old and new")
    return RerunRounds(LEAST_PAIRS, most, f"rounds, {ALTERNATING}")


def check_own(sweep: SweepInfo) -> None:
    """Raise UsageError if another user wrote the sweep, so that it is data."""
    refusal = resume.refusal(sweep)
    if refusal:
        raise UsageError(refusal)


def facts_of(side: Side) -> Mapping[str, Any] | None:
    """Return the facts that the sweep records of this side's interpreter; None if they are
    incomplete."""
    for environment_id in side.environments:
        facts = side.recorded_facts(environment_id)
        if facts:
            return facts if facts.keys() >= FACTS else None
    return None


def settings_of(after: SweepInfo, db: str, rounds: int) -> Settings:
    """Return the settings of the re-run: those of the checked sweep, with more rounds."""
    protocol = {
        **after.protocol,
        "rounds": rounds,
        # cells that are known within ± 1 % stop early
        "enough_interval": 0.01,
        "compilations": max(after.protocol.get("compilations", 1), LEAST_COMPILATIONS),
    }
    recorded = recorded_settings(after)
    return Settings.with_defaults(
        db=db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        protocol=protocol,
        baseline_mode=after.baseline_mode,
        on_failure="ignore",
        timeout_s=recorded.timeout_s,
        isolation=recorded.isolation,
    )


def floors_of(compared: Compared) -> dict[str, dict[str, float]]:
    """Return cell key -> metric -> relative change that counts, of the ratios that duets have to
    decide."""
    floors: dict[str, dict[str, float]] = {}
    for change in compared.changes:
        if is_flagged(change):
            of_cell = floors.setdefault(change.key, {})
            if is_paired_ratio(change):
                limit = compared.limits.of(change.about, change.metric)
                of_cell[change.metric] = limit.floor or 0.0
    return floors


def is_paired_ratio(change: Change) -> bool:
    """Return whether the interval over pairs decides the row; other metrics have one figure per
    compilation or sweep, or are exact."""
    return change.metric in PER_TRIAL and METRICS[change.metric].compare == "ratio"


def same_machine(compared: Compared, here: Interpreter, pools: Pools) -> None:
    """Raise UsageError if `here`, the new side, has other hardware or software than the sweep, for
    example on the login node of a cluster: its figures could refute any change."""
    environment = pools[here].machine.environment
    if environment.hardware != compared.hardware:
        raise UsageError(f"this machine has {environment.hardware}, not {compared.hardware}")
    now = StoredEnvironment(**vars(environment))
    changed = software_changed(compared.after, replace(compared.after, environments={"": now}))
    if changed:
        raise UsageError(f"the software is not that of the sweep ({changed})")


# --- judging ---


def judge_again(compared: Compared, flagged: Sequence[Change], rerun: Rerun) -> None:
    """Update the flagged rows by the re-run, and add notes."""
    changed = None
    if rerun.old is not None:
        changed = software_changed(compared.before, rerun.old)
    if changed:
        why = f"the baseline's interpreter has changed ({changed})"
        rerun = replace(rerun, old=None, why_alone=why)
    settled = [change for change in flagged if rerun.old or needs_no_pairs(change)]
    if rerun.is_partial:
        leave(change for change in settled if not rerun.has_ended(change))
        settled = [change for change in settled if rerun.has_ended(change)]
    if settled:
        judge_rows(compared, settled, rerun)
    compared.changes = ordered(compared.changes, compared.first)
    compared.notes += [
        f"rows run again: {len(settled)}, in sweep {rerun.new.title}",
        *rerun.notes,
    ]


def judge_rows(compared: Compared, settled: Sequence[Change], rerun: Rerun) -> None:
    """Update the rows that the re-run can settle."""
    # the noise between sessions only matters against the baseline's recorded figures, not in one
    # interleaved session
    limits = {(change.key, change.metric): change.limit or 0.0 for change in settled}
    apart = Comparer(compared.limits, CellSelection(("hardware",)), limits)
    recorded = rows_of(apart, compared.before, rerun.new)
    paired: Rows = {}
    if rerun.old is not None:
        together = replace(apart, thresholds=None, interleaved=True)
        paired = rows_of(together, rerun.old, rerun.new)
    for change in settled:
        judge_row(compared, change, rerun, recorded, paired)


def rows_of(comparer: Comparer, before: Side, after: Side) -> Rows:
    return {(row.key, row.metric): row for row in comparer.compare(before, after).changes}


def judge_row(
    compared: Compared, change: Change, rerun: Rerun, recorded: Rows, paired: Rows
) -> None:
    """Update a flagged row. `recorded`, `paired`: rows of the re-run's new side, compared with the
    baseline's recorded figures and with the side that ran next to it."""
    key = change.key
    now = rerun.new.result(key)
    then = None
    if rerun.old is not None:
        then = rerun.old.result(key)
    old_fails = is_worse(compared.before.result(key), then)
    new_fails = is_worse(compared.after.result(key), now)
    if new_fails and old_fails:
        # the cause may be the machine or a shared dependency
        change.add_reason(f"{UNSETTLED}: run again, both sides fail (before {then}; now {now})")
    elif new_fails:
        change.add_reason(f"run again: {now}")
        change.verdict = Verdict.BROKEN
    elif old_fails:
        how = How(f"run again; the baseline's side did not run: {then}")
        settle(change, recorded, how)
    elif then is None:
        settle(change, recorded, How("run again"))
    elif key in rerun.duets:
        settle(change, paired, How(AS_DUET, shared_rounds(change.metric, then, now), LEAST_DUETS))
    else:
        settle(change, paired, How(ALTERNATING, shared_rounds(change.metric, then, now)))


def is_worse(before: CellResult | None, now: CellResult | None) -> bool:
    """Return whether the cell was measured both times, and now has a worse class of status."""
    if before is None or now is None:
        return False
    return verdict_of_statuses(status_of(before), status_of(now)) is Verdict.BROKEN


def settle(change: Change, rows: Rows, how: How) -> None:
    """Confirm or clear the flagged row by the rows of the re-run; its figures remain those of the
    checked sweep. The verdict stays if the re-run gives no figure, is marked or has too few
    pairs."""
    row = rows.get((change.key, change.metric), rows.get((change.key, STATUS)))
    why = why_unsettled(row, how)
    if row is None or why:
        change.add_reason(f"{UNSETTLED}: {why}")
        return
    by_pairs = how.pairs is not None and row.low is not None and is_paired_ratio(change)
    if by_pairs:
        change.limit = row.limit
    text = evidence(change, row, how, by_pairs)
    if shows_slowdown(change, row, how, by_pairs):
        change.verdict, result = Verdict.SLOWER, "confirmed"
    elif refutes(change, row, how):
        change.verdict, result = row.verdict, "not confirmed"
    else:
        change.verdict, result = Verdict.AMBIGUOUS, "not confirmed"
    if change.is_unjudged:
        change.disturbance = None  # the figures of the re-run are not marked
        result = "measured again"
    change.add_reason(f"{result}: {text}")


def why_unsettled(row: Change | None, how: How) -> str | None:
    """Return why the row of a re-run neither confirms nor refutes; None if it does."""
    if row is None:
        return "no figure when run again"
    if row.metric == STATUS:
        return None
    if not row.has_both:
        return joined("no figure when run again", row.reason)
    if row.is_unjudged and how.pairs is None and row.marked_before:
        return row.disturbance  # of the baseline, which did not run again
    if row.is_unjudged:
        return f"{row.disturbance}, when run again"
    if row.metric in PER_TRIAL and how.pairs is not None and how.pairs < how.least:
        return f"{figures_text(row)}, but only {how.pairs} pairs ({how.text})"
    return None


def shows_slowdown(change: Change, row: Change, how: How, by_pairs: bool) -> bool:
    """Return whether the row of the re-run shows that the cell is slower."""
    if row.metric == STATUS:
        return False
    if not by_pairs:
        return row.verdict is Verdict.SLOWER and (how.pairs is not None or needs_no_pairs(change))
    # pairs do not drift, so the floor counts; but among many ambiguous rows some are beyond it by
    # chance
    is_beyond = confirms(row.low, how.pairs or 0, row.limit or 0.0, how.least)
    return is_beyond and Verdict.SLOWER in (row.verdict, change.verdict)


def refutes(change: Change, row: Change, how: How) -> bool:
    """Return whether the row of the re-run, which shows no slowdown, has the verdict that counts
    instead."""
    if change.is_unjudged:
        return row.verdict in (Verdict.SAME, Verdict.FASTER)
    was_ambiguous = change.verdict is Verdict.AMBIGUOUS
    return was_ambiguous and row.verdict is Verdict.SAME and how.pairs is not None


def evidence(change: Change, row: Change, how: How, by_pairs: bool) -> str:
    """Return the figures of the re-run, and what limits them."""
    if row.metric == STATUS:
        return f"{row.reason or row.verdict} when run again"
    number = ""
    if by_pairs:
        unit = "duets" if how.text == AS_DUET else "pairs"
        number = f", {how.pairs} {unit}"
    text = f"{figures_text(row)} ({how.text}{number})"
    limits = row.reason or why_not_enough(change, row, how)
    return joined(text, limits) or text


def why_not_enough(change: Change, row: Change, how: How) -> str | None:
    """Return why a row of the re-run that looks slower does not confirm a slowdown; None if it
    does."""
    if row.verdict is Verdict.SLOWER and how.pairs is None and not needs_no_pairs(change):
        return "only pairs confirm an ambiguous row"
    limit = change.limit or 0.0
    if how.pairs is not None and row.low is not None and 1.0 < row.low <= 1 + limit:
        return f"not significantly beyond {percent(limit)}"
    return None


def figures_text(row: Change) -> str:
    """Return the ratio of a row with both figures; the figures themselves if it has none, as that
    of a count of 0."""
    metric = METRICS[row.metric]
    ratio = ratio_text(row.ratio, row.low, row.high)
    return ratio or f"{metric.format(row.before)} → {metric.format(row.after)}"
