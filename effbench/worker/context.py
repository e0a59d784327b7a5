"""What the parts of a trial share: what is asked for, what is recorded, and how the host is
watched."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from effbench.core.cell import Cell, Status, Trial
from effbench.core.errors import UnsupportedError
from effbench.core.meeting import PartnerLostError
from effbench.core.message import MessagePipe, TrialRequest
from effbench.core.printable import describe
from effbench.measure import counters
from effbench.measure.host import HostWatch
from effbench.measure.rules import Rules
from effbench.worker.ranks import Ranks, Task, ranks_of
from effbench.workloads.endings import Ended


class TrialContext:
    """What is asked for, and the `trial` that records what becomes of it. `ranks`: the processes
    that run it together. `seconds`: those of each phase."""

    def __init__(self, request: TrialRequest, pipe: MessagePipe) -> None:
        self.request = request
        self.pipe = pipe
        self.cell = Cell(**request.cell)
        self.rules = Rules.of(request.protocol)
        self.device = torch.device(self.cell.device)
        self.on_cuda = self.device.type == "cuda"
        self.ranks = ranks_of(request.rank, self.device)
        self.trial = Trial(self.cell.key, request.round, Status.OK, pid=os.getpid())
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run a part of the trial as this phase: announce it, which locates a crash, and add up its
        seconds."""
        self.trial.phase = name
        self.pipe.send(phase=name)
        self.ranks.announce(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextmanager
    def optional(self, key: str) -> Iterator[None]:
        """Let a failure in this context affect only what it finds out, and note it in the trial's
        `extra`. Only if one rank alone failed, the trial fails."""
        try:
            yield
        except (Ended, PartnerLostError):
            raise
        except UnsupportedError as error:
            self.trial.extra[key] = str(error)
        # modules, modes and profilers may raise anything
        except Exception as error:
            self.trial.extra[key] = describe(error)

    def host_watched(self, matters: bool, moves: bool) -> AbstractContextManager[HostWatch | None]:
        """Return a context in which the host is watched, and whose value is the watch; None if the
        host's speed does not matter. `moves`: whether the calling thread may choose its core."""
        if not matters:
            return nullcontext()
        host = HostWatch(
            self.request.host_ms,
            self.rules.tolerance,
            moves=moves,
            all_threads=not self.on_cuda,
            usual_high_ms=self.request.host_high_ms,
            waits=self.rules.patience > 1.0,
        )
        return host.watching()


class CompilationWatch:
    """Tells whether a graph is compiled from now on; in other `ranks`, since their task WATCH."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.before = counters.read()

    def compiled(self) -> str | None:
        """Return that a graph was compiled, with the guard that failed if one did, or None."""
        return self.ranks.reason(Task.COMPILED, self.compiled_here)

    def compiled_here(self) -> str | None:
        """Return what `compiled` does, of this process alone."""
        now = counters.read()
        if now.recompiles > self.before.recompiles:
            return f"a graph was compiled again while it was timed ({now.recompile_reason})"
        if now.graphs > self.before.graphs:
            return "a graph was compiled while it was timed"
        return None
