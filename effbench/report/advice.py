"""Advice from measured results: which batch sizes to capture for a trace of batches, and which mode to run.

The best capture list is found exactly, by dynamic programming: a batch takes the smallest graph that holds its rows, so
the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from effbench.buckets import bucket_of, usage
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow, flatten, label_rows
from effbench.metrics import INTERVALS
from effbench.report.tables import least
from effbench.store.summary import break_even_calls

#: What a graph adds to the pool that all share: the smallest segment by which torch's allocator lets a pool grow.
PER_GRAPH_BYTES = 2 * 2**20
#: Columns of a call's cost, by the name that a user types.
CALL = {"latency": "latency_ms", "period": "period_ms"}
#: Relative difference that is rounding: sums of the same figures in another order.
ROUNDING = 1e-12
#: Measured values by batch size.
Curve = Mapping[int, float]


def value_at(curve: Curve, size: int) -> float:
    """Return the value at a size: on the straight line between its neighbours, below the smallest size as there;
    infinite above the largest, where nothing is known."""
    sizes = sorted(curve)
    return float(np.interp(size, sizes, [curve[one] for one in sizes], right=math.inf)) if sizes else math.inf


@dataclass(frozen=True)
class Costs:
    """Measured costs by batch size, of one model and mode.

    `graph_ms`: a call through the graph of a size; `eager_ms`: a call without a graph; `pool_bytes`: memory of the
    graph of a size alone; `failed`: sizes whose graph was tried and was not ok. Empty curves were not measured.
    """

    graph_ms: Curve
    eager_ms: Curve = field(default_factory=dict)
    pool_bytes: Curve = field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    case: str = ""
    mode: str = ""

    def call_ms(self, bucket: int | None, raw: int) -> float:
        """Return the milliseconds of a call of `raw` rows, infinite if they are not known."""
        if bucket is None:
            return value_at(self.eager_ms, raw)
        return math.inf if bucket in self.failed else value_at(self.graph_ms, bucket)


def rows_of_case(rows: Iterable[Mapping[str, Any]], model: str | None) -> list[LabelledRow]:
    """Return the rows without a stream of one model: its name, or with what else was swept `mlp · dtype=float32`.
    Raises NothingFoundError if there is none, UsageError if several fit."""
    labelled = label_rows(row for row in rows if "stream.name" not in flatten(row.get("params") or {}))
    cases = list(dict.fromkeys(row.case for row in labelled if model in (None, row.case, row.labels["model"])))
    if not cases:
        known = ", ".join(dict.fromkeys(row.case for row in labelled)) or "none with one batch size"
        raise NothingFoundError(f"no result of {model or 'any model'} in this sweep; measured models: {known}")
    return [row for row in labelled if row.case == the_only(cases, "--model")]


def the_only(values: Sequence[Any], option: str) -> Any:
    """Return the only value. Raises UsageError if there are several."""
    if len(values) > 1:
        raise UsageError(f"several fit: {', '.join(map(repr, values))}; choose one with {option}")
    return values[0]


def costs_of(rows: Iterable[Mapping[str, Any]], model: str | None, mode: str, metric: str, eager: str) -> Costs:
    """Return the costs of `mode` as graphs and of the mode `eager` as calls without a graph. `metric`: latency or
    period. Raises NothingFoundError without an ok result of the mode, UsageError if several of its settings fit."""
    own = rows_of_case(rows, model)
    named = list(dict.fromkeys(row.mode for row in own if mode in (row.mode, row.base_mode)))
    graphs = [row for row in own if row.mode == the_only(named or [mode], "--mode")]
    graph_ms = curve_of(graphs, CALL[metric])
    if not graph_ms:
        known = ", ".join(dict.fromkeys(row.mode for row in own if curve_of([row], CALL[metric]))) or "none at all"
        raise NothingFoundError(f"no ok result of mode {mode} with a {metric} for {own[0].case}; there are: {known}")
    eager_ms = curve_of([row for row in own if row.base_mode == eager], CALL[metric])
    # noise only hides a time
    failed = frozenset(row.labels["bs"] for row in graphs if row.source["status"] not in ("ok", "noisy"))
    return Costs(graph_ms, eager_ms, curve_of(graphs, "graph_pool_bytes"), failed, own[0].case, named[0])


def curve_of(rows: Iterable[LabelledRow], column: str) -> Curve:
    """Return the values of the ok rows by batch size."""
    ok = [row for row in rows if row.source["status"] == "ok" and row.source.get(column) is not None]
    return {row.labels["bs"]: row.source[column] for row in ok}


@dataclass(frozen=True)
class CaptureList:
    """A capture list and its effect on a trace: `latency_ms`: expected time of a call, None if a size that it uses is
    above all measured ones or failed; `padding_waste`: padded rows ÷ rows of graphs; `fallbacks`: share of calls
    without a graph; `memory_bytes`: None if not known; `unmeasured`: sizes whose figures follow from other sizes."""

    name: str
    sizes: list[int]
    latency_ms: float | None
    padding_waste: float | None
    fallbacks: float
    memory_bytes: float | None
    unmeasured: list[int]


def evaluate(name: str, sizes: Sequence[int], trace: Mapping[int, int], costs: Costs) -> CaptureList:
    """Return the effect of a list. `sizes` is ascending; `trace`: batch size -> calls."""
    buckets = {raw: bucket_of(sizes, raw) for raw in trace}
    used = usage(sizes, trace)
    # the graphs reuse the pool of the largest
    memory = value_at(costs.pool_bytes, max(sizes)) + PER_GRAPH_BYTES * len(sizes) if sizes else 0.0
    call_ms = sum(count * costs.call_ms(buckets[raw], raw) for raw, count in trace.items()) / used.calls
    unmeasured = {raw for raw, bucket in buckets.items() if bucket is None} - set(costs.eager_ms)
    unmeasured |= {bucket for bucket in buckets.values() if bucket is not None} - set(costs.graph_ms)
    fallbacks = used.fallbacks / used.calls
    latency_ms = call_ms if math.isfinite(call_ms) else None
    memory_bytes = memory if math.isfinite(memory) else None
    return CaptureList(name, list(sizes), latency_ms, used.padding_waste, fallbacks, memory_bytes, sorted(unmeasured))


def best_list(trace: Mapping[int, int], costs: Costs, budget_bytes: int | None = None) -> CaptureList | None:
    """Return the list of least expected latency that fits the budget; of equals that of least memory. None if no list
    can serve every size: the budget is too small, or sizes lie above all measured ones.

    Candidates are the sizes of the trace and the measured ones, from the smallest measured to the largest, without
    those whose graph failed: between them costs are straight lines, so no other size can be better.
    """
    first, last = min(costs.graph_ms), max(costs.graph_ms)
    sizes = sorted({*costs.graph_ms, *(size for size in trace if first <= size <= last)} - costs.failed)
    plain_ms = {size: count * costs.call_ms(None, size) for size, count in trace.items()}
    below = np.array([sum(count for size, count in trace.items() if size <= end) for end in sizes])
    rest_ms = np.array([sum(ms for size, ms in plain_ms.items() if size > end) for end in sizes])
    call_ms = np.array([costs.call_ms(size, size) for size in sizes])
    pool = np.array([value_at(costs.pool_bytes, size) if costs.pool_bytes else 0.0 for size in sizes])
    # from a list that ends at row i to one that ends at column j: the calls between them take graph j
    steps = np.where(np.triu(np.ones((len(sizes), len(sizes))), 1), (below - below[:, None]) * call_ms, np.inf)
    cost = below * call_ms
    totals, memory, before = [], [], []
    for count in range(1, len(sizes) + 1):  # lists of so many graphs, by the size that they end at
        needed = pool + count * PER_GRAPH_BYTES
        fits = budget_bytes is None or needed <= budget_bytes
        totals.append(np.where(fits, cost + rest_ms, np.inf))
        memory.append(needed)
        longer = cost[:, None] + steps
        before.append(longer.argmin(axis=0))
        cost = longer.min(axis=0)
    without_graphs = sum(plain_ms.values())
    most = min(without_graphs, np.min(totals)) * (1 + ROUNDING)
    if not math.isfinite(most):
        return None
    chosen: list[int] = []
    if without_graphs > most:
        lightest = np.where(np.array(totals) <= most, memory, np.inf).argmin()
        count, end = divmod(int(lightest), len(sizes))
        chosen = [sizes[end]]
        for ends in reversed(before[:count]):
            end = ends[end]
            chosen.insert(0, sizes[end])
    return evaluate("advised", chosen, trace, costs)


def rank_modes(
    rows: Sequence[LabelledRow], column: str, calls: int | None, memory_bytes: int | None, baseline_mode: str
) -> tuple[list[dict[str, Any]], list[str], dict[str, str]]:
    """Return the figures of the modes of one case and batch size, the best in `column` first; the modes that it is not
    significantly faster than; and mode -> why it is excluded. Raises NothingFoundError if no mode is left.

    `calls`: how many follow one preparation; None: preparation does not count. `memory_bytes`: most peak reserved
    memory. Figures: `score_ms` is a call with its share of the preparation, `prepare_s` the time before the mode is
    ready (`warm`: with a filled compile cache), `break_even` the calls until that is paid back against the baseline.
    """
    reasons = {row.mode: why_excluded(row.source, column, memory_bytes) for row in rows}
    excluded = {mode: reason for mode, reason in reasons.items() if reason}
    if len(excluded) == len(rows):
        raise NothingFoundError("no mode is left: " + "; ".join(map(" ".join, excluded.items())))
    # the baseline's time counts also if its memory excludes it
    base = next((row.source for row in rows if row.base_mode == baseline_mode and row.source["status"] == "ok"), {})
    base_ms, bounds = base.get(column), INTERVALS[column]
    found, scored = [], []
    for row in rows:
        if row.mode in excluded:
            continue
        source, call_ms = row.source, row.source[column]
        cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
        # modes that compile nothing still capture or trace: until the first output is there
        prepare_s = next((value for value in (cold, warm, source.get("first_call_s")) if value is not None), 0.0)
        share_ms = prepare_s * 1000 / calls if calls else 0.0
        known = {name: source[name] for name in (column, *bounds) if source.get(name) is not None}
        scored.append(source | {name: value + share_ms for name, value in known.items()})
        figures = {"mode": row.mode, "call_ms": call_ms, "score_ms": call_ms + share_ms, "prepare_s": prepare_s}
        figures |= {"low_ms": known.get(bounds[0]), "high_ms": known.get(bounds[1])}
        figures |= {"warm": cold is None and warm is not None, "speedup": base_ms / call_ms if base_ms else None}
        figures["break_even"] = None if base is source else break_even_calls(prepare_s, base_ms or 0.0, call_ms)
        figures["memory_bytes"] = source.get("peak_reserved_bytes")
        found.append(figures)
    _, tied = least(scored, column)
    return sorted(found, key=itemgetter("score_ms")), [found[place]["mode"] for place in tied], excluded


def why_excluded(source: Mapping[str, Any], column: str, memory_bytes: int | None = None) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    if source["status"] != "ok":
        return f"{source['status']}: {source['reason'] or 'no reason recorded'}"
    if source.get(column) is None:
        return f"no {column.removesuffix('_ms')} was measured"
    if memory_bytes is not None and not (source.get("peak_reserved_bytes") or math.inf) <= memory_bytes:
        return "needs more memory than allowed, or its memory was not measured"
    return None
