"""The queue of a sweep's remaining trials, from which the threads of all slots take."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from effbench.cell import Cell
from effbench.sweeping.plan import CellRun, History, PlannedTrial


@dataclass(eq=False)
class Group:
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

    groups: list[Group]
    running: dict[Hashable, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, slot: str, device: str, devices: Collection[str]) -> Group | None:
        """Return the next group for the slot with this name and device, or None if no group is
        available at the moment.

        `devices`: the devices of all slots. A trial for any other device runs on any slot and
        reports it as missing.
        """
        with self.lock:
            # a trial on the CPU may use every core, including those of trials on GPUs
            if any(is_cpu(other) != is_cpu(device) for other in self.running.values()):
                return None
            latest = self.first_round_elsewhere(device, devices)
            for position, group in enumerate(self.groups):
                fits = group.cell.device == device or group.cell.device not in devices
                is_free = group.slot in (None, slot) and group.key not in self.running
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

    def finished(self, group: Group) -> None:
        """End the group, so that another one of its cell may run."""
        with self.lock:
            del self.running[group.key]

    def drop(self, run: CellRun) -> int:
        """Remove all remaining trials of this cell run and return their number."""
        dropped = 0
        with self.lock:
            for group in self.groups:
                kept = [trial for trial in group.trials if trial.run != run]
                dropped += len(group.trials) - len(kept)
                group.trials = kept
            self.groups = [group for group in self.groups if group.trials]
        return dropped

    def is_empty(self) -> bool:
        with self.lock:
            return not self.groups and not self.running


def is_cpu(device: str) -> bool:
    return device == "cpu"


def groups_of(
    trials: Iterable[PlannedTrial],
    history: History,
    slots: Mapping[str | None, str],
) -> list[Group]:
    """Return the trials in groups. `history` (recorded trials) and `slots` (names by GPU UUID)
    determine where an interrupted group continues."""
    used: dict[tuple[Hashable, int], dict[CellRun, str]] = defaultdict(dict)
    for run, recorded in history.items():
        for trial in recorded:
            if trial.gpu_uuid in slots:
                used[run.group, trial.round][run] = slots[trial.gpu_uuid]
    groups = []
    for key, members in groupby(trials, key=lambda trial: (trial.run.group, trial.round)):
        planned = list(members)
        group = Group(planned)
        for run in used[key].keys() - {trial.run for trial in planned}:
            group.slot = used[key][run]
        groups.append(group)
    return groups
