"""Run cells again that are or may be slower, with old and new in the same rounds.

`flagged_of` says which rows run again; `settle` gives the verdict of such a row.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from effbench.analysis.compare import Compared
from effbench.analysis.matching import (
    LEAST_COMPILATIONS,
    Side,
    compared_cells,
    load,
    software_changed,
)
from effbench.analysis.origin import RecordedInterpreter, check_recorded, current, origin
from effbench.analysis.verdicts import (
    Change,
    Verdict,
    joined,
    judge,
    ordered,
    verdict_of_statuses,
)
from effbench.core.cell import Cell
from effbench.core.errors import EffbenchError, UsageError
from effbench.core.metrics import METRICS
from effbench.core.printable import between, count
from effbench.core.quantities import percent, ratio_text
from effbench.core.terminal import Console
from effbench.run import resume
from effbench.run.duets import Duets, StoppingRule, allows_duet
from effbench.run.interpreters import Interpreter
from effbench.run.plan import CellRun, Settings, SweepPlan, is_of_duet, recorded_settings
from effbench.run.pool import Servers
from effbench.run.progress import Progress
from effbench.run.sweep import Command, Outcome, open_sweep, planned_slots
from effbench.stats.significance import LEAST_DUETS, LEAST_PAIRS
from effbench.store.sides import ResultWithTrials
from effbench.store.store import Store
from effbench.store.sweeps import CONFIRMING

#: Seconds for which each side of a duet is timed, and about how many calls at least.
DUET_S = 1.0
DUET_CALLS = 30
#: Assumed least seconds of a trial.
LEAST_TRIAL_S = 1.0
NOT_RUN = "not run again"
NO_FIGURE = "no figure when run again"


@dataclass(frozen=True)
class Method:
    """How both sides of a cell run again, as `text`. `least`: how many pairs of their trials are
    enough; `unit`: name of such pairs."""

    least: int
    unit: str
    text: str


ALTERNATING = Method(LEAST_PAIRS, "pairs", "old and new alternating")
AS_DUETS = Method(LEAST_DUETS, "duets", "old and new as duets")


@dataclass(frozen=True)
class Confirmation:
    """A check whose cells run again. `command`: its words; `rounds`: most rounds of the re-run."""

    compared: Compared
    db: str
    command: Sequence[str]
    rounds: int
    quiet: bool


@dataclass(frozen=True)
class Rerun:
    """What a re-run measured on the baseline's side (`old`) and on the new one. `duets`: the trials
    of each cell that ran on both, by its key."""

    old: Side
    new: Side
    duets: Mapping[str, Duets]


def confirm(request: Confirmation) -> str | None:
    """Run cells again that are slower, ambiguous beyond the floor, or marked; update their rows in
    the comparison, and add notes. Return the id of the re-run, None if nothing ran.

    Old and new run in the same rounds, as duets if the cells allow it, and the interval over pairs
    must exceed the floor. Other rows become `ambiguous`, or `same` if they were ambiguous and pairs
    exclude a change; rows of cells of which now only the new side fails become `broken`; marked
    rows get the verdict of the re-run. Without a figure, or if one of the sides cannot run here,
    the verdict stays. If the re-run is interrupted, its complete pairs count.

    Raises UsageError if the sides differ in their cells.
    """
    compared = request.compared
    flagged = flagged_of(compared)
    if not flagged:
        return None
    cells = cells_of(compared, flagged)
    try:
        rerun = run_again(request, cells)
    # before the re-run began, or a second one: the first verdicts are still reported
    except KeyboardInterrupt:
        why = "the re-run was interrupted"
        compared.interrupted = why
    except EffbenchError as error:
        why = f"nothing was run again: {error}"
    else:
        if rerun.new.sweep.state != "completed":
            complete = max((len(duets.rounds) for duets in rerun.duets.values()), default=0)
            most = count(request.rounds, "round")
            compared.interrupted = f"the re-run was interrupted after {complete} of {most}"
        judge_again(compared, flagged, rerun)
        return rerun.new.sweep.id
    for change in flagged:
        leave(change, NOT_RUN)
    compared.notes.append(why)
    return None


def refusal(compared: Compared) -> str | None:
    """Return why `confirm` would run nothing again, as far as the sweeps' records tell; None if
    nothing speaks against it."""
    try:
        cells = cells_of(compared, flagged_of(compared))
        check_own(compared)
        check_recorded(interpreter_of(compared.before), interpreter_of(compared.after), cells)
    except UsageError as error:
        return str(error)
    return None


def flagged_of(compared: Compared) -> list[Change]:
    """Return the rows whose cells run again."""
    rows = [change for change in compared.changes if not change.ignored]
    return [change for change in rows if change.is_unjudged or may_be_slower(change)]


def cells_of(compared: Compared, flagged: Iterable[Change]) -> list[Cell]:
    """Return the cells of these rows. Raises UsageError if the sides differ in them."""
    keys = {change.key for change in flagged}
    cells = [cell for cell in compared.after.cells.values() if cell.key in keys]
    if len(cells) < len(keys):
        raise UsageError(
            "--confirm needs the same cells on both sides; omit --across dtype and numerics"
        )
    return cells


def may_be_slower(change: Change) -> bool:
    """Return whether the row is slower, or ambiguous beyond its floor (or the factor of a compile
    time)."""
    if change.verdict is not Verdict.AMBIGUOUS or change.ratio is None:
        return change.verdict is Verdict.SLOWER
    has_limit = change.test is not None or METRICS[change.metric].compare == "bound"
    return has_limit and change.ratio > change.largest_same


def leave(change: Change, why: str) -> None:
    """Note why the re-run does not settle the row; its verdict stays."""
    change.add_reason(f"neither confirmed nor refuted: {why}")


# --- running ---


def run_again(request: Confirmation, cells: Sequence[Cell]) -> Rerun:
    """Run the cells on the baseline's side and on the new one. Raises EffbenchError if one of them
    cannot run here."""
    compared = request.compared
    check_own(compared)
    old = interpreter_of(compared.before)
    new = interpreter_of(compared.after)
    here = current(new, cells)
    with origin(old, new, here, cells) as there:
        outcome = measure_again(request, cells, there, here)
    return read(request.db, outcome, there, here)


def check_own(compared: Compared) -> None:
    """Raise UsageError if one of the sweeps is not this user's."""
    for side in (compared.after, compared.before):
        why = resume.refusal(side.sweep)
        if why:
            raise UsageError(why)


def measure_again(
    request: Confirmation,
    cells: Sequence[Cell],
    there: Interpreter,
    here: Interpreter,
) -> Outcome:
    """Run these cells under the interpreters of the baseline's side (`there`) and of the new one
    (`here`)."""
    recorded = recorded_settings(request.compared.after.sweep)
    method = ALTERNATING
    if recorded.protocol.duet and all(map(allows_duet, cells)):
        method = AS_DUETS
    settings = settings_of(request, recorded, method)
    progress = Progress(Console(stderr=request.quiet))
    progress.note(
        f"running {count(len(cells), 'cell')} again, at most {count(request.rounds, 'round')},"
        f" {method.text}; Ctrl-C judges them by the rounds that are complete"
    )
    command = Command(request.command, {}, progress=progress)
    rule = StoppingRule(floors_of(request.compared), is_gate=True)
    runs = [CellRun(cell, side) for cell in cells for side in (there, here)]
    with open_sweep(settings, runs, command) as sweep:
        check_machine(
            request.compared,
            sweep.servers,
            there,
            here,
        )
        slots = planned_slots(settings, sweep.servers, cells)
        parallel = min(len(slots), len(cells))
        saved_s = recorded.protocol.budget_s - settings.protocol.budget_s
        round_s = 2 * len(cells) / parallel * trial_seconds(request.compared.after, cells, saved_s)
        duration = between(method.least * round_s, request.rounds * round_s)
        progress.note(f"duration: {duration}")
        return sweep.run(SweepPlan(runs, duet_rule=rule))


def read(
    db: str,
    outcome: Outcome,
    there: Interpreter,
    here: Interpreter,
) -> Rerun:
    """Return what a re-run recorded."""
    sweep_id = outcome.sweep_id
    old_id = outcome.environments[there]
    new_id = outcome.environments[here]
    with Store.open(db, mode="read") as store:
        whole = load(store, store.find_sweep(sweep_id))
        before = store.history(sweep_id, old_id)
        after = store.history(sweep_id, new_id)
    duets = {key: Duets(before[key], after[key]) for key in before.keys() & after.keys()}
    return Rerun(whole.within([old_id]), whole.within([new_id]), duets)


def trial_seconds(after: Side, cells: Iterable[Cell], saved_s: float) -> float:
    """Return how long a trial of these cells takes: as those of the checked sweep did, which was
    longer by `saved_s`."""
    walls_s: list[float] = []
    for cell in cells:
        result = after.result(cell.key)
        if result is not None:
            walls_s += [trial.wall_s or 0.0 for trial in result.counted.measured]
    return max(statistics.fmean(walls_s) - saved_s, LEAST_TRIAL_S)


def interpreter_of(side: Side) -> RecordedInterpreter:
    """Return what the sweep records about this side's interpreter. Raises UsageError if that is
    incomplete."""
    for environment_id in side.environments:
        with suppress(msgspec.ValidationError):
            return msgspec.convert(side.recorded_facts(environment_id), RecordedInterpreter)
    raise UsageError(f"{side.title} does not record its interpreter")


def settings_of(request: Confirmation, recorded: Settings, method: Method) -> Settings:
    """Return the settings of the re-run: those of the checked sweep, with more rounds, and shorter
    ones if they are duets. `recorded`: with which the sweep ran."""
    after = request.compared.after.sweep
    protocol = replace(
        recorded.protocol,
        rounds=request.rounds,
        # cells that are known within ± 1 % stop early
        enough_interval=0.01,
        compilations=max(recorded.protocol.compilations, LEAST_COMPILATIONS),
    )
    if method is AS_DUETS:
        budget_s = min(protocol.budget_s, duet_budget_s(request.compared))
        protocol = replace(protocol, budget_s=budget_s)
    return Settings.with_defaults(
        db=request.db,
        sweep={"name": f"{CONFIRMING}{after.id}", "label": after.label, "seed": after.seed},
        protocol=protocol,
        baseline_mode=recorded.baseline_mode,
        on_failure="ignore",
        timeout_s=recorded.timeout_s,
        isolation=recorded.isolation,
    )


def duet_budget_s(compared: Compared) -> float:
    """Return how long each side of a duet is timed. Processes differ by more than what a longer
    timing would average out."""
    rows = [row for row in flagged_of(compared) if row.metric == "latency_ms"]
    slowest_ms = max((row.after or 0.0 for row in rows), default=0.0)
    return max(DUET_S, DUET_CALLS * slowest_ms / 1000)


def floors_of(compared: Compared) -> dict[str, dict[str, float]]:
    """Return cell key -> metric -> relative change that counts, of the ratios that duets have to
    decide; other metrics have one figure per compilation or sweep, or are exact."""
    floors: dict[str, dict[str, float]] = {}
    for change in flagged_of(compared):
        of_cell = floors.setdefault(change.key, {})
        metric = METRICS[change.metric]
        if metric.compare == "ratio" and not metric.caches:
            of_cell[metric.name] = change.limit or 0.0
    return floors


def check_machine(
    compared: Compared,
    servers: Servers,
    there: Interpreter,
    here: Interpreter,
) -> None:
    """Raise UsageError if this machine is not that of the sweep, for example the login node of a
    cluster, or if an interpreter has other software than its side had: the figures could refute any
    change."""
    new = servers[here].machine.environment
    if new.hardware != compared.after.hardware:
        raise UsageError(f"this machine has {new.hardware}, not {compared.after.hardware}")
    changed = software_changed(compared.after.environments.values(), [new])
    if changed:
        raise UsageError(f"the software is not that of the sweep ({changed})")
    old = servers[there].machine.environment
    changed = software_changed(compared.before.environments.values(), [old])
    if changed:
        raise UsageError(f"the baseline's interpreter has changed ({changed})")


# --- judging ---


def judge_again(compared: Compared, flagged: Sequence[Change], rerun: Rerun) -> None:
    """Update the flagged rows by the re-run, and add notes."""
    rows: dict[tuple[str, str], Change] = {}
    if rerun.duets:
        cells = compared_cells(rerun.old, rerun.new)
        for row in judge(cells, compared.limits, interleaved=True):
            rows[row.key, row.metric] = row
    settled = 0
    for change in flagged:
        settled += judge_row(change, rows, compared, rerun)
    compared.changes = ordered(compared.changes)
    compared.notes.append(f"rows run again: {settled}, in sweep {rerun.new.title}")
    reasons = chain.from_iterable(duets.reasons_alone for duets in rerun.duets.values())
    for reason in dict.fromkeys(reasons):
        compared.notes.append(f"some rounds were not timed in turn: {reason}")


def judge_row(
    change: Change,
    rows: Mapping[tuple[str, str], Change],
    compared: Compared,
    rerun: Rerun,
) -> bool:
    """Update a flagged row by the re-run. Return whether both sides ran again. `rows`: of the
    re-run, by cell key and metric."""
    key = change.key
    old = rerun.old.result(key)
    new = rerun.new.result(key)
    if old is None or new is None:
        leave(change, NOT_RUN)
        return False
    old_fails = fails(compared.before, key, old)
    row = rows.get((key, change.metric))
    if old_fails:
        # if both fail, the cause may be the machine or a shared dependency
        leave(change, f"failed when run again (before {old}; now {new})")
    elif fails(compared.after, key, new):
        change.add_reason(f"run again: {new}")
        change.verdict = Verdict.BROKEN
    elif row is None:
        leave(change, NO_FIGURE)
    else:
        metric = METRICS[change.metric]
        rounds = old.figures(metric).keys() & new.figures(metric).keys()
        method = ALTERNATING
        if all(map(is_of_duet, rerun.duets[key].trials)):
            method = AS_DUETS
        settle(change, row, len(rounds), method)
    return True


def fails(side: Side, key: str, now: ResultWithTrials) -> bool:
    """Return whether the cell now has a status of a worse class than on this side."""
    before = side.result(key)
    return before is not None and verdict_of_statuses(before.status, now.status) is Verdict.BROKEN


def settle(
    change: Change,
    row: Change,
    rounds: int,
    method: Method = ALTERNATING,
) -> None:
    """Confirm or clear a flagged row by the same `row` of a re-run; its figures remain those of the
    checked sweep. The verdict stays if the re-run gives no figure, is marked or has too few pairs.
    `rounds`: the number of rounds in which both sides have the figure; `method`: how the cell
    ran."""
    if not row.has_both:
        leave(change, f"{NO_FIGURE}; {row.reason}")
        return
    if row.is_unjudged:
        leave(change, f"{row.disturbance}, when run again")
        return
    figures = figures_text(row)
    metric = METRICS[row.metric]
    has_rounds = metric.compare != "bound" and not metric.caches
    if has_rounds and rounds < method.least:
        leave(change, f"{figures}, but only {rounds} pairs ({method.text})")
        return
    how = method.text
    if row.low is not None:
        how += f", {rounds} {method.unit}"
    text = joined(f"{figures} ({how})", row.reason or why_not_slower(row))
    verdict = verdict_again(change, row)
    if change.is_unjudged:
        change.disturbance = None  # the figures of the re-run are not marked
        change.add_reason(f"measured again: {text}")
    elif verdict is Verdict.SLOWER:
        change.add_reason(f"confirmed: {text}")
    else:
        change.add_reason(f"not confirmed: {text}")
    change.verdict = verdict


def verdict_again(change: Change, row: Change) -> Verdict:
    """Return the verdict of a flagged row by the same `row` of a re-run."""
    was_ambiguous = change.verdict is Verdict.AMBIGUOUS
    is_slower = row.verdict is Verdict.SLOWER
    if row.low is not None:
        # among many ambiguous rows some are beyond the limit by chance
        is_slower = row.low > row.largest_same and (is_slower or not was_ambiguous)
    if is_slower:
        return Verdict.SLOWER
    if was_ambiguous and (row.verdict is Verdict.SAME or excludes_slowdown(row)):
        return Verdict.SAME
    if change.is_unjudged and row.verdict is Verdict.FASTER:
        return Verdict.FASTER
    return Verdict.AMBIGUOUS


def excludes_slowdown(row: Change) -> bool:
    """Return whether an ambiguous row excludes a slowdown, although perhaps no speedup."""
    is_below = row.high is not None and row.high <= row.largest_same
    return row.verdict is Verdict.AMBIGUOUS and is_below


def why_not_slower(row: Change) -> str | None:
    """Return why a row of a re-run that looks slower does not confirm a slowdown, or that it
    excludes one; None if its figures say so."""
    limit = percent(row.limit or 0.0)
    if row.low is not None and 1.0 < row.low <= row.largest_same:
        return f"not significantly beyond {limit}"
    if excludes_slowdown(row):
        return f"no slowdown beyond {limit}"
    return None


def figures_text(row: Change) -> str:
    """Return the ratio of a row with both figures; the figures themselves if it has none, as that
    of a count of 0."""
    metric = METRICS[row.metric]
    ratio = ratio_text(row.ratio, row.low, row.high)
    return ratio or f"{metric.format(row.before)} → {metric.format(row.after)}"
