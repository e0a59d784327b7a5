"""What the parts of a trial share: what is asked for, what is recorded, and what watches it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from effbench.core.cell import Cell, Status, Trial
from effbench.core.message import TrialRequest
from effbench.measure import counters, timing
from effbench.measure.gpu import Gpu
from effbench.measure.host import HostWatch
from effbench.measure.timing import Rules
from effbench.measure.watch import GpuWatch

#: Fewer samples have no interval of their median.
FEWEST_SAMPLES = 6
# where the protocol has none: then disturbed samples count, but they are still told apart
HOST_TOLERANCE = 0.1


@dataclass(frozen=True)
class TrialProtocol:
    """The settings of the protocol that a trial uses; `settings.Protocol` documents them."""

    rules: Rules
    rounds: int
    host_tolerance: float
    input_sets: int
    check_steps: int
    profile: bool

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TrialProtocol:
        return cls(
            rules=Rules.of(settings),
            rounds=settings.get("rounds", 1),
            host_tolerance=settings.get("host_tolerance") or HOST_TOLERANCE,
            input_sets=settings.get("input_sets", 3),
            check_steps=settings.get("check_steps", 5),
            profile=settings.get("profile", False),
        )

    @property
    def spread(self) -> float:
        """Ratio of the bounds of a median from which its calls have several speeds."""
        return max(timing.SPREAD, 1 + self.host_tolerance)

    def is_too_few(self, samples: int) -> bool:
        """Return whether so few samples give a figure that no other trial of the cell supports."""
        return self.rounds == 1 and samples < min(FEWEST_SAMPLES, self.rules.max_samples)


class TrialContext:
    """A trial, and what it is made of. `gpu` and `watcher` know no GPU until it is opened."""

    def __init__(self, request: TrialRequest) -> None:
        self.request = request
        self.cell = Cell.from_params(request.cell)
        self.protocol = TrialProtocol.of(request.protocol)
        self.device = torch.device(self.cell.device)
        self.on_cuda = self.device.type == "cuda"
        self.trial = Trial(
            self.cell.key, request.round, Status.OK, attempt=request.attempt, pid=os.getpid()
        )
        self.gpu = Gpu()
        self.watcher = GpuWatch(self.gpu, self.device)

    def open_gpu(self) -> None:
        self.gpu = Gpu.open(self.request.gpu_uuid if self.on_cuda else None)
        self.watcher = GpuWatch(self.gpu, self.device)

    @contextmanager
    def host_watched(self, matters: bool, moves: bool) -> Iterator[HostWatch | None]:
        """Watch the host in this context; yield None if its speed does not matter. `moves`: whether
        the calling thread may choose its core."""
        if not matters:
            yield None
            return
        host = HostWatch(
            self.request.host_ms,
            1 + self.protocol.host_tolerance,
            moves=moves,
            all_threads=not self.on_cuda,
            usual_high_ms=self.request.host_high_ms,
            waits=self.protocol.rules.patience > 1.0,
        )
        host.is_single = self.protocol.rounds == 1
        with host.watching():
            yield host


class CompilationWatch:
    """Tells whether a graph is compiled from now on."""

    def __init__(self) -> None:
        self.before = counters.read()

    def compiled(self) -> str | None:
        """Return that a graph was compiled, with the guard that failed if one did, or None."""
        return compiled_between(self.before, counters.read())


def compiled_between(before: counters.Counters, after: counters.Counters) -> str | None:
    """Return that a graph was compiled between these readings, or None."""
    if after.recompiles > before.recompiles:
        return f"a graph was compiled again while it was timed ({after.recompile_reason})"
    if after.graphs > before.graphs:
        return "a graph was compiled while it was timed"
    return None
