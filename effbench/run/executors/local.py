"""Run the trials of a sweep on the GPUs and the CPU of this machine (`executor=local`): one is
timed at a time per device, all devices in parallel.

A thread per slot takes groups of trials from one queue; the last one of the slots that a trial on
several GPUs needs runs it for all. The two trials of a duet run at the same time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from effbench.core.cell import COLDSTART, NO_CACHE, Status, Trial
from effbench.core.errors import WorkerError
from effbench.core.meeting import ALONE, DUET
from effbench.core.message import BEFORE_USER_CODE, DuetRequest, TrialRequest
from effbench.core.printable import count
from effbench.run.client import ForkServer, ServerRequest, attempts
from effbench.run.compile_caches import sweep_cache
from effbench.run.devices import (
    Slot,
    held_driver,
    joined_slot,
    lacking_devices,
    slots_of,
    wait_for_device,
)
from effbench.run.duets import Meeting, allows_duet
from effbench.run.executors.base import TrialExecutor
from effbench.run.executors.job_files import JobStore
from effbench.run.interpreters import Interpreter
from effbench.run.interrupts import POLL_S, StoppedError
from effbench.run.plan import CellRun, cells_of
from effbench.run.pool import ServerPool, environment_ids, gpus_of
from effbench.run.probe import to_preload
from effbench.run.ranks import RankProcesses
from effbench.run.resume import recorded_trials
from effbench.run.schedule import RoundsNeeded, TrialGroup, TrialQueue
from effbench.store.store import Store

#: Phases of a trial's wall time that are not overhead. All others are, among them the pairs and
#: waiting for a foreign program on the GPU.
PHASES = ("build", "split", "fill", "prepare", "check", "warmup", "timing", "profile")
#: How a trial ends if the harness failed.
FAILURES = (Status.ERROR, Status.CRASHED, Status.OOM)
#: Trials in a row without an undisturbed moment after which a sweep stops waiting for one.
UNQUIET_TRIALS = 3
#: Part of a trial's timeout after which a partner that does not answer counts as lost.
ANSWER_PART = 0.25
NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)


@dataclass(frozen=True)
class TrialAttempt:
    """How an attempt at running a trial ended. `is_early`: before any code of the user ran;
    `server_died`: the fork server ended meanwhile."""

    record: Trial
    is_early: bool
    server_died: bool = False

    @property
    def is_failure_of_harness(self) -> bool:
        return self.record.status in FAILURES and (self.is_early or self.server_died)


@dataclass(frozen=True)
class CompileCache:
    """The compile cache of a trial. `number`: of the compilation that fills it; `is_empty`: whether
    this trial fills it."""

    folder: Path
    number: int
    is_empty: bool


@dataclass
class LocalExecutor(TrialExecutor):
    """Runs trials in child processes of fork servers. If a trial cannot be recorded, the sweep
    stops and `run` raises the same exception. If it is stopped, trials that run are killed without
    being recorded.

    `rounds`: the recorded trials, and which rounds are needed. `speeds`: of the host in the trials
    of each environment. `apart`: runs whose duets need more memory than the device has. `unquiet`:
    trials in a row without an undisturbed moment, for which they wait unless the host `is_busy`.
    """

    store: Store | JobStore

    def __post_init__(self) -> None:
        self.apart: set[CellRun] = set()
        self.unquiet = 0
        self.is_busy = False
        self.slots = slots_of(gpus_of(self.servers), cells_of(self.runs))
        self.environment_ids = environment_ids(self.servers)
        self.environments = {key: interpreter for interpreter, key in self.environment_ids.items()}
        self.caches = sweep_cache(self.settings, self.sweep_id)
        self.speeds = {key: self.store.host_speeds(key) for key in self.environments}
        self.rounds = RoundsNeeded(
            self.settings,
            self.runs,
            recorded_trials(self.store, self.sweep_id, self.environment_ids, self.runs),
            self.plan.duet_rule,
        )

    def run(self) -> None:
        groups = self.rounds.groups()
        names = [slot.name for slot in self.slots]
        with self.progress.showing(self.sweep_id, self.settings, self.runs, groups, names):
            self.run_groups(groups)

    def run_groups(self, groups: Sequence[TrialGroup]) -> None:
        """Run and record these trials."""
        last_round = 0
        if self.settings.executor.renew_server and any(slot.is_gpu for slot in self.slots):
            last_round = self.settings.protocol.rounds - 1
        self.queue = TrialQueue(groups, self.slots)
        self.pools: dict[Interpreter, ServerPool] = {}
        with (
            ExitStack() as opened,
            held_driver(self.slots),
            ThreadPoolExecutor(len(self.slots)) as threads,
        ):
            for interpreter, first in self.servers.items():
                cells = [run.cell for run in self.runs if run.interpreter == interpreter]
                pool = ServerPool(
                    interpreter,
                    first.server,
                    self.stop,
                    to_preload(cells, first.machine),
                    last_round,
                    first.is_lent,
                )
                self.pools[interpreter] = opened.enter_context(closing(pool))
            try:
                workers = [threads.submit(self.work, slot) for slot in self.slots]
                # in short steps, because signal handlers run only between them
                while wait(workers, POLL_S).not_done:
                    pass
            # such as too many threads: those that run must not start servers of their own
            except BaseException:
                self.stop.set()
                raise
        for worker in workers:
            worker.result()

    def work(self, slot: Slot) -> None:
        """Run trials of the queue on this slot until it is empty. An exception stops the sweep."""
        try:
            while not self.stop.is_set() and not self.queue.is_empty():
                placement = self.queue.take(slot)
                if placement is None:  # the remaining ones are running, or need other devices
                    self.stop.wait(POLL_S)
                    continue
                self.run_group(placement.slots, placement.group)
                self.queue.finished(placement.group)
        except StoppedError:
            pass
        except BaseException:
            self.stop.set()
            raise

    def run_group(self, slots: Sequence[Slot], group: TrialGroup) -> None:
        """Run and record the trials of the group that are still needed. Raises StoppedError."""
        runs = [run for run in group.runs if not self.rounds.is_over(run)]
        if self.is_duet(runs):
            records = self.run_duet(slots[0], runs, group.round)
            if records is not None:
                self.record(records, runs)
                return
        for run in runs:
            record = self.run_alone(slots, run, group.round)
            if run in self.apart:
                record.extra[DUET] = {ALONE: NO_ROOM}
            self.record({run: record}, runs)

    def run_alone(self, slots: Sequence[Slot], run: CellRun, round: int) -> Trial:
        """Run a trial on the slots that it needs, under their locks, and return its record. Raises
        StoppedError."""
        lack = lacking_devices(run.cell, self.slots)
        if lack is not None:
            self.progress.started(slots[0].name, run, round)
            return Trial(run.cell.key, round, Status.UNSUPPORTED, lack)
        slot = joined_slot(run.cell, slots)
        with self.locked(slot):
            return self.run_trial(slot, run, self.request_of(slot, run, round))

    @contextmanager
    def locked(self, slot: Slot) -> Iterator[None]:
        """Hold the locks of the slot's devices in this context, and show if it must wait; see
        `wait_for_device`."""
        timeout_s = self.settings.executor.lock_timeout_s
        with ExitStack() as locks:
            for device in slot.devices:
                lock = wait_for_device(device, self.stop, timeout_s, self.progress.waiting)
                locks.enter_context(lock)
            yield

    # --- duets ---

    def is_duet(self, runs: Sequence[CellRun]) -> bool:
        """Return whether the trials of a group run at the same time, in turn."""
        if not self.settings.protocol.duet or len(runs) != 2:
            return False
        return self.apart.isdisjoint(runs) and all(allows_duet(run.cell) for run in runs)

    def run_duet(
        self, slot: Slot, runs: Sequence[CellRun], round: int
    ) -> Mapping[CellRun, Trial] | None:
        """Run both trials of a group under the device's lock, the second one once the first one
        waits for it, and return their records. Raises StoppedError.

        Return None if a trial lacked memory, or could not use the device, while both were alive:
        then all trials of these cells run alone.
        """
        first, second = runs
        with (
            self.locked(slot),
            tempfile.TemporaryDirectory(prefix="effbench-duet-") as folder,
            ThreadPoolExecutor(1) as helper,
        ):
            meeting = Meeting(Path(folder))
            following = helper.submit(
                self.run_member,
                slot,
                second,
                round,
                meeting,
                leads=False,
            )
            leader = self.run_member(
                slot,
                first,
                round,
                meeting,
                leads=True,
            )
            records = {first: leader, second: following.result()}
        if meeting.leader_waits and any(map(may_lack_room, records.values())):
            self.apart.update(runs)
            self.progress.retried(slot.name, first, NO_ROOM)
            return None
        return records

    def run_member(
        self,
        slot: Slot,
        run: CellRun,
        round: int,
        meeting: Meeting,
        leads: bool,
    ) -> Trial:
        """Run a trial of a duet, the second one once the first one waits for it, or alone once that
        has ended; return its record. An exception stops the sweep, because the other member need
        not run to its end. Raises StoppedError."""
        while not leads and not self.stop.is_set() and not meeting.can_follow.wait(POLL_S):
            pass
        try:
            request = self.request_of(slot, run, round)
            if leads or meeting.takes_place:
                answer_s = ANSWER_PART * self.settings.timeout_s
                request.duet = DuetRequest(str(meeting.folder), leads, answer_s)
            if leads:
                return self.run_trial(slot, run, request, meeting)
            return self.run_trial(slot, run, request)
        except BaseException:
            self.stop.set()
            raise
        finally:
            meeting.end(leads)

    # --- one trial ---

    def run_trial(
        self,
        slot: Slot,
        run: CellRun,
        request: TrialRequest,
        meeting: Meeting | None = None,
    ) -> Trial:
        """Run the trial and return its record. Pause and retry if the harness failed.

        If the fork server died while user code ran, retry once from a separate server, as the trial
        may be the cause. `meeting`: of the duet that it leads. Raises StoppedError, and WorkerError
        or OSError if no fork server can be started; a cell with `env` is then `crashed`.
        """
        if self.stop.is_set():
            raise StoppedError
        self.progress.started(slot.name, run, request.round)
        reasons: list[str] = []
        is_alone = False
        for is_last in attempts(self.stop):
            try:
                attempt = self.attempt(
                    slot,
                    run,
                    request,
                    meeting,
                    is_alone,
                )
            except (WorkerError, OSError) as error:
                if is_last and not run.cell.env:
                    raise
                record = Trial(run.cell.key, request.round, Status.CRASHED, str(error))
                attempt = TrialAttempt(record, is_early=True)
            record = attempt.record
            if not attempt.is_failure_of_harness:
                break
            if is_last or (is_alone and not attempt.is_early):
                record.reason = f"{record.reason}; tried {count(len(reasons), 'more time')}"
                break
            reasons.append(str(record.reason))
            is_alone |= attempt.server_died
            self.progress.retried(slot.name, run, reasons[-1])
        if reasons:
            record.extra["harness_retries"] = reasons
        return record

    def attempt(
        self,
        slot: Slot,
        run: CellRun,
        request: TrialRequest,
        meeting: Meeting | None,
        is_alone: bool,
    ) -> TrialAttempt:
        """Run the trial once (`is_alone`: from a separate fork server). Raises StoppedError, and
        WorkerError or OSError if no fork server can be started."""
        if request.is_cold and request.cache_dir:
            # of a trial that was killed: this one measures a cold compilation
            shutil.rmtree(request.cache_dir, ignore_errors=True)
        with self.server_of(run, request.round, is_alone) as server:
            started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            start = time.monotonic()
            if slot.ranks:
                task = self.run_ranks(server, slot, run, request)
            else:
                task = self.run_process(
                    server,
                    slot,
                    run,
                    request,
                    meeting,
                )
            wall_s = time.monotonic() - start - task.waited_s
        if task.stopped:
            raise StoppedError
        record = task.record(run.cell.key, request.round)
        record.started_at = started_at
        record.wall_s = wall_s
        record.gpu_index = slot.index
        record.gpu_uuid = slot.uuid
        seconds = record.extra.get("phase_seconds")
        if seconds:
            record.overhead_s = wall_s - sum(seconds.get(name, 0.0) for name in PHASES)
        return TrialAttempt(record, task.is_early, server_died=bool(task.outcome.died))

    def run_process(
        self,
        server: ForkServer,
        slot: Slot,
        run: CellRun,
        request: TrialRequest,
        meeting: Meeting | None,
    ) -> ServerRequest:
        """Run the trial in one process, and return its task."""
        name = COLDSTART if run.cell.phase == COLDSTART else "trial"
        task = server.submit(name, request.to_json(), {**slot.env, **run.cell.env})
        for phase in server.phases(task, self.settings.timeout_s, self.stop):
            self.progress.phase(run, phase)
            if meeting is not None:
                meeting.begins(phase)
        return task

    def run_ranks(
        self,
        server: ForkServer,
        slot: Slot,
        run: CellRun,
        request: TrialRequest,
    ) -> ServerRequest:
        """Run the trial in a process for each rank, and return the task that decides its record."""
        timeout_s = self.settings.timeout_s
        with tempfile.TemporaryDirectory(
            prefix="effbench-ranks-", ignore_cleanup_errors=True
        ) as folder:
            ranks = RankProcesses.start(
                server,
                request,
                slot,
                run.cell.env,
                folder,
            )
            for phase in ranks.phases(timeout_s, self.stop):
                self.progress.phase(run, phase)
        return ranks.decisive()

    def server_of(
        self, run: CellRun, round: int, is_alone: bool
    ) -> AbstractContextManager[ForkServer]:
        """Return the context of the trial's fork server."""
        # the loader, Python and torch read variables when they start, so a cell with `env` needs a
        # fresh interpreter
        env = run.cell.env
        is_spawned = self.settings.isolation == "spawn" or bool(env)
        pool = self.pools[run.interpreter]
        if is_alone or is_spawned:
            return pool.separate(preload=not is_spawned, env=env)
        return pool.shared(round)

    def request_of(self, slot: Slot, run: CellRun, round: int) -> TrialRequest:
        """Return what the process of a trial is asked for, without a partner."""
        protocol = dict(vars(self.settings.protocol))
        if self.is_busy:
            protocol["patience"] = 1.0
        environment_id = self.environment_ids[run.interpreter]
        cache = self.cache_of(run, round)
        other = slot.other.visible if slot.other is not None else None
        speeds = self.speeds[environment_id]
        return TrialRequest(
            cell=run.cell.params(),
            protocol=protocol,
            round=round,
            gpu_uuid=slot.uuid,
            cache_dir=str(cache.folder),
            compilation=cache.number,
            is_cold=cache.is_empty,
            cores=slot.cores,
            foreign_wait_s=self.settings.executor.foreign_wait_s,
            host_ms=speeds.quiet_ms(),
            host_high_ms=speeds.high_ms(),
            baseline=self.baseline_of(run),
            other_gpu=other,
        )

    def cache_of(self, run: CellRun, round: int) -> CompileCache:
        """Return the compile cache of a trial. All cells of a cold start that can use the same
        cache have one folder, which their processes fill and keep."""
        cell = run.cell
        caches = self.caches / self.environment_ids[run.interpreter] / cell.cold_key[:32]
        if cell.phase == COLDSTART:
            compiles_anew = cell.cache == NO_CACHE
            return CompileCache(caches, round if compiles_anew else 0, is_empty=False)
        used = {record.compilation for record in self.rounds.history[run]}
        number = self.compilation_of(used, round, caches)
        return CompileCache(caches / str(number), number, number not in used)

    def compilation_of(self, used: Set[int | None], round: int, caches: Path) -> int:
        """Return the number of the compile cache that the trial uses: rounds use them in turn.
        `used`: those of the recorded trials of its run.

        A cache that is gone, such as those of a completed sweep that gets more rounds, is followed
        by one with another number, because another compilation fills it.
        """
        number = round % self.settings.compilations
        while number in used and not (caches / str(number)).exists():
            number += self.settings.compilations
        return number

    def baseline_of(self, run: CellRun) -> dict[str, Any] | None:
        """Return the mode that the run's speedup refers to, if a cell of this sweep has it; None
        for that cell, and for cold starts, which have no pairs."""
        cell, baseline_mode = run.cell, self.settings.baseline_mode
        if cell.mode_name == baseline_mode or cell.phase == COLDSTART:
            return None
        comparable = [other.cell for other in self.runs if other.interpreter == run.interpreter]
        for other in comparable:
            if other.mode_name == baseline_mode and other.comparison_key == cell.comparison_key:
                return other.mode
        return None

    # --- records ---

    def record(self, records: Mapping[CellRun, Trial], runs: Sequence[CellRun]) -> None:
        """Store trials that have ended, and tell which of the group's `runs` need no more. Raises
        StoreError."""
        for run, record in records.items():
            environment_id = self.environment_ids[run.interpreter]
            self.store.add_trial(self.sweep_id, environment_id, record)
            self.speeds[environment_id].add(record)
            self.note_disturbance(run, record)
            # samples and traces take megabytes
            self.rounds.add(run, replace(record, samples={}, trace=None))
        over = set(filter(self.rounds.is_over, runs))
        self.queue.drop(over)
        for run in over:
            self.progress.dropped(run)
        for run, record in records.items():
            self.progress.ended(run, record)

    def note_disturbance(self, run: CellRun, record: Trial) -> None:
        """After some trials in a row without an undisturbed moment, stop waiting for one, and note
        why and what to do."""
        if record.disturbed_fraction is None or self.is_busy:
            return
        self.unquiet += 1
        if record.disturbed_fraction < 1.0:
            self.unquiet = 0
        if self.unquiet < UNQUIET_TRIALS:
            return
        self.is_busy = True
        load, _, _ = os.getloadavg()
        cores = len(os.sched_getaffinity(0))
        remedies = "close other programs or use a quieter machine"
        if run.cell.device == "cpu":
            remedies += "; threads=1 leaves cores to others"
        self.progress.note(
            f"The host is busy: {UNQUIET_TRIALS} trials in a row had no undisturbed moment (load"
            f" {load:.1f} on {count(cores, 'core')}). The sweep no longer waits for one, and marks"
            f" the times with ~. To avoid this, {remedies}."
        )


def may_lack_room(record: Trial) -> bool:
    """Return whether the trial may have failed because another one was alive: memory, or a GPU that
    serves only one process at a time."""
    if record.phase in BEFORE_USER_CODE:
        return not record.status.is_measured
    return record.status is Status.OOM or record.has_library_status
