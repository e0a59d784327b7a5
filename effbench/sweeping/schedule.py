"""Runs the trials of a plan: one at a time on a GPU, all GPUs in parallel, rounds in random order."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from effbench.cell import Status, Trial
from effbench.errors import WorkerError
from effbench.message import BEFORE_USER_CODE, TrialRequest
from effbench.stats.intervals import enough
from effbench.sweeping import locks
from effbench.sweeping.interpreters import Interpreter, UnitKey
from effbench.sweeping.jobs import Job, Queue
from effbench.sweeping.servers import Servers
from effbench.sweeping.workers import RETRY_PAUSES_S, ForkServer, Task

POLL_S = 0.2
PARTS = (
    "build",
    "prepare",
    "check",
    "warmup",
    "timing",
    "profile",
    "artifacts",
)  # what of a trial's wall time is not overhead


@dataclass(frozen=True)
class Slot:
    """A place where one trial at a time may run: a GPU, or the CPU."""

    name: str
    device: str
    gpu: dict[str, Any] | None = None
    cores: tuple[int, ...] | None = None

    @property
    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.gpu["visible"] if self.gpu else ""}

    @property
    def lock_path(self) -> Path:
        """One lock file a device and machine, whoever the user. Raises WorkerError if its folder is not safe."""
        return locks.folder() / f"{self.gpu['uuid'] if self.gpu else 'cpu'}.lock"


class Observer(Protocol):
    """Who wants to know how the sweep goes. Called from several threads."""

    def started(self, slot: Slot, job: Job) -> None: ...
    def phase(self, slot: Slot, phase: str) -> None: ...
    def waiting(self, slot: Slot, job: Job) -> None: ...
    def retried(self, slot: Slot, job: Job, reason: str) -> None: ...
    def ended(self, slot: Slot, job: Job, trial: Trial) -> None: ...
    def added(self, job: Job) -> None: ...
    def dropped(self, jobs: Collection[Job]) -> None: ...


@dataclass
class Place:
    """What the trials of one interpreter share. `cache_root`: of their compile caches, no other interpreter's."""

    servers: Servers
    cache_root: Path
    ceilings: dict[str, Any] | None = None


@dataclass
class Schedule:
    """One run over a queue. `record` stores the trial of a job; an exception from it stops the sweep and is raised by
    run()."""

    places: Mapping[Interpreter, Place]
    slots: list[Slot]
    protocol: dict[str, Any]
    timeout_s: float
    isolation: str
    lock_timeout_s: float
    record: Callable[[Job, Trial], None]
    observer: Observer
    foreign_wait_s: float = 0.0
    artifacts: Callable[[Job], dict[str, Any] | None] = lambda job: None
    history: dict[UnitKey, list[Trial]] = field(default_factory=dict)  # what is recorded of each cell and interpreter
    stop: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    history_lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, jobs: list[Job]) -> None:
        """Run all jobs. Returns early, with the trials in flight ended and not recorded, once `stop` is set."""
        known = {key for key in self.history if self.is_enough(key)}
        if spared := [job for job in jobs if job.key in known]:
            self.observer.dropped(spared)
        slots = {slot.gpu["uuid"]: slot.name for slot in self.slots if slot.gpu}
        queue = Queue([job for job in jobs if job.key not in known], dict(self.history), slots)
        threads = [
            threading.Thread(target=self.work, args=(slot, queue), name=f"effbench-{slot.name}") for slot in self.slots
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # in short steps: a signal handler only runs between them
                thread.join(POLL_S)
        for place in self.places.values():
            place.servers.close()
        if self.error:
            raise self.error

    def work(self, slot: Slot, queue: Queue) -> None:
        devices = {other.device for other in self.slots}
        try:
            while not self.stop.is_set() and not queue.is_empty():
                job = queue.take(slot.name, slot.device, devices)
                if job is None:  # what is left runs elsewhere, or is for another device
                    self.stop.wait(POLL_S)
                    continue
                trial = self.run_locked(slot, job)
                if trial is None:
                    return
                self.record(job, trial)
                if trial.status is Status.NOISY and job.attempt + 1 < self.protocol["attempts"]:
                    for another in queue.again(job, self.protocol["attempts"]):
                        self.observer.added(another)
                # a cell that failed once cannot become ok again: the worst status counts
                self.remember(job, trial)
                spare_rest = not trial.status.is_measured or self.is_enough(job.key)
                dropped = queue.finished(job, drop_rest=spare_rest)
                self.observer.ended(slot, job, trial)
                if dropped:
                    self.observer.dropped(dropped)
        except BaseException as error:
            self.error = self.error or error
            self.stop.set()

    def remember(self, job: Job, trial: Trial) -> None:
        """A round that was tried again counts with its last try."""
        with self.history_lock:
            known = self.history.get(job.key, [])
            self.history[job.key] = [other for other in known if other.round != trial.round] + [trial]

    def is_enough(self, key: UnitKey) -> bool:
        """Are latency and period known well enough here to spare the further rounds?"""
        target = self.protocol["enough_interval"]
        if target is None:
            return False
        with self.history_lock:
            known = list(self.history.get(key, ()))
        if any(trial.status not in (Status.OK, Status.NOISY) for trial in known):
            return False
        good = [trial for trial in known if trial.status is Status.OK]
        timers = [[getattr(trial, name) for trial in good] for name in ("latency_ms", "period_ms")]
        used = [medians for medians in timers if medians and None not in medians]
        return bool(used) and all(enough(medians, target) for medians in used)

    def run_locked(self, slot: Slot, job: Job) -> Trial | None:
        """The trial under the device's lock; None if the sweep was stopped meanwhile."""
        lock = acquire(slot, self.lock_timeout_s, self.stop, lambda: self.observer.waiting(slot, job))
        if lock is None:
            return None
        try:
            self.observer.started(slot, job)
            return self.run_retried(slot, job)
        finally:
            lock.release()

    def run_retried(self, slot: Slot, job: Job) -> Trial | None:
        """The trial, tried again after a pause where the harness failed; None if the sweep was stopped meanwhile.

        Where its fork server died under code of the user, it is tried once more, from a server of its own: the trial
        itself may be what ends it. Raises WorkerError or OSError if no fork server can be started.
        """
        reasons: list[str] = []
        server_died = False
        for pause in (*RETRY_PAUSES_S, None):
            try:
                trial, task = self.run_trial(slot, job, alone=server_died)
            except (WorkerError, OSError) as error:
                if pause is None:
                    raise
                reason = str(error)
            else:
                if trial is None:
                    return None
                early = task.phase in BEFORE_USER_CODE or "failed" in task.outcome
                died = "died" in task.outcome
                if not (early or died) or trial.status not in (Status.ERROR, Status.CRASHED, Status.OOM):
                    break
                if pause is None or (server_died and not early):
                    trial.reason = f"{trial.reason}; tried {len(reasons)} more time{'s' * (len(reasons) > 1)}"
                    break
                server_died |= died
                reason = trial.reason or trial.status
            reasons.append(reason)
            self.observer.retried(slot, job, reason)
            if self.stop.wait(pause):
                return None
        if reasons:
            trial.extra["harness_retries"] = reasons
        return trial

    def run_trial(self, slot: Slot, job: Job, alone: bool) -> tuple[Trial | None, Task]:
        """The trial once, `alone`: from a fork server of its own. No trial if the sweep was stopped meanwhile."""
        place = self.places[job.interpreter]
        request = TrialRequest(
            cell=job.cell.params(),
            protocol=self.protocol,
            round=job.round,
            attempt=job.attempt,
            gpu_index=slot.gpu["index"] if slot.gpu else None,
            gpu_uuid=slot.gpu["uuid"] if slot.gpu else None,
            cache_dir=str(place.cache_root / job.cell.key[:32]),
            cores=list(slot.cores) if slot.cores else None,
            foreign_wait_s=self.foreign_wait_s,
            profile=self.protocol["profile"],
            ceilings=place.ceilings,
            artifacts=self.artifacts(job),
        )
        started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        # variables may be read when torch is imported: such a cell needs a fresh interpreter
        spawn = self.isolation == "spawn" or bool(job.cell.env)
        if spawn:
            server = ForkServer(**job.interpreter.given, preload=False)
            server.wait_ready()
        elif alone:
            server = place.servers.fresh()
        else:
            server = place.servers.take(job.round)
        start = time.monotonic()
        try:
            task = server.submit(
                "trial",
                request.to_json(),
                {**slot.env, **job.cell.env},
                lambda phase: self.observer.phase(slot, phase),
            )
            timed_out = False
            while not task.done.wait(POLL_S):
                if self.stop.is_set():
                    server.kill(task)
                    return None, task
                if time.monotonic() - start > self.timeout_s:
                    timed_out = True
                    server.kill(task)
                    break
            ended = time.monotonic()
        finally:
            if spawn or alone:
                server.close()
            else:
                place.servers.give_back(server)
        trial = self.trial_of(task, job, timed_out)
        if request.artifacts and trial.phase == "artifacts" and "artifacts" not in trial.extra:
            shutil.rmtree(request.artifacts["folder"], ignore_errors=True)  # no row names what it left half-made
        trial.started_at = started_at
        trial.wall_s = ended - start
        trial.gpu_index, trial.gpu_uuid = request.gpu_index, request.gpu_uuid
        parts = trial.extra.get("phase_seconds")
        if parts:
            trial.overhead_s = trial.wall_s - sum(parts.get(name, 0.0) for name in PARTS)
        return trial, task

    def trial_of(self, task: Task, job: Job, timed_out: bool) -> Trial:
        """The trial's own record, or one that says how its process ended."""
        outcome = task.outcome
        if outcome.get("result") is not None and not timed_out:
            try:
                trial = Trial.from_json(outcome["result"])
                if (trial.cell_key, trial.round, trial.attempt) != (job.cell.key, job.round, job.attempt):
                    raise ValueError("it is of another trial")
                return trial
            except ValueError as error:
                outcome["reason"] = f"its process sent a result that is no trial's record: {error}"
        status, reason = how_it_failed(task, timed_out, self.timeout_s)
        trial = Trial(job.cell.key, job.round, status, reason, job.attempt, phase=task.phase, pid=outcome.get("pid"))
        if outcome.get("log"):
            trial.extra["log"] = outcome["log"]
        return trial


def acquire(slot: Slot, timeout_s: float, stop: threading.Event, on_wait: Callable[[], None]) -> locks.Lock | None:
    """The slot's lock, held; None once `stop` is set. `on_wait` is called once if another has it.

    Raises WorkerError if it cannot be had, or not in time.
    """
    path = slot.lock_path
    deadline = time.monotonic() + timeout_s
    announced = False
    while (lock := locks.try_lock(path)) is None:
        if stop.is_set():
            return None
        if not announced:
            on_wait()
            announced = True
        stop.wait(POLL_S)
        if time.monotonic() > deadline:
            raise WorkerError(
                f"{slot.name} was in use by another effbench for {timeout_s:.0f} s "
                "(executor.lock_timeout_s); go on later with resume=last"
            )
    return lock


def how_it_failed(task: Task, timed_out: bool, timeout_s: float) -> tuple[Status, str]:
    """Status and reason of a task that has no result of its own to show."""
    outcome = task.outcome
    where = f"in {task.phase}" if task.phase else "before it began"
    if timed_out:
        return Status.TIMEOUT, f"not done after {timeout_s:g} s ({where})"
    if "died" in outcome:
        return Status.CRASHED, f"{outcome['died']} ({where})"
    if reason := outcome.get("failed") or outcome.get("reason"):
        return Status.CRASHED, f"{reason} ({where})"
    if outcome["oom_killed"]:
        return Status.OOM, f"ended by the kernel: host memory ran out ({where})"
    if outcome["signal"]:
        return Status.CRASHED, f"killed by {signal_name(outcome['signal'])} ({where})"
    return Status.CRASHED, f"the process exited with code {outcome['exit']} ({where})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
