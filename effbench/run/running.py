"""Run the trials of a sweep on this machine: what the sweep knows, what it asks of a trial's
process, when a trial is retried, and how quiet the host is."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

from effbench.core.cell import Status, Trial
from effbench.core.errors import WorkerError
from effbench.core.message import BEFORE_USER_CODE, TrialRequest
from effbench.core.printable import count
from effbench.run.client import ForkServer, ServerRequest, StoppedError, attempts
from effbench.run.devices import Slot
from effbench.run.duets import Member
from effbench.run.plan import CellRun, PlannedTrial, Settings
from effbench.run.pool import Pools
from effbench.run.progress import Progress
from effbench.run.record import TrialStore
from effbench.run.resume import compilation_of
from effbench.store import connect
from effbench.store.bottleneck import set_floors
from effbench.store.trials import HostSpeeds
from effbench.store.values import artifact_folder

#: How cuBLAS, cuDNN and their like report failures, also a lack of memory (as `INTERNAL_ERROR`, for
#: example).
LIBRARY_STATUS = re.compile(r"\bCU[A-Z]+_STATUS_")
#: Phases of a trial's wall time that are not overhead.
PHASES = ("build", "prepare", "check", "warmup", "timing", "profile", "artifacts")
#: How a trial ends if the harness failed.
FAILURES = (Status.ERROR, Status.CRASHED, Status.OOM)
#: Trials in a row without an undisturbed moment after which a sweep stops waiting for one.
UNQUIET_TRIALS = 3


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


@dataclass
class RunningSweep:
    """A sweep that runs on this machine.

    `caches`: the folder of its compile caches. `first_rounds`: of each part of the sweep, see
    `compilation_of`. `history`: the last attempts of the recorded trials, to which `record` adds.
    `speeds`: of the host in the trials of each environment. `ceilings`: of each environment and the
    GPU, if they are known. `unquiet`: trials in a row without an undisturbed moment, for which they
    wait unless the host `is_busy`.
    """

    sweep_id: str
    settings: Settings
    pools: Pools
    progress: Progress
    stop: Event
    store: TrialStore
    caches: Path
    first_rounds: Sequence[int]
    history: dict[CellRun, list[Trial]]
    speeds: dict[str, HostSpeeds] = field(default_factory=dict)
    ceilings: dict[str, dict[str, Any]] = field(default_factory=dict)
    unquiet: int = 0
    is_busy: bool = False

    # --- one trial ---

    def run_trial(
        self, slot: Slot, trial: PlannedTrial, member: Member | None = None
    ) -> Trial | None:
        """Run the trial and return its record; None if the sweep was stopped. Pause and retry if
        the harness failed.

        If the fork server died while user code ran, retry once from a separate server, as the trial
        may be the cause. Raises WorkerError or OSError if no fork server can be started; a cell
        with `env` is then `crashed`. `member`: its part in a duet, or None.
        """
        reasons: list[str] = []
        is_alone = False
        try:
            for is_last in attempts(self.stop):
                try:
                    attempt = self.attempt(slot, trial, member, is_alone)
                except (WorkerError, OSError, ValueError) as error:
                    if is_last and not trial.run.cell.env:
                        raise
                    record = ended_early(trial, Status.CRASHED, str(error))
                    attempt = TrialAttempt(record, is_early=True)
                record = attempt.record
                if not attempt.is_failure_of_harness:
                    break
                if is_last or (is_alone and not attempt.is_early):
                    record.reason = f"{record.reason}; tried {count(len(reasons), 'more time')}"
                    break
                reasons.append(str(record.reason))
                is_alone |= attempt.server_died
                self.progress.retried(slot.name, trial, reasons[-1])
        except StoppedError:
            return None
        if reasons:
            record.extra["harness_retries"] = reasons
        return record

    def attempt(
        self, slot: Slot, trial: PlannedTrial, member: Member | None, is_alone: bool
    ) -> TrialAttempt:
        """Run the trial once (`is_alone`: from a separate fork server). Raises StoppedError, and
        WorkerError or OSError if no fork server can be started."""
        message = self.request_of(slot, trial, member)
        if message.is_cold and message.cache_dir:
            # of a trial that was killed: this one measures a cold compilation
            shutil.rmtree(message.cache_dir, ignore_errors=True)

        def on_phase(request: ServerRequest, phase: str) -> None:
            self.progress.phase(trial, phase)
            if member is not None:
                member.phase(request, phase)

        with self.server_of(trial, is_alone) as server:
            started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            start = time.monotonic()
            env = {**slot.env, **trial.run.cell.env}
            timeout_s = self.settings.timeout_s
            request = server.complete("trial", message.to_json(), timeout_s, env, on_phase)
            request.wait(False)  # it may have died while it waited for its partner
            wall_s = time.monotonic() - start - request.waited_s
        if request.stopped:
            raise StoppedError
        record = record_of(request, trial)
        if message.artifacts and record.phase == "artifacts" and "artifacts" not in record.extra:
            # incomplete, and no row refers to it
            shutil.rmtree(message.artifacts["folder"], ignore_errors=True)
        record.started_at = started_at
        record.wall_s = wall_s
        record.gpu_index, record.gpu_uuid = slot.index, slot.uuid
        seconds = record.extra.get("phase_seconds")
        if seconds:
            record.overhead_s = wall_s - sum(seconds.get(name, 0.0) for name in PHASES)
        is_early = request.phase in BEFORE_USER_CODE or "failed" in request.outcome
        return TrialAttempt(record, is_early, server_died="died" in request.outcome)

    def server_of(self, trial: PlannedTrial, is_alone: bool) -> AbstractContextManager[ForkServer]:
        """Return the context of the trial's fork server."""
        # the loader, Python and torch read variables when they start, so a cell with `env` needs a
        # fresh interpreter
        env = trial.run.cell.env
        is_spawned = self.settings.isolation == "spawn" or bool(env)
        pool = self.pools[trial.run.interpreter]
        if is_alone or is_spawned:
            return pool.separate(preload=not is_spawned, env=env)
        return pool.shared(trial.round)

    def request_of(self, slot: Slot, trial: PlannedTrial, member: Member | None) -> TrialRequest:
        """Return what the trial's process is asked for."""
        run, settings = trial.run, self.settings
        protocol = dict(vars(settings.protocol))
        if self.is_busy:
            protocol["patience"] = 1.0
        # the same for all attempts and after resuming
        compilation = compilation_of(trial.round, settings.compilations, self.first_rounds)
        environment_id = self.pools[run.interpreter].environment_id
        caches = self.caches / environment_id / run.cell.key[:32]
        recorded = self.history.get(run, ())
        speeds = self.speeds.get(environment_id, HostSpeeds())
        duet = None
        if member is not None:
            duet = member.request()
        return TrialRequest(
            cell=run.cell.params(),
            protocol=protocol,
            round=trial.round,
            attempt=trial.attempt,
            gpu_uuid=slot.uuid,
            cache_dir=str(caches / str(compilation)),
            compilation=compilation,
            is_cold=all(record.compilation != compilation for record in recorded),
            cores=slot.cores,
            foreign_wait_s=settings.executor.foreign_wait_s,
            host_ms=speeds.quiet_ms(),
            host_high_ms=speeds.high_ms(),
            baseline=self.baseline_of(run),
            artifacts=self.artifacts_of(trial, environment_id),
            duet=duet,
        )

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

    def artifacts_of(self, trial: PlannedTrial, environment_id: str) -> dict[str, Any] | None:
        """Return which artifacts the trial saves and where, or None after a cell's first round."""
        if not self.settings.artifacts or trial.round > 0:
            return None
        name = artifact_folder(self.sweep_id, trial.run.cell.key)
        if trial.run.interpreter.given:  # distinguishes it from other interpreters
            name += f"-{environment_id}"
        folder = (connect.artifact_home(self.settings.db) / name).absolute()
        return {"kinds": self.settings.artifacts, "folder": str(folder), "name": name}

    # --- its record ---

    def record(self, trial: PlannedTrial, record: Trial) -> None:
        """Store a trial that has ended. Raises StoreError."""
        run = trial.run
        environment_id = self.pools[run.interpreter].environment_id
        ceilings = self.ceilings.get(environment_id)
        if ceilings and record.min_bytes is not None:
            set_floors(record, run.cell, ceilings)
        self.store.add_trial(self.sweep_id, environment_id, record)
        self.speeds.setdefault(environment_id, HostSpeeds()).add(record)
        self.note_disturbance(trial, record)
        # only the last attempt of a round counts
        others = [other for other in self.history.get(run, []) if other.round != record.round]
        recent = replace(record, samples={})  # which take megabytes
        self.history[run] = [*others, recent]

    def note_disturbance(self, trial: PlannedTrial, record: Trial) -> None:
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
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
        remedies = "close other programs or use a quieter machine"
        if trial.run.cell.device == "cpu":
            remedies += "; threads=1 leaves cores to others"
        self.progress.note(
            f"The host is busy: {UNQUIET_TRIALS} trials in a row had no undisturbed moment (load"
            f" {load:.1f} on {count(cores, 'core')}). The sweep no longer waits for one, and marks"
            f" the times with ~. To avoid this, {remedies}."
        )


def ended_early(trial: PlannedTrial, status: Status, reason: str) -> Trial:
    """Return the record of a trial whose process did not send one."""
    return Trial(trial.run.cell.key, trial.round, status, reason, trial.attempt)


def record_of(request: ServerRequest, trial: PlannedTrial) -> Trial:
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
    record = ended_early(trial, *request.failure())
    record.phase = request.phase
    record.pid = request.outcome.get("pid")
    if request.outcome.get("log"):
        record.extra["log"] = request.outcome["log"]
    return record


def may_lack_room(record: Trial) -> bool:
    """Return whether the trial may have failed because another one was alive: memory, or a GPU that
    serves only one process at a time."""
    if record.phase in BEFORE_USER_CODE:
        return not record.status.is_measured
    if record.status is Status.OOM:
        return True
    return record.status is Status.ERROR and LIBRARY_STATUS.search(record.reason or "") is not None
