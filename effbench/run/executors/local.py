"""Run the trials of a sweep on the GPUs and the CPU of this machine (`executor=local`): one is
timed at a time per device, all devices in parallel.

A thread per slot takes groups of trials from one queue. The two trials of a duet run at the same
time.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from effbench.core.cell import Trial
from effbench.core.meeting import ALONE, DUET
from effbench.run.compile_caches import make_cache_folders, sweep_cache
from effbench.run.devices import Slot, held_driver, slots_of
from effbench.run.duets import Meeting, Member, allows_duet
from effbench.run.executors.base import TrialExecutor
from effbench.run.interrupts import POLL_S
from effbench.run.plan import CellRun, PlannedTrial, Settings, cells_of, trials_left
from effbench.run.pool import gpus_of, measure_ceilings
from effbench.run.record import TrialStore, recorded_trials
from effbench.run.running import RunningSweep, may_lack_room
from effbench.run.schedule import RoundsNeeded, TrialGroup, TrialQueue, groups_of

NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)
#: The records of trials that ended together; empty if the sweep was stopped.
Records = Mapping[PlannedTrial, Trial]


@dataclass
class LocalExecutor(TrialExecutor):
    """Runs trials in child processes of the pools' fork servers. If a trial cannot be recorded, the
    sweep stops and `run` raises the same exception.

    `apart`: runs whose duets need more memory than the device has.
    """

    store: TrialStore
    slots: Sequence[Slot] = field(default=(), init=False)
    sweep: RunningSweep = field(init=False)
    rounds: RoundsNeeded = field(init=False)
    queue: TrialQueue = field(init=False)
    apart: set[CellRun] = field(default_factory=set, init=False)
    error: BaseException | None = field(default=None, init=False)

    @staticmethod
    def check(settings: Settings) -> None:
        make_cache_folders(settings)

    def prepare(self, runs: Sequence[CellRun]) -> None:
        self.runs = runs
        for note in dict.fromkeys(chain(*(pool.machine.notes for pool in self.pools.values()))):
            self.progress.note(f"note: {note}")
        self.slots = slots_of(gpus_of(self.pools), cells_of(runs), self.settings.executor)
        self.slot_names = [slot.name for slot in self.slots]
        last_round = 0
        if self.settings.executor.renew_server and any(slot.is_gpu for slot in self.slots):
            last_round = self.settings.protocol.rounds - 1
        for interpreter, pool in self.pools.items():
            pool.cells = [run.cell for run in runs if run.interpreter == interpreter]
            pool.last_round = last_round

            self.store.add_environment(pool.machine.environment, pool.machine.details)
            self.environments[pool.environment_id] = interpreter

    def open(self, sweep_id: str) -> list[PlannedTrial]:
        ids = {interpreter: key for key, interpreter in self.environments.items()}
        history = recorded_trials(self.store, sweep_id, self.runs, ids)
        self.sweep = RunningSweep(
            sweep_id=sweep_id,
            settings=self.settings,
            pools=self.pools,
            progress=self.progress,
            stop=self.stop,
            store=self.store,
            caches=sweep_cache(self.settings, sweep_id),
            first_rounds=self.store.first_rounds(sweep_id),
            history=history,
            speeds={key: self.store.host_speeds(key) for key in self.environments},
        )
        self.rounds = RoundsNeeded(self.settings, self.runs, history, self.duet_rule)
        return self.rounds.needed(trials_left(self.runs, self.settings, history))

    def run_trials(self, trials: Sequence[PlannedTrial]) -> None:
        gpus = [slot for slot in self.slots if slot.is_gpu]
        with held_driver(self.slots):
            if gpus and self.settings.protocol.profile:
                self.load_ceilings(gpus[0])
            self.run_on_slots(trials)

    def load_ceilings(self, gpu: Slot) -> None:
        """Load the ceilings of each environment; measure unknown ones on this GPU. A failure is
        noted."""
        timeout_s = self.settings.executor.lock_timeout_s
        for environment_id, interpreter in self.environments.items():
            known = self.store.ceilings(environment_id)
            if known is None:
                server = self.pools[interpreter].current
                why = measure_ceilings(
                    server, self.store, environment_id, gpu, timeout_s, self.stop
                )
                if why and not self.stop.is_set():
                    self.progress.note(
                        f"could not measure this GPU's ceilings: {why}; these results have no"
                        " roofline"
                    )
                known = self.store.ceilings(environment_id)
            if known is not None:
                self.sweep.ceilings[environment_id] = known

    def run_on_slots(self, trials: Sequence[PlannedTrial]) -> None:
        """Run all trials. Once the sweep is stopped, kill the running ones without recording them,
        and return."""
        self.queue = TrialQueue(groups_of(trials), {slot.device for slot in self.slots})
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
            self.stop.set()
            raise
        if self.error:
            raise self.error

    def work(self, slot: Slot) -> None:
        """Run trials of the queue on this slot until it is empty."""
        try:
            while not self.stop.is_set() and not self.queue.is_empty():
                group = self.queue.take(slot.device)
                if group is None:  # the remaining groups are running, or need another device
                    self.stop.wait(POLL_S)
                    continue
                self.run_group(slot, group)
                self.queue.finished(group)
        except BaseException as error:
            self.error = self.error or error
            self.stop.set()

    def run_group(self, slot: Slot, group: TrialGroup) -> None:
        """Run and record the trials of a round that belong together."""
        if self.is_duet(group):
            self.record(self.run_duet(slot, group), group)
            return
        for trial in group.trials:
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
                self.progress.dropped(run)
            self.progress.ended(trial, record)

    def locked(self, slot: Slot) -> AbstractContextManager[bool]:
        """Return the context that holds the device's lock; see `Slot.locked`."""
        timeout_s = self.settings.executor.lock_timeout_s
        return slot.locked(self.stop, timeout_s, lambda: self.progress.waiting(slot.name))

    def run_locked(self, slot: Slot, trial: PlannedTrial) -> Trial | None:
        """Run the trial under the device's lock and return its record; None if the sweep was
        stopped."""
        with self.locked(slot) as is_held:
            if not is_held or self.stop.is_set():
                return None
            self.progress.started(slot.name, trial)
            record = self.sweep.run_trial(slot, trial)
        if record is not None and trial.run in self.apart:
            record.extra[DUET] = {ALONE: NO_ROOM}
        return record

    # --- duets ---

    def is_duet(self, group: TrialGroup) -> bool:
        """Return whether the trials of the group run at the same time, in turn."""
        runs = [trial.run for trial in group.trials]
        if not self.settings.protocol.duet or len(runs) != 2:
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
            if not is_held:
                return {}
            with (
                tempfile.TemporaryDirectory(prefix="effbench-duet-") as folder,
                ThreadPoolExecutor(1) as helper,
            ):
                is_alike = first.run.cell.mode == second.run.cell.mode
                meeting = Meeting(Path(folder), self.settings.timeout_s, is_alike)
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
                self.progress.retried(slot.name, trial, NO_ROOM)
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
        while not leads and not self.stop.is_set() and not meeting.can_follow.wait(POLL_S):
            pass
        if self.stop.is_set():
            return None
        self.progress.started(slot.name, trial)
        member = None
        if leads or meeting.takes_place:
            member = Member(meeting, leads)
        try:
            return self.sweep.run_trial(slot, trial, member)
        except BaseException:  # the other member need not run to its end
            self.stop.set()
            raise
        finally:
            meeting.end(leads)
