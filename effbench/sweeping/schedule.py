"""Run the trials of a plan: one is timed at a time per GPU, all GPUs in parallel, each round in
random order."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from effbench.cell import Trial
from effbench.store.trials import HostSpeeds
from effbench.sweeping.client import POLL_S
from effbench.sweeping.devices import Slot
from effbench.sweeping.duets import Meeting, Member, StoppingRule, allows_duet
from effbench.sweeping.host_watch import HostWatch
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, PlannedTrial, Settings
from effbench.sweeping.pool import Pools
from effbench.sweeping.progress import Progress
from effbench.sweeping.rounds import RoundsNeeded
from effbench.sweeping.trial_queue import Group, TrialQueue, groups_of
from effbench.sweeping.trial_runner import TrialRunner, may_lack_room

NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)


@dataclass(frozen=True)
class EndedTrial:
    """A trial and its record."""

    trial: PlannedTrial
    record: Trial


@dataclass
class Schedule:
    """Runs trials on slots. `record`: stores a trial's record; if it raises, the sweep stops and
    run() raises the same exception. `history`: the recorded trials of each cell run, to which this
    adds. `host_speeds`: of trials under each interpreter. `artifacts`: returns which artifacts a
    trial saves. `first_rounds`: of each part of the sweep. `duet_rule`: see RoundsNeeded. `apart`:
    runs whose duets need more memory than the device has."""

    pools: Pools
    slots: Sequence[Slot]
    settings: Settings
    record: Callable[[PlannedTrial, Trial], None]
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)
    history: dict[CellRun, list[Trial]] = field(default_factory=dict)
    host_speeds: dict[Interpreter, HostSpeeds] = field(default_factory=dict)
    artifacts: Callable[[PlannedTrial], dict[str, Any] | None] = lambda trial: None
    first_rounds: Sequence[int] = (0,)
    duet_rule: StoppingRule | None = None
    apart: set[CellRun] = field(default_factory=set)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.host = HostWatch(self.progress, self.host_speeds)
        self.rounds = RoundsNeeded(self.settings, self.history, list(self.pools), self.duet_rule)
        self.runner = TrialRunner(
            self.pools,
            self.settings,
            self.progress,
            self.stop,
            self.host,
            self.history,
            self.artifacts,
            self.first_rounds,
        )

    def needed(self, trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
        """Return the trials that are needed; see RoundsNeeded."""
        return self.rounds.needed(trials)

    def run(self, trials: Sequence[PlannedTrial]) -> None:
        """Run all trials. Once `stop` is set, kill the running ones without recording them, and
        return."""
        left = self.needed(trials)
        self.progress.resized(len(left) - len(trials))
        names = {slot.gpu["uuid"]: slot.name for slot in self.slots if slot.gpu}
        queue = TrialQueue(groups_of(left, self.history, names))
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
            self.stop.set()
            raise
        if self.error:
            raise self.error

    def work(self, slot: Slot, queue: TrialQueue) -> None:
        """Run trials of the queue on this slot until it is empty."""
        devices = {other.device for other in self.slots}
        try:
            while not self.stop.is_set() and not queue.is_empty():
                group = queue.take(slot.name, slot.device, devices)
                if group is None:  # the remaining groups are running, or need another device
                    self.stop.wait(POLL_S)
                    continue
                self.run_group(slot, queue, group)
                queue.finished(group)
        except BaseException as error:
            self.error = self.error or error
            self.stop.set()

    def run_group(self, slot: Slot, queue: TrialQueue, group: Group) -> None:
        """Run the trials of a round that belong together."""
        if self.is_duet(group):
            self.take_in(queue, group, self.run_duet(slot, group))
            return
        for trial in group.trials:
            record = None if self.stop.is_set() else self.run_locked(slot, trial)
            if record is None:
                return
            self.take_in(queue, group, [EndedTrial(trial, record)])

    def take_in(self, queue: TrialQueue, group: Group, ended: Sequence[EndedTrial]) -> None:
        """Record trials of the group that have ended together, and drop trials that are no longer
        needed."""
        for done in ended:
            trial, record = done.trial, done.record
            self.record(trial, record)
            self.host.add(trial, record)
            known = self.history.get(trial.run, [])  # only the last attempt of a round counts
            others = [other for other in known if other.round != record.round]
            recent = replace(record, samples={})  # which take megabytes
            self.history[trial.run] = [*others, recent]
        for done in ended:
            run = done.trial.run
            dropped = sum(map(queue.drop, self.rounds.eliminated(run)))
            # a cell that failed once cannot become ok again: the worst status counts
            if not done.record.status.is_measured:
                dropped += queue.drop(run)
            elif self.rounds.is_enough(run):
                dropped += sum(queue.drop(trial.run) for trial in group.trials)
            self.progress.resized(-dropped)
            self.progress.ended(done.trial, done.record)

    def locked(self, slot: Slot) -> AbstractContextManager[bool]:
        """Return the context that holds the device's lock; see `Slot.locked`."""
        timeout_s = self.settings.executor.lock_timeout_s
        return slot.locked(timeout_s, self.stop, lambda: self.progress.waiting(slot.name))

    def run_locked(self, slot: Slot, trial: PlannedTrial) -> Trial | None:
        """Run the trial under the device's lock and return its record; None if the sweep was
        stopped."""
        with self.locked(slot) as is_held:
            if not is_held:
                return None
            self.progress.started(slot.name, trial)
            return self.runner.run(slot, trial)

    # --- duets ---

    def is_duet(self, group: Group) -> bool:
        """Return whether the trials of the group run at the same time, in turn."""
        runs = [trial.run for trial in group.trials]
        if not self.settings.protocol.duet or len(runs) != 2:
            return False
        return self.apart.isdisjoint(runs) and all(allows_duet(run.cell) for run in runs)

    def run_duet(self, slot: Slot, group: Group) -> list[EndedTrial]:
        """Run both trials of the group under the device's lock, the second one once the first one
        waits for it. Return both; none if the sweep was stopped.

        A trial that lacks memory, or cannot use the device, while both are alive runs once more
        alone, and so do all further ones of the group.
        """
        first, second = group.trials
        with self.locked(slot) as is_held:
            if not is_held or self.stop.is_set():
                return []
            with (
                tempfile.TemporaryDirectory(prefix="effbench-duet-") as folder,
                ThreadPoolExecutor(1) as helper,
            ):
                is_alike = first.run.cell.mode == second.run.cell.mode
                meeting = Meeting(Path(folder), self.settings.timeout_s, is_alike)
                following = helper.submit(self.run_follower, slot, second, meeting)
                records = [self.run_member(slot, first, meeting, leads=True), following.result()]
        ended = [
            EndedTrial(trial, record)
            for trial, record in zip(group.trials, records, strict=True)
            if record is not None
        ]
        if len(ended) < len(records):
            return []
        if not meeting.leader_waits or not any(may_lack_room(done.record) for done in ended):
            return ended
        self.apart.update(trial.run for trial in group.trials)
        return self.repeat_alone(slot, ended)

    def repeat_alone(self, slot: Slot, ended: Sequence[EndedTrial]) -> list[EndedTrial]:
        """Run those members of a duet again that may have lacked memory; none if the sweep was
        stopped."""
        kept = []
        for done in ended:
            record: Trial | None = done.record
            if may_lack_room(done.record):
                self.progress.retried(slot.name, done.trial, NO_ROOM)
                record = self.run_locked(slot, done.trial)
            if record is None:
                return []
            kept.append(EndedTrial(done.trial, record))
        return kept

    def run_follower(self, slot: Slot, trial: PlannedTrial, meeting: Meeting) -> Trial | None:
        """Run the second trial of a duet once the first one waits for it, or alone once that has
        ended."""
        while not meeting.can_follow.wait(POLL_S):
            if self.stop.is_set():
                return None
        return None if self.stop.is_set() else self.run_member(slot, trial, meeting, leads=False)

    def run_member(
        self, slot: Slot, trial: PlannedTrial, meeting: Meeting, leads: bool
    ) -> Trial | None:
        """Run a trial of a duet and return its record; None if the sweep was stopped. An exception
        stops the sweep."""
        self.progress.started(slot.name, trial)
        member = Member(meeting, leads) if leads or meeting.takes_place else None
        try:
            return self.runner.run(slot, trial, member)
        except BaseException:  # the other member need not run to its end
            self.stop.set()
            raise
        finally:
            meeting.end(leads)
