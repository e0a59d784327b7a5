"""Find the batch sizes to capture for a trace of batches.

Dynamic programming finds the best capture list exactly: a batch runs the smallest graph that holds
its rows, so the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from effbench.buckets import bucket_of, usage
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow
from effbench.report.advice import CALL, rows_of_case, the_only

#: Bytes that each graph adds to the shared pool: the smallest segment by which torch's allocator
#: grows a pool.
PER_GRAPH_BYTES = 2 * 2**20
#: Most sizes of a list: the best one takes up to a minute, and the time grows with their cube.
MOST_SIZES = 2000
#: Relative difference of equal sums: rounding depends on the order of the addends.
ROUNDING = 1e-12
#: Batch size -> measured value.
Curve = Mapping[int, float]
#: Batch size -> number of calls.
Trace = Mapping[int, int]


@dataclass(frozen=True)
class Costs:
    """Measured costs of one model and mode, by batch size.

    `graph_ms`: time per call with a graph of this size. `eager_ms`: time per call without a graph.
    `pool_bytes`: memory of a single graph. `failed`: sizes whose graph was not ok. Curves without
    measurements are empty. `marked`: sizes whose graph works, but whose time does not count,
    because the host was disturbed, unless there are no others.
    """

    graph_ms: Curve
    eager_ms: Curve = field(default_factory=dict)
    pool_bytes: Curve = field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    case: str = ""
    mode: str = ""
    marked: frozenset[int] = frozenset()

    def call_ms(self, bucket: int | None, size: int) -> float:
        """Return the time in ms of a call with `size` rows, infinite if unknown. `bucket` None:
        without a graph."""
        if bucket is None:
            return value_at(self.eager_ms, size)
        return math.inf if bucket in self.failed else value_at(self.graph_ms, bucket)

    def list_bytes(self, sizes: Sequence[int]) -> float:
        """Return the memory of a list: smaller graphs reuse the pool of the largest."""
        if not sizes:
            return 0.0
        return value_at(self.pool_bytes, max(sizes)) + PER_GRAPH_BYTES * len(sizes)


def value_at(curve: Curve, size: int) -> float:
    """Return the value at a size, linearly interpolated. Below the smallest size it is the value
    there; above the largest it is infinite, because nothing is known."""
    if not curve:
        return math.inf
    sizes = sorted(curve)
    return float(np.interp(size, sizes, [curve[known] for known in sizes], right=math.inf))


def costs_of(
    rows: Iterable[Mapping[str, Any]], model: str | None, mode: str, metric: str, eager: str
) -> Costs:
    """Return the costs of `mode` with graphs and of the mode `eager` without. `metric`: latency or
    period. Raises NothingFoundError if the mode has no ok result, UsageError if several of its
    settings match."""
    column = CALL[metric]
    of_case = rows_of_case(rows, model)
    named = list(dict.fromkeys(row.mode for row in of_case if mode in (row.mode, row.base_mode)))
    graphs = [row for row in of_case if row.mode == the_only(named or [mode], "--mode")]
    timed = curve_of(graphs, column)
    if not timed:
        others = {row.mode: None for row in of_case if curve_of([row], column)}
        raise NothingFoundError(
            f"no ok result of mode {mode} with a {metric} for {of_case[0].case}; others:"
            f" {', '.join(others) or 'none'}"
        )
    graph_ms = curve_of(unmarked(graphs), column) or timed
    eagers = [row for row in of_case if row.base_mode == eager]
    return Costs(
        graph_ms=graph_ms,
        eager_ms=curve_of(unmarked(eagers), column) or curve_of(eagers, column),
        pool_bytes=curve_of(graphs, "graph_pool_bytes"),
        failed=frozenset(row.labels["bs"] for row in graphs if row.source["status"] != "ok"),
        case=of_case[0].case,
        mode=named[0],
        marked=frozenset(timed.keys() - curve_of(unmarked(graphs), column).keys()),
    )


def unmarked(rows: Iterable[LabelledRow]) -> list[LabelledRow]:
    return [row for row in rows if not row.source.get("marked")]


def curve_of(rows: Iterable[LabelledRow], column: str) -> dict[int, float]:
    """Return the values of the ok rows by batch size."""
    ok = [row for row in rows if row.source["status"] == "ok"]
    values = {row.labels["bs"]: row.source.get(column) for row in ok}
    return {size: value for size, value in values.items() if value is not None}


@dataclass(frozen=True)
class CaptureList:
    """A capture list and its effect on a trace. `latency_ms`: expected time per call, None if a
    used size failed or is above all measured sizes. `padding_waste`: padded rows ÷ rows of graphs.
    `fallbacks`: fraction of calls without a graph. `memory_bytes`: None if unknown. `unmeasured`:
    sizes whose figures are interpolated."""

    name: str
    sizes: list[int]
    latency_ms: float | None
    padding_waste: float | None
    fallbacks: float
    memory_bytes: float | None
    unmeasured: list[int]


def evaluate(name: str, sizes: Sequence[int], trace: Trace, costs: Costs) -> CaptureList:
    """Return the effect of a capture list. `sizes` ascend."""
    used, total_ms = usage(sizes, trace), 0.0
    unmeasured: set[int] = set()
    for size, count in trace.items():
        bucket = bucket_of(sizes, size)
        total_ms += count * costs.call_ms(bucket, size)
        if bucket is None:
            unmeasured |= {size} - costs.eager_ms.keys()
        else:
            unmeasured |= {bucket} - costs.graph_ms.keys()
    memory = costs.list_bytes(sizes)
    return CaptureList(
        name=name,
        sizes=list(sizes),
        latency_ms=total_ms / used.calls if math.isfinite(total_ms) else None,
        padding_waste=used.padding_waste,
        fallbacks=used.fallbacks / used.calls,
        memory_bytes=memory if math.isfinite(memory) else None,
        unmeasured=sorted(unmeasured),
    )


def best_list(trace: Trace, costs: Costs, budget_bytes: int | None = None) -> CaptureList | None:
    """Return the capture list with the least expected latency within the budget; among equals, the
    one with the least memory. None if no list serves every size: the budget is too small, or sizes
    are above all measured ones.

    Candidates are the measured sizes and the sizes of the trace between them, except sizes whose
    graph failed. Costs are linear between candidates, so no other size can be better. Raises
    UsageError for more than MOST_SIZES of them.
    """
    first, last = min(costs.graph_ms), max(costs.graph_ms)
    within = {size for size in trace if first <= size <= last}
    sizes = sorted((costs.graph_ms.keys() | within) - costs.failed)
    if len(sizes) > MOST_SIZES:
        raise UsageError(
            f"{len(sizes):,} different sizes are more than {MOST_SIZES:,}; round those of the"
            " trace up"
        )
    plain_ms = {size: count * costs.call_ms(None, size) for size, count in trace.items()}
    without_graphs = sum(plain_ms.values())
    calls = np.array([sum(trace[size] for size in trace if size <= end) for end in sizes])
    rest_ms = np.array([sum(plain_ms[size] for size in trace if size > end) for end in sizes])
    call_ms = np.array([costs.call_ms(size, size) for size in sizes])
    pool = np.zeros(len(sizes))
    if costs.pool_bytes:
        pool = np.array([value_at(costs.pool_bytes, size) for size in sizes])
    # steps[i, j]: cost of the calls between sizes i and j, which run graph j
    later = np.triu(np.ones((len(sizes), len(sizes))), 1)
    steps = np.where(later, (calls - calls[:, None]) * call_ms, np.inf)
    cost = calls * call_ms
    totals, memory, before = [], [], []
    for count in range(1, len(sizes) + 1):  # lists of `count` graphs, by their largest size
        needed = pool + count * PER_GRAPH_BYTES
        fits = budget_bytes is None or needed <= budget_bytes
        totals.append(np.where(fits, cost + rest_ms, np.inf))
        memory.append(needed)
        longer = cost[:, None] + steps
        before.append(longer.argmin(axis=0))
        cost = longer.min(axis=0)
    most = min(without_graphs, np.min(totals)) * (1 + ROUNDING)
    if not math.isfinite(most):
        return None
    chosen: list[int] = []
    if without_graphs > most:
        # unknown memory is infinite, like lists that are too slow
        known = np.minimum(memory, np.finfo(float).max)
        lightest = np.where(np.array(totals) <= most, known, np.inf).argmin()
        count, end = divmod(int(lightest), len(sizes))
        chosen = [sizes[end]]
        for ends in reversed(before[:count]):
            end = ends[end]
            chosen.insert(0, sizes[end])
    return evaluate("advised", chosen, trace, costs)
