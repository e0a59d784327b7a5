"""The queue of a sweep's remaining trials, from which the threads of all slots take."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from effbench.core.cell import Cell
from effbench.run.devices import Slot
from effbench.run.plan import CellRun, History, PlannedTrial


@dataclass(eq=False)
class TrialGroup:
    """The trials of a round that run together: of a cell, one per interpreter, or of the two cells
    of a duet. `slot`: the only slot that may run them; None: any."""

    trials: list[PlannedTrial]
    slot: str | None = None

    @property
    def cell(self) -> Cell:
        return self.trials[0].run.cell

    @property
    def round(self) -> int:
        return self.trials[0].round

    @property
    def key(self) -> Hashable:
        """What all groups share that run one after the other."""
        return self.trials[0].run.group


@dataclass
class TrialQueue:
    """The remaining trials in groups. Thread-safe. Only one group of a cell runs at a time, since
    its compile cache has one writer. `running`: key of a group -> device of its slot."""

    groups: list[TrialGroup]
    running: dict[Hashable, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, slot: Slot, devices: Collection[str]) -> TrialGroup | None:
        """Return the next group for the slot, or None if no group is available at the moment.

        `devices`: the devices of all slots. A trial for any other device runs on any slot and
        reports it as missing.
        """
        device = slot.device
        with self.lock:
            # a trial on the CPU may use every core, including those of trials on GPUs
            if any(is_cpu(other) != is_cpu(device) for other in self.running.values()):
                return None
            latest = self.first_round_elsewhere(device, devices)
            for position, group in enumerate(self.groups):
                fits = group.cell.device == device or group.cell.device not in devices
                is_free = group.slot in (None, slot.name) and group.key not in self.running
                if fits and is_free and group.round <= latest:
                    self.running[group.key] = device
                    return self.groups.pop(position)
            return None

    def first_round_elsewhere(self, device: str, devices: Collection[str]) -> float:
        """Return the earliest round that still waits for the CPU if `device` is a GPU, or for a GPU
        if it is the CPU.

        Trials of both never run at the same time. If one kind ran all its rounds first, a
        comparison of devices would compare different times.
        """
        others = {other for other in devices if is_cpu(other) != is_cpu(device)}
        if not others:
            return math.inf
        rounds = [group.round for group in self.groups if group.cell.device in others]
        return min(rounds, default=math.inf)

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


def is_cpu(device: str) -> bool:
    return device == "cpu"


def groups_of(
    trials: Iterable[PlannedTrial], history: History, slots: Sequence[Slot]
) -> list[TrialGroup]:
    """Return the trials in groups. An interrupted group continues on the GPU of its recorded
    trials."""
    names = {slot.uuid: slot.name for slot in slots if slot.is_gpu}
    used: dict[tuple[Hashable, int], dict[CellRun, str]] = defaultdict(dict)
    for run, recorded in history.items():
        for trial in recorded:
            if trial.gpu_uuid in names:
                used[run.group, trial.round][run] = names[trial.gpu_uuid]
    groups = []
    for key, members in groupby(trials, key=lambda trial: (trial.run.group, trial.round)):
        group = TrialGroup(list(members))
        for run in used[key].keys() - {trial.run for trial in group.trials}:
            group.slot = used[key][run]
        groups.append(group)
    return groups
