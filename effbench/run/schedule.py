"""Which trials of a sweep run next: the queue of those that are left, and which are no longer
needed because their cell is known precisely enough."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from effbench.core.cell import Status, Trial
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


class TrialQueue:
    """The remaining trials. Thread-safe.

    The trials of a round that run together, one after the other in `trials`, are a group: those of
    a cell, one per interpreter, or of the two cells of a duet. Only one group of a cell runs at a
    time, since its compile cache has one writer. Those of a round on GPUs come before those on the
    CPU.

    `devices`: of all slots; a trial for any other one runs on any slot and reports it as missing.
    """

    def __init__(self, trials: Iterable[PlannedTrial], devices: Collection[str]) -> None:
        self.trials = sorted(
            trials, key=lambda trial: (trial.round, trial.run.cell.device == "cpu")
        )
        self.devices = devices
        #: What a running group has in common (CellRun.group) -> device of its slot.
        self.running: dict[Hashable, str] = {}
        self.lock = threading.Lock()

    def take(self, device: str) -> list[PlannedTrial]:
        """Return the next group for a slot of this device; empty if no group is available at the
        moment.

        A trial on the CPU may use every core, so that none on a GPU runs at the same time. Both
        devices take turns by rounds: a comparison of devices must not compare different times.
        """
        with self.lock:
            if any(other != device for other in self.running.values()):
                return []
            for position, first in enumerate(self.trials):
                run = first.run
                if run.cell.device != device and run.cell.device in self.devices:
                    return []  # it is the other device's turn
                if run.group in self.running:
                    continue
                self.running[run.group] = device
                end = position + 1
                while end < len(self.trials) and is_together(first, self.trials[end]):
                    end += 1
                group = self.trials[position:end]
                del self.trials[position:end]
                return group
            return []

    def finished(self, group: Sequence[PlannedTrial]) -> None:
        """End the group, so that another one of its cell may run."""
        with self.lock:
            del self.running[group[0].run.group]

    def drop(self, run: CellRun) -> None:
        """Remove all remaining trials of this cell run."""
        with self.lock:
            self.trials = [trial for trial in self.trials if trial.run != run]

    def is_empty(self) -> bool:
        with self.lock:
            return not self.trials and not self.running


def is_together(trial: PlannedTrial, other: PlannedTrial) -> bool:
    return trial.round == other.round and trial.run.group == other.run.group


@dataclass
class RoundsNeeded:
    """Tells which of these runs need no further rounds.

    `history`: the last attempts of the recorded trials, which grow while the sweep runs.
    `duet_rule`: when the rounds of duets end; None: as all others.
    """

    settings: Settings
    runs: Sequence[CellRun]
    history: History
    duet_rule: StoppingRule | None = None

    def __post_init__(self) -> None:
        self.interpreters = interpreters_of(self.runs)

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
