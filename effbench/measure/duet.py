"""Time two processes in turn: they hand each other a token, and only the one that has it calls its step.

The leader times a batch, asks its partner for one, and so on, as `pairs.take_pairs` does within one
process. On a GPU both run on the same core, because each core has its own slow moments; the leader
chooses it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from effbench.measure.host import HostWatch, RunQueue
from effbench.measure.pairs import Batch, LatencySide, Pair, Pairs, PeriodSide, Side, take_pairs
from effbench.measure.timing import Figure, Rules, Timer, Timing, bounds_of_median, load
from effbench.meeting import Partner, PartnerLostError, number_in
from effbench.metrics import percent, significant
from effbench.stats.intervals import Interval, median_interval

#: Names of the two series.
LATENCY, PERIOD = "latency", "period"
#: Part of the time under load before the period is timed alone that is spent before it is timed in turn.
LOAD_PART = 1 / 3


class RecordedSide(LatencySide):
    """Synchronised calls of this process's step. `batches`: all calls that count, by batch."""

    def __init__(self, timer: Timer, latency_ms: float) -> None:
        super().__init__(timer, latency_ms)
        self.batches: list[Timing] = []

    def calls_of_batch(self) -> Timing:
        counted = super().calls_of_batch()
        self.batches.append(counted)
        return counted

    def calls_of(self, pairs: list[Pair]) -> Timing:
        """Return the calls in the batches of these pairs."""
        calls = Timing()
        for pair in pairs:
            batch = self.batches[pair.number]
            calls.samples_ms += batch.samples_ms
            calls.enqueue_ms += batch.enqueue_ms
        return calls


class RemoteSide:
    """The step of the partner. `host`: the watch of this process, or None."""

    def __init__(self, partner: Partner, name: str, host: HostWatch | None) -> None:
        self.partner = partner
        self.name = name
        self.host = host

    def batch(self) -> Batch:
        """Have the partner time a batch. Raises PartnerLostError."""
        before_ms = self.waited_ms()
        answer = self.partner.ask("batch", name=self.name, core=self.core())
        waited_ms = number_in(answer, "waited_ms")
        # this process waits for the core while its partner uses it, which disturbs neither
        return Batch(number_in(answer, "ms"), waited_ms - (self.waited_ms() - before_ms))

    def waited_ms(self) -> float:
        return self.host.run_queue.read_ms() if self.host else 0.0

    def core(self) -> int | None:
        """Return the core on which both sides run; None if they may use several."""
        if self.host is None or not self.host.moves:
            return None
        return min(os.sched_getaffinity(0))


@dataclass
class DuetResult:
    """What a duet found, for both of its members.

    `pairs`: of each series, in which the leader is `own` and the other member the reference.
    `host_ms`, `host_high_ms`, `disturbed_fraction`: the host, as in a trial. `disturbance`: of the GPU
    or by other processes on the CPU, or None. `host_reason`: why figures with too few undisturbed pairs
    are marked. `void`: why the pairs do not count, or None.
    """

    pairs: dict[str, Pairs]
    host_ms: float | None = None
    host_high_ms: float | None = None
    disturbed_fraction: float | None = None
    disturbance: str | None = None
    host_reason: str = "host busy"
    void: str | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DuetResult:
        """Return the result that `asdict` turned into plain values. Raises PartnerLostError for any others."""
        try:
            pairs = {name: pairs_from_json(series) for name, series in values["pairs"].items()}
            return cls(**{**values, "pairs": pairs})
        except (AttributeError, KeyError, TypeError) as error:
            raise PartnerLostError("the other member of the duet sent no valid result") from error

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pairs_from_json(series: Mapping[str, Any]) -> Pairs:
    undisturbed = [Pair(**pair) for pair in series["undisturbed"]]
    disturbed = [Pair(**pair) for pair in series["disturbed"]]
    return Pairs(undisturbed, disturbed)


@dataclass(frozen=True)
class Step:
    """This member's step, ready to be timed in turn. `period`: None if it has none."""

    timer: Timer
    latency: RecordedSide
    period: PeriodSide | None
    depends_on_host: bool

    @classmethod
    def of(cls, timer: Timer, latency_ms: float, has_period: bool) -> Step:
        """Return the step of a timer that has warmed up. `latency_ms`: about how long a call takes."""
        depends_on_host = timer.waits_for_host(latency_ms)
        period = PeriodSide(timer, timer.choose_block(timer.rules.budget_s)) if has_period else None
        return cls(timer, RecordedSide(timer, latency_ms), period, depends_on_host)

    @property
    def sides(self) -> dict[str, Side]:
        """The sides by the names of their series."""
        sides: dict[str, Side] = {LATENCY: self.latency}
        if self.period is not None:
            sides[PERIOD] = self.period
        return sides

    @property
    def budget_s(self) -> float:
        """The time of a series of both members: what each would have alone, together."""
        return 2 * self.timer.rules.budget_s / len(self.sides)


def lead(step: Step, partner: Partner, host: HostWatch | None) -> dict[str, Pairs]:
    """Time all series in turn with the partner, and return their pairs. Raises PartnerLostError."""
    found: dict[str, Pairs] = {}
    rules, watch = step.timer.rules, step.timer.watch
    for name, side in step.sides.items():
        if isinstance(side, PeriodSide):
            load(step.timer.step, side.rotation, side.calls, LOAD_PART * rules.load_s)
        found[name] = take_pairs(RemoteSide(partner, name, host), side, rules, step.budget_s, host)
        if watch is not None and watch.gpu.handle is not None:
            watch.readings.append(watch.gpu.read())
    return found


def follow(step: Step, partner: Partner, run_queue: RunQueue) -> None:
    """Time a batch whenever the leader asks for one, until it asks for the end. Raises PartnerLostError."""
    cores, sides = os.sched_getaffinity(0), step.sides
    try:
        while True:
            message = partner.receive()
            if message.get("op") == "end":
                return
            name, core = message.get("name"), message.get("core")
            if message.get("op") != "batch" or name not in sides:
                raise PartnerLostError("the other member of the duet sent an unknown message")
            if isinstance(core, int):
                os.sched_setaffinity(0, {core})
            before_ms = run_queue.read_ms()
            batch = sides[name].batch()
            partner.send("batch", ms=batch.ms, waited_ms=run_queue.read_ms() - before_ms)
    finally:
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class DuetFigures:
    """The figures of both members. `pairs`: those that give them; `varies`: how the ratio varies, or None."""

    leader: Figure
    follower: Figure
    pairs: list[Pair]
    varies: str | None


def figures_of(pairs: Pairs, rules: Rules) -> DuetFigures:
    """Return the times of both members, in ms per call.

    Their ratio is the median ratio of the pairs, and their geometric mean the median of the pairs'. So
    the host's slow moments affect both alike.
    """
    ratio = pairs.figure(rules)
    used = list(pairs.undisturbed)
    if ratio.is_marked or not rules.discards:
        used += pairs.disturbed
    mean_ms = median_interval([math.sqrt(pair.reference_ms * pair.own_ms) for pair in used]).value
    root = math.sqrt(ratio.median.value)
    leader = Timing([pair.own_ms for pair in pairs.undisturbed])
    follower = Timing([pair.reference_ms for pair in pairs.undisturbed])
    leader.disturbed_ms = [pair.own_ms for pair in pairs.disturbed]
    follower.disturbed_ms = [pair.reference_ms for pair in pairs.disturbed]
    varies = None
    if ratio.varies and not ratio.is_marked:
        low, high = significant(ratio.median.low, 3), significant(ratio.median.high, 3)
        varies = f"unsteady: the ratio of the two sides is anywhere from {low} to {high}"
    is_all = len(used) > len(pairs.undisturbed)
    return DuetFigures(
        leader=member_figure(mean_ms / root, leader, is_all, ratio.is_marked),
        follower=member_figure(mean_ms * root, follower, is_all, ratio.is_marked),
        pairs=used,
        varies=varies,
    )


def member_figure(value_ms: float, batches: Timing, is_all: bool, is_marked: bool) -> Figure:
    """Return the figure of a member with the bounds of the median of its own batches. `is_all`: whether
    disturbed batches count, too. The bounds of a marked figure contain those of both kinds."""
    used = batches.all_samples() if is_all else batches
    bounds = [value_ms, *bounds_of_median(used.samples_ms)]
    if is_marked:
        for samples in (batches.samples_ms, batches.disturbed_ms):
            if samples:
                bounds += bounds_of_median(samples)
    return Figure(Interval(value_ms, min(bounds), max(bounds)), used, is_marked)


def crowded_text(host: HostWatch) -> str | None:
    """Return that other processes than the two members used too much of the CPU, or None."""
    if not host.is_crowded:
        return None
    return f"host busy: other processes used {percent(host.others_fraction)} of the cores"
