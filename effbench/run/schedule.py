"""Run the trials of a plan: one is timed at a time per GPU, all GPUs in parallel, each round in
random order."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from effbench.core.cell import Trial
from effbench.core.meeting import ALONE, DUET
from effbench.run.devices import Slot
from effbench.run.duets import Meeting, Member, StoppingRule, allows_duet
from effbench.run.interrupts import POLL_S
from effbench.run.plan import CellRun, PlannedTrial
from effbench.run.rounds import RoundsNeeded
from effbench.run.running import RunningSweep
from effbench.run.trial_queue import TrialGroup, TrialQueue, groups_of
from effbench.run.trial_runner import TrialRunner, may_lack_room

NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)
#: The records of trials that ended together; empty if the sweep was stopped.
Records = Mapping[PlannedTrial, Trial]


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
        self.runner = TrialRunner(sweep)
        self.rounds = RoundsNeeded(sweep.settings, runs, sweep.history, duet_rule)
        #: Runs whose duets need more memory than the device has.
        self.apart: set[CellRun] = set()
        self.error: BaseException | None = None

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Run all trials. Once the sweep is stopped, kill the running ones without recording them,
        and return."""
        queue = TrialQueue(groups_of(trials, self.sweep.history, self.slots))
        threads = [
            threading.Thread(target=self.work, args=(slot, queue), name=f"effbench-{slot.name}")
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

    def work(self, slot: Slot, queue: TrialQueue) -> None:
        """Run trials of the queue on this slot until it is empty."""
        devices = {other.device for other in self.slots}
        stop = self.sweep.stop
        try:
            while not stop.is_set() and not queue.is_empty():
                group = queue.take(slot, devices)
                if group is None:  # the remaining groups are running, or need another device
                    stop.wait(POLL_S)
                    continue
                self.run_group(slot, queue, group)
                queue.finished(group)
        except BaseException as error:
            self.error = self.error or error
            stop.set()

    def run_group(self, slot: Slot, queue: TrialQueue, group: TrialGroup) -> None:
        """Run the trials of a round that belong together."""
        if self.is_duet(group):
            self.record(queue, group, self.run_duet(slot, group))
            return
        for trial in group.trials:
            if self.sweep.stop.is_set():
                return
            record = self.run_locked(slot, trial)
            if record is None:
                return
            self.record(queue, group, {trial: record})

    def record(self, queue: TrialQueue, group: TrialGroup, records: Records) -> None:
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
                queue.drop(run)
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
            record = self.runner.run(slot, trial)
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
                following = helper.submit(self.run_follower, slot, second, meeting)
                leader = self.run_member(slot, first, meeting, leads=True)
                follower = following.result()
        if leader is None or follower is None:
            return {}
        records = {first: leader, second: follower}
        if not meeting.leader_waits or not any(map(may_lack_room, records.values())):
            return records
        self.apart.update(trial.run for trial in group.trials)
        return self.repeat_alone(slot, records)

    def repeat_alone(self, slot: Slot, records: Records) -> Records:
        """Run those members of a duet again that may have lacked memory."""
        repeated = {}
        for trial, record in records.items():
            last: Trial | None = record
            if may_lack_room(record):
                self.sweep.progress.retried(slot.name, trial, NO_ROOM)
                last = self.run_locked(slot, trial)
            if last is None:
                return {}
            repeated[trial] = last
        return repeated

    def run_follower(self, slot: Slot, trial: PlannedTrial, meeting: Meeting) -> Trial | None:
        """Run the second trial of a duet once the first one waits for it, or alone once that has
        ended."""
        while not meeting.can_follow.wait(POLL_S):
            if self.sweep.stop.is_set():
                return None
        if self.sweep.stop.is_set():
            return None
        return self.run_member(slot, trial, meeting, leads=False)

    def run_member(
        self, slot: Slot, trial: PlannedTrial, meeting: Meeting, leads: bool
    ) -> Trial | None:
        """Run a trial of a duet and return its record; None if the sweep was stopped. An exception
        stops the sweep."""
        self.sweep.progress.started(slot.name, trial)
        member = None
        if leads or meeting.takes_place:
            member = Member(meeting, leads)
        try:
            return self.runner.run(slot, trial, member)
        except BaseException:  # the other member need not run to its end
            self.sweep.stop.set()
            raise
        finally:
            meeting.end(leads)
