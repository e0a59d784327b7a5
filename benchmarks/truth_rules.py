"""Why other timers print something else than ours. Used by benchmarks/truth.py.

A disagreement is explained only by a measurement: each rule times the callable in the one respect in which the peer
differs, and explains it where that figure agrees with the peer's. Times in milliseconds.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from statistics import fmean, median

import torch
from truth_peers import (
    CYCLES_A_MS,
    DEVICE,
    FLUSH_BYTES,
    LONG_BLOCK_MS,
    PEERS,
    SHORT_S,
    UNROLLED_MS,
    Answer,
    Call,
    Peer,
    Workload,
    by_timeit,
    clock_mhz,
    events_around,
    latency,
    nothing,
    period,
    replay_gap_ms,
    unrolled_ms,
    warm_up,
)

from effbench.measure import timing
from effbench.measure.telemetry import Telemetry

MICROSECOND_MS = 1e-3
GPU_BOUND_GRAPH, OTHERS = 0.01, 0.05  # what counts as a disagreement


@dataclass(frozen=True)
class Check:
    """`ms`: our own figure, taken as the peer takes it in the respect that `sentence` names."""

    sentence: str
    ms: float

    def off(self, peer_ms: float) -> float:
        return abs(peer_ms / self.ms - 1) if self.ms > 0 else math.inf

    def says(self, peer_ms: float) -> str:
        return f"{self.sentence}: {self.ms:.4f} ms, {self.off(peer_ms):.1%} off"


@dataclass(frozen=True)
class Row:
    """A peer on a callable. `verdict`: agrees, explained, not explained or skipped; `why` for all but the first."""

    callable: str
    peer: str
    asks: str
    verdict: str
    why: str = ""
    peer_ms: float | None = None
    peer_mean_ms: float | None = None
    ours_ms: float | None = None
    tolerance: float = OTHERS

    @property
    def difference(self) -> float | None:
        """The peer's figure against ours, relative."""
        return None if self.peer_ms is None else self.peer_ms / self.ours_ms - 1


# --- our figures of one callable, those that only a rule asks for when it does ---


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
    turns: dict[str, list[timing.Timing]] = field(default_factory=lambda: {"period": [], "latency": []})
    ask_again: Call = nothing  # the peer that is judged, once more

    def take_turn(self) -> None:
        self.turns["period"].append(period(self.work.call, self.seconds))
        self.turns["latency"].append(latency(self.work.call, self.seconds / 2))

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
        return self.enqueue_ms >= self.gpu_ms

    def behind_a_spin(self, call: Call) -> list[float]:
        """The spin outlasts the launches, so nothing waits for the host, and it leaves the caches as they are."""
        cycles = int(CYCLES_A_MS * (1.5 * self.enqueue_ms + 0.03))
        return events_around(call, partial(torch.cuda._sleep, cycles), self.seconds)

    @cached_property
    def spin(self) -> list[float]:
        return self.behind_a_spin(self.work.call)

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
        return Flush(zero, alone_ms, events_around(self.work.call, zero, self.seconds))

    def clocks_mhz(self, flush: Flush) -> tuple[int | None, int | None]:
        """Back to back, and with the flush before each call."""
        one_ms = self.median("period")
        return (
            clock_mhz(self.work.call, nothing, one_ms, self.gpu),
            clock_mhz(self.work.call, flush.zero, one_ms + flush.alone_ms, self.gpu),
        )

    @cached_property
    def long_blocks_ms(self) -> float:
        return median(period(self.work.call, self.seconds, LONG_BLOCK_MS).samples_ms)

    @cached_property
    def rested_ms(self) -> float:
        time.sleep(3 * SHORT_S)
        return median(period(self.work.call, SHORT_S).samples_ms)

    @cached_property
    def unrolled_calls(self) -> int:
        return max(1, min(2000, int(UNROLLED_MS / self.median("period"))))

    @cached_property
    def unrolled_ms(self) -> float:
        return unrolled_ms(self.work.capturable, self.unrolled_calls, self.seconds)

    @cached_property
    def replay_gap_ms(self) -> float:
        return replay_gap_ms(self.seconds)

    @cached_property
    def empty_call_ms(self) -> tuple[float, float]:
        """What an empty call takes: by our latency, and by `timeit(1)`."""
        return median(latency(nothing, 0.05).samples_ms), by_timeit(nothing, 0.05).ms


# --- the rules ---


def rule_mean(it: Figures, asks: str, peer_ms: float) -> Check:
    return Check("a mean, where ours is a median; our mean", it.mean(asks))


def rule_least(it: Figures, asks: str, peer_ms: float) -> Check:
    return Check("the least of its samples, where ours is a median; our least", it.least(asks))


def rule_turns(it: Figures, asks: str, peer_ms: float) -> Check:
    turns = it.medians(asks)
    spread = f"our own turns range from {min(turns):.4f} to {max(turns):.4f} ms; the nearest"
    return Check(f"noise from one moment to the next: {spread}", min(turns, key=lambda ms: abs(ms - peer_ms)))


def rule_rested(it: Figures, asks: str, peer_ms: float) -> Check:
    sentence = (
        f"a short run, so that a GPU at its power limit has not slowed down yet; ours of {SHORT_S} s after a rest"
    )
    return Check(sentence, it.rested_ms)


def rule_blocks(it: Figures, asks: str, peer_ms: float) -> Check:
    sentence = f"many more calls in a block than our {it.calls_per_block}; with blocks of 100 ms"
    return Check(sentence, it.long_blocks_ms)


def rule_empty_call(it: Figures, asks: str, peer_ms: float) -> Check:
    ours, theirs = it.empty_call_ms
    shown = f"an empty call is {theirs * 1e3:.1f} µs by it and {ours * 1e3:.1f} µs by ours"
    return Check(f"the timer's own time: {shown}; ours with that difference", it.median(asks) + theirs - ours)


def rule_unrolled(it: Figures, asks: str, peer_ms: float) -> Check:
    """Of a graph the figures stay those of its own replays: another graph could do other work."""
    gap = f"each replay of ours costs {it.replay_gap_ms * 1e3:.1f} µs beyond its kernels" if it.work.graph else ""
    if it.work.graph and it.host_bound:
        return Check(f"{host_bound(it)}, and {gap}; behind a spin, less that", it.gpu_ms - it.replay_gap_ms)
    if it.work.graph:
        return Check(f"its graph holds many calls: {gap}; less that", it.median(asks) - it.replay_gap_ms)
    done = f"in one graph of {it.unrolled_calls} calls of our own"
    if it.host_bound:
        return Check(f"{host_bound(it)}: in its graph the host launches nothing; {done}", it.unrolled_ms)
    return Check(f"in a graph the gaps between the calls are others; {done}", it.unrolled_ms)


def rule_spin(it: Figures, asks: str, peer_ms: float, of: Callable[[list[float]], float] = median) -> Check:
    if peer_ms > it.median(asks):
        own = f"the events take their own time ({it.event_pair_ms * 1e3:.1f} µs around nothing)"
        sentence = f"single calls between events overlap with nothing, and {own}"
    elif it.host_bound:
        sentence = f"{host_bound(it)}: its flush hides the launches"
    else:
        sentence = "events around a call that is queued behind other work see no start on an idle GPU"
    return Check(f"{sentence}; behind a spin, the L2 warm{', the least' if of is min else ''}", of(it.spin))


def rule_flush(it: Figures, asks: str, peer_ms: float, of: Callable[[list[float]], float] = median) -> Check:
    """The median behind triton's flush, or the least behind Inductor's."""
    flush = it.l2_flush if of is min else it.flush
    if peer_ms > it.median(asks):
        sentence = "cold L2: it zeroes a buffer before each call"
    elif it.host_bound and flush.alone_ms > it.enqueue_ms:
        sentence = f"{host_bound(it)}: its flush hides the launches, and leaves the L2 cold"
    elif it.host_bound:
        sentence = f"{host_bound(it)}: its flush ({flush.alone_ms:.4f} ms) hides only a part of the launches"
    else:
        sentence = clocks_sentence(*it.clocks_mhz(flush))
    return Check(f"{sentence}; with the same flush{' and the least' if of is min else ''}", of(flush.samples_ms))


def clocks_sentence(back_to_back: int | None, flushed: int | None) -> str:
    """Why a flush makes a GPU-bound call faster, as far as the clocks tell."""
    if back_to_back is None or flushed is None or flushed <= back_to_back:
        return f"faster after a flush, for a reason that the SM clock does not show ({back_to_back} and {flushed} MHz)"
    return f"the flush lets the SM clock rise, to {flushed} MHz from {back_to_back} MHz back to back"


def host_bound(it: Figures) -> str:
    return f"host-bound (enqueued in {it.enqueue_ms:.4f} ms, run in {it.gpu_ms:.4f} ms)"


def rule_hidden(it: Figures, asks: str, peer_ms: float) -> Check:
    """A bound: what hides some of the launches prints something between the GPU's own time and the period."""
    low, high = it.gpu_ms, it.median(asks)
    leaves = f"what it queues ahead hides some of the launches, which leaves {low:.4f} to {high:.4f} ms"
    return Check(f"{host_bound(it)}: {leaves}; the nearest", min(max(peer_ms, low), high) if it.host_bound else high)


def rule_clock(it: Figures, asks: str, peer_ms: float) -> Check:
    """Ours at the clock that the GPU had while the peer ran."""
    timer = period if asks == "period" else latency
    ours, theirs = (clock_while(it.gpu, run) for run in (partial(timer, it.work.call, it.seconds), it.ask_again))
    sentence = f"SM clock {theirs or 0:.0f} MHz under it and {ours or 0:.0f} MHz under ours; ours at its clock"
    return Check(sentence, it.median(asks) * ours / theirs if ours and theirs else math.inf)


def clock_while(gpu: Telemetry, run: Call) -> float | None:
    """Mean SM clock while `run` runs, read every 5 ms."""
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.005):
            if clock := gpu.read().sm_clock_mhz:
                seen.append(clock)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return fmean(seen) if seen else None


RULES: dict[str, Callable[[Figures, str, float], Check]] = {
    "mean": rule_mean,
    "least": rule_least,
    "turns": rule_turns,
    "rested": rule_rested,
    "blocks": rule_blocks,
    "empty call": rule_empty_call,
    "unrolled": rule_unrolled,
    "spin": rule_spin,
    "flush": rule_flush,
    "least spin": partial(rule_spin, of=min),
    "least flush": partial(rule_flush, of=min),
    "clock": rule_clock,
    "hidden": rule_hidden,
}


def checks(names: Iterable[str], it: Figures, asks: str, peer_ms: float) -> Iterator[Check]:
    """Each measured only when it is asked for; one that cannot be measured explains nothing."""
    for name in names:
        try:
            yield RULES[name](it, asks, peer_ms)
        except Exception as error:
            print(f"rule «{name}» on {it.work.name}: {first_line(error)}", file=sys.stderr)


def explain(peer_ms: float, tolerance: float, found: Iterable[Check]) -> tuple[bool, str]:
    """The first check that agrees with the peer, with its figure; else that none does, with the nearest."""
    tried: list[Check] = []
    for check in found:
        if check.off(peer_ms) <= tolerance:
            return True, check.says(peer_ms)
        tried.append(check)
    if not tried:
        return False, "nothing could be checked"
    nearest = min(tried, key=lambda check: check.off(peer_ms))
    return False, f"the nearest was «{nearest.says(peer_ms)}»"


def judge(work: Workload, peer: Peer, answers: list[Answer], it: Figures) -> Row:
    """The medians of the turns of both sides held against each other."""
    ms = median(answer.ms for answer in answers)
    means = [answer.mean_ms for answer in answers if answer.mean_ms is not None]
    ours = it.median(peer.asks)
    tolerance = GPU_BOUND_GRAPH if work.graph and not it.host_bound else OTHERS
    verdict, why = "agrees", ""
    if abs(ms / ours - 1) > tolerance:
        # a check is no better than a fraction of a microsecond: more than 1 % of a short graph
        it.ask_again = partial(peer.run, work.capturable if peer.captures else work.call, it.seconds)
        close = max(tolerance, (MICROSECOND_MS if tolerance == GPU_BOUND_GRAPH else MICROSECOND_MS / 4) / ms)
        explained, why = explain(ms, close, checks(peer.rules, it, peer.asks, ms))
        verdict = "explained" if explained else "not explained"
    return Row(work.name, peer.name, peer.asks, verdict, why, ms, median(means) if means else None, ours, tolerance)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def compare(work: Workload, seconds: float, gpu: Telemetry) -> list[Row]:
    """All peers on one callable, in turns with ours: ours, the peers, ours, the peers in reverse, ours."""
    it = Figures(work, seconds, gpu)
    answers: dict[str, list[Answer]] = {peer.name: [] for peer in PEERS}
    failed: dict[str, str] = {}
    warm_up(work.call, seconds)
    for peer in itertools.chain((None,), PEERS, (None,), reversed(PEERS), (None,)):
        torch.cuda.synchronize()  # the next one may use a stream of its own
        if peer is None:
            it.take_turn()
        elif peer.name not in failed:
            try:
                answers[peer.name].append(peer.run(work.capturable if peer.captures else work.call, seconds))
            except Exception as error:  # whatever it is: the others can still be compared
                failed[peer.name] = first_line(error)
    return [
        Row(work.name, peer.name, peer.asks, "skipped", failed[peer.name])
        if peer.name in failed
        else judge(work, peer, answers[peer.name], it)
        for peer in PEERS
    ]
