"""Run the trials of a plan: one is timed at a time per GPU, all GPUs in parallel, each round in
random order."""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from effbench.cell import Status, Trial
from effbench.errors import WorkerError
from effbench.message import BEFORE_USER_CODE, TrialRequest
from effbench.printable import count
from effbench.stats.elimination import FAR, UNWATCHED_FAR, Race, race
from effbench.stats.intervals import PRIOR_SD, TUNED, TUNED_SD, enough
from effbench.store.summary import estimate
from effbench.store.trials import HostSpeeds
from effbench.sweeping.client import POLL_S, RETRY_PAUSES_S, Request
from effbench.sweeping.devices import Slot
from effbench.sweeping.duets import Meeting, Member, StoppingRule, allows_duet
from effbench.sweeping.interpreters import Interpreter
from effbench.sweeping.plan import CellRun, Group, PlannedTrial, Queue, Settings, is_of_duet
from effbench.sweeping.pool import Pools
from effbench.sweeping.progress import Progress
from effbench.sweeping.resume import compilation_of

#: Trials in a row without an undisturbed moment after which a sweep stops waiting for one.
UNQUIET_TRIALS = 3
#: How cuBLAS, cuDNN and their like report failures, also a lack of memory (as `INTERNAL_ERROR`, for
#: example).
LIBRARY_STATUS = re.compile(r"\bCU[A-Z]+_STATUS_")
NO_ROOM = (
    "the device does not hold both sides of the duet at once, so they run one after the other from"
    " now on"
)
#: Phases of a trial's wall time that are not overhead.
PHASES = ("build", "prepare", "check", "warmup", "timing", "profile", "artifacts")


@dataclass
class Schedule:
    """Runs trials on slots. `record`: stores a trial's record; if it raises, the sweep stops and
    run() raises the same exception. `artifacts`: returns which artifacts a trial saves. `history`:
    the recorded trials of each cell run. `host_speeds`: of trials under each interpreter.
    `duet_rule`: when the rounds of duets end; None: as all others."""

    pools: Pools
    slots: list[Slot]
    settings: Settings
    record: Callable[[PlannedTrial, Trial], None]
    progress: Progress
    artifacts: Callable[[PlannedTrial], dict[str, Any] | None] = lambda trial: None
    history: dict[CellRun, list[Trial]] = field(default_factory=dict)
    host_speeds: dict[Interpreter, HostSpeeds] = field(default_factory=dict)
    unquiet: int = 0  # trials in a row without an undisturbed moment
    waits: bool = True  # for undisturbed moments
    stop: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    # by all that they have in common
    rivals: dict[Any, list[CellRun]] = field(default_factory=dict)
    first_rounds: Sequence[int] = (0,)  # of each part of the sweep, see `compilation_of`
    duet_rule: StoppingRule | None = None
    apart: set[CellRun] = field(default_factory=set)  # those whose duets need too much memory

    def needed(self, trials: list[PlannedTrial]) -> list[PlannedTrial]:
        """Return the trials without those of runs that are already known well enough or
        eliminated."""
        self.rivals.clear()
        if self.settings.protocol["eliminate"]:
            for run in dict.fromkeys([*self.history, *(trial.run for trial in trials)]):
                self.rivals.setdefault((run.cell.comparison_key, run.interpreter), []).append(run)
        known = {
            run
            for run in {trial.run for trial in trials}
            if self.is_enough(run) or run in self.out(run)
        }
        return [trial for trial in trials if trial.run not in known]

    def run(self, trials: list[PlannedTrial]) -> None:
        """Run all trials. Once `stop` is set, kill the running ones without recording them, and
        return."""
        left = self.needed(trials)
        self.progress.resized(len(left) - len(trials))
        queue = Queue(
            left, self.history, {slot.gpu["uuid"]: slot.name for slot in self.slots if slot.gpu}
        )
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

    def work(self, slot: Slot, queue: Queue) -> None:
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

    def run_group(self, slot: Slot, queue: Queue, group: Group) -> None:
        """Run the trials of a round that belong together."""
        if self.is_duet(group):
            records = self.run_duet(slot, group)
            if records is not None:
                self.take_in(queue, group, list(zip(group.trials, records, strict=True)))
            return
        for trial in group.trials:
            record = None if self.stop.is_set() else self.run_locked(slot, trial)
            if record is None:
                return
            self.take_in(queue, group, [(trial, record)])

    def take_in(
        self, queue: Queue, group: Group, records: Sequence[tuple[PlannedTrial, Trial]]
    ) -> None:
        """Record trials of the group that have ended together, and drop trials that are no longer
        needed."""
        for trial, record in records:
            self.record(trial, record)
            self.speeds_of(trial.run.interpreter).add(record)
            self.note_host(trial, record)
            known = self.history.get(trial.run, [])  # only the last attempt of a round counts
            recent = replace(record, samples={})  # which take megabytes
            self.history[trial.run] = [
                *(other for other in known if other.round != record.round),
                recent,
            ]
        for trial, record in records:
            dropped = sum(map(queue.drop, self.out(trial.run)))
            # a cell that failed once cannot become ok again: the worst status counts
            if not record.status.is_measured:
                dropped += queue.drop(trial.run)
            elif self.is_enough(trial.run):
                dropped += sum(queue.drop(other.run) for other in group.trials)
            self.progress.resized(-dropped)
            self.progress.ended(trial, record)

    def is_duet(self, group: Group) -> bool:
        """Return whether the trials of the group run at the same time, in turn."""
        runs = [trial.run for trial in group.trials]
        is_wanted = self.settings.protocol.get("duet", True) and len(runs) == 2
        return (
            is_wanted and self.apart.isdisjoint(runs) and all(allows_duet(run.cell) for run in runs)
        )

    def run_duet(self, slot: Slot, group: Group) -> list[Trial] | None:
        """Run both trials of the group under the device's lock, the second one once the first one
        waits for it. Return their records; None if the sweep was stopped.

        A trial that lacks memory, or cannot use the device, while both are alive runs once more
        alone, and so do all further ones of the group.
        """
        first, second = group.trials
        with self.locked(slot) as is_held:
            if not is_held or self.stop.is_set():
                return None
            with (
                tempfile.TemporaryDirectory(prefix="effbench-duet-") as folder,
                ThreadPoolExecutor(1) as helper,
            ):
                is_alike = first.run.cell.mode == second.run.cell.mode
                meeting = Meeting(Path(folder), self.settings.timeout_s, is_alike)
                following = helper.submit(self.run_follower, slot, second, meeting)
                records = [self.run_member(slot, first, meeting, leads=True), following.result()]
        ended = [record for record in records if record is not None]
        if len(ended) < len(records):
            return None
        if not (meeting.leader_waits and any(map(may_lack_room, ended))):
            return ended
        self.apart.update(trial.run for trial in group.trials)
        for place, trial in enumerate(group.trials):
            if may_lack_room(ended[place]):
                self.progress.retried(slot.name, trial, NO_ROOM)
                again = self.run_locked(slot, trial)
                if again is None:
                    return None
                ended[place] = again
        return ended

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
            return self.run_retried(slot, trial, member)
        except BaseException:  # the other member need not run to its end
            self.stop.set()
            raise
        finally:
            meeting.end(leads)

    def baseline_of(self, run: CellRun) -> dict[str, Any] | None:
        """Return the mode that the run's speedup refers to, if a cell of this sweep has it; None
        for that cell."""
        cell, baseline_mode = run.cell, self.settings.baseline_mode
        if cell.mode_name == baseline_mode:
            return None
        for other in self.pools[run.interpreter].cells:
            if other.mode_name == baseline_mode and other.comparison_key == cell.comparison_key:
                return other.mode
        return None

    def speeds_of(self, interpreter: Interpreter) -> HostSpeeds:
        return self.host_speeds.setdefault(interpreter, HostSpeeds())

    def note_host(self, trial: PlannedTrial, record: Trial) -> None:
        """Stop waiting for undisturbed moments after some trials in a row without one, and say
        so."""
        if record.disturbed_fraction is None:
            return
        self.unquiet = self.unquiet + 1 if record.disturbed_fraction == 1.0 else 0
        if self.waits and self.unquiet >= UNQUIET_TRIALS:
            self.waits = False
            self.progress.note(busy_text(trial.run.cell.device))

    @property
    def compilations(self) -> int:
        return min(self.settings.protocol["compilations"], self.settings.protocol["rounds"])

    def is_enough(self, run: CellRun) -> bool:
        """Return whether the remaining rounds may be skipped: under all interpreters that can run
        the cell, because comparisons pair their rounds. Marked rounds say nothing about
        precision."""
        compared = [CellRun(cell, interpreter) for cell in run.cells for interpreter in self.pools]
        recorded = [self.history[other] for other in compared if self.history.get(other)]
        left = [trials for trials in recorded if all(trial.status.is_measured for trial in trials)]
        if self.duet_rule is not None and len(recorded) == 2:
            if len(left) < 2 and self.duet_rule.needs_both:
                return True
            if len(left) == 2 and all(is_of_duet(trial) for trials in left for trial in trials):
                return self.duet_rule.is_settled(*left, self.compilations)
        quiet = [
            {
                trial.round
                for trial in trials
                if trial.status is Status.OK and trial.disturbance is None
            }
            for trials in left
        ]
        return bool(left) and all(
            self.is_precise(trials, set.intersection(*quiet)) for trials in left
        )

    def is_precise(self, known: Sequence[Trial], rounds: set[int]) -> bool:
        """Return whether latency and period are precise enough in these rounds, over all
        compilations. A race compares rounds that all candidates have, so there it is what ends
        them."""
        target = (
            self.settings.protocol["enough_interval"]
            if self.settings.protocol["eliminate"] is None
            else None
        )
        if target is None or any(record.status is not Status.OK for record in known):
            return False
        good = [record for record in known if record.round in rounds]
        if (
            None not in (used := {record.compilation for record in good})
            and len(used) < self.compilations
        ):
            return False
        means = [mean for name in ("latency_ms", "period_ms") if (mean := estimate(good, name))]
        return bool(means) and all(enough(mean, len(good), target) for mean in means)

    def out(self, run: CellRun) -> set[CellRun]:
        """Return which of the runs that differ from this one in nothing but their mode need no
        further rounds: with `protocol.eliminate`, all that are eliminated or degraded; all of them
        once their race is over."""
        if self.settings.protocol["eliminate"] is None:
            return set()
        rivals = self.rivals[run.cell.comparison_key, run.interpreter]
        recorded = {rival: self.history.get(rival, []) for rival in rivals}
        state = race_of(recorded, self.settings.protocol)
        degraded = {
            one
            for one in rivals
            for record in self.history.get(one, ())
            if record.status is Status.DEGRADED
        }
        return set(rivals) if state.is_over else {*state.eliminated, *degraded}

    def run_locked(self, slot: Slot, trial: PlannedTrial) -> Trial | None:
        """Run the trial under the device's lock and return its record; None if the sweep was
        stopped."""
        with self.locked(slot) as is_held:
            if not is_held:
                return None
            self.progress.started(slot.name, trial)
            return self.run_retried(slot, trial)

    def locked(self, slot: Slot) -> AbstractContextManager[bool]:
        """Return the context that holds the device's lock; see `Slot.locked`."""
        timeout_s = self.settings.executor["lock_timeout_s"]
        return slot.locked(timeout_s, self.stop, lambda: self.progress.waiting(slot.name))

    def run_retried(
        self, slot: Slot, trial: PlannedTrial, member: Member | None = None
    ) -> Trial | None:
        """Run the trial and return its record; None if the sweep was stopped. Pause and retry if
        the harness failed.

        If the fork server died while user code ran, retry once from a separate server, as the trial
        may be the cause. Raises WorkerError or OSError if no fork server can be started; a cell
        with `env` is then `crashed`. `member`: its part in a duet, or None.
        """
        reasons: list[str] = []
        server_died = False
        for pause in (*RETRY_PAUSES_S, None):
            try:
                record, request = self.run_once(slot, trial, alone=server_died, member=member)
            except (WorkerError, OSError, ValueError) as error:
                if pause is None and not trial.run.cell.env:
                    raise
                reason = str(error)
                record = Trial(
                    trial.run.cell.key, trial.round, Status.CRASHED, reason, trial.attempt
                )
                if pause is None:  # the cell's variables may be why
                    break
            else:
                if record is None:
                    return None
                early = request.phase in BEFORE_USER_CODE or "failed" in request.outcome
                died = "died" in request.outcome
                if not (early or died) or record.status not in (
                    Status.ERROR,
                    Status.CRASHED,
                    Status.OOM,
                ):
                    break
                if pause is None or (server_died and not early):
                    record.reason = f"{record.reason}; tried {count(len(reasons), 'more time')}"
                    break
                server_died |= died
                reason = record.reason or record.status
            reasons.append(reason)
            self.progress.retried(slot.name, trial, reason)
            if self.stop.wait(pause):
                return None
        if reasons:
            record.extra["harness_retries"] = reasons
        return record

    def run_once(
        self, slot: Slot, trial: PlannedTrial, alone: bool, member: Member | None = None
    ) -> tuple[Trial | None, Request]:
        """Run the trial once (`alone`: from a separate fork server; `member`: its part in a duet).
        The record is None if the sweep was stopped."""
        cell, pool, gpu = trial.run.cell, self.pools[trial.run.interpreter], slot.gpu or {}
        # the same for all attempts and after resuming
        compilation = compilation_of(trial.round, self.compilations, self.first_rounds)
        cache = pool.cache_root / cell.key[:32] / str(compilation)
        is_cold = not any(
            record.compilation == compilation for record in self.history.get(trial.run, ())
        )
        if is_cold:
            # of a trial that was killed: this one measures a cold compilation
            shutil.rmtree(cache, ignore_errors=True)
        protocol = self.settings.protocol
        if not self.waits:
            protocol = {**protocol, "patience": 1.0}
        speeds = self.speeds_of(trial.run.interpreter)
        message = TrialRequest(
            cell=cell.params(),
            protocol=protocol,
            round=trial.round,
            attempt=trial.attempt,
            gpu_uuid=gpu.get("uuid"),
            cache_dir=str(cache),
            compilation=compilation,
            is_cold=is_cold,
            cores=list(slot.cores) if slot.cores else None,
            foreign_wait_s=self.settings.executor["foreign_wait_s"],
            host_ms=speeds.quiet_ms(),
            host_high_ms=speeds.high_ms(),
            baseline=self.baseline_of(trial.run),
            artifacts=self.artifacts(trial),
            duet=member.request() if member else None,
        )

        def on_phase(request: Request, phase: str) -> None:
            self.progress.phase(trial, phase)
            if member is not None:
                member.phase(request, phase)

        # the loader, Python and torch read variables when they start, so a cell with `env` needs a
        # fresh interpreter
        is_spawned = self.settings.isolation == "spawn" or bool(cell.env)
        with pool.server(
            trial.round, alone or is_spawned, preload=not is_spawned, env=cell.env
        ) as server:
            started_at, start = (
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                time.monotonic(),
            )
            env = {**slot.env, **cell.env}
            request = server.run(
                "trial", message.to_json(), self.settings.timeout_s, env, on_phase, self.stop
            )
            request.wait(False)  # it may have died while it waited for its partner
            wall_s = time.monotonic() - start - request.waited_s
        if request.stopped:
            return None, request
        record = record_of(request, trial)
        if message.artifacts and record.phase == "artifacts" and "artifacts" not in record.extra:
            # incomplete, and no row refers to it
            shutil.rmtree(message.artifacts["folder"], ignore_errors=True)
        record.started_at, record.wall_s = started_at, wall_s
        record.gpu_index, record.gpu_uuid = gpu.get("index"), gpu.get("uuid")
        if seconds := record.extra.get("phase_seconds"):
            record.overhead_s = record.wall_s - sum(seconds.get(name, 0.0) for name in PHASES)
        return record, request


def race_of(recorded: Mapping[Hashable, Sequence[Trial]], protocol: Mapping[str, Any]) -> Race:
    """Return the state of the race of these candidates, by the last attempts of their trials, in
    order. Those that did not run, or not as their name says, do not take part."""
    times: dict[Hashable, list[float | None]] = {}
    variation: dict[Hashable, float] = {}
    for name, trials in recorded.items():
        if any(
            not record.status.is_measured or record.status is Status.DEGRADED for record in trials
        ):
            continue
        marked = {record.round for record in trials if record.disturbance is not None}
        values = {record.round: getattr(record, protocol["eliminate"]) for record in trials}
        ended = next(number for number in range(len(values) + 1) if number not in values)
        times[name] = [None if number in marked else values[number] for number in range(ended)]
        is_tuned = any((record.kernel_fingerprint or "").endswith(TUNED) for record in trials)
        compiles = any(record.compile_s is not None for record in trials)
        used = len({record.compilation for record in trials}) or 1
        variation[name] = (TUNED_SD if is_tuned else PRIOR_SD if compiles else 0.0) / math.sqrt(
            used
        )
    is_watched = 0 < (protocol.get("host_tolerance") or 0) < 1
    far = FAR if is_watched else UNWATCHED_FAR
    return race(times, variation, len(recorded), protocol["rounds"], far)


def may_lack_memory(record: Trial) -> bool:
    """Return whether the trial may have failed because others used the memory of its GPU."""
    return record.status is Status.OOM or bool(
        record.status is Status.ERROR and LIBRARY_STATUS.search(record.reason or "")
    )


def may_lack_room(record: Trial) -> bool:
    """Return whether the trial may have failed because another one was alive: memory, or a GPU that
    serves only one process at a time."""
    is_early = record.phase in BEFORE_USER_CODE and not record.status.is_measured
    return is_early or may_lack_memory(record)


def busy_text(device: str) -> str:
    """Return why a sweep stops waiting for undisturbed moments, and what to do."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    remedies = "close other programs or use a quieter machine"
    if device == "cpu":
        remedies += "; threads=1 leaves cores to others"
    return (
        f"The host is busy: {UNQUIET_TRIALS} trials in a row had no undisturbed moment (load"
        f" {load:.1f} on {count(cores, 'core')}). The sweep no longer waits for one, and marks the"
        f" times with ~. To avoid this, {remedies}."
    )


def record_of(request: Request, trial: PlannedTrial) -> Trial:
    """Return the trial's record, or a record of how its process ended."""
    key = trial.run.cell.key
    if request.result is not None:
        try:
            record = Trial.from_json(request.result)
            if (record.cell_key, record.round, record.attempt) != (key, trial.round, trial.attempt):
                raise ValueError("it belongs to another trial")
            return record
        except ValueError as error:
            request.outcome["reason"] = f"its process sent an invalid trial record: {error}"
    status, reason = request.failure()
    log = {"log": request.outcome["log"]} if request.outcome.get("log") else {}
    pid = request.outcome.get("pid")
    return Trial(
        key, trial.round, status, reason, trial.attempt, phase=request.phase, pid=pid, extra=log
    )
