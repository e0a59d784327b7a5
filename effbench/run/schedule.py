"""Which trials of a sweep run next: the queue of those that are left, and which are no longer
needed because their cell is known precisely enough."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from effbench.core.cell import Cell, Status, Trial
from effbench.run.duets import Duets, StoppingRule, misses_compilations
from effbench.run.plan import (
    CellRun,
    History,
    PlannedTrial,
    Settings,
    interpreters_of,
    is_measured,
    is_of_duet,
)
from effbench.stats.intervals import enough
from effbench.store.summary import estimate


@dataclass(eq=False)
class TrialGroup:
    """The trials of a round that run together: of a cell, one per interpreter, or of the two cells
    of a duet."""

    trials: list[PlannedTrial]

    @property
    def key(self) -> Hashable:
        """What all groups share that run one after the other."""
        return self.trials[0].run.group

    @property
    def cell(self) -> Cell:
        return self.trials[0].run.cell

    @property
    def round(self) -> int:
        return self.trials[0].round


def groups_of(trials: Iterable[PlannedTrial]) -> list[TrialGroup]:
    """Return the trials in groups. Those of a round on GPUs come before those on the CPU."""
    groups = groupby(trials, key=lambda trial: (trial.run.group, trial.round))
    of_rounds = [TrialGroup(list(members)) for _, members in groups]
    return sorted(of_rounds, key=lambda group: (group.round, group.cell.device == "cpu"))


@dataclass
class TrialQueue:
    """The remaining trials in groups. Thread-safe. Only one group of a cell runs at a time, since
    its compile cache has one writer.

    `devices`: of all slots; a trial for any other one runs on any slot and reports it as missing.
    `running`: key of a group -> device of its slot.
    """

    groups: list[TrialGroup]
    devices: Collection[str]
    running: dict[Hashable, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, device: str) -> TrialGroup | None:
        """Return the next group for a slot of this device, or None if no group is available at the
        moment.

        A trial on the CPU may use every core, so that none on a GPU runs at the same time. Both
        devices take turns by rounds: a comparison of devices must not compare different times.
        """
        with self.lock:
            if any(other != device for other in self.running.values()):
                return None
            for position, group in enumerate(self.groups):
                if group.cell.device != device and group.cell.device in self.devices:
                    return None  # it is the other device's turn
                if group.key not in self.running:
                    self.running[group.key] = device
                    return self.groups.pop(position)
            return None

    def finished(self, group: TrialGroup) -> None:
        """End the group, so that another one of its cell may run."""
        with self.lock:
            del self.running[group.key]

    def drop(self, run: CellRun) -> None:
        """Remove all remaining trials of this cell run."""
        with self.lock:
            for group in self.groups:
                group.trials = [trial for trial in group.trials if trial.run != run]
            self.groups = [group for group in self.groups if group.trials]

    def is_empty(self) -> bool:
        with self.lock:
            return not self.groups and not self.running


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

    def needed(self, trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Return the trials without those of runs that are already known well enough."""
        planned = dict.fromkeys(trial.run for trial in trials)
        known = {run for run in planned if self.is_enough(run)}
        return [trial for trial in trials if trial.run not in known]

    def is_enough(self, run: CellRun) -> bool:
        """Return whether the remaining rounds may be skipped: under all interpreters that can run
        the cell, because comparisons pair their rounds. Marked rounds say nothing about
        precision."""
        recorded = self.recorded_with(run)
        measured = list(filter(is_measured, recorded))
        if self.duet_rule is not None and len(recorded) == 2:
            first, second = recorded
            if len(measured) == 2 and all(map(is_of_duet, [*first, *second])):
                return self.duet_rule.is_settled(Duets(first, second), self.settings.compilations)
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
        compilations."""
        target = self.settings.protocol.enough_interval
        if target is None:
            return False
        if any(trial.status is not Status.OK for trial in trials):
            return False
        good = [trial for trial in trials if trial.round in rounds]
        if misses_compilations(good, self.settings.compilations):
            return False
        estimates = [estimate(good, "latency_ms"), estimate(good, "period_ms")]
        means = list(filter(None, estimates))
        return bool(means) and all(enough(mean, len(good), target) for mean in means)


def quiet_rounds(trials: Iterable[Trial]) -> set[int]:
    """Return the rounds with a figure that is not marked."""
    return {
        trial.round for trial in trials if trial.status is Status.OK and trial.disturbance is None
    }
