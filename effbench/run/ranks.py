"""The processes of a trial that uses several devices, one for each rank: how they end together, and
which of them tells how the trial ended.

A rank that fails leaves the others waiting for it, perhaps forever. They get a few seconds to fail
by themselves, and are then killed.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty
from typing import Self

from effbench.core import processes
from effbench.core.cell import Status, Trial
from effbench.core.message import LOST_RANK, RankRequest, TrialRequest
from effbench.run.client import NEVER, ForkServer, ServerRequest
from effbench.run.devices import Slot
from effbench.run.interrupts import POLL_S

#: Seconds in which all ranks must end after the leader has ended or a rank has failed.
GRACE_S = 3.0
#: Seconds in which ranks print their stacks before they are killed.
STACKS_S = 0.5
#: Statuses of a failure that may be one rank's alone. All others are the leader's judgement.
OWN_FAILURES = (Status.ERROR, Status.CRASHED, Status.OOM)
#: A line of a stack that faulthandler prints.
FRAME = re.compile(r'^  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)
#: Code that compiles, and code in which a rank waits for others.
COMPILES = re.compile(
    r"/torch/_dynamo/(symbolic_convert|output_graph)\.py$"
    r"|/torch/_inductor/(async_compile|codecache|graph)\.py$"
)
WAITS = re.compile(r"/torch/(distributed|cuda)/|/effbench/(core|measure|models|modes|work\w+)/")
#: Code that is not the user's.
LIBRARY = re.compile(r"/(lib/python3[^/]*|site-packages|dist-packages)/")


@dataclass(eq=False)
class Rank:
    """A process of the trial. `was_killed`: because another rank failed or the trial timed out;
    `was_stopped`: by a signal, when it timed out. `cache_dir`: of compile caches."""

    number: int
    size: int
    task: ServerRequest
    cache_dir: str
    was_killed: bool = False
    was_stopped: bool = False

    @property
    def name(self) -> str:
        return f"rank {self.number} of {self.size}"

    @property
    def has_ended(self) -> bool:
        return self.task.done.is_set()

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself without a record that has measurements."""
        return self.has_ended and not self.was_killed and not self.record.status.is_measured

    @property
    def record(self) -> Trial:
        """The record of its end, which it has sent or not."""
        return self.task.record("", 0)

    @property
    def failed_later(self) -> bool:
        """Whether it failed after another rank had ended."""
        return self.record.extra.get(LOST_RANK) is not None

    def progress(self) -> tuple[bool, bool, int]:
        """Return what orders ranks by how far they are: first those that are stopped, then busy
        ones, then by phases."""
        return not self.was_stopped, self.activity is None, self.task.phases_begun

    @property
    def activity(self) -> str | None:
        """What it did when the trial timed out: it was `stopped`, or its stack shows that it was
        `compiling` or in the user's code, such as `at net.py:12 in forward`. None if it waited for
        other ranks, or its stack is unknown."""
        if self.was_stopped:
            return "stopped"
        _, _, stack = self.task.outcome.log.rpartition("(most recent call first):\n")
        for frame in FRAME.finditer(stack):
            path = frame["path"]
            if COMPILES.search(path):
                return "compiling"
            # Inductor's code calls collectives
            if WAITS.search(path) or path.startswith(self.cache_dir):
                return None
            if path.startswith("/") and not LIBRARY.search(path):
                with suppress(ValueError):  # it is elsewhere
                    path = str(Path(path).relative_to(Path.cwd()))
                return f"at {path}:{frame['line']} in {frame['function']}"
        return None


class RankProcesses:
    """The processes of a trial that uses several devices; the first one leads. `timed_out_s`: the
    timeout that they exceeded."""

    def __init__(self, server: ForkServer, ranks: list[Rank]) -> None:
        self.server = server
        self.ranks = ranks
        self.leader = ranks[0]
        self.timed_out_s: float | None = None

    @classmethod
    def start(
        cls,
        server: ForkServer,
        request: TrialRequest,
        slot: Slot,
        env: Mapping[str, str],
        folder: str,
    ) -> Self:
        """Start a process on each slot of a rank. `env`: of all; `folder`: at which they meet."""
        size = len(slot.ranks)
        caches = str(request.cache_dir)
        ranks = []
        for number, own in enumerate(slot.ranks):
            asked = replace(
                request,
                gpu_uuid=own.uuid,
                cores=own.cores,
                rank=RankRequest(number, size, folder),
            )
            if number > 0:  # a compile cache has one writer
                asked.cache_dir = str(Path(caches) / f"rank{number}")
            task = server.submit("trial", asked.to_json(), {**own.env, **env})
            ranks.append(Rank(number, size, task, caches))
        return cls(server, ranks)

    def phases(self, timeout_s: float, stop: threading.Event = NEVER) -> Iterator[str]:
        """Yield the leader's phases as they begin, until the processes of all ranks have ended: by
        themselves, or killed after `timeout_s`, after another one failed, or once `stop` is set."""
        deadline = time.monotonic() + timeout_s
        try:
            while running := self.running():
                first = running[0]
                phase: str | None = None
                with suppress(Empty):
                    phase = first.task.begun.get(timeout=min(POLL_S, timeout_s))
                if phase is not None and first is self.leader:
                    yield phase
                now = time.monotonic()
                if stop.is_set():
                    self.stop()
                elif now > self.kill_at_s():
                    self.kill()
                elif now > deadline:
                    self.time_out(timeout_s)
        except BaseException:  # Ctrl-C: no process may outlive the device locks
            self.stop()
            raise

    def running(self) -> list[Rank]:
        return [rank for rank in self.ranks if not rank.has_ended]

    def kill_at_s(self) -> float:
        """Return the monotonic time at which the remaining ranks are killed; infinity before the
        leader has ended or a rank has failed."""
        ends = [rank.task.ended_s for rank in self.ranks if rank is self.leader or rank.has_failed]
        return min(filter(None, ends), default=float("inf")) + GRACE_S

    def kill(self) -> None:
        running = self.running()
        for rank in running:
            rank.was_killed = True
        for rank in running:
            self.server.kill(rank.task)

    def stop(self) -> None:
        for rank in self.ranks:
            rank.task.stopped = True
        self.kill()

    def time_out(self, timeout_s: float) -> None:
        """Kill all ranks, after they have printed their stacks, unless they have just ended."""
        running = self.running()
        if not running:
            return
        self.timed_out_s = timeout_s
        for rank in running:
            rank.was_killed = True  # the signal ends one that does not handle it yet
            pid = rank.task.pid
            if pid is not None:
                rank.was_stopped = processes.is_stopped(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)
        time.sleep(STACKS_S)
        self.kill()

    # --- after the end ---

    def decisive(self) -> ServerRequest:
        """Return the task of the rank whose record is that of the trial, with which rank that is
        and, after a timeout, what it did."""
        leader = self.leader
        if self.timed_out_s is not None and leader.task.result is None:
            return self.late()
        failed = [rank for rank in self.ranks if rank.has_failed]
        # if the leader has measurements, all ranks had done their part, and only ended badly
        if not failed or leader.record.status.is_measured or self.is_common(failed):
            return leader.task
        first = min(failed, key=lambda rank: (rank.failed_later, rank.task.ended_s))
        is_own = first is not leader or first.record.status in OWN_FAILURES
        if is_own and not first.failed_later:
            return replace(first.task, rank_name=first.name)
        return first.task

    def is_common(self, failed: list[Rank]) -> bool:
        """Whether all ranks failed for the same reason."""
        reasons = {rank.record.reason for rank in failed}
        return len(failed) == len(self.ranks) and len(reasons) == 1

    def late(self) -> ServerRequest:
        """Return the task of the rank for which the others waited until the trial timed out; the
        leader's if that is unknown."""
        missing = self.missing()
        explanation = ""
        if missing is not None:
            explanation = f"{missing.name} did not arrive"
            if missing.activity:
                explanation += f"; it is {missing.activity}"
        logs = [f"{rank.name}:\n{rank.task.outcome.log}" for rank in self.ranks]
        task = (missing or self.leader).task
        return replace(
            task,
            outcome=replace(task.outcome, log="\n".join(logs)),
            timed_out_s=self.timed_out_s,
            explanation=explanation,
        )

    def missing(self) -> Rank | None:
        """Return the rank for which the others waited: one that is stopped, or busy, or has begun
        the fewest phases. None if that is true of all."""
        late = [rank for rank in self.ranks if rank.was_killed]
        first = min(late, key=Rank.progress)
        if len(late) == len(self.ranks) and all(
            rank.progress() == first.progress() for rank in late
        ):
            return None
        return first
