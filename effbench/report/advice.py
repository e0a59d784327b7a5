"""Advice from measured results: which batch sizes to capture for a trace of batches.

Pure: rows or measured points and a trace in, advice out. A capture list is found exactly, by dynamic programming: a
batch of r rows takes the smallest graph that holds it, so that the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from effbench.buckets import bucket_of, usage
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow, flatten, label_rows

MIB = 2**20
#: What a graph adds to a shared pool: the smallest segment by which torch's allocator lets a pool grow.
PER_GRAPH_BYTES = 2 * MIB
MEASURED, BETWEEN, BELOW, ABOVE = "measured", "between", "below", "above"
#: Columns of a call's cost, by the name that a user types.
CALL = {"latency": "latency_ms", "period": "period_ms"}
#: Statuses that show that a graph of this size is impossible (noise only hides its time).
FAILED = frozenset({"incorrect", "crashed", "timeout", "error", "oom", "unsupported", "degraded"})


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
class Points:
    """`case`: the model with whatever else was swept. `missing`: results that are not ok, each with its reason."""

    case: str
    mode: str
    costs: Costs
    missing: list[str] = field(default_factory=list)


def rows_of_case(rows: Iterable[Mapping[str, Any]], model: str | None) -> list[LabelledRow]:
    """Return the rows of one model with one batch size (no stream), from one sweep or more.

    `model` is its name, or its name with what else was swept, as `mlp · dtype=float32`. Raises NothingFoundError if
    there is none, UsageError if several fit.
    """
    labelled = label_rows(row for row in rows if "stream.name" not in flatten(row.get("params") or {}))
    cases = list(dict.fromkeys(row.case for row in labelled if model in (None, row.case, row.labels["model"])))
    if not cases:
        known = ", ".join(dict.fromkeys(row.case for row in labelled)) or "none with one batch size"
        what = "no result" if model is None else f"no result of {model}"
        raise NothingFoundError(f"{what} in this sweep; measured models: {known}")
    if len(cases) > 1:
        raise UsageError(f"several fit: {'; '.join(cases)}; choose one of them with --model (in quotes)")
    return [row for row in labelled if row.case == cases[0]]


def points(
    rows: Iterable[Mapping[str, Any]], model: str | None, mode: str, metric: str, eager: str = "eager"
) -> Points:
    """Return the cost of a call and of memory by batch size: `mode` as graphs, `eager` as calls without a graph.

    `metric`: latency or period. Raises NothingFoundError without an ok result of the mode, UsageError if settings of
    the mode were swept and `mode` names none of them.
    """
    own = rows_of_case(rows, model)
    named = list(dict.fromkeys(row.mode for row in own if mode in (row.mode, row.base_mode)))
    if len(named) > 1:
        raise UsageError(f"several fit: {'; '.join(named)}; choose one of them with --mode (in quotes)")
    graphs = [row for row in own if row.mode in named]
    times = values(graphs, CALL[metric])
    if not times:
        known = ", ".join(dict.fromkeys(row.mode for row in own if values([row], CALL[metric])))
        raise NothingFoundError(
            f"no ok result of mode {mode} with a {metric} for {own[0].case}; there are: {known or 'none at all'}"
        )
    plain = values([row for row in own if row.base_mode == eager], CALL[metric])
    pool = values(graphs, "graph_pool_bytes")
    failed = frozenset(row.labels["bs"] for row in graphs if row.source["status"] in FAILED)
    costs = Costs(Curve.of(times), Curve.of(plain) if plain else None, Curve.of(pool) if pool else None, failed)
    missing = [
        f"{row.mode} bs={row.labels['bs']}: {row.source['status']} ({row.source['reason'] or 'no reason recorded'})"
        for row in graphs
        if row.source["status"] != "ok"
    ]
    return Points(own[0].case, named[0], costs, missing)


def values(rows: Iterable[LabelledRow], column: str) -> dict[int, float]:
    """Return batch size -> value for ok rows that have one."""
    return {
        row.labels["bs"]: row.source[column]
        for row in rows
        if row.source["status"] == "ok" and row.source.get(column) is not None
    }


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
