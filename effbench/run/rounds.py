"""When the rounds of a cell end early: it is known precisely enough, or its mode is eliminated."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from effbench.core.cell import Status, Trial
from effbench.run.duets import StoppingRule, misses_compilations
from effbench.run.interpreters import Interpreter
from effbench.run.plan import (
    CellRun,
    History,
    PlannedTrial,
    Settings,
    interpreters_of,
    is_of_duet,
)
from effbench.stats.elimination import FAR, UNWATCHED_FAR, Race, race
from effbench.stats.intervals import PRIOR_SD, TUNED, TUNED_SD, enough
from effbench.store.summary import estimate


class RoundsNeeded:
    """Tells which of these runs need no further rounds.

    `history`: the last attempts of the recorded trials, which grow while the sweep runs.
    `duet_rule`: when the rounds of duets end; None: as all others.
    """

    def __init__(
        self,
        settings: Settings,
        runs: Sequence[CellRun],
        history: History,
        duet_rule: StoppingRule | None = None,
    ) -> None:
        self.settings = settings
        self.history = history
        self.interpreters = interpreters_of(runs)
        self.duet_rule = duet_rule
        #: The runs that differ in nothing but their mode.
        self.rivals: dict[tuple[str, Interpreter], list[CellRun]] = defaultdict(list)
        for run in runs:
            self.rivals[run.cell.comparison_key, run.interpreter].append(run)

    def needed(self, trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Return the trials without those of runs that are already known well enough or
        eliminated."""
        planned = dict.fromkeys(trial.run for trial in trials)
        known = {run for run in planned if self.is_enough(run) or run in self.eliminated(run)}
        return [trial for trial in trials if trial.run not in known]

    def is_enough(self, run: CellRun) -> bool:
        """Return whether the remaining rounds may be skipped: under all interpreters that can run
        the cell, because comparisons pair their rounds. Marked rounds say nothing about
        precision."""
        recorded = self.recorded_with(run)
        measured = list(filter(is_measured, recorded))
        if self.duet_rule is not None and len(recorded) == 2:
            first, second = recorded
            if len(measured) == 2 and are_duets([*first, *second]):
                return self.duet_rule.is_settled(first, second, self.settings.compilations)
            if len(measured) < 2 and self.duet_rule.needs_both:
                return True
        if not measured:
            return False
        quiet = set.intersection(*map(quiet_rounds, measured))
        return all(self.is_precise(trials, quiet) for trials in measured)

    def recorded_with(self, run: CellRun) -> list[Sequence[Trial]]:
        """Return the trials of each recorded run that this one is compared with, and its own."""
        recorded = []
        for cell in run.cells:
            for interpreter in self.interpreters:
                trials = self.history.get(CellRun(cell, interpreter))
                if trials:
                    recorded.append(trials)
        return recorded

    def is_precise(self, trials: Sequence[Trial], rounds: set[int]) -> bool:
        """Return whether latency and period are precise enough in these rounds, over all
        compilations. A race compares rounds that all candidates have, so there it is what ends
        them."""
        protocol = self.settings.protocol
        target = protocol.enough_interval
        if target is None or protocol.eliminate is not None:
            return False
        if any(trial.status is not Status.OK for trial in trials):
            return False
        good = [trial for trial in trials if trial.round in rounds]
        if misses_compilations(good, self.settings.compilations):
            return False
        estimates = [estimate(good, "latency_ms"), estimate(good, "period_ms")]
        means = list(filter(None, estimates))
        return bool(means) and all(enough(mean, len(good), target) for mean in means)

    def eliminated(self, run: CellRun) -> set[CellRun]:
        """Return which of the runs that differ from this one in nothing but their mode need no
        further rounds: with `protocol.eliminate`, all that are eliminated or degraded; all of them
        once their race is over."""
        if self.settings.protocol.eliminate is None:
            return set()
        rivals = self.rivals[run.cell.comparison_key, run.interpreter]
        recorded = {rival: self.history.get(rival, ()) for rival in rivals}
        state = race_of(recorded, vars(self.settings.protocol))
        if state.is_over:
            return set(rivals)
        degraded = {rival for rival, trials in recorded.items() if has_degraded(trials)}
        return degraded.union(rival for rival in rivals if rival in state.eliminated)


def is_measured(trials: Iterable[Trial]) -> bool:
    return all(trial.status.is_measured for trial in trials)


def are_duets(trials: Iterable[Trial]) -> bool:
    return all(map(is_of_duet, trials))


def has_degraded(trials: Iterable[Trial]) -> bool:
    return any(trial.status is Status.DEGRADED for trial in trials)


def quiet_rounds(trials: Iterable[Trial]) -> set[int]:
    """Return the rounds with a figure that is not marked."""
    return {
        trial.round for trial in trials if trial.status is Status.OK and trial.disturbance is None
    }


def race_of(recorded: Mapping[Any, Sequence[Trial]], protocol: Mapping[str, Any]) -> Race:
    """Return the state of the race of these candidates, by the last attempts of their trials, in
    order. Those that did not run, or not as their name says, do not take part."""
    times: dict[Hashable, list[float | None]] = {}
    variation: dict[Hashable, float] = {}
    for name, trials in recorded.items():
        if is_measured(trials) and not has_degraded(trials):
            times[name] = times_of(trials, protocol["eliminate"])
            variation[name] = variation_of(trials)
    is_watched = 0 < (protocol.get("host_tolerance") or 0) < 1
    far = FAR if is_watched else UNWATCHED_FAR
    return race(times, variation, len(recorded), protocol["rounds"], far)


def times_of(trials: Iterable[Trial], metric: str) -> list[float | None]:
    """Return the time of each round until the first one that has not ended; None for a marked
    one."""
    by_round = {trial.round: trial for trial in trials}
    times: list[float | None] = []
    for round in itertools.count():
        trial = by_round.get(round)
        if trial is None:
            return times
        if trial.disturbance is None:
            times.append(getattr(trial, metric))
        else:
            times.append(None)
    raise AssertionError("unreachable")


def variation_of(trials: Sequence[Trial]) -> float:
    """Return the expected standard deviation of log times between compilations."""
    compilations = len({trial.compilation for trial in trials}) or 1
    if any((trial.kernel_fingerprint or "").endswith(TUNED) for trial in trials):
        return TUNED_SD / math.sqrt(compilations)
    if any(trial.compile_s is not None for trial in trials):
        return PRIOR_SD / math.sqrt(compilations)
    return 0.0
