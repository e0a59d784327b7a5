"""Time two processes in turn: they hand each other a token, and only the one that has it calls its
step.

The leader times a batch, asks its partner for one, and so on, as `pairs.take_pairs` does within one
process. The calling threads of both run on the same core, because each core has its own slow
moments: on separate cores the ratio of 40 and 42 layers on the CPU varied by 5 % between duets, on
the same core by 0.7 %. The leader chooses the core. Other threads of a step run on any core.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import torch

from effbench.core.disturbances import Disturbance, DisturbanceKind
from effbench.core.meeting import Partner, PartnerLostError
from effbench.measure.host import TASKS, HostFacts, HostWatch, RunQueue
from effbench.measure.pairs import (
    WARM_CALLS,
    BatchPair,
    LatencySide,
    Pairs,
    PeriodSide,
    TimedBatch,
    take_pairs,
)
from effbench.measure.rules import Rules
from effbench.measure.samples import Timing, TimingFigure, bounds_of_median
from effbench.measure.timing import BATCH_MS, LATENCY, PERIOD, Timer
from effbench.stats.intervals import Interval

#: Time of a call from which the first one of a batch counts, too: the change of process hardly
#: shows in it.
LONG_MS = 100.0
#: Longest wait until the threads of a step sleep, and the pause between two looks at them.
SETTLE_S, LOOK_S = 0.05, 0.0005


def is_another_thread_running() -> bool:
    """Return whether another thread of this process runs or wants to."""
    this = TASKS / str(threading.get_native_id())
    for task in TASKS.iterdir():
        with suppress(OSError):  # the thread has ended
            text = (task / "stat").read_text()
            is_running = text.rpartition(")")[2].startswith(" R ")
            if is_running and task != this:
                return True
    return False


def wait_for_sleeping_threads() -> None:
    """Wait until the other threads of this process sleep. Those of OpenMP spin for some 10 ms after
    a call, and would slow the partner down."""
    until = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until and is_another_thread_running():
        time.sleep(LOOK_S)


def warm_calls_of(latency_ms: float) -> int:
    """Return how many calls of a batch do not count after the change of process."""
    if latency_ms < BATCH_MS:
        return WARM_CALLS
    if latency_ms < LONG_MS:
        return 1
    return 0


@dataclass
class RemoteSide:
    """The step of the partner. `host`: the watch of this process, or None. `spins`: whether the
    threads of this process's own step spin after a call."""

    partner: Partner
    name: str
    host: HostWatch | None
    spins: bool
    depends_on_host: bool = True

    def batch(self) -> TimedBatch:
        """Have the partner time a batch. Raises PartnerLostError."""
        before_ms = self.waited_ms()
        if self.spins:
            wait_for_sleeping_threads()
        answer = self.partner.ask("batch", name=self.name, core=self.core())
        # this process waits for the core while its partner uses it, which disturbs neither
        waited_ms = answer["waited_ms"] - (self.waited_ms() - before_ms)
        return TimedBatch(answer["ms"], waited_ms, answer["seconds"])

    def waited_ms(self) -> float:
        if self.host is None:
            return 0.0
        return self.host.run_queue.read_ms()

    def core(self) -> int | None:
        """Return the core on which the calling threads of both sides run; None if they may use
        several."""
        if self.host is None or not self.host.moves:
            return None
        return min(os.sched_getaffinity(0))


@dataclass(frozen=True)
class DuetResult:
    """What a duet found, for both of its members.

    `pairs`: of each series, in which the leader is `own`.
    `host`: None if its speed does not show. `disturbance`: of the GPU, or None. `void`: why the
    pairs do not count, or None.
    """

    pairs: dict[str, Pairs]
    host: HostFacts | None = None
    disturbance: Disturbance | None = None
    void: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DuetResult:
        """Return the result that `asdict` turned into plain values."""
        series: dict[str, Pairs] = {}
        for name, pairs in values["pairs"].items():
            series[name] = Pairs([BatchPair(**pair) for pair in pairs["in_order"]])
        host, disturbance = values["host"], values["disturbance"]
        if host is not None:
            host = HostFacts(**host)
        if disturbance is not None:
            disturbance = Disturbance(DisturbanceKind(disturbance["kind"]), disturbance["text"])
        return cls(series, host, disturbance, values["void"])

    to_json = asdict


class DuetStep:
    """This member's step, ready to be timed in turn. `sides`: by the names of their series, of
    which `latency` is one. `spins`: whether the step has threads that spin after a call."""

    def __init__(self, timer: Timer, latency_ms: float, has_period: bool) -> None:
        """`timer`: of a step that has warmed up; `latency_ms`: about how long a call takes."""
        self.timer = timer
        self.spins = timer.device.type == "cpu" and torch.get_num_threads() > 1
        self.latency = LatencySide(timer, latency_ms, warm_calls_of(latency_ms))
        self.sides: dict[str, LatencySide | PeriodSide] = {LATENCY: self.latency}
        if has_period:
            self.sides[PERIOD] = PeriodSide(timer, timer.rules.budget_s)

    def lead(self, partner: Partner, host: HostWatch | None) -> dict[str, Pairs]:
        """Time all series in turn with the partner, and return their pairs. Raises
        PartnerLostError."""
        series: dict[str, Pairs] = {}
        timer = self.timer
        # what both members would have alone, together
        budget_s = 2 * timer.rules.budget_s / len(self.sides)
        for name, side in self.sides.items():
            if isinstance(side, PeriodSide):
                side.load()
            remote = RemoteSide(partner, name, host, self.spins)
            series[name] = take_pairs(remote, side, timer.rules, budget_s, host)
            if timer.watch is not None:
                timer.watch.look()
        return series

    def follow(self, partner: Partner, run_queue: RunQueue) -> None:
        """Time a batch whenever the leader asks for one, until it asks for the end. Raises
        PartnerLostError."""
        cores = os.sched_getaffinity(0)
        try:
            while True:
                message = partner.receive()
                if message["op"] == "end":
                    return
                side = self.sides.get(message["name"])
                if side is None:  # this member has no such series
                    raise PartnerLostError("the other member of the duet sent an unknown message")
                if message["core"] is not None:
                    os.sched_setaffinity(0, {message["core"]})
                before_ms = run_queue.read_ms()
                began_s = time.perf_counter()
                batch = side.batch()
                seconds = time.perf_counter() - began_s
                waited_ms = run_queue.read_ms() - before_ms
                if self.spins:
                    wait_for_sleeping_threads()
                partner.send("batch", ms=batch.ms, waited_ms=waited_ms, seconds=seconds)
        finally:
            os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class MemberFigure:
    """The figure of a member of a duet, and that of the `ratio` of both. `has_all_pairs`: whether
    all pairs give them, not only the undisturbed ones."""

    figure: TimingFigure
    ratio: TimingFigure
    has_all_pairs: bool


def figure_of_member(pairs: Pairs, rules: Rules, leads: bool, calls_per_block: int) -> MemberFigure:
    """Return the time of a member, in ms per call, with the bounds of the median of its batches.

    The ratio of both members' times is the median ratio of the pairs, and their geometric mean the
    median of the pairs'. So the host's slow moments affect both alike. `leads`: whether it is the
    leader. The bounds of a marked figure contain those of undisturbed and of disturbed batches.
    """
    ratio = pairs.figure(rules)
    has_all_pairs = ratio.is_marked or not rules.discards
    batches = Timing(
        [pair.ms_of(leads) for pair in pairs.undisturbed],
        disturbed_ms=[pair.ms_of(leads) for pair in pairs.disturbed],
        calls_per_block=calls_per_block,
    )
    used, used_pairs = batches, pairs.undisturbed
    if has_all_pairs:
        used, used_pairs = batches.all_samples(), pairs.in_order
    root = math.sqrt(ratio.median.value)
    value_ms = statistics.median([pair.mean_ms for pair in used_pairs])
    if leads:
        value_ms /= root
    else:
        value_ms *= root
    bounds = [value_ms, *bounds_of_median(used.samples_ms)]
    if ratio.is_marked:
        bounds += bounds_of_median(batches.samples_ms) + bounds_of_median(batches.disturbed_ms)
    interval = Interval(value_ms, min(bounds), max(bounds))
    figure = TimingFigure(interval, used, batches.disturbed_ms, ratio.is_marked)
    return MemberFigure(figure, ratio, has_all_pairs)
