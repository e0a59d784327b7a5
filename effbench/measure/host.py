"""The speed of the host while a step is timed, read from a fixed piece of work between batches of samples.

The host of a shared machine slows down for seconds at a time, and launch-bound latency follows it. The fixed work shows
this at the same moment, so only batches count that have undisturbed work before and after them.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from effbench.metrics import percent

#: Loops of a piece of work: some 30 µs of bytecode, calls and allocations.
LOOPS = 400
#: Quantile of a trial's readings that counts as undisturbed.
LOW = 0.1
#: Elements per thread of the team's work: the least that torch gives a thread.
GRAIN = 32768
#: The team's work may take this many times longer than in the trial's quietest moments: threads meet at a barrier.
TEAM_TOLERANCE = 1.3
#: Readings before the first sample, and the number of new ones after which their quantile is computed again.
FIRST, EVERY = 20, 50
#: Time slice of Linux's scheduler in seconds, and the fraction of a batch that other processes' slices may take.
SLICE_S, PREEMPTED = 0.003, 0.02
#: Seconds of disturbed batches after which a quieter core is chosen, and the pause before the next attempt.
MOVE_AFTER_S, PAUSE_S = 0.1, 0.02
#: Time is measured for at most this many times the budget, to find undisturbed moments.
PATIENCE = 3


class Reading(NamedTuple):
    """`ms`: time of the work on this thread; `team_ms`: time of the team's work, 0 without a team; `preemptions`: how
    often the kernel has preempted this process so far."""

    ms: float
    team_ms: float
    preemptions: int


def piece() -> float:
    """Run the fixed work and return its milliseconds."""
    start, total = time.perf_counter_ns(), 0
    for number in range(LOOPS):
        total += len([number, total])
    return (time.perf_counter_ns() - start) / 1e6


def team_piece() -> Callable[[], float]:
    """Return a function that runs fixed work on all of torch's threads and returns its milliseconds. A busy core slows
    a team down even if this thread does not run there."""
    numbers = torch.zeros(torch.get_num_threads() * GRAIN)

    def run() -> float:
        start = time.perf_counter_ns()
        numbers.add_(1.0)
        return (time.perf_counter_ns() - start) / 1e6

    return run


def undisturbed(device: torch.device, seconds: float) -> dict[str, Any]:
    """Return the time of the work in the quietest of these `seconds`, as facts of a check."""
    watch, until = HostWatch(None, 1.0, moves=True, team=False), time.monotonic() + seconds
    with watch.watching():
        while time.monotonic() < until:
            watch.choose_core()
            watch.read()
    return {"host_ms": watch.low_ms, "hostname": platform.node()}


class HostWatch:
    """Reads the host's speed during one trial.

    `known_ms`: the undisturbed time of the work in this environment, None if no trial has measured it. `tolerance`: the
    work may take this many times longer. `moves`: whether this thread may choose its core. `team`: whether the step
    runs on several threads.
    """

    def __init__(self, known_ms: float | None, tolerance: float, moves: bool, team: bool) -> None:
        self.known_ms, self.tolerance, self.moves = known_ms, tolerance, moves
        self.team = team_piece() if team else None
        self.readings: list[float] = []
        self.team_readings: list[float] = []
        self.seconds = {True: 0.0, False: 0.0}  # undisturbed -> seconds of batches
        self.limit_ms = self.team_limit_ms = 0.0
        self.unquiet_s = 0.0  # seconds of disturbed batches since the last undisturbed one

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Choose the quietest core, and give the thread its cores back afterwards."""
        self.cores = os.sched_getaffinity(0)
        if self.moves:
            self.choose_core()
        for _ in range(FIRST):
            self.read()
        try:
            yield
        finally:
            os.sched_setaffinity(0, self.cores)

    def read(self) -> Reading:
        # the faster of two: the first one warms the core's cache again
        ms, team_ms = min(piece(), piece()), self.team() if self.team else 0.0
        self.readings.append(ms)
        self.team_readings.append(team_ms)
        if len(self.readings) % EVERY == 0 or len(self.readings) == FIRST:
            self.limit_ms = self.tolerance * min(self.low_ms, self.known_ms or self.low_ms)
            self.team_limit_ms = TEAM_TOLERANCE * float(np.quantile(self.team_readings, LOW))
        return Reading(ms, team_ms, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)

    def is_undisturbed(self, before: Reading, after: Reading, seconds: float) -> bool:
        """Return whether the batch between two readings counts. `seconds`: how long it took."""
        quiet = (
            max(before.ms, after.ms) <= self.limit_ms
            and max(before.team_ms, after.team_ms) <= self.team_limit_ms
            and (after.preemptions - before.preemptions) * SLICE_S <= PREEMPTED * seconds
        )
        self.seconds[quiet] += seconds
        self.unquiet_s = 0.0 if quiet else self.unquiet_s + seconds
        return quiet

    def calm(self) -> None:
        """If the host has been disturbed for a while, choose a quieter core, or wait."""
        if self.unquiet_s < MOVE_AFTER_S:
            return
        self.unquiet_s = 0.0
        if self.moves:
            self.choose_core()
        time.sleep(PAUSE_S)

    def choose_core(self) -> None:
        """Run this thread on the core where the work is fastest."""
        speeds = {}
        for core in self.cores:
            os.sched_setaffinity(0, {core})
            speeds[core] = min(piece() for _ in range(3))
        os.sched_setaffinity(0, {min(speeds, key=speeds.__getitem__)})

    @property
    def low_ms(self) -> float:
        """The time of the work in this trial's quietest moments."""
        return float(np.quantile(self.readings, LOW))

    @property
    def disturbed_fraction(self) -> float | None:
        """The fraction of the measured time in which the host was disturbed; None if nothing was measured."""
        total = sum(self.seconds.values())
        return self.seconds[False] / total if total else None

    def reason(self) -> str:
        """Return why a trial with too few undisturbed samples is noisy."""
        why = f"disturbed for {percent(self.disturbed_fraction or 0.0)} of the timing"
        return f"the host was {why} (slowed down, or busy with other processes), so too few samples count"
