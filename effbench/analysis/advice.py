"""Which batch sizes to capture: the list that makes a trace of batches fastest within a memory budget.

Exact, by dynamic programming: the cost of a list is a sum over its gaps, as a batch of r rows takes the smallest graph
that holds it. Pure: measured points and a trace in, lists out.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from effbench.buckets import bucket_of, usage

MIB = 2**20
#: What a graph adds to a shared pool: the smallest segment by which torch's allocator lets a pool grow.
PER_GRAPH_BYTES = 2 * MIB
MEASURED, BETWEEN, BELOW, ABOVE = "measured", "between", "below", "above"


@dataclass(frozen=True)
class Curve:
    """Measured values by batch size, ascending. Between two of them a straight line (so never outside of the two);
    below the smallest its value; above the largest the line through the last two, which does not fall."""

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
        """How a value at `size` is known: MEASURED, BETWEEN, BELOW or ABOVE."""
        if size in self.sizes:
            return MEASURED
        return BELOW if size < self.points[0][0] else ABOVE if size > self.points[-1][0] else BETWEEN

    def at(self, size: int) -> float:
        if size <= self.points[0][0]:
            return self.points[0][1]
        if size >= self.points[-1][0]:
            last, value = self.points[-1]
            slope = 0.0
            if len(self.points) > 1:
                before, earlier = self.points[-2]
                slope = max(0.0, (value - earlier) / (last - before))
            return value + slope * (size - last)
        place = bisect.bisect_left(self.sizes, size)
        (left, low), (right, high) = self.points[place - 1], self.points[place]
        return low + (high - low) * (size - left) / (right - left)


@dataclass(frozen=True)
class Costs:
    """`graph_ms`: a call through the graph of a size; `eager_ms`: a call without one, None where it was not measured;
    `pool_bytes`: memory of the graph of a size alone, None where unknown; `failed`: sizes whose graph was tried and was
    not ok: there is none to capture, whatever its neighbours say."""

    graph_ms: Curve
    eager_ms: Curve | None = None
    pool_bytes: Curve | None = None
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Memory:
    """The model of graph memory. shared: the largest graph's pool, which the others use again, and `per_graph_bytes`
    for each graph; not shared: each has its own. `budget_bytes` None: as much as you like."""

    budget_bytes: int | None = None
    shared: bool = True
    per_graph_bytes: int = PER_GRAPH_BYTES

    def weight(self, pool: float) -> float:
        """What one more graph costs, whatever the others are."""
        return self.per_graph_bytes + (0 if self.shared else pool)

    def of(self, sizes: Sequence[int], pool: Curve | None) -> float | None:
        """Bytes of the graphs of `sizes` together, nothing for none; None where no pool was measured."""
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
    """What a capture list makes of a trace. `latency_ms`: expected, a call; None where sizes above the list have no
    eager figure. `fallbacks`: share of calls without a graph. `doubts`: what of it was not measured. `guessed`: sizes
    above all measured ones that it rests on, so that its latency cannot be ranked."""

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
    total, calls = 0.0, sum(trace.values())
    for raw, count in trace.items():
        total += count * call_ms(bucket_of(sizes, raw), raw, costs)
    found = usage(sizes, trace)
    needed = memory.of(sizes, costs.pool_bytes)
    return ListAdvice(
        name,
        list(sizes),
        total / calls if math.isfinite(total) else None,
        found.padding_waste,
        found.fallbacks / calls,
        needed,
        memory.fits(needed),
        doubts(sizes, trace, costs),
        sorted({size for curve, used in rests_on(sizes, trace, costs).values() for size in above(curve, used)}),
    )


def call_ms(bucket: int | None, raw: int, costs: Costs) -> float:
    """Infinite for a call without a graph where eager was not measured."""
    if bucket is not None:
        return costs.graph_ms.at(bucket)
    return costs.eager_ms.at(raw) if costs.eager_ms else math.inf


def doubts(sizes: Sequence[int], trace: Mapping[int, int], costs: Costs) -> list[str]:
    """What the figure of a list rests on beside measurements; only sizes that calls take count."""
    said = [f"a graph that failed when it was measured: {listed(bad)}"] if (bad := failing(sizes, costs)) else []
    for what, (curve, used) in rests_on(sizes, trace, costs).items():
        first, last = curve.sizes[0], curve.sizes[-1]
        for where, text in (
            (BETWEEN, "between measured sizes: {0}"),
            (BELOW, f"below the smallest measured size, taken as at {first}: {{0}}"),
            (ABOVE, f"above the largest measured size, {last}, a guess: {{0}}"),
        ):
            if found := [size for size in used if curve.where(size) == where]:
                said.append(f"{what} figures {text.format(listed(found))}")
    return said


def failing(sizes: Sequence[int], costs: Costs) -> list[int]:
    return [size for size in sizes if size in costs.failed]


def rests_on(sizes: Sequence[int], trace: Mapping[int, int], costs: Costs) -> dict[str, tuple[Curve, list[int]]]:
    """`graph` and `eager` -> the curve, and the sizes at which a list takes it; no eager where it was not measured."""
    taken = sorted({bucket for raw in trace if (bucket := bucket_of(sizes, raw)) is not None})
    without = sorted(raw for raw in trace if bucket_of(sizes, raw) is None)
    found = {"graph": (costs.graph_ms, taken)}
    return found if costs.eager_ms is None else found | {"eager": (costs.eager_ms, without)}


def above(curve: Curve, sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if curve.where(size) == ABOVE]


def listed(sizes: Sequence[int], most: int = 6) -> str:
    texts = [str(size) for size in sizes]
    return ", ".join(texts) if len(texts) <= most else f"{', '.join(texts[:most])} and {len(texts) - most} more"


class Chain(NamedTuple):
    """A list of captured sizes up to its last: `weight` of all its graphs, `cost_ms` of the calls that they take."""

    weight: float
    cost_ms: float
    last: int
    before: Chain | None

    def sizes(self) -> list[int]:
        found: list[int] = []
        chain: Chain | None = self
        while chain is not None:
            found.append(chain.last)
            chain = chain.before
        return found[::-1]


#: Weight, cost and what went before of a chain that may turn out dominated: most do.
Step = tuple[float, float, Chain | None]


def best_list(trace: Mapping[int, int], costs: Costs, memory: Memory) -> ListAdvice | None:
    """The list of least expected latency within the budget; of equals the one of least memory. None where no list can
    serve every size of the trace: the budget is too small, or sizes lie above all measured ones and eager is
    unknown."""
    return next(iter(best_lists(trace, costs, memory)), None)


def best_lists(
    trace: Mapping[int, int], costs: Costs, memory: Memory, slacks: Sequence[float] = (0.0,)
) -> list[ListAdvice]:
    """For each of `slacks` the list of least memory whose expected latency is at most that much above the least,
    relative. Empty where no list can serve every size.

    Candidates are the sizes of the trace and the measured ones, from the smallest measured to the largest, but for
    those whose graph failed: where memory grows with the size no other makes a faster list, as between them a line has
    no lowest point of its own. Chains that need no less memory and are no faster than another with the same end are
    dropped; nothing else is: the result is exact over the candidates.
    """
    first, last = costs.graph_ms.sizes[0], costs.graph_ms.sizes[-1]
    between = {size for size in trace if first <= size <= last} - costs.failed
    candidates = sorted({*costs.graph_ms.sizes, *between})
    ordered = sorted(trace)
    below = [0]
    for size in ordered:
        below.append(below[-1] + trace[size])

    def calls_to(size: int) -> int:
        """Calls of at most `size` rows."""
        return below[bisect.bisect_right(ordered, size)]

    # the rest of the trace, without a graph, from its end on
    rest = [0.0]
    for size in reversed(ordered):
        rest.append(rest[-1] + trace[size] * call_ms(None, size, costs))

    def rest_of(size: int) -> float:
        return rest[len(ordered) - bisect.bisect_right(ordered, size)]

    pool = costs.pool_bytes
    budget = math.inf if memory.budget_bytes is None else memory.budget_bytes
    finals: list[tuple[float, float, Chain | None]] = []  # expected milliseconds of the trace, memory, the list
    if math.isfinite(rest_of(0)):
        finals.append((rest_of(0), 0.0, None))
    frontiers: list[list[Chain]] = []
    for size in candidates:
        ms, taken = costs.graph_ms.at(size), calls_to(size)
        alone = pool.at(size) if pool else 0.0
        weight = memory.weight(alone) if pool else 1.0  # unknown memory: fewer graphs of equals
        fixed = alone if pool and memory.shared else 0.0
        found: list[Step] = [(weight, taken * ms, None)]
        for frontier in frontiers:
            own = (taken - calls_to(frontier[0].last)) * ms if frontier else 0.0
            found += [(chain.weight + weight, chain.cost_ms + own, chain) for chain in frontier]
        steps = undominated([step for step in found if step[0] <= budget] if pool else found)
        frontier = [Chain(*step[:2], size, step[2]) for step in steps]
        frontiers.append(frontier)
        if math.isfinite(rest_of(size)):
            finals += [(chain.cost_ms + rest_of(size), chain.weight + fixed, chain) for chain in frontier]
    finals = [final for final in finals if not pool or final[1] <= budget]
    found = []
    for slack in slacks if finals else ():
        # what rounding makes of equal sums is equal
        most = min(final[0] for final in finals) * (1 + slack) * (1 + 1e-12)
        chain = min((final for final in finals if final[0] <= most), key=itemgetter(1, 0))[2]
        name = f"advised, within {100 * slack:g} %" if slack else "advised"
        found.append(evaluate(name, chain.sizes() if chain else [], trace, costs, memory))
    return found


def undominated(steps: Sequence[Step]) -> list[Step]:
    """Those than which no other is both at least as light and at least as fast."""
    kept: list[Step] = []
    fastest = math.inf
    for step in sorted(steps, key=itemgetter(0, 1)):
        if step[1] < fastest:
            kept.append(step)
            fastest = step[1]
    return kept
