"""Advice from measured results: which batch sizes to capture for a trace of batches, and which mode to run.

Pure: measured points, a trace and rows in, advice out. A capture list is found exactly, by dynamic programming: a batch
of r rows takes the smallest graph that holds it, so that the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from effbench.analysis.summary import break_even_calls
from effbench.buckets import bucket_of, usage
from effbench.errors import NothingFoundError
from effbench.metrics import INTERVALS
from effbench.stats.intervals import is_less, stored_log_mean

if TYPE_CHECKING:
    from effbench.analysis.row_labels import LabelledRow

MIB = 2**20
#: What a graph adds to a shared pool: the smallest segment by which torch's allocator lets a pool grow.
PER_GRAPH_BYTES = 2 * MIB
MEASURED, BETWEEN, BELOW, ABOVE = "measured", "between", "below", "above"
TOO_CLOSE = 0.02  # relative difference of figures without intervals; sessions drift by about as much


@dataclass(frozen=True)
class Curve:
    """Measured values by batch size, ascending. Between two of them a straight line; below the smallest its value;
    above the largest the line through the last two, which does not fall."""

    points: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Curve:
        if not values:
            raise ValueError("a curve needs a point")
        return cls(tuple(sorted(values.items())))

    @property
    def sizes(self) -> list[int]:
        return [size for size, _ in self.points]

    def where(self, size: int) -> str:
        """Return how a value at `size` is known: MEASURED, BETWEEN, BELOW or ABOVE."""
        if size in self.sizes:
            return MEASURED
        return BELOW if size < self.points[0][0] else ABOVE if size > self.points[-1][0] else BETWEEN

    def at(self, size: int) -> float:
        last, value = self.points[-1]
        if size <= last or len(self.points) == 1:
            return float(np.interp(size, self.sizes, [value for _, value in self.points]))
        before, earlier = self.points[-2]
        return value + max(0.0, (value - earlier) / (last - before)) * (size - last)


@dataclass(frozen=True)
class Costs:
    """`graph_ms`: a call through the graph of a size; `eager_ms`: a call without a graph, None if not measured;
    `pool_bytes`: memory of the graph of a size alone, None if unknown; `failed`: sizes whose graph was tried and was
    not ok: such a graph cannot be captured, whatever its neighbours suggest."""

    graph_ms: Curve
    eager_ms: Curve | None = None
    pool_bytes: Curve | None = None
    failed: frozenset[int] = frozenset()

    def call_ms(self, bucket: int | None, raw: int) -> float:
        """Infinite for a call without a graph if eager was not measured."""
        if bucket is not None:
            return self.graph_ms.at(bucket)
        return self.eager_ms.at(raw) if self.eager_ms else math.inf


@dataclass(frozen=True)
class Memory:
    """The model of graph memory. shared: the largest graph's pool, which the others reuse, and `per_graph_bytes` for
    each graph; not shared: each graph has its own pool. `budget_bytes` None: no limit."""

    budget_bytes: int | None = None
    shared: bool = True
    per_graph_bytes: int = PER_GRAPH_BYTES

    def weight(self, pool: float) -> float:
        """Return what one more graph costs, whatever the others are."""
        return self.per_graph_bytes + (0 if self.shared else pool)

    def of(self, sizes: Sequence[int], pool: Curve | None) -> float | None:
        """Return the bytes of the graphs of `sizes` together, None if no pool was measured."""
        if not sizes:
            return 0
        if pool is None:
            return None
        largest = pool.at(max(sizes)) if self.shared else 0
        return largest + sum(self.weight(pool.at(size)) for size in sizes)

    def fits(self, needed: float | None) -> bool:
        return self.budget_bytes is None or (needed is not None and needed <= self.budget_bytes)


@dataclass(frozen=True)
class ListAdvice:
    """The effect of a capture list on a trace. `latency_ms`: expected time of a call, None if sizes above the list have
    no eager figure; `fallbacks`: share of calls without a graph; `doubts`: what was not measured; `guessed`: sizes
    above all measured ones that the latency rests on, so that it cannot be ranked."""

    name: str
    sizes: list[int]
    latency_ms: float | None
    padding_waste: float | None
    fallbacks: float
    memory_bytes: float | None
    fits: bool
    doubts: list[str] = field(default_factory=list)
    guessed: list[int] = field(default_factory=list)


def evaluate(name: str, sizes: Sequence[int], trace: Mapping[int, int], costs: Costs, memory: Memory) -> ListAdvice:
    """`trace`: batch size -> calls. `sizes` is ascending."""
    buckets = {raw: bucket_of(sizes, raw) for raw in trace}
    total = sum(count * costs.call_ms(buckets[raw], raw) for raw, count in trace.items())
    used, needed, calls = usage(sizes, trace), memory.of(sizes, costs.pool_bytes), sum(trace.values())
    failed = [size for size in sizes if size in costs.failed]
    doubts = [f"a graph that failed when it was measured: {listed(failed)}"] if failed else []
    guessed = set()
    rests_on = [("graph", costs.graph_ms, {bucket for bucket in buckets.values() if bucket is not None})]
    if costs.eager_ms is not None:
        rests_on.append(("eager", costs.eager_ms, {raw for raw, bucket in buckets.items() if bucket is None}))
    for what, curve, taken in rests_on:
        for where, text in (
            (BETWEEN, "between measured sizes"),
            (BELOW, f"below the smallest measured size, taken as at {curve.sizes[0]}"),
            (ABOVE, f"above the largest measured size, {curve.sizes[-1]}, a guess"),
        ):
            if found := [size for size in sorted(taken) if curve.where(size) == where]:
                doubts.append(f"{what} figures {text}: {listed(found)}")
                guessed.update(found if where == ABOVE else ())
    return ListAdvice(
        name,
        list(sizes),
        total / calls if math.isfinite(total) else None,
        used.padding_waste,
        used.fallbacks / calls,
        needed,
        memory.fits(needed),
        doubts,
        sorted(guessed),
    )


def listed(sizes: Sequence[int], most: int = 6) -> str:
    texts = [str(size) for size in sizes]
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and {len(texts) - most} more"


class Chain(NamedTuple):
    """A list of captured sizes up to `last`: `weight` of all its graphs, `cost_ms` of the calls that they take."""

    weight: float
    cost_ms: float
    last: int
    before: Chain | None

    def sizes(self) -> list[int]:
        chain: Chain | None = self
        found = []
        while chain is not None:
            found.append(chain.last)
            chain = chain.before
        return found[::-1]


def best_lists(
    trace: Mapping[int, int], costs: Costs, memory: Memory, slacks: Sequence[float] = (0.0,)
) -> list[ListAdvice]:
    """Return, for each of `slacks`, the list of least memory whose expected latency is at most that much (relative)
    above the least. Empty if no list can serve every size: the budget is too small, or sizes lie above all measured
    ones and eager is unknown.

    Candidates are the sizes of the trace and the measured ones, from the smallest measured to the largest, without
    those whose graph failed: between them costs are lines, which have no lowest point of their own. Chains that need no
    less memory and are no faster than another with the same end are dropped, so the result is exact.
    """
    ordered = sorted(trace)
    calls_below = [0]
    rest_ms = [0.0]  # of the end of the trace without a graph, from the end on
    for size in ordered:
        calls_below.append(calls_below[-1] + trace[size])
    for size in reversed(ordered):
        rest_ms.append(rest_ms[-1] + trace[size] * costs.call_ms(None, size))

    def calls_to(size: int) -> int:
        """Calls of at most `size` rows."""
        return calls_below[bisect.bisect_right(ordered, size)]

    def rest_after(size: int) -> float:
        """Milliseconds of the calls of more than `size` rows without a graph."""
        return rest_ms[len(ordered) - bisect.bisect_right(ordered, size)]

    pool = costs.pool_bytes
    budget = math.inf if memory.budget_bytes is None or not pool else memory.budget_bytes
    finals: list[tuple[float, float, Chain | None]] = [(rest_after(0), 0.0, None)]  # milliseconds, memory, the list
    frontiers: list[list[Chain]] = []
    first, last = costs.graph_ms.sizes[0], costs.graph_ms.sizes[-1]
    between = {size for size in trace if first <= size <= last} - costs.failed
    for size in sorted({*costs.graph_ms.sizes, *between}):
        ms, taken = costs.graph_ms.at(size), calls_to(size)
        alone = pool.at(size) if pool else 0.0
        weight = memory.weight(alone) if pool else 1.0  # unknown memory: fewer graphs of equals
        steps = [(weight, taken * ms, None)]
        for frontier in frontiers:
            own = (taken - calls_to(frontier[0].last)) * ms if frontier else 0.0
            steps += [(chain.weight + weight, chain.cost_ms + own, chain) for chain in frontier]
        frontier, fastest = [], math.inf
        for total, cost, before in sorted(steps, key=itemgetter(0, 1)):
            if cost < fastest and total <= budget:
                frontier.append(Chain(total, cost, size, before))
                fastest = cost
        frontiers.append(frontier)
        fixed = alone if pool and memory.shared else 0.0
        finals += [(chain.cost_ms + rest_after(size), chain.weight + fixed, chain) for chain in frontier]
    finals = [final for final in finals if math.isfinite(final[0]) and final[1] <= budget]
    found = []
    for slack in slacks if finals else ():
        # equal sums may differ by rounding
        most = min(final[0] for final in finals) * (1 + slack) * (1 + 1e-12)
        chain = min((final for final in finals if final[0] <= most), key=itemgetter(1, 0))[2]
        name = f"advised, within {100 * slack:g} %" if slack else "advised"
        found.append(evaluate(name, chain.sizes() if chain else [], trace, costs, memory))
    return found


@dataclass(frozen=True)
class ModeFigures:
    """A mode that may be chosen.

    `prepare_s`: time before it is ready, once in a process; `warm`: with a filled compile cache, the cold time is
    unknown. `break_even`: calls until that is paid back against the baseline; None: never, or it is the baseline.
    `score_ms`: a call, with its share of the preparation (`share_ms`) if the number of calls is known.
    """

    mode: str
    call_ms: float
    low_ms: float | None
    high_ms: float | None
    trials: int | None
    prepare_s: float
    warm: bool
    memory_bytes: float | None
    speedup: float | None
    break_even: int | None
    score_ms: float
    share_ms: float


@dataclass(frozen=True)
class ModeAdvice:
    """`ranked`: best first. `close`: modes that differ from the best by no significant amount. `excluded`: mode ->
    reason."""

    ranked: list[ModeFigures]
    close: list[str]
    excluded: dict[str, str]
    doubts: list[str] = field(default_factory=list)

    @property
    def best(self) -> ModeFigures:
        return self.ranked[0]


def advise_mode(
    rows: Sequence[LabelledRow],
    column: str = "latency_ms",
    calls: int | None = None,
    memory_bytes: int | None = None,
    baseline_mode: str = "eager",
) -> ModeAdvice:
    """Rank the modes of one case and batch size by `column`.

    `calls`: how many follow one preparation; None: preparation does not count. `memory_bytes`: most peak reserved
    memory. Raises NothingFoundError if no mode is left.
    """
    excluded: dict[str, str] = {}
    usable = []
    for row in rows:
        source, reserved = row.source, row.source.get("peak_reserved_bytes")
        if source["status"] != "ok":
            excluded[row.mode] = f"{source['status']}: {source['reason'] or 'no reason recorded'}"
        elif source.get(column) is None:
            excluded[row.mode] = f"no {column.removesuffix('_ms')} was measured"
        elif memory_bytes is not None and reserved is None:
            excluded[row.mode] = "its memory was not measured"
        elif memory_bytes is not None and reserved > memory_bytes:
            excluded[row.mode] = "needs more memory than allowed"
        else:
            usable.append(row)
    if not usable:
        reasons = "; ".join(f"{mode} {why}" for mode, why in excluded.items())
        raise NothingFoundError(f"no mode is left: {reasons or 'nothing was measured here'}")
    # the baseline's time counts also if its memory excludes it
    base = next((row.source for row in rows if row.base_mode == baseline_mode and row.source["status"] == "ok"), None)
    ranked = sorted((mode_figures(row, column, calls, base) for row in usable), key=attrgetter("score_ms"))
    close = [other.mode for other in ranked[1:] if too_close(ranked[0], other)]
    doubts = []
    if any(mode.low_ms is None for mode in ranked):
        doubts.append(
            f"some figures have no interval (one trial, or a period): {TOO_CLOSE:.0%} decides what is too close"
        )
    if calls is not None and (warm := [mode.mode for mode in ranked if mode.warm]):
        doubts.append(f"only seen with a filled compile cache, a cold start takes longer: {', '.join(warm)}")
    return ModeAdvice(ranked, close, excluded, doubts)


def mode_figures(row: LabelledRow, column: str, calls: int | None, base: dict[str, Any] | None) -> ModeFigures:
    source = row.source
    cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
    # modes that compile nothing still capture or trace: until the first output is there
    prepare_s = next((value for value in (cold, warm, source.get("first_call_s")) if value is not None), 0.0)
    low, high = (source.get(name) for name in INTERVALS[column])
    share = prepare_s * 1000 / calls if calls else 0.0
    baseline_ms = base and base.get(column)
    is_base = base is source
    return ModeFigures(
        mode=row.mode,
        call_ms=source[column],
        low_ms=low,
        high_ms=high,
        trials=source.get("trials"),
        prepare_s=prepare_s,
        warm=cold is None and warm is not None,
        memory_bytes=source.get("peak_reserved_bytes"),
        speedup=baseline_ms / source[column] if baseline_ms else None,
        break_even=None if is_base or not baseline_ms else break_even_calls(prepare_s, baseline_ms, source[column]),
        score_ms=source[column] + share,
        share_ms=share,
    )


def too_close(best: ModeFigures, other: ModeFigures) -> bool:
    """Return whether `best` is not significantly faster; without intervals, whether they are less than TOO_CLOSE
    apart."""
    if None in (best.low_ms, best.high_ms, other.low_ms, other.high_ms):
        return other.score_ms <= best.score_ms * (1 + TOO_CLOSE)
    a, b = (
        stored_log_mean(mode.score_ms, mode.low_ms + mode.share_ms, mode.high_ms + mode.share_ms, mode.trials)
        for mode in (best, other)
    )
    return not is_less(a, b)
