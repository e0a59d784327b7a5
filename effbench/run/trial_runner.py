"""Run one trial on a slot: its request to a fork server, its retries and its record."""

from __future__ import annotations

import re
import shutil
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from effbench.core.cell import Status, Trial
from effbench.core.errors import WorkerError
from effbench.core.message import BEFORE_USER_CODE, TrialRequest
from effbench.core.printable import count
from effbench.run.client import ForkServer, ServerRequest, StoppedError, attempts
from effbench.run.devices import Slot
from effbench.run.duets import Member
from effbench.run.plan import PlannedTrial
from effbench.run.running import RunningSweep

#: How cuBLAS, cuDNN and their like report failures, also a lack of memory (as `INTERNAL_ERROR`, for
#: example).
LIBRARY_STATUS = re.compile(r"\bCU[A-Z]+_STATUS_")
#: Phases of a trial's wall time that are not overhead.
PHASES = ("build", "prepare", "check", "warmup", "timing", "profile", "artifacts")
#: How a trial ends if the harness failed.
FAILURES = (Status.ERROR, Status.CRASHED, Status.OOM)


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
class TrialRunner:
    """Runs trials of a sweep in child processes of its fork servers."""

    sweep: RunningSweep

    def run(self, slot: Slot, trial: PlannedTrial, member: Member | None = None) -> Trial | None:
        """Run the trial and return its record; None if the sweep was stopped. Pause and retry if
        the harness failed.

        If the fork server died while user code ran, retry once from a separate server, as the trial
        may be the cause. Raises WorkerError or OSError if no fork server can be started; a cell
        with `env` is then `crashed`. `member`: its part in a duet, or None.
        """
        reasons: list[str] = []
        is_alone = False
        try:
            for is_last in attempts(self.sweep.stop):
                attempt = self.attempt(slot, trial, member, is_alone, is_last)
                record = attempt.record
                if not attempt.is_failure_of_harness:
                    break
                if is_last or (is_alone and not attempt.is_early):
                    record.reason = f"{record.reason}; tried {count(len(reasons), 'more time')}"
                    break
                is_alone = is_alone or attempt.server_died
                reasons.append(record.reason or record.status)
                self.sweep.progress.retried(slot.name, trial, reasons[-1])
        except StoppedError:
            return None
        if reasons:
            record.extra["harness_retries"] = reasons
        return record

    def attempt(
        self, slot: Slot, trial: PlannedTrial, member: Member | None, is_alone: bool, is_last: bool
    ) -> TrialAttempt:
        """Run the trial once. Raises StoppedError, and at the last attempt WorkerError or OSError
        if no fork server can be started, unless the cell's variables may be why."""
        try:
            return self.run_once(slot, trial, member, is_alone)
        except (WorkerError, OSError, ValueError) as error:
            if is_last and not trial.run.cell.env:
                raise
            return TrialAttempt(ended_early(trial, Status.CRASHED, str(error)), is_early=True)

    def run_once(
        self, slot: Slot, trial: PlannedTrial, member: Member | None, is_alone: bool
    ) -> TrialAttempt:
        """Run the trial once (`is_alone`: from a separate fork server)."""
        message = self.message_of(slot, trial, member)
        with self.server_of(trial, is_alone) as server:
            started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            start = time.monotonic()
            request = server.run(
                "trial",
                message.to_json(),
                self.sweep.settings.timeout_s,
                {**slot.env, **trial.run.cell.env},
                partial(self.note_phase, trial, member),
            )
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

    def message_of(self, slot: Slot, trial: PlannedTrial, member: Member | None) -> TrialRequest:
        """Return what the trial's process is asked for, once its compile cache is ready."""
        duet = None
        if member is not None:
            duet = member.request()
        message = self.sweep.request_of(slot, trial, duet)
        if message.is_cold and message.cache_dir:
            # of a trial that was killed: this one measures a cold compilation
            shutil.rmtree(message.cache_dir, ignore_errors=True)
        return message

    def server_of(self, trial: PlannedTrial, is_alone: bool) -> AbstractContextManager[ForkServer]:
        """Return the context of the trial's fork server."""
        # the loader, Python and torch read variables when they start, so a cell with `env` needs a
        # fresh interpreter
        env = trial.run.cell.env
        is_spawned = self.sweep.settings.isolation == "spawn" or bool(env)
        pool = self.sweep.pools[trial.run.interpreter]
        if is_alone or is_spawned:
            return pool.separate(preload=not is_spawned, env=env)
        return pool.shared(trial.round)

    def note_phase(
        self, trial: PlannedTrial, member: Member | None, request: ServerRequest, phase: str
    ) -> None:
        self.sweep.progress.phase(trial, phase)
        if member is not None:
            member.phase(request, phase)


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
