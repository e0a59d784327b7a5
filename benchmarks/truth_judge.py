"""Peers held against our timers, in pairs. Used by benchmarks/truth.py; times in milliseconds.

Each answer of a peer stands between two turns of ours, and their ratio is what counts: its geometric mean over the
rounds, with a t interval over their logarithms.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from truth_figures import Figures
from truth_peers import PEERS, Answer, Peer, Workload, warm_up
from truth_rules import RULES, Check

from effbench.measure.telemetry import Telemetry
from effbench.stats.intervals import Interval, geometric_mean

MICROSECOND_MS = 1e-3
GPU_BOUND_GRAPH, OTHERS = 0.01, 0.05  # what counts as a disagreement
ROUNDS = 5


@dataclass(frozen=True)
class Row:
    """A peer on a callable. `ratio`: the peer's figure ÷ ours, over the rounds; `peer_ms`: ours times that ratio.
    `verdict`: agrees, explained, not explained or skipped; `why` for all but a plain agreement."""

    callable: str
    peer: str
    asks: str
    verdict: str
    why: str = ""
    peer_ms: float | None = None
    peer_mean_ms: float | None = None
    ours_ms: float | None = None
    tolerance: float = OTHERS
    ratio: Interval | None = None

    @property
    def difference(self) -> float | None:
        """The peer's figure against ours, relative."""
        return None if self.ratio is None else self.ratio.value - 1


def checks(names: Iterable[str], it: Figures, asks: str, peer_ms: float) -> Iterator[Check]:
    """Each measured only when it is asked for; one that cannot be measured explains nothing."""
    for name in names:
        try:
            yield RULES[name](it, asks, peer_ms)
        except Exception as error:
            print(f"rule «{name}» on {it.work.name}: {first_line(error)}", file=sys.stderr)


def explain(peer_ms: float, tolerance: float, found: Iterable[Check], known: Interval) -> tuple[bool, str]:
    """The first check that agrees with the peer, with its figure; else the nearest, which explains it as well where it
    lies within the interval in which the peer's own figure is known; else that none does. `known`: that figure with
    its interval, in milliseconds."""
    tried: list[Check] = []
    for check in found:
        if check.off(peer_ms) <= tolerance:
            return True, check.says(peer_ms)
        tried.append(check)
    if not tried:
        return False, "nothing could be checked"
    nearest = min(tried, key=lambda check: check.off(peer_ms))
    if known.low <= nearest.ms <= known.high and known.high - known.low <= 4 * tolerance * peer_ms:
        return True, f"within the interval of its figure: {nearest.says(peer_ms)}"
    return False, f"the nearest was «{nearest.says(peer_ms)}»"


def judge(work: Workload, peer: Peer, pairs: Sequence[tuple[Answer, float]], it: Figures) -> Row:
    """`pairs`: each answer with our figure beside it."""
    ratio = geometric_mean(answer.ms / ours for answer, ours in pairs)
    means = [answer.mean_ms for answer, _ in pairs if answer.mean_ms is not None]
    ours = it.median(peer.asks)
    ms = ours * ratio.value
    tolerance = GPU_BOUND_GRAPH if work.graph and not it.host_bound else OTHERS
    verdict, why = "agrees", ""
    if abs(ratio.value - 1) > tolerance:
        # a check is no better than a fraction of a microsecond: more than 1 % of a short graph
        it.ask_again = partial(peer.run, work.capturable if peer.captures else work.call, it.seconds)
        close = max(tolerance, (MICROSECOND_MS if tolerance == GPU_BOUND_GRAPH else MICROSECOND_MS / 4) / ms)
        known = Interval(ms, ours * ratio.low, ours * ratio.high, ratio.n)
        explained, why = explain(ms, close, checks(peer.rules, it, peer.asks, ms), known)
        verdict = "explained" if explained else "not explained"
        if not explained and (told := not_told_apart(ratio, tolerance)):
            verdict, why = "agrees", told
    return Row(
        work.name, peer.name, peer.asks, verdict, why, ms, median(means) if means else None, ours, tolerance, ratio
    )


def not_told_apart(ratio: Interval, tolerance: float) -> str | None:
    """Where the pairs leave open whether it is beyond the tolerance, as long as they do not leave everything open."""
    low, high = ratio.low - 1, ratio.high - 1
    if low > tolerance or high < -tolerance or high - low > 4 * tolerance:
        return None
    return f"as far as {ROUNDS} pairs tell, {low:+.1%} to {high:+.1%}"


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def compare(work: Workload, seconds: float, gpu: Telemetry) -> list[Row]:
    """All peers on one callable: a turn of ours, a peer, a turn of ours, …, in another order each round."""
    it = Figures(work, seconds, gpu)
    pairs: dict[str, list[tuple[Answer, float]]] = {peer.name: [] for peer in PEERS}
    failed: dict[str, str] = {}
    warm_up(work.call, seconds)
    it.take_turn()
    for round in range(ROUNDS):
        at = round % len(PEERS)
        for peer in PEERS[at:] + PEERS[:at]:
            if peer.name in failed:
                continue
            torch.cuda.synchronize()  # the next one may use a stream of its own
            try:
                answer = peer.run(work.capturable if peer.captures else work.call, seconds)
            except Exception as error:  # whatever it is: the others can still be compared
                failed[peer.name] = first_line(error)
                continue
            it.take_turn()
            before, after = it.medians(peer.asks)[-2:]
            pairs[peer.name].append((answer, math.sqrt(before * after)))
    return [
        Row(work.name, peer.name, peer.asks, "skipped", failed[peer.name])
        if peer.name in failed
        else judge(work, peer, pairs[peer.name], it)
        for peer in PEERS
    ]
