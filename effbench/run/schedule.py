"""Run the trials of a plan: one is timed at a time per GPU, all GPUs in parallel, each round in
random order. The threads of all slots take from one queue."""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from effbench.core.cell import Cell, Trial
from effbench.core.meeting import ALONE, DUET
from effbench.run.devices import Slot
from effbench.run.duets import Meeting, Member, StoppingRule, allows_duet
from effbench.run.interrupts import POLL_S
from effbench.run.plan import CellRun, PlannedTrial
from effbench.run.rounds import RoundsNeeded
from effbench.run.running import RunningSweep, may_lack_room

NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)
#: The records of trials that ended together; empty if the sweep was stopped.
Records = Mapping[PlannedTrial, Trial]


@dataclass(eq=False)
class TrialGroup:
    """The trials of a round that run together: of a cell, one per interpreter, or of the two cells
    of a duet. `key`: what all groups share that run one after the other."""

    key: Hashable
    trials: list[PlannedTrial]

    @property
    def cell(self) -> Cell:
        return self.trials[0].run.cell

    @property
    def round(self) -> int:
        return self.trials[0].round


def groups_of(trials: Iterable[PlannedTrial]) -> list[TrialGroup]:
    """Return the trials in groups."""
    groups = groupby(trials, key=lambda trial: (trial.run.group, trial.round))
    return [TrialGroup(key, list(members)) for (key, _), members in groups]


@dataclass
class TrialQueue:
    """The remaining trials in groups. Thread-safe. Only one group of a cell runs at a time, since
    its compile cache has one writer. `running`: key of a group -> device of its slot."""

    groups: list[TrialGroup]
    running: dict[Hashable, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, device: str, devices: Collection[str]) -> TrialGroup | None:
        """Return the next group for a slot of this device, or None if no group is available at the
        moment.

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
                if fits and group.key not in self.running and group.round <= latest:
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


class Schedule:
    """Runs trials of a sweep on slots. If a trial cannot be recorded, the sweep stops and `run`
    raises the same exception."""

    def __init__(
        self,
        sweep: RunningSweep,
        slots: Sequence[Slot],
        runs: Sequence[CellRun],
        duet_rule: StoppingRule | None = None,
    ) -> None:
        self.sweep = sweep
        self.slots = slots
        self.devices = {slot.device for slot in slots}
        self.queue = TrialQueue([])
        self.rounds = RoundsNeeded(sweep.settings, runs, sweep.history, duet_rule)
        #: Runs whose duets need more memory than the device has.
        self.apart: set[CellRun] = set()
        self.error: BaseException | None = None

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Run all trials. Once the sweep is stopped, kill the running ones without recording them,
        and return."""
        self.queue = TrialQueue(groups_of(trials))
        threads = [
            threading.Thread(target=self.work, args=(slot,), name=f"effbench-{slot.name}")
            for slot in self.slots
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                # in short steps, because signal handlers run only between them
                while thread.is_alive():
                    thread.join(POLL_S)
        # such as too many threads: those that run must not start servers of their own
        except BaseException:
            self.sweep.stop.set()
            raise
        if self.error:
            raise self.error

    def work(self, slot: Slot) -> None:
        """Run trials of the queue on this slot until it is empty."""
        stop = self.sweep.stop
        try:
            while not stop.is_set() and not self.queue.is_empty():
                group = self.queue.take(slot.device, self.devices)
                if group is None:  # the remaining groups are running, or need another device
                    stop.wait(POLL_S)
                    continue
                self.run_group(slot, group)
                self.queue.finished(group)
        except BaseException as error:
            self.error = self.error or error
            stop.set()

    def run_group(self, slot: Slot, group: TrialGroup) -> None:
        """Run and record the trials of a round that belong together."""
        if self.is_duet(group):
            self.record(self.run_duet(slot, group), group)
            return
        for trial in group.trials:
            record = None
            if not self.sweep.stop.is_set():
                record = self.run_locked(slot, trial)
            if record is None:
                return
            self.record({trial: record}, group)

    def record(self, records: Records, group: TrialGroup) -> None:
        """Record trials of the group, and drop trials that are no longer needed."""
        for trial, record in records.items():
            self.sweep.record(trial, record)
        for trial, record in records.items():
            over: set[CellRun] = set()
            # a cell that failed once cannot become ok again: the worst status counts
            if not record.status.is_measured:
                over.add(trial.run)
            elif self.rounds.is_enough(trial.run):
                over.update(member.run for member in group.trials)
            for run in over:
                self.queue.drop(run)
                self.sweep.progress.dropped(run)
            self.sweep.progress.ended(trial, record)

    def locked(self, slot: Slot) -> AbstractContextManager[bool]:
        """Return the context that holds the device's lock; see `Slot.locked`."""
        sweep = self.sweep
        timeout_s = sweep.settings.executor.lock_timeout_s
        return slot.locked(sweep.stop, timeout_s, lambda: sweep.progress.waiting(slot.name))

    def run_locked(self, slot: Slot, trial: PlannedTrial) -> Trial | None:
        """Run the trial under the device's lock and return its record; None if the sweep was
        stopped."""
        with self.locked(slot) as is_held:
            if not is_held:
                return None
            self.sweep.progress.started(slot.name, trial)
            record = self.sweep.run(slot, trial)
        if record is not None and trial.run in self.apart:
            record.extra[DUET] = {ALONE: NO_ROOM}
        return record

    # --- duets ---

    def is_duet(self, group: TrialGroup) -> bool:
        """Return whether the trials of the group run at the same time, in turn."""
        runs = [trial.run for trial in group.trials]
        if not self.sweep.settings.protocol.duet or len(runs) != 2:
            return False
        return self.apart.isdisjoint(runs) and all(allows_duet(run.cell) for run in runs)

    def run_duet(self, slot: Slot, group: TrialGroup) -> Records:
        """Run both trials of the group under the device's lock, the second one once the first one
        waits for it.

        A trial that lacks memory, or cannot use the device, while both are alive runs once more
        alone, and so do all further ones of the group.
        """
        first, second = group.trials
        with self.locked(slot) as is_held:
            if not is_held or self.sweep.stop.is_set():
                return {}
            with (
                tempfile.TemporaryDirectory(prefix="effbench-duet-") as folder,
                ThreadPoolExecutor(1) as helper,
            ):
                is_alike = first.run.cell.mode == second.run.cell.mode
                meeting = Meeting(Path(folder), self.sweep.settings.timeout_s, is_alike)
                following = helper.submit(self.run_member, slot, second, meeting, leads=False)
                leader = self.run_member(slot, first, meeting, leads=True)
                follower = following.result()
        if leader is None or follower is None:
            return {}
        records = {first: leader, second: follower}
        if not meeting.leader_waits or not any(map(may_lack_room, records.values())):
            return records
        self.apart.update(trial.run for trial in group.trials)
        for trial, record in list(records.items()):
            if may_lack_room(record):
                self.sweep.progress.retried(slot.name, trial, NO_ROOM)
                alone = self.run_locked(slot, trial)
                if alone is None:
                    return {}
                records[trial] = alone
        return records

    def run_member(
        self, slot: Slot, trial: PlannedTrial, meeting: Meeting, leads: bool
    ) -> Trial | None:
        """Run a trial of a duet, the second one once the first one waits for it, or alone once that
        has ended; return its record, None if the sweep was stopped. An exception stops the
        sweep."""
        stop = self.sweep.stop
        while not leads and not stop.is_set() and not meeting.can_follow.wait(POLL_S):
            pass
        if stop.is_set():
            return None
        self.sweep.progress.started(slot.name, trial)
        member = None
        if leads or meeting.takes_place:
            member = Member(meeting, leads)
        try:
            return self.sweep.run(slot, trial, member)
        except BaseException:  # the other member need not run to its end
            stop.set()
            raise
        finally:
            meeting.end(leads)
