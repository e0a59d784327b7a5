"""Run cells again that are or may be slower, with old and new interleaved if both can run here.

`is_flagged` says which rows run again; `RowAgain.verdict` gives the verdict of such a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from effbench.analysis.compare import Compared
from effbench.analysis.limits import STATUS
from effbench.analysis.matching import (
    LEAST_COMPILATIONS,
    NO_RESULT,
    CellPair,
    Side,
    load,
    pairs_of,
    software_changed,
)
from effbench.analysis.origin import current, origin
from effbench.analysis.verdicts import (
    Change,
    Verdict,
    joined,
    judge,
    ordered,
    verdict_of_statuses,
)
from effbench.core.cell import Cell, StoredEnvironment
from effbench.core.errors import EffbenchError, UsageError
from effbench.core.metrics import METRICS, percent, ratio_text
from effbench.core.printable import between, count
from effbench.core.terminal import Console
from effbench.run import resume
from effbench.run.duets import Duets, StoppingRule, allows_duet
from effbench.run.estimate import Durations, TrialKind
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan, is_of_duet, recorded_settings
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.run.sweep import Command, Outcome, open_sweep, planned_slots
from effbench.stats.significance import LEAST_DUETS, LEAST_PAIRS, MOST_PAIRS, confirms
from effbench.store.sides import PER_TRIAL, CellResult
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo

#: Recorded facts of an interpreter (`Interpreter.facts`) that a re-run needs.
FACTS = {"python", "folder", "given", "git_revision", "git_description"}
#: Seconds for which each side of a duet is timed, and about how many calls at least.
DUET_S = 1.0
DUET_CALLS = 30
#: Assumed least seconds of a trial.
LEAST_TRIAL_S = 1.0
UNSETTLED = "neither confirmed nor refuted"
NO_FIGURE = "no figure when run again"
#: How old and new ran.
ALTERNATING = "old and new alternating"
AS_DUET = "old and new as duets"
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
    None; then `why_alone` gives the reason. `is_partial`: it was interrupted; `duets`: the trials
    of the cells that ran on both sides, by key."""

    sweep_id: str
    new: Side
    old: Side | None = None
    why_alone: str | None = None
    is_partial: bool = False
    duets: Mapping[str, Duets] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """How the sides ran, unless in turn."""
        reasons: dict[str, None] = {}
        for duets in self.duets.values():
            reasons |= dict.fromkeys(duets.reasons_alone)
        notes = [f"some rounds were not timed in turn: {reason}" for reason in reasons]
        if self.why_alone:
            drift = "the machine may have drifted between the sessions"
            notes.append(f"not alternating: {self.why_alone}; {drift}")
        return notes

    def has_ended(self, change: Change) -> bool:
        """Return whether an interrupted re-run can settle the row: both sides have a result, and
        its metric does not need all compilations."""
        return None not in self.results(change.key) and change.metric in PER_TRIAL

    def results(self, key: str) -> list[CellResult | None]:
        """Return the result of a cell on each side that ran, the new one last."""
        return [side.result(key) for side in (self.old, self.new) if side is not None]

    def rounds_of(self, key: str, metric: str = "latency_ms") -> int:
        """Return the number of rounds in which all sides of a cell have this figure."""
        rounds = []
        for result in self.results(key):
            figures = (result or NO_RESULT).figures.get(metric, {})
            rounds.append({number for number, figure in figures.items() if figure is not None})
        return len(set.intersection(*rounds))


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
    flagged = list(filter(is_flagged, compared.changes))
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


def run_again(request: Confirmation, cells: Sequence[Cell]) -> Rerun:
    """Run the cells on the new side and, if possible, alternating on the baseline's side. Raises
    EffbenchError if they cannot run here."""
    compared = request.compared
    before = request.before
    after = request.after
    check_own(after)
    new_facts = facts_of(compared.after)
    here = current(
        new_facts,
        after.id,
        cells,
        after.started_at,
    )
    try:
        check_own(before)
        software = software_changed(compared.before, compared.after)
        facts = facts_of(compared.before)
        with origin(
            facts,
            new_facts or {},
            here,
            cells,
            software,
        ) as there:
            outcome = measure_again(
                request,
                cells,
                there,
                here,
            )
            return read(
                request.db,
                outcome,
                here,
                there,
            )
    except EffbenchError as error:
        flagged = filter(is_flagged, compared.changes)
        alone = {change.key for change in flagged if needs_no_pairs(change)}
        chosen = [cell for cell in cells if cell.key in alone]
        if not chosen:
            raise
        outcome = measure_again(request, chosen, here)
        return replace(read(request.db, outcome, here), why_alone=str(error))


def measure_again(request: Confirmation, cells: Sequence[Cell], *sides: Interpreter) -> Outcome:
    """Run these cells under the interpreters of these sides, the new one last."""
    recorded = recorded_settings(request.after)
    are_duets = len(sides) == 2 and recorded.protocol.duet and all(map(allows_duet, cells))
    settings = settings_of(request, recorded, are_duets)
    plan = rounds_of_rerun(request.rounds, len(sides), are_duets)
    progress = Progress(Console(stderr=request.quiet))
    progress.note(
        f"running {count(len(cells), 'cell')} again, {plan.text};"
        " Ctrl-C judges them by the rounds that are complete"
    )
    rule = StoppingRule(floors_of(request.compared), is_gate=True)
    command = Command(
        [*request.command],
        {},
        progress=progress,
        duet_rule=rule,
    )
    runs = [CellRun(cell, side) for cell in cells for side in sides]
    with open_sweep(settings, runs, command) as sweep:
        same_machine(request.compared, sides[-1], sweep.pools)
        slots = planned_slots(settings, sweep.pools, cells)
        parallel = min(len(slots), len(cells)) / len(sides)
        durations = durations_of(request)
        saved_s = recorded.protocol.budget_s - settings.protocol.budget_s
        duration = plan.duration(
            cells,
            settings.compilations,
            durations,
            saved_s,
            parallel,
        )
        progress.note(f"duration: {duration}")
        return sweep.run(SweepPlan(runs))


def read(
    db: str,
    outcome: Outcome,
    here: Interpreter,
    there: Interpreter | None = None,
) -> Rerun:
    """Return what a re-run recorded."""
    is_partial = outcome.state != "completed"
    new_id = outcome.environments[here]
    with Store.open(db, mode="read") as store:
        whole = load(store, store.find_sweep(outcome.sweep_id))
        new = whole.within([new_id])
        if there is None:
            return Rerun(outcome.sweep_id, new, is_partial=is_partial)
        old_id = outcome.environments[there]
        before, after = (store.history(outcome.sweep_id, key) for key in (old_id, new_id))
    duets = {key: Duets(before[key], after[key]) for key in before.keys() & after.keys()}
    return Rerun(
        outcome.sweep_id,
        new,
        whole.within([old_id]),
        is_partial=is_partial,
        duets=duets,
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
        self,
        cells: Iterable[Cell],
        compilations: int,
        durations: Durations,
        saved_s: float,
        parallel: float,
    ) -> str:
        """Return how long this takes, such as `40 s to 4 min`. `saved_s`: how much less a trial may
        take than before; `parallel`: the number of trials that run at the same time, divided by the
        number of sides."""
        low_s = high_s = 0.0
        for cell in cells:
            cold_s = durations.expected_s(TrialKind.of(cell, is_cold=True))
            warm_s = durations.expected_s(TrialKind.of(cell, is_cold=False))
            if cold_s is None or warm_s is None:
                return "unknown, because no earlier trial of these cells is known"
            compile_s = cold_s - warm_s
            warm_s = max(warm_s - saved_s, min(warm_s, LEAST_TRIAL_S))
            low_s += self.least * warm_s + min(self.least, compilations) * compile_s
            high_s += self.most * warm_s + min(self.most, compilations) * compile_s
        return between(low_s / parallel, high_s / parallel)


def rounds_of_rerun(most: int, sides: int, are_duets: bool) -> RerunRounds:
    """Return how often cells run again on so many sides."""
    if sides == 1:
        return RerunRounds(LEAST_PAIRS, most, "rounds, the new side alone")
    if are_duets:
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


def settings_of(request: Confirmation, recorded: Settings, are_duets: bool) -> Settings:
    """Return the settings of the re-run: those of the checked sweep, with more rounds, and shorter
    ones if they are duets. `recorded`: with which the sweep ran."""
    after = request.after
    protocol = {
        **after.protocol,
        "rounds": request.rounds,
        # cells that are known within ± 1 % stop early
        "enough_interval": 0.01,
        "compilations": max(after.protocol.get("compilations", 1), LEAST_COMPILATIONS),
    }
    if are_duets:
        protocol["budget_s"] = min(recorded.protocol.budget_s, duet_budget_s(request.compared))
    return Settings.with_defaults(
        db=request.db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        protocol=protocol,
        baseline_mode=after.baseline_mode,
        on_failure="ignore",
        timeout_s=recorded.timeout_s,
        isolation=recorded.isolation,
    )


def duet_budget_s(compared: Compared) -> float:
    """Return how long each side of a duet is timed. Processes differ by more than what a longer
    timing would average out."""
    slowest_ms = 0.0
    for row in filter(is_flagged, compared.of("latency_ms")):
        slowest_ms = max(slowest_ms, row.after or 0.0)
    return max(DUET_S, DUET_CALLS * slowest_ms / 1000)


def floors_of(compared: Compared) -> dict[str, dict[str, float]]:
    """Return cell key -> metric -> relative change that counts, of the ratios that duets have to
    decide."""
    floors: dict[str, dict[str, float]] = {}
    for change in filter(is_flagged, compared.changes):
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
    noise = {(change.key, change.metric): change.limit or 0.0 for change in settled}
    recorded = rows_of(judge(pairs_with(compared.before, rerun), compared.limits, noise))
    paired: Rows = {}
    if rerun.old is not None:
        together = judge(pairs_with(rerun.old, rerun), compared.limits, interleaved=True)
        paired = rows_of(together)
    for change in settled:
        judge_row(
            compared,
            change,
            rerun,
            recorded,
            paired,
        )


def pairs_with(before: Side, rerun: Rerun) -> list[CellPair]:
    """Return the cells of this side and of the re-run's new side."""
    return pairs_of(before, rerun.new, ["hardware"])


def rows_of(changes: Iterable[Change]) -> Rows:
    return {(row.key, row.metric): row for row in changes}


def judge_row(
    compared: Compared,
    change: Change,
    rerun: Rerun,
    recorded: Rows,
    paired: Rows,
) -> None:
    """Update a flagged row. `recorded`, `paired`: rows of the re-run's new side, compared with the
    baseline's recorded figures and with the side that ran next to it."""
    key = change.key
    now = rerun.new.result(key)
    then = None
    if rerun.old is not None:
        then = rerun.old.result(key)
    old_fails = is_worse(compared.before.result(key), then)
    if is_worse(compared.after.result(key), now):
        if old_fails:
            # the cause may be the machine or a shared dependency
            why = f"run again, both sides fail (before {then}; now {now})"
            change.add_reason(f"{UNSETTLED}: {why}")
        else:
            change.add_reason(f"run again: {now}")
            change.verdict = Verdict.BROKEN
        return
    rows = recorded
    how = "run again"
    pairs = None
    are_duets = False
    if old_fails:
        how = f"run again; the baseline's side did not run: {then}"
    elif then is not None:
        duets = rerun.duets.get(key)
        are_duets = duets is not None and all(map(is_of_duet, duets.trials))
        rows = paired
        how = AS_DUET if are_duets else ALTERNATING
        pairs = rerun.rounds_of(key, change.metric)
    row = rows.get((key, change.metric), rows.get((key, STATUS)))
    if row is None:
        change.add_reason(f"{UNSETTLED}: {NO_FIGURE}")
        return
    again = RowAgain(
        change,
        row,
        how,
        pairs,
        are_duets,
    )
    again.settle()


def is_worse(before: CellResult | None, now: CellResult | None) -> bool:
    """Return whether the cell was measured both times, and now has a worse class of status."""
    if before is None or now is None:
        return False
    return verdict_of_statuses(before.status, now.status) is Verdict.BROKEN


@dataclass(frozen=True)
class RowAgain:
    """A flagged row of a check, and the same `row` of the re-run. `how`: how the cell ran again;
    `pairs`: their number, None if only the new side ran; `are_duets`: whether they were timed in
    turn."""

    change: Change
    row: Change
    how: str
    pairs: int | None = None
    are_duets: bool = False

    def settle(self) -> None:
        """Confirm or clear the flagged row; its figures remain those of the checked sweep. The
        verdict stays if the re-run gives no figure, is marked or has too few pairs."""
        change = self.change
        why = self.why_unsettled
        if why:
            change.add_reason(f"{UNSETTLED}: {why}")
            return
        text = self.evidence
        change.verdict = self.verdict
        if self.is_by_pairs:
            change.limit = self.row.limit
        if change.is_unjudged:
            change.disturbance = None  # the figures of the re-run are not marked
            change.add_reason(f"measured again: {text}")
        elif change.verdict is Verdict.SLOWER:
            change.add_reason(f"confirmed: {text}")
        else:
            change.add_reason(f"not confirmed: {text}")

    @property
    def least(self) -> int:
        """How many pairs are enough."""
        return LEAST_DUETS if self.are_duets else LEAST_PAIRS

    @property
    def is_by_pairs(self) -> bool:
        """Whether the interval over pairs decides."""
        return self.pairs is not None and self.row.low is not None and is_paired_ratio(self.change)

    @property
    def why_unsettled(self) -> str | None:
        """Why the re-run neither confirms nor refutes; None if it does."""
        row = self.row
        if row.metric == STATUS:
            return None
        if not row.has_both:
            return joined(NO_FIGURE, row.reason)
        if row.is_unjudged and self.pairs is None and row.marked_before:
            return row.disturbance  # of the baseline, which did not run again
        if row.is_unjudged:
            return f"{row.disturbance}, when run again"
        if row.metric in PER_TRIAL and self.pairs is not None and self.pairs < self.least:
            return f"{figures_text(row)}, but only {self.pairs} pairs ({self.how})"
        return None

    @property
    def verdict(self) -> Verdict:
        change = self.change
        verdict = self.row.verdict
        if self.shows_slowdown:
            return Verdict.SLOWER
        if verdict is Verdict.AMBIGUOUS and self.excludes_slowdown:
            verdict = Verdict.SAME
        if change.is_unjudged:
            is_refuted = verdict in (Verdict.SAME, Verdict.FASTER)
        else:
            was_ambiguous = change.verdict is Verdict.AMBIGUOUS
            is_refuted = was_ambiguous and verdict is Verdict.SAME and self.pairs is not None
        return verdict if is_refuted else Verdict.AMBIGUOUS

    @property
    def shows_slowdown(self) -> bool:
        row = self.row
        if not self.is_by_pairs:
            has_enough = self.pairs is not None or needs_no_pairs(self.change)
            return row.verdict is Verdict.SLOWER and has_enough
        # pairs do not drift, so the floor counts; but among many ambiguous rows some are beyond it
        # by chance
        is_beyond = confirms(
            row.low,
            self.pairs or 0,
            row.limit or 0.0,
            self.least,
        )
        return is_beyond and Verdict.SLOWER in (row.verdict, self.change.verdict)

    @property
    def excludes_slowdown(self) -> bool:
        """Whether duets ended because they exclude a slowdown, although perhaps no speedup."""
        row = self.row
        return self.are_duets and row.high is not None and row.high <= 1 + (row.limit or 0.0)

    @property
    def evidence(self) -> str:
        """The figures of the re-run, and what limits them."""
        row = self.row
        if row.metric == STATUS:
            return f"{row.reason or row.verdict} when run again"
        number = ""
        if self.is_by_pairs:
            unit = "duets" if self.are_duets else "pairs"
            number = f", {self.pairs} {unit}"
        text = f"{figures_text(row)} ({self.how}{number})"
        return joined(text, row.reason or self.why_not_enough) or text

    @property
    def why_not_enough(self) -> str | None:
        """Why a row that looks slower does not confirm a slowdown, or that it excludes one; None if
        its figures say so."""
        row = self.row
        limit = self.row.limit or 0.0
        if self.pairs is None:
            if row.verdict is Verdict.SLOWER and not needs_no_pairs(self.change):
                return "only pairs confirm an ambiguous row"
        elif row.low is not None and 1.0 < row.low <= 1 + limit:
            return f"not significantly beyond {percent(limit)}"
        elif row.verdict is Verdict.AMBIGUOUS and self.excludes_slowdown:
            return f"no slowdown beyond {percent(limit)}"
        return None


def figures_text(row: Change) -> str:
    """Return the ratio of a row with both figures; the figures themselves if it has none, as that
    of a count of 0."""
    metric = METRICS[row.metric]
    ratio = ratio_text(row.ratio, row.low, row.high)
    return ratio or f"{metric.format(row.before)} → {metric.format(row.after)}"
