"""Run one trial on a slot: its request to a fork server, its retries and its record."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any

from effbench.cell import Status, Trial
from effbench.errors import WorkerError
from effbench.message import BEFORE_USER_CODE, TrialRequest
from effbench.printable import count
from effbench.sweeping.client import Request, StoppedError, attempts
from effbench.sweeping.devices import Slot
from effbench.sweeping.duets import Member
from effbench.sweeping.host_watch import HostWatch
from effbench.sweeping.plan import CellRun, History, PlannedTrial, Settings
from effbench.sweeping.pool import Pools
from effbench.sweeping.progress import Progress
from effbench.sweeping.resume import compilation_of

#: How cuBLAS, cuDNN and their like report failures, also a lack of memory (as `INTERNAL_ERROR`, for
#: example).
LIBRARY_STATUS = re.compile(r"\bCU[A-Z]+_STATUS_")
#: Phases of a trial's wall time that are not overhead.
PHASES = ("build", "prepare", "check", "warmup", "timing", "profile", "artifacts")
#: How a trial ends if the harness failed.
FAILURES = (Status.ERROR, Status.CRASHED, Status.OOM)


@dataclass(frozen=True)
class Attempt:
    """How an attempt at running a trial ended. `record`: None if the sweep was stopped; `is_early`:
    before any code of the user ran; `is_unstarted`: no fork server could be started;
    `server_died`: it ended meanwhile."""

    record: Trial | None
    is_early: bool = False
    is_unstarted: bool = False
    server_died: bool = False

    @property
    def failure(self) -> Trial | None:
        """The record if the harness failed; None for any other end."""
        if self.record is None or self.record.status not in FAILURES:
            return None
        if self.is_early or self.server_died:
            return self.record
        return None


@dataclass
class TrialRunner:
    """Runs trials in child processes of fork servers. `first_rounds`: of each part of the sweep,
    see `compilation_of`. `artifacts`: returns which artifacts a trial saves. `history`: the last
    attempts of the recorded trials, which grow while the sweep runs."""

    pools: Pools
    settings: Settings
    progress: Progress
    stop: Event
    host: HostWatch
    history: History
    artifacts: Callable[[PlannedTrial], dict[str, Any] | None]
    first_rounds: Sequence[int]

    def run(self, slot: Slot, trial: PlannedTrial, member: Member | None = None) -> Trial | None:
        """Run the trial and return its record; None if the sweep was stopped. Pause and retry if
        the harness failed.

        If the fork server died while user code ran, retry once from a separate server, as the trial
        may be the cause. Raises WorkerError or OSError if no fork server can be started; a cell
        with `env` is then `crashed`. `member`: its part in a duet, or None.
        """
        reasons: list[str] = []
        record: Trial | None = None
        server_died = False
        try:
            for is_last in attempts(self.stop):
                attempt = self.attempt(slot, trial, member, alone=server_died, is_last=is_last)
                record, failure = attempt.record, attempt.failure
                if failure is None or (is_last and attempt.is_unstarted):
                    break
                if is_last or (server_died and not attempt.is_early):
                    failure.reason = f"{failure.reason}; tried {count(len(reasons), 'more time')}"
                    break
                server_died |= attempt.server_died
                reasons.append(failure.reason or failure.status)
                self.progress.retried(slot.name, trial, reasons[-1])
        except StoppedError:
            return None
        if record is not None and reasons:
            record.extra["harness_retries"] = reasons
        return record

    def attempt(
        self, slot: Slot, trial: PlannedTrial, member: Member | None, alone: bool, is_last: bool
    ) -> Attempt:
        """Run the trial once; see `run_once`. Raises if no fork server can be started at the last
        attempt, unless the cell's variables may be why."""
        try:
            return self.run_once(slot, trial, member, alone)
        except (WorkerError, OSError, ValueError) as error:
            if is_last and not trial.run.cell.env:
                raise
            record = Trial(
                trial.run.cell.key, trial.round, Status.CRASHED, str(error), trial.attempt
            )
            return Attempt(record, is_early=True, is_unstarted=True)

    def run_once(
        self, slot: Slot, trial: PlannedTrial, member: Member | None, alone: bool
    ) -> Attempt:
        """Run the trial once (`alone`: from a separate fork server; `member`: its part in a
        duet)."""
        cell = trial.run.cell
        message = self.request_of(slot, trial, member)
        if message.is_cold and message.cache_dir:
            # of a trial that was killed: this one measures a cold compilation
            shutil.rmtree(message.cache_dir, ignore_errors=True)

        def on_phase(request: Request, phase: str) -> None:
            self.progress.phase(trial, phase)
            if member is not None:
                member.phase(request, phase)

        # the loader, Python and torch read variables when they start, so a cell with `env` needs a
        # fresh interpreter
        is_spawned = self.settings.isolation == "spawn" or bool(cell.env)
        pool = self.pools[trial.run.interpreter]
        with pool.server(
            trial.round, alone or is_spawned, preload=not is_spawned, env=cell.env
        ) as server:
            started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            start = time.monotonic()
            variables = {**slot.env, **cell.env}
            request = server.run(
                "trial",
                message.to_json(),
                self.settings.timeout_s,
                variables,
                on_phase,
                self.stop,
            )
            request.wait(False)  # it may have died while it waited for its partner
            wall_s = time.monotonic() - start - request.waited_s
        if request.stopped:
            return Attempt(None)
        record = record_of(request, trial)
        if message.artifacts and record.phase == "artifacts" and "artifacts" not in record.extra:
            # incomplete, and no row refers to it
            shutil.rmtree(message.artifacts["folder"], ignore_errors=True)
        record.started_at = started_at
        record.wall_s = wall_s
        record.gpu_index, record.gpu_uuid = slot.gpu.get("index"), slot.uuid
        seconds = record.extra.get("phase_seconds")
        if seconds:
            record.overhead_s = wall_s - sum(seconds.get(name, 0.0) for name in PHASES)
        is_early = request.phase in BEFORE_USER_CODE or "failed" in request.outcome
        return Attempt(record, is_early, server_died="died" in request.outcome)

    def request_of(self, slot: Slot, trial: PlannedTrial, member: Member | None) -> TrialRequest:
        """Return what the trial's process is asked for."""
        run, pool = trial.run, self.pools[trial.run.interpreter]
        protocol = dict(vars(self.settings.protocol))
        if not self.host.waits:
            protocol["patience"] = 1.0
        # the same for all attempts and after resuming
        compilation = compilation_of(trial.round, self.settings.compilations, self.first_rounds)
        recorded = self.history.get(run, ())
        speeds = self.host.speeds_of(run.interpreter)
        return TrialRequest(
            cell=run.cell.params(),
            protocol=protocol,
            round=trial.round,
            attempt=trial.attempt,
            gpu_uuid=slot.uuid,
            cache_dir=str(pool.cache_root / run.cell.key[:32] / str(compilation)),
            compilation=compilation,
            is_cold=all(record.compilation != compilation for record in recorded),
            cores=slot.cores,
            foreign_wait_s=self.settings.executor.foreign_wait_s,
            host_ms=speeds.quiet_ms(),
            host_high_ms=speeds.high_ms(),
            baseline=self.baseline_of(run),
            artifacts=self.artifacts(trial),
            duet=member.request() if member else None,
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
    record = Trial(key, trial.round, status, reason, trial.attempt, phase=request.phase)
    record.pid = request.outcome.get("pid")
    if request.outcome.get("log"):
        record.extra["log"] = request.outcome["log"]
    return record


def may_lack_memory(record: Trial) -> bool:
    """Return whether the trial may have failed because others used the memory of its GPU."""
    if record.status is Status.OOM:
        return True
    return record.status is Status.ERROR and LIBRARY_STATUS.search(record.reason or "") is not None


def may_lack_room(record: Trial) -> bool:
    """Return whether the trial may have failed because another one was alive: memory, or a GPU that
    serves only one process at a time."""
    is_early = record.phase in BEFORE_USER_CODE and not record.status.is_measured
    return is_early or may_lack_memory(record)
