"""Run cells again that are or may be slower, with old and new interleaved if both can run here."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from effbench.cell import Cell
from effbench.comparison.compare import Compared, Comparer, Confirmation, Selection
from effbench.comparison.limits import STATUS
from effbench.comparison.matching import LEAST_COMPILATIONS, Side, load, software_changed
from effbench.comparison.origin import current, origin
from effbench.comparison.verdicts import (
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
from effbench.printable import between, count
from effbench.stats.significance import LEAST_DUETS, LEAST_PAIRS, MOST_PAIRS, confirms
from effbench.store.sides import PER_TRIAL, CellResult
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING, SweepInfo
from effbench.sweeping import resume
from effbench.sweeping.duets import StoppingRule, allows_duet
from effbench.sweeping.estimate import Durations, TrialKind
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import (
    CellRun,
    PlannedTrial,
    Settings,
    SweepPlan,
    is_of_duet,
    recorded_settings,
)
from effbench.sweeping.pool import Pools
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, Outcome, asked_of, open_sweep, planned_slots

#: Recorded facts of an interpreter (`Interpreter.facts`) that a re-run needs.
FACTS = {"python", "folder", "given", "git_revision", "git_description"}
UNSETTLED = "neither confirmed nor refuted"
#: How old and new ran.
ALTERNATING, AS_DUET = "old and new alternating", "old and new as duets"
#: Rows by cell key and metric.
Rows = Mapping[tuple[str, str], Change]


@dataclass(frozen=True)
class Request:
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
    """How a re-run ended. `here`: the interpreter of the new side; `there`: that of the baseline's
    side, None if it did not run, and then `why_alone` gives the reason."""

    outcome: Outcome
    here: Interpreter
    there: Interpreter | None = None
    why_alone: str | None = None

    def environment_of(self, interpreter: Interpreter) -> str:
        return self.outcome.environments[interpreter]


@dataclass(frozen=True)
class Repetition:
    """What a re-run measured on the new side and on the baseline's side, which did not run if it is
    None; then `why_alone` gives the reason. `is_partial`: it was interrupted; `duets`: the keys of
    the cells that ran as duets."""

    title: str
    new: Side
    old: Side | None = None
    why_alone: str | None = None
    is_partial: bool = False
    duets: Collection[str] = ()

    @classmethod
    def read(cls, store: Store, rerun: Rerun) -> Repetition:
        sweep_id = rerun.outcome.sweep_id
        whole = load(store, store.find_sweep(sweep_id))
        is_partial = rerun.outcome.state != "completed"
        new_id = rerun.environment_of(rerun.here)
        new = whole.within([new_id])
        if rerun.there is None:
            return cls(whole.title, new, None, rerun.why_alone, is_partial)
        old_id = rerun.environment_of(rerun.there)
        duets = duets_in(store, sweep_id, (old_id, new_id))
        return cls(whole.title, new, whole.within([old_id]), None, is_partial, duets)

    def results(self, key: str) -> list[CellResult | None]:
        """Return the results of a cell on the sides that ran."""
        return [side.result(key) for side in (self.old, self.new) if side is not None]

    def how(self, changes: Iterable[Change]) -> str:
        """Return how the cells of these rows ran."""
        if self.old is None:
            return "the new side alone"
        are_duets = all(change.key in self.duets for change in changes)
        return AS_DUET if are_duets else ALTERNATING

    def has_ended(self, change: Change) -> bool:
        """Return whether an interrupted re-run can settle the row: both sides have a result, and
        its metric does not need all compilations."""
        return None not in self.results(change.key) and change.metric in PER_TRIAL

    def rounds_of(self, key: str) -> int:
        """Return the number of rounds that all sides of a cell have."""
        return shared_rounds("latency_ms", *self.results(key))


@dataclass(frozen=True)
class How:
    """How a row ran again. `pairs`: their number, None if only the new side ran; `least`: how many
    are enough."""

    text: str
    pairs: int | None = None
    least: int = LEAST_PAIRS


def confirm(request: Request) -> Confirmation:
    """Run cells again that are slower, ambiguous beyond the floor, or marked; update their rows in
    the comparison, and add a note.

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
        return Confirmation()
    keys = {change.key for change in flagged}
    with Store.open(request.db, mode="read") as store:
        cells = [cell for cell in store.planned(request.after.id) if cell.key in keys]
        environments = [row["id"] for row in store.environments_of(request.after.id)]
        durations = Durations.of(store.durations([request.after.id], environments))
    if len(cells) < len(keys):
        raise UsageError(
            "--confirm needs the same cells on both sides; omit --across dtype and numerics"
        )
    try:
        rerun = run_again(Runner(request, cells, durations))
    # before the re-run began, or a second one: the first verdicts are still reported
    except KeyboardInterrupt:
        why = compared.interrupted = "the re-run was interrupted"
    except EffbenchError as error:
        why = f"nothing was run again: {error}"
    else:
        return conclude(request, rerun, flagged)
    leave(flagged)
    compared.notes.append(why)
    return Confirmation()


def conclude(request: Request, rerun: Rerun, flagged: Sequence[Change]) -> Confirmation:
    """Update the flagged rows by the re-run."""
    with Store.open(request.db, mode="read") as store:
        repetition = Repetition.read(store, rerun)
    if repetition.is_partial:
        note_interruption(request, rerun, repetition, flagged)
    judge_again(request.compared, flagged, repetition)
    done = Confirmation(rerun.outcome.sweep_id)
    for change in flagged:
        if change.verdict is Verdict.BROKEN:
            done.failed.add(change.key)
        elif change.verdict is Verdict.SLOWER and UNSETTLED not in (change.reason or ""):
            done.confirmed.add(change.key)
    if rerun.there:
        done.by = "python"
        if rerun.there.folder != rerun.here.folder:
            done.by = "folder"
    return done


def note_interruption(
    request: Request, rerun: Rerun, repetition: Repetition, flagged: Iterable[Change]
) -> None:
    """Note after how many rounds the re-run was interrupted."""
    complete = max(repetition.rounds_of(change.key) for change in flagged)
    text = f"the re-run was interrupted after {complete} of {count(request.rounds, 'round')}"
    if complete and rerun.there:
        text += "; verdicts use complete pairs"
    elif complete:
        text += "; verdicts use complete rounds"
    request.compared.interrupted = text
    request.compared.notes.append(f"{text} (sweep {repetition.title})")


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
    """The progress of a re-run. If it is quiet, because standard output gets a document, the number
    of rounds and the time left after each go to standard error."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.round = 0

    def announce(self, text: str) -> None:
        if self.quiet:
            print(f"effbench: {text}", file=sys.stderr, flush=True)
        else:
            self.note(text)

    def started(self, slot: str, trial: PlannedTrial) -> None:
        """Announce the time left at the start of each further round, if no line of a trial says
        it."""
        super().started(slot, trial)
        with self.lock:
            is_next_round = trial.round > self.round
            self.round = max(self.round, trial.round)
            left = self.left()
        if self.quiet and is_next_round and left:
            self.announce(f"round {trial.round + 1} of {self.rounds}: {left[0]}")


class Runner:
    """Runs cells of a check again. `durations`: of the trials of the checked sweep."""

    def __init__(self, request: Request, cells: Sequence[Cell], durations: Durations) -> None:
        self.request = request
        self.cells = cells
        self.durations = durations
        self.settings = settings_of(request.after, request.db, request.rounds)
        self.progress = RerunProgress(quiet=request.quiet)

    def run(self, cells: Sequence[Cell], *sides: Interpreter) -> Outcome:
        """Run these cells under the interpreters of these sides, the new one last."""
        rule = StoppingRule(floors_of(self.request.compared))
        command = Command([*self.request.command], [], progress=self.progress, duet_rule=rule)
        runs = [CellRun(cell, side) for cell in cells for side in sides]
        with open_sweep(self.settings, asked_of(runs), command) as sweep:
            same_machine(self.request.compared, sides[-1], sweep.pools)
            rounds = planned_rounds(cells, self.settings, len(sides))
            slots = len(planned_slots(self.settings, sweep.pools, cells))
            parallel = min(slots, len(cells)) / len(sides)
            duration = rounds.duration(cells, self.settings, self.durations, parallel)
            self.progress.announce(f"{rounds.text}: {duration}")
            return sweep.run(SweepPlan(runs))


def run_again(runner: Runner) -> Rerun:
    """Run the cells on the new side and, if possible, alternating on the baseline's side."""
    compared, before, after = runner.request.compared, runner.request.before, runner.request.after
    runner.progress.announce(
        f"running {count(len(runner.cells), 'cell')} again; Ctrl-C judges them by the rounds that"
        " are complete"
    )
    check_own(after)
    new_facts = facts_of(compared.after)
    here = current(new_facts, after.id, runner.cells, after.started_at)
    try:
        check_own(before)
        software = software_changed(compared.before, compared.after)
        facts = facts_of(compared.before)
        with origin(facts, new_facts or {}, here, runner.cells, software) as there:
            return Rerun(runner.run(runner.cells, there, here), here, there)
    except EffbenchError as error:
        keys = {
            change.key
            for change in compared.changes
            if is_flagged(change) and needs_no_pairs(change)
        }
        chosen = [cell for cell in runner.cells if cell.key in keys]
        if not chosen:
            raise
        return Rerun(runner.run(chosen, here), here, why_alone=str(error))


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
        # cells that are known within ± 1 % stop early, and no mode depends on another
        "enough_interval": 0.01,
        "eliminate": None,
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
                of_cell[change.metric] = compared.limits.of(change.about, change.metric).floor
    return floors


def is_paired_ratio(change: Change) -> bool:
    """Return whether the interval over pairs decides the row; other metrics have one figure per
    compilation or sweep, or are exact."""
    return change.metric in PER_TRIAL and METRICS[change.metric].compare == "ratio"


def same_machine(compared: Compared, here: Interpreter, pools: Pools) -> None:
    """Raise UsageError if `here`, the new side, has other hardware or software than the sweep, for
    example on the login node of a cluster: its figures could refute any change."""
    environment = vars(pools[here].environment)
    hardware = hardware_of(environment)
    if hardware != compared.hardware:
        raise UsageError(f"this machine has {hardware}, not {compared.hardware}")
    changed = software_changed(
        compared.after, replace(compared.after, environments={"": environment})
    )
    if changed:
        raise UsageError(f"the software is not that of the sweep ({changed})")


def duets_in(store: Store, sweep_id: str, environment_ids: Sequence[str]) -> set[str]:
    """Return the keys of the cells whose measured trials in these environments were all timed in
    turn."""
    sides = [store.history(sweep_id, environment_id) for environment_id in environment_ids]
    keys = set.intersection(*(set(side) for side in sides))
    return {key for key in keys if all(is_of_duet(trial) for side in sides for trial in side[key])}


@dataclass(frozen=True)
class PlannedRounds:
    """How often cells run again. `kind`: `duets of old and new`."""

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
        self, cells: Sequence[Cell], settings: Settings, durations: Durations, parallel: float
    ) -> str:
        """Return how long this takes if so many trials run in parallel, divided by the number of
        sides: `about 40 s to 4 min`."""
        seconds = []
        for rounds in (min(self.least, self.most), self.most):
            total = 0.0
            for cell in cells:
                cold_s = durations.expected_s(TrialKind.of(cell, is_cold=True))
                warm_s = durations.expected_s(TrialKind.of(cell, is_cold=False))
                if cold_s is None or warm_s is None:
                    return "duration unknown"
                cold = min(rounds, settings.protocol.compilations)
                total += cold * cold_s + (rounds - cold) * warm_s
            seconds.append(total / parallel)
        return between(*seconds)


def planned_rounds(cells: Sequence[Cell], settings: Settings, sides: int) -> PlannedRounds:
    """Return how many rounds the cells run again on so many sides."""
    most = settings.protocol.rounds
    if sides == 1:
        return PlannedRounds(LEAST_PAIRS, most, "rounds, the new side alone")
    if settings.protocol.duet and all(map(allows_duet, cells)):
        return PlannedRounds(LEAST_DUETS, most, "duets of old and new")
    return PlannedRounds(LEAST_PAIRS, most, f"rounds, {ALTERNATING}")


# --- judging ---


def judge_again(compared: Compared, flagged: Sequence[Change], repetition: Repetition) -> None:
    """Update the flagged rows by the re-run, and add notes."""
    repetition = without_other_software(compared, repetition)
    settled = [change for change in flagged if repetition.old or needs_no_pairs(change)]
    if repetition.is_partial:
        leave(change for change in settled if not repetition.has_ended(change))
        settled = [change for change in settled if repetition.has_ended(change)]
    if settled:
        rows = RerunRows.of(compared, settled, repetition)
        for change in settled:
            judge_row(compared, change, repetition, rows)
    compared.changes = ordered(compared.changes)
    how = repetition.how(settled)
    compared.notes.append(f"rows run again: {len(settled)}, {how}: sweep {repetition.title}")
    if repetition.why_alone:
        compared.notes.append(
            f"not alternating: {repetition.why_alone}; the machine may have drifted between the"
            " sessions"
        )


def without_other_software(compared: Compared, repetition: Repetition) -> Repetition:
    """Return the re-run, without the baseline's side if its software has changed since."""
    changed = None
    if repetition.old:
        changed = software_changed(compared.before, repetition.old)
    if not changed:
        return repetition
    why = f"the baseline's interpreter has changed ({changed})"
    return replace(repetition, old=None, why_alone=why)


@dataclass(frozen=True)
class RerunRows:
    """Rows of the re-run's new side, compared with the baseline's recorded figures and with the
    side that ran next to it."""

    recorded: Rows
    paired: Rows

    @classmethod
    def of(cls, compared: Compared, settled: Sequence[Change], repetition: Repetition) -> RerunRows:
        # the noise between sessions only matters against the baseline's recorded figures, not in
        # one interleaved session
        limits = {(change.key, change.metric): change.limit or 0.0 for change in settled}
        apart = Comparer(compared.limits, Selection(("hardware",)), limits)
        recorded = rows_of(apart, compared.before, repetition.new)
        if repetition.old is None:
            return cls(recorded, {})
        next_to_it = replace(apart, thresholds=None, interleaved=True)
        return cls(recorded, rows_of(next_to_it, repetition.old, repetition.new))


def rows_of(comparer: Comparer, before: Side, after: Side) -> Rows:
    return {(row.key, row.metric): row for row in comparer.compare(before, after).changes}


def judge_row(compared: Compared, change: Change, repetition: Repetition, rows: RerunRows) -> None:
    """Update a flagged row."""
    now = repetition.new.result(change.key)
    then = None
    if repetition.old:
        then = repetition.old.result(change.key)
    old_fails = is_worse(compared.before.result(change.key), then)
    new_fails = is_worse(compared.after.result(change.key), now)
    if new_fails and old_fails:
        # the cause may be the machine or a shared dependency
        change.add_reason(f"{UNSETTLED}: run again, both sides fail (before {then}; now {now})")
    elif new_fails:
        change.add_reason(f"run again: {now}")
        change.verdict = Verdict.BROKEN
    elif old_fails:
        how = How(f"run again; the baseline's side did not run: {then}")
        settle(change, rows.recorded, how)
    elif then is None:
        settle(change, rows.recorded, How("run again"))
    else:
        pairs = shared_rounds(change.metric, then, now)
        how = How(ALTERNATING, pairs)
        if change.key in repetition.duets:
            how = How(AS_DUET, pairs, LEAST_DUETS)
        settle(change, rows.paired, how)


def is_worse(before: CellResult | None, now: CellResult | None) -> bool:
    """Return whether the cell was measured both times, and now has a worse class of status."""
    if before is None or now is None:
        return False
    return verdict_of_statuses(before.status, now.status) is Verdict.BROKEN


def settle(change: Change, rows: Rows, how: How) -> None:
    """Confirm or clear the flagged row by the rows of the re-run; its figures remain those of the
    checked sweep. The verdict stays if the re-run gives no figure, is marked or has too few
    pairs."""
    row = rows.get((change.key, change.metric), rows.get((change.key, STATUS)))
    if row is None:
        change.add_reason(f"{UNSETTLED}: no figure when run again")
        return
    evidence = Evidence(change, row, how)
    why = evidence.why_unsettled()
    if why:
        change.add_reason(f"{UNSETTLED}: {why}")
        return
    is_slower = evidence.shows_slowdown()
    is_refuted = evidence.refutes(is_slower)
    if evidence.decides_by_pairs:
        change.limit = row.limit
    text = evidence.text(is_slower)
    change.verdict, result = Verdict.AMBIGUOUS, "not confirmed"
    if is_slower:
        change.verdict, result = Verdict.SLOWER, "confirmed"
    elif is_refuted:
        change.verdict = row.verdict
    if change.is_unjudged:
        change.disturbance = None  # the figures of the re-run are not marked
        result = "measured again"
    change.add_reason(f"{result}: {text}")


@dataclass(frozen=True)
class Evidence:
    """What the `row` of a re-run says about the flagged row `change`."""

    change: Change
    row: Change
    how: How

    @property
    def decides_by_pairs(self) -> bool:
        """Whether the interval over pairs decides."""
        has_interval = self.row.metric != STATUS and self.row.low is not None
        return has_interval and self.how.pairs is not None and is_paired_ratio(self.change)

    def why_unsettled(self) -> str | None:
        """Return why the row neither confirms nor refutes; None if it does."""
        row, how = self.row, self.how
        if row.metric == STATUS:
            return None
        if not row.has_both:
            return joined("no figure when run again", row.reason)
        if row.is_unjudged:
            if how.pairs is None and row.marked_before:
                return row.disturbance  # of the baseline, which did not run again
            return f"{row.disturbance}, when run again"
        if row.metric in PER_TRIAL and how.pairs is not None and how.pairs < how.least:
            return f"{figures_text(row)}, but only {how.pairs} pairs ({how.text})"
        return None

    def shows_slowdown(self) -> bool:
        """Return whether the row shows that the cell is slower."""
        row, pairs = self.row, self.how.pairs
        if row.metric == STATUS:
            return False
        if not self.decides_by_pairs:
            is_settled = pairs is not None or needs_no_pairs(self.change)
            return row.verdict is Verdict.SLOWER and is_settled
        # pairs do not drift, so the floor counts; but among many ambiguous rows some are beyond it
        # by chance
        is_beyond = confirms(row.low, pairs or 0, row.limit or 0.0, self.how.least)
        return is_beyond and Verdict.SLOWER in (row.verdict, self.change.verdict)

    def refutes(self, is_slower: bool) -> bool:
        """Return whether the row has the verdict that counts instead."""
        if is_slower:
            return False
        if self.change.is_unjudged:
            return self.row.verdict in (Verdict.SAME, Verdict.FASTER)
        was_ambiguous = self.change.verdict is Verdict.AMBIGUOUS
        is_same = self.row.verdict is Verdict.SAME
        return was_ambiguous and is_same and self.how.pairs is not None

    def text(self, is_slower: bool) -> str:
        """Return the figures of the re-run, and why they do not confirm the row."""
        row = self.row
        if row.metric == STATUS:
            return f"{row.reason or row.verdict} when run again"
        text = f"{figures_text(row)} ({self.how_often})"
        why = ""
        if not is_slower:
            why = self.doubt()
        if not row.kernels or row.verdict is Verdict.SAME or why == f", but {row.reason}":
            return text + why  # the row's reason contains the kernels
        return f"{text}{why}; {row.kernels}"

    def doubt(self) -> str:
        """Return why the figures do not confirm the row."""
        row, low = self.row, self.row.low or 0.0
        limit = self.change.limit or 0.0
        if self.how.pairs is None and row.verdict is Verdict.SLOWER:
            return ", but only pairs confirm an ambiguous row"
        if low > 1 + limit:
            return f", but {row.reason}"
        if row.verdict is Verdict.SLOWER or low > 1.0:
            return f", not significantly beyond {percent(limit)}"
        return ""

    @property
    def how_often(self) -> str:
        if not self.decides_by_pairs:
            return self.how.text
        unit = "pairs"
        if self.how.text == AS_DUET:
            unit = "duets"
        return f"{self.how.text}, {self.how.pairs} {unit}"


def figures_text(row: Change) -> str:
    """Return the ratio of a row with both figures; the figures themselves if it has none, as that
    of a count of 0."""
    metric = METRICS[row.metric]
    ratio = ratio_text(row.ratio, row.low, row.high)
    return ratio or f"{metric.format(row.before)} → {metric.format(row.after)}"
