"""Our own figures of one callable, for benchmarks/truth.py: timings in turns, and what rules ask for. Milliseconds.

A GPU at its power limit drifts by several per cent within seconds. So nothing is held against a figure that was taken
at another time: what a rule measures is scaled by what our own timer says right before and after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean, median

import torch
from truth_peers import (
    CYCLES_A_MS,
    DEVICE,
    FLUSH_BYTES,
    LONG_BLOCK_MS,
    SHORT_S,
    UNROLLED_MS,
    Call,
    Workload,
    by_timeit,
    clock_mhz,
    events_around,
    latency,
    latency_after,
    nothing,
    period,
    replay_gap_ms,
    timeit_s,
    unrolled_ms,
)

from effbench.measure import timing
from effbench.measure.telemetry import Telemetry

TIMERS = ("period", "latency")


@dataclass(frozen=True)
class Flush:
    """`zero`: zeroes a buffer, which takes `alone_ms`; `samples_ms`: between events around each call behind it."""

    zero: Call
    alone_ms: float
    samples_ms: list[float]


@dataclass
class Figures:
    """Timings in turns, and what rules ask for (measured once, when asked for)."""

    work: Workload
    seconds: float
    gpu: Telemetry
    turns: dict[str, list[timing.Timing]] = field(default_factory=lambda: {timer: [] for timer in TIMERS})
    ask_again: Call = nothing  # the peer that is judged, once more

    def take_turn(self) -> None:
        self.turns["period"].append(period(self.work.call, self.seconds))
        self.turns["latency"].append(latency(self.work.call, self.seconds / 2))

    def now(self, timer: str) -> float:
        """What our timer says at this moment."""
        if timer == "period":
            return median(period(self.work.call, self.seconds / 2).samples_ms)
        return median(latency(self.work.call, self.seconds / 2).samples_ms)

    def at_pace(self, timer: str, measure: Callable[[], list[float]]) -> list[float]:
        """What `measure` finds, scaled from the pace of the GPU meanwhile to that of our turns; as it is where the host
        sets the pace."""
        if self.host_bound:
            return measure()
        before = self.now(timer)
        found = measure()
        pace = self.median(timer) / math.sqrt(before * self.now(timer))
        return [ms * pace for ms in found]

    def medians(self, timer: str) -> list[float]:
        """Of each turn."""
        return [median(turn.samples_ms) for turn in self.turns[timer]]

    def median(self, timer: str) -> float:
        return median(self.medians(timer))

    def mean(self, timer: str) -> float:
        """Of each turn, and of these the middle one."""
        return median(fmean(turn.samples_ms) for turn in self.turns[timer])

    def least(self, timer: str) -> float:
        return min(min(turn.samples_ms) for turn in self.turns[timer])

    @property
    def calls_per_block(self) -> int:
        return self.turns["period"][-1].calls_per_block

    @property
    def enqueue_ms(self) -> float:
        return median(median(turn.enqueue_ms) for turn in self.turns["latency"])

    @property
    def gpu_ms(self) -> float:
        return median(self.spin)

    @property
    def host_bound(self) -> bool:
        """Does it take the host longer to enqueue a call than the GPU to run it?"""
        return self.enqueue_ms >= median(self.spin_as_is)

    def behind_a_spin(self, call: Call) -> list[float]:
        """The spin outlasts the launches, so nothing waits for the host, and it leaves the caches as they are."""
        cycles = int(CYCLES_A_MS * (1.5 * self.enqueue_ms + 0.03))
        return events_around(call, partial(torch.cuda._sleep, cycles), self.seconds)

    @cached_property
    def spin_as_is(self) -> list[float]:
        return self.behind_a_spin(self.work.call)

    @cached_property
    def spin(self) -> list[float]:
        return self.at_pace("period", partial(self.behind_a_spin, self.work.call))

    @cached_property
    def event_pair_ms(self) -> float:
        """Between two events around nothing."""
        return median(self.behind_a_spin(nothing))

    @cached_property
    def flush(self) -> Flush:
        return self.flushed(FLUSH_BYTES)

    @cached_property
    def l2_flush(self) -> Flush:
        return self.flushed(torch.cuda.get_device_properties(0).L2_cache_size)

    def flushed(self, nbytes: int) -> Flush:
        zero = torch.empty(nbytes // 4, dtype=torch.int, device=DEVICE).zero_
        alone_ms = median(period(zero, self.seconds / 2).samples_ms)
        around = partial(events_around, self.work.call, zero, self.seconds)
        return Flush(zero, alone_ms, self.at_pace("period", around))

    def clocks_mhz(self, flush: Flush) -> tuple[int | None, int | None]:
        """Back to back, and with the flush before each call."""
        one_ms = self.median("period")
        return (
            clock_mhz(self.work.call, nothing, one_ms, self.gpu),
            clock_mhz(self.work.call, flush.zero, one_ms + flush.alone_ms, self.gpu),
        )

    @cached_property
    def long_blocks_ms(self) -> float:
        def measure() -> list[float]:
            return period(self.work.call, 2 * self.seconds, LONG_BLOCK_MS).samples_ms

        return median(self.at_pace("period", measure))

    @cached_property
    def rested_ms(self) -> float:
        def measure() -> list[float]:
            time.sleep(3 * SHORT_S)
            return period(self.work.call, SHORT_S).samples_ms

        return median(self.at_pace("period", measure))

    @cached_property
    def short_least_ms(self) -> float:
        def measure() -> list[float]:
            time.sleep(3 * SHORT_S)
            return events_around(self.work.call, self.l2_flush.zero, SHORT_S / 4)

        return min(self.at_pace("period", measure))

    @cached_property
    def unrolled_calls(self) -> int:
        return max(1, min(2000, int(UNROLLED_MS / self.median("period"))))

    @cached_property
    def unrolled_ms(self) -> float:
        def measure() -> list[float]:
            return [unrolled_ms(self.work.capturable, self.unrolled_calls, self.seconds)]

        return median(self.at_pace("period", measure))

    @cached_property
    def replay_gap_ms(self) -> float:
        return replay_gap_ms(self.seconds)

    @cached_property
    def empty_call_ms(self) -> tuple[float, float]:
        """What an empty call takes: by our latency, and by `timeit(1)`."""
        return median(latency(nothing, 0.05).samples_ms), by_timeit(nothing, 0.05).ms

    @cached_property
    def pause_ms(self) -> float:
        """Between the untimed calls and the timed one of `timeit(1)`, roughly: its own time without its three calls."""
        return max(0.0, 1e3 * timeit_s(self.work.call) - 3 * self.median("latency"))

    @cached_property
    def paused_ms(self) -> float:
        def measure() -> list[float]:
            return latency_after(self.work.call, 2, self.pause_ms, self.seconds)

        return median(self.at_pace("latency", measure))
