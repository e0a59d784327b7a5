"""Why other timers print something else than ours. Used by benchmarks/truth.py.

A disagreement is explained only by a measurement: each rule times the callable in the one respect in which the peer
differs, and explains it where that figure agrees with the peer's. Times in milliseconds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median

from truth_figures import Figures
from truth_peers import SHORT_S, Call, latency, period

from effbench.measure.telemetry import Telemetry


@dataclass(frozen=True)
class Check:
    """`ms`: our own figure, taken as the peer takes it in the respect that `sentence` names."""

    sentence: str
    ms: float

    def off(self, peer_ms: float) -> float:
        return abs(peer_ms / self.ms - 1) if self.ms > 0 else math.inf

    def says(self, peer_ms: float) -> str:
        return f"{self.sentence}: {self.ms:.4f} ms, {self.off(peer_ms):.1%} off"


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


def rule_paused(it: Figures, asks: str, peer_ms: float) -> Check:
    sentence = (
        f"it makes two untimed calls before each timed one and rests for {1e3 * it.pause_ms:.0f} µs, in which a GPU at "
        "its power limit recovers; ours after the same"
    )
    return Check(sentence, it.paused_ms)


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


def rule_one_graph(it: Figures, asks: str, peer_ms: float) -> Check:
    """A graph waits for all of the one before; calls in one graph follow closer."""
    done = f"in one graph of {it.unrolled_calls} calls of our own"
    return Check(f"its graph holds many calls, with no replay between them; {done}", it.unrolled_ms)


def rule_short_least(it: Figures, asks: str, peer_ms: float) -> Check:
    sentence = "the least of a short run after a rest, so that a GPU at its power limit has not slowed down yet"
    return Check(f"{sentence}; with the same flush and rest", it.short_least_ms)


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
    "paused": rule_paused,
    "unrolled": rule_unrolled,
    "one graph": rule_one_graph,
    "short least": rule_short_least,
    "spin": rule_spin,
    "flush": rule_flush,
    "least spin": partial(rule_spin, of=min),
    "least flush": partial(rule_flush, of=min),
    "clock": rule_clock,
    "hidden": rule_hidden,
}
