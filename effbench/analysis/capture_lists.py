"""Find the batch sizes to capture for a trace of batches: `best_list`.

Dynamic programming finds the best capture list exactly: a batch runs the smallest graph that holds
its rows, so the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from effbench.analysis.advice import Question, rows_of_case, the_only
from effbench.core.buckets import bucket_of, usage
from effbench.core.cell import Result
from effbench.core.errors import NothingFoundError, UsageError
from effbench.core.labels import LabelledRow

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
        if bucket in self.failed:
            return math.inf
        return value_at(self.graph_ms, bucket)

    def list_bytes(self, sizes: Sequence[int]) -> float:
        """Return the memory of a list: smaller graphs reuse the pool of the largest."""
        if not sizes:
            return 0.0
        largest_bytes = value_at(self.pool_bytes, max(sizes))
        return largest_bytes + PER_GRAPH_BYTES * len(sizes)


def value_at(curve: Curve, size: int) -> float:
    """Return the value at a size, linearly interpolated. Below the smallest size it is the value
    there; above the largest it is infinite, because nothing is known."""
    if not curve:
        return math.inf
    sizes = sorted(curve)
    value = np.interp(
        size,
        sizes,
        [curve[known] for known in sizes],
        right=math.inf,
    )
    return float(value)


def costs_of(
    rows: Iterable[Result],
    model: str | None,
    mode: str,
    question: Question,
    eager: str,
) -> Costs:
    """Return the costs of `mode` with graphs and of the mode `eager` without. Raises
    NothingFoundError if the mode has no ok result, UsageError if several of its settings match."""
    of_case = rows_of_case(rows, model)
    case = of_case[0].case
    graphs = rows_of_mode(of_case, mode)
    timed = curve_of(graphs, question.time)
    if not timed:
        known = [row.mode for row in of_case if curve_of([row], question.time)]
        others = ", ".join(dict.fromkeys(known)) or "none"
        raise NothingFoundError(
            f"no ok result of mode {mode} with a {question.quantity} for {case}; others: {others}"
        )
    counted = counted_curve_of(graphs, question.time)
    without_graphs = [row for row in of_case if row.base_mode == eager]
    return Costs(
        graph_ms=counted,
        eager_ms=counted_curve_of(without_graphs, question.time),
        pool_bytes=curve_of(graphs, "graph_pool_bytes"),
        failed=frozenset(row.result.bs for row in graphs if not row.is_ok),
        case=case,
        mode=graphs[0].mode,
        marked=frozenset(timed.keys() - counted.keys()),
    )


def rows_of_mode(rows: Sequence[LabelledRow], mode: str) -> list[LabelledRow]:
    """Return the rows of a mode. `mode`: its name with or without its settings. Raises UsageError
    if several of its settings match."""
    matching = [row for row in rows if mode in (row.mode, row.base_mode)]
    modes = list(dict.fromkeys(row.mode for row in matching))
    if modes:
        the_only(modes, "--mode")
    return matching


def curve_of(rows: Iterable[LabelledRow], metric: str) -> dict[int, float]:
    """Return the values of the ok rows by batch size."""
    curve = {}
    for row in rows:
        value = row.result.value(metric)
        if row.is_ok and value is not None:
            curve[row.result.bs] = value
    return curve


def counted_curve_of(rows: Sequence[LabelledRow], metric: str) -> dict[int, float]:
    """Return the values by batch size without marked ones, unless there are no others."""
    unmarked = [row for row in rows if not row.result.marked]
    return curve_of(unmarked, metric) or curve_of(rows, metric)


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


def evaluate(
    name: str,
    sizes: Sequence[int],
    trace: Trace,
    costs: Costs,
) -> CaptureList:
    """Return the effect of a capture list. `sizes` ascend."""
    used = usage(sizes, trace)
    total_ms = 0.0
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
    one with the fewest graphs. None if no list serves every size: the budget is too small, or sizes
    are above all measured ones.

    Candidates are the measured sizes and the sizes of the trace between them, except sizes whose
    graph failed. Costs are linear between candidates, so no other size can be better. Raises
    UsageError for more than MOST_SIZES of them.
    """
    first = min(costs.graph_ms)
    last = max(costs.graph_ms)
    within = {size for size in trace if first <= size <= last}
    sizes = sorted((costs.graph_ms.keys() | within) - costs.failed)
    if len(sizes) > MOST_SIZES:
        raise UsageError(
            f"{len(sizes):,} different sizes are more than {MOST_SIZES:,}; round those of the"
            " trace up"
        )
    plain_ms = {size: count * costs.call_ms(None, size) for size, count in trace.items()}
    lists = all_lists(
        sizes,
        trace,
        plain_ms,
        costs,
    )
    total_ms = lists.total_ms
    if budget_bytes is not None:
        total_ms = np.where(lists.memory_bytes <= budget_bytes, total_ms, np.inf)
    without_graphs_ms = sum(plain_ms.values())
    least_ms = float(np.min(total_ms))
    if not math.isfinite(min(least_ms, without_graphs_ms)):
        return None
    chosen: list[int] = []
    if least_ms * (1 + ROUNDING) < without_graphs_ms:
        # of lists that are equally fast, the first one has the fewest graphs
        fastest = np.argmax(total_ms <= least_ms * (1 + ROUNDING))
        chosen = [sizes[place] for place in lists.places(int(fastest))]
    return evaluate(
        "advised",
        chosen,
        trace,
        costs,
    )


@dataclass(frozen=True)
class BestLists:
    """For each number of graphs (rows) and largest size (columns) the list with the least time for
    a trace: its total time, its memory, and the place of its second largest size."""

    total_ms: np.ndarray
    memory_bytes: np.ndarray
    before: np.ndarray

    def places(self, index: int) -> list[int]:
        """Return the places of the sizes of the list at this index of the flattened arrays."""
        row, place = divmod(index, self.total_ms.shape[1])
        places = [place]
        for befores in self.before[:row][::-1]:
            place = int(befores[place])
            places.insert(0, place)
        return places


def all_lists(
    sizes: Sequence[int],
    trace: Trace,
    plain_ms: Mapping[int, float],
    costs: Costs,
) -> BestLists:
    """Return the best lists of these sizes, which ascend, by dynamic programming. `plain_ms`: time
    of all calls of a size without a graph."""
    number = len(sizes)
    # row: largest size of a list; column: size in the trace
    fits = np.array(list(trace)) <= np.array(sizes)[:, None]
    calls = fits @ np.array(list(trace.values()))
    without_graph_ms = np.where(fits, 0.0, list(plain_ms.values()))
    rest_ms = without_graph_ms.sum(axis=1)
    call_ms = np.array([costs.call_ms(size, size) for size in sizes])
    pool_bytes = np.zeros(number)
    if costs.pool_bytes:
        pool_bytes = np.array([value_at(costs.pool_bytes, size) for size in sizes])
    # steps[i, j]: cost of the calls between sizes i and j, which run graph j
    between = calls - calls[:, None]
    is_later = np.triu(np.ones((number, number)), 1)
    steps = np.where(is_later, between * call_ms, np.inf)
    cost_ms = calls * call_ms
    totals = []
    before = []
    for _ in sizes:  # lists with one more graph
        totals.append(cost_ms + rest_ms)
        longer_ms = cost_ms[:, None] + steps
        before.append(longer_ms.argmin(axis=0))
        cost_ms = longer_ms.min(axis=0)
    graphs = np.arange(1, number + 1)[:, None]
    return BestLists(
        total_ms=np.array(totals),
        memory_bytes=pool_bytes + PER_GRAPH_BYTES * graphs,
        before=np.array(before),
    )
