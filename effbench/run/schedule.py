"""Which trials of a sweep are left, in which order they run, and which are no longer needed because
their cell has failed or is known precisely enough."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from effbench.core.cell import COLDSTART, Status, Trial
from effbench.core.labels import grouped
from effbench.run.devices import Slot, device_count
from effbench.run.duets import Duets, StoppingRule, misses_compilations
from effbench.run.plan import CellRun, Settings, is_of_duet
from effbench.stats.intervals import enough
from effbench.store.summary import estimate


@dataclass(frozen=True)
class TrialGroup:
    """The trials of a round that run together on one slot, one of each of these `runs`: those of a
    cell under all its interpreters, or of the two cells of a duet. `round` counts from 0."""

    round: int
    runs: Sequence[CellRun]

    @property
    def device(self) -> str:
        return self.runs[0].cell.device

    @property
    def gpus(self) -> int:
        """The number of GPUs that its trials need at once, at least 1; 1 on the CPU."""
        if self.device == "cpu":
            return 1
        return max(device_count(run.cell) for run in self.runs)

    @property
    def key(self) -> Hashable:
        """What groups share that must not run at the same time: all rounds of these runs, and all
        cells that use the same cache."""
        first = self.runs[0]
        if first.cell.phase == COLDSTART:
            return first.cell.cold_key
        return first.group


@dataclass
class Placement:
    """A group, and the slots that have come together for it. It runs once it has `size` slots."""

    group: TrialGroup
    size: int
    slots: list[Slot] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.slots) == self.size


class TrialQueue:
    """The remaining trials. Thread-safe.

    Only one group of a cell runs at a time, since its compile cache has one writer (see
    `TrialGroup.key`). Those of a
    round on GPUs come before those on the CPU.

    `slots`: all slots; a trial for any other device, or for more GPUs than there are, runs on any
    one and reports what is missing.
    """

    def __init__(self, groups: Iterable[TrialGroup], slots: Iterable[Slot]) -> None:
        self.groups = sorted(groups, key=lambda group: (group.round, group.device == "cpu"))
        self.devices = Counter(slot.device for slot in slots)
        #: Key of each group that runs, or collects its slots.
        self.placed: dict[Hashable, Placement] = {}
        self.lock = threading.Lock()

    def take(self, slot: Slot) -> Placement | None:
        """Return the next group with its slots, of which this is the last one; None if the slot has
        nothing to run at the moment.

        A group that needs several GPUs collects the next ones that are free. Until it has run, they
        take no other group; meanwhile no second group collects GPUs, so that both never wait for
        each other.

        A trial on the CPU may use every core, so that none on a GPU runs at the same time. Both
        devices take turns by rounds: a comparison of devices must not compare different times.
        """
        with self.lock:
            placements = self.placed.values()
            if any(slot in placement.slots for placement in placements):
                return None
            if any(placement.slots[0].device != slot.device for placement in placements):
                return None
            incomplete = [one for one in placements if not one.is_complete]
            placement = incomplete[0] if incomplete else self.next_for(slot)
            if placement is None:
                return None
            placement.slots.append(slot)
            return placement if placement.is_complete else None

    def next_for(self, slot: Slot) -> Placement | None:
        """Return the next group that a slot of this device may run, without slots yet."""
        for position, group in enumerate(self.groups):
            if group.device != slot.device and self.devices[group.device]:
                return None  # it is the other device's turn
            if group.key not in self.placed:
                size = group.gpus if group.gpus <= self.devices["cuda"] else 1
                self.placed[group.key] = Placement(self.groups.pop(position), size)
                return self.placed[group.key]
        return None

    def finished(self, group: TrialGroup) -> None:
        """End the group, so that its slots are free and another one of its cell may run."""
        with self.lock:
            del self.placed[group.key]

    def drop(self, runs: Collection[CellRun]) -> None:
        """Remove the remaining trials of these runs, for which no GPUs are to be collected."""
        with self.lock:
            groups, self.groups = self.groups, []
            for group in groups:
                left = [run for run in group.runs if run not in runs]
                if left:
                    self.groups.append(replace(group, runs=left))

    def is_empty(self) -> bool:
        with self.lock:
            return not self.groups and not self.placed


@dataclass
class RoundsNeeded:
    """Tells which rounds of these runs are still needed.

    `history`: the last attempts of the trials that were recorded before; `add` appends others.
    `duet_rule`: when the rounds of duets end; None: as all others.
    """

    settings: Settings
    runs: Sequence[CellRun]
    history: dict[CellRun, list[Trial]]
    duet_rule: StoppingRule | None = None

    def __post_init__(self) -> None:
        self.compared = grouped(self.runs, lambda run: run.compared)
        self.history = defaultdict(list, self.history)

    def groups(self) -> list[TrialGroup]:
        """Return the remaining trials, round by round."""
        over = set(filter(self.is_over, self.runs))
        recorded = {(run, trial.round) for run in self.runs for trial in self.history[run]}
        groups = []
        for round in range(self.settings.protocol.rounds):
            for runs in round_order(self.runs, self.settings.sweep.seed, round):
                left = [run for run in runs if run not in over and (run, round) not in recorded]
                if left:
                    groups.append(TrialGroup(round, left))
        return groups

    def add(self, run: CellRun, trial: Trial) -> None:
        """Note a trial that has ended."""
        self.history[run].append(trial)

    def is_over(self, run: CellRun) -> bool:
        """Return whether the run needs no further rounds."""
        # a cell that failed once cannot become ok again: the worst status counts
        return not is_measured(self.history[run]) or self.is_enough(run)

    def is_enough(self, run: CellRun) -> bool:
        """Return whether the remaining rounds may be skipped: under all interpreters that can run
        the cell, because comparisons pair their rounds. Marked rounds say nothing about
        precision."""
        # of this run and of all that it is compared with
        histories = [self.history[other] for other in self.compared[run.compared]]
        recorded = list(filter(None, histories))
        measured = list(filter(is_measured, recorded))
        if self.duet_rule is not None and len(recorded) == 2:
            first, second = recorded
            if len(measured) == 2 and all(map(is_of_duet, [*first, *second])):
                return self.duet_rule.is_settled(Duets(first, second), self.settings.compilations)
            if len(measured) < 2:
                return True
        if not measured:
            return False
        quiet = set.intersection(*map(quiet_rounds, measured))
        return all(self.is_precise(trials, quiet) for trials in measured)

    def is_precise(self, trials: Sequence[Trial], rounds: set[int]) -> bool:
        """Return whether latency, period and cold start are precise enough in these rounds, over
        all compilations."""
        target = self.settings.protocol.enough_interval
        if target is None:
            return False
        if any(trial.status is not Status.OK for trial in trials):
            return False
        good = [trial for trial in trials if trial.round in rounds]
        is_cold_start = any(trial.cold_s is not None for trial in good)
        if not is_cold_start and misses_compilations(good, self.settings.compilations):
            return False
        times = ("latency_ms", "period_ms", "cold_s")
        means = list(filter(None, [estimate(good, name) for name in times]))
        return bool(means) and all(enough(mean, len(good), target) for mean in means)


def round_order(runs: Sequence[CellRun], seed: int, round: int) -> list[list[CellRun]]:
    """Return the runs by group, in this round's random order, so that drift affects all modes
    equally.

    The interpreters of a cell alternate (A-B, B-A, B-A, A-B …), so that drift within a round
    favours none, also in the rounds of each of two compile caches.
    """
    groups = list(grouped(runs, lambda run: run.group).values())
    random.Random(f"{seed}/{round}").shuffle(groups)
    if (round + round // 2) % 2:
        return [group[::-1] for group in groups]
    return groups


def is_measured(trials: Iterable[Trial]) -> bool:
    return all(trial.status.is_measured for trial in trials)


def quiet_rounds(trials: Iterable[Trial]) -> set[int]:
    """Return the rounds with a figure that is not marked."""
    return {
        trial.round for trial in trials if trial.status is Status.OK and trial.disturbance is None
    }
