"""Advice from measured results: which batch sizes to capture for a trace of batches, and which mode
to run.

Dynamic programming finds the best capture list exactly: a batch runs the smallest graph that holds
its rows, so the cost of a list is a sum over its gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from effbench.buckets import bucket_of, usage
from effbench.cell import Status
from effbench.errors import NothingFoundError, UsageError
from effbench.labels import LabelledRow, flatten, label_rows
from effbench.metrics import INTERVALS, SPEEDUPS, format_bytes
from effbench.report.tables import TIMES, is_baseline, least
from effbench.store.summary import break_even_calls
from effbench.store.sweeps import recorded_here_first

if TYPE_CHECKING:
    from effbench.store.store import Store

#: Bytes that each graph adds to the shared pool: the smallest segment by which torch's allocator
#: grows a pool.
PER_GRAPH_BYTES = 2 * 2**20
#: Metric, as users type it -> column with the time per call.
CALL = {"latency": "latency_ms", "period": "period_ms"}
#: Most sizes of a list: the best one takes up to a minute, and the time grows with their cube.
MOST_SIZES = 2000
#: Relative difference of equal sums: rounding depends on the order of the addends.
ROUNDING = 1e-12
#: Batch size -> measured value.
Curve = Mapping[int, float]


def value_at(curve: Curve, size: int) -> float:
    """Return the value at a size, linearly interpolated. Below the smallest size it is the value
    there; above the largest it is infinite, because nothing is known."""
    sizes = sorted(curve)
    return (
        float(np.interp(size, sizes, [curve[known] for known in sizes], right=math.inf))
        if sizes
        else math.inf
    )


@dataclass(frozen=True)
class Costs:
    """Measured costs of one model and mode, by batch size.

    `graph_ms`: time per call with a graph of this size. `eager_ms`: time per call without a graph.
    `pool_bytes`: memory of a single graph. `failed`: sizes whose graph was not ok. Curves without
    measurements are empty. `marked`: sizes whose graph works, but whose time does not count,
    because the host was disturbed; `is_marked`: all times are marked, and count because there are
    no others.
    """

    graph_ms: Curve
    eager_ms: Curve = field(default_factory=dict)
    pool_bytes: Curve = field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    case: str = ""
    mode: str = ""
    marked: frozenset[int] = frozenset()
    is_marked: bool = False

    def call_ms(self, bucket: int | None, raw: int) -> float:
        """Return the time in ms of a call with `raw` rows, infinite if unknown. `bucket` None:
        without a graph."""
        if bucket is None:
            return value_at(self.eager_ms, raw)
        return math.inf if bucket in self.failed else value_at(self.graph_ms, bucket)


def rows_of_case(rows: Iterable[Mapping[str, Any]], model: str | None) -> list[LabelledRow]:
    """Return the rows of one model, except streams. `model`: its name, or with other swept
    parameters `mlp · dtype=float32`. Raises NothingFoundError if no row matches, UsageError if
    several models do."""
    rows = list(rows)
    if not rows:
        raise NothingFoundError("this sweep has no results yet")
    labelled = label_rows(
        row for row in rows if "stream.name" not in flatten(row.get("params") or {})
    )
    cases = list(
        dict.fromkeys(
            row.case for row in labelled if model in (None, row.case, row.labels["model"])
        )
    )
    if not cases:
        known = ", ".join(dict.fromkeys(row.case for row in labelled))
        known = known or "none with a fixed batch size; run a sweep without stream, as in bs=1,8,64"
        raise NothingFoundError(
            f"no result of {model or 'any model'} in this sweep; measured models: {known}"
        )
    return [row for row in labelled if row.case == the_only(cases, "--model")]


def rows_at(
    rows: Iterable[Mapping[str, Any]], model: str | None = None, bs: int | None = None
) -> list[LabelledRow]:
    """Return the rows of a model at a batch size, each by default the only one. Raises like
    `rows_of_case`."""
    case = rows_of_case(rows, model)
    sizes = sorted({row.labels["bs"] for row in case})
    bs = the_only(sizes, "--bs") if bs is None else bs
    if bs not in sizes:
        raise NothingFoundError(f"bs={bs} was not measured; measured: {', '.join(map(str, sizes))}")
    return [row for row in case if row.labels["bs"] == bs]


def sweep_with(store: Store, model: str, bs: int | None) -> str:
    """Return the id of the completed sweep with most ok results of a model at this batch size
    (None: any) that are not marked, of several that with most ok results, then with most trials, or
    the newest. Raises NothingFoundError without any result of the model."""
    weights: dict[str, tuple[int, ...]] = {}
    for sweep in recorded_here_first(store.sweeps()):
        if sweep.state != "completed":
            continue
        ok = [
            row
            for row in store.results(sweep.id)
            if (row["model"], row["status"]) == (model, Status.OK)
        ]
        at_size = [row for row in ok if bs in (None, row["bs"])]
        unmarked = sum(not row["marked"] for row in at_size)
        if ok:
            weights[sweep.id] = (
                unmarked,
                len(at_size),
                sum(row["trials"] for row in at_size),
                len(ok),
            )
    if not weights:
        raise NothingFoundError(
            f"{store.name} has no ok result of {model} in a completed sweep; omit --stored"
        )
    return max(weights, key=weights.__getitem__)


def the_only(values: Sequence[Any], option: str) -> Any:
    """Return the only value. Raises UsageError if there are several."""
    if len(values) > 1:
        raise UsageError(
            f"the sweep has several: {', '.join(map(str, values))}; choose one with {option}"
        )
    return values[0]


def costs_of(
    rows: Iterable[Mapping[str, Any]], model: str | None, mode: str, metric: str, eager: str
) -> Costs:
    """Return the costs of `mode` with graphs and of the mode `eager` without. `metric`: latency or
    period. Raises NothingFoundError if the mode has no ok result, UsageError if several of its
    settings match."""
    of_case = rows_of_case(rows, model)
    named = list(dict.fromkeys(row.mode for row in of_case if mode in (row.mode, row.base_mode)))
    graphs = [row for row in of_case if row.mode == the_only(named or [mode], "--mode")]
    timed = [row for row in graphs if curve_of([row], CALL[metric])]
    counted = unmarked_or_all(timed)
    graph_ms = curve_of(counted, CALL[metric])
    if not graph_ms:
        known = (
            ", ".join(dict.fromkeys(row.mode for row in of_case if curve_of([row], CALL[metric])))
            or "none"
        )
        raise NothingFoundError(
            f"no ok result of mode {mode} with a {metric} for {of_case[0].case}; others: {known}"
        )
    eager_ms = curve_of(
        unmarked_or_all([row for row in of_case if row.base_mode == eager]), CALL[metric]
    )
    failed = frozenset(row.labels["bs"] for row in graphs if row.source["status"] != "ok")
    marked = frozenset(row.labels["bs"] for row in timed if row.source.get("marked"))
    is_marked = any(row.source.get("marked") for row in counted)
    pool_bytes = curve_of(graphs, "graph_pool_bytes")
    return Costs(
        graph_ms, eager_ms, pool_bytes, failed, of_case[0].case, named[0], marked, is_marked
    )


def unmarked_or_all(rows: Sequence[LabelledRow]) -> Sequence[LabelledRow]:
    """Return the rows whose times are not marked; all if there are no others."""
    return [row for row in rows if not row.source.get("marked")] or rows


def curve_of(rows: Iterable[LabelledRow], column: str) -> Curve:
    """Return the values of the ok rows by batch size."""
    ok = [
        row for row in rows if row.source["status"] == "ok" and row.source.get(column) is not None
    ]
    return {row.labels["bs"]: row.source[column] for row in ok}


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
    name: str, sizes: Sequence[int], trace: Mapping[int, int], costs: Costs
) -> CaptureList:
    """Return the effect of a capture list. `sizes` ascend; `trace`: batch size -> number of
    calls."""
    buckets = {raw: bucket_of(sizes, raw) for raw in trace}
    used = usage(sizes, trace)
    # smaller graphs reuse the pool of the largest
    memory = value_at(costs.pool_bytes, max(sizes)) + PER_GRAPH_BYTES * len(sizes) if sizes else 0.0
    call_ms = (
        sum(count * costs.call_ms(buckets[raw], raw) for raw, count in trace.items()) / used.calls
    )
    unmeasured = {raw for raw, bucket in buckets.items() if bucket is None} - set(costs.eager_ms)
    unmeasured |= {bucket for bucket in buckets.values() if bucket is not None} - set(
        costs.graph_ms
    )
    fallbacks = used.fallbacks / used.calls
    latency_ms = call_ms if math.isfinite(call_ms) else None
    memory_bytes = memory if math.isfinite(memory) else None
    return CaptureList(
        name,
        list(sizes),
        latency_ms,
        used.padding_waste,
        fallbacks,
        memory_bytes,
        sorted(unmeasured),
    )


def best_list(
    trace: Mapping[int, int], costs: Costs, budget_bytes: int | None = None
) -> CaptureList | None:
    """Return the capture list with the least expected latency within the budget; among equals, the
    one with the least memory. None if no list serves every size: the budget is too small, or sizes
    are above all measured ones.

    Candidates are the measured sizes and the sizes of the trace between them, except sizes whose
    graph failed. Costs are linear between candidates, so no other size can be better. Raises
    UsageError for more than MOST_SIZES of them.
    """
    first, last = min(costs.graph_ms), max(costs.graph_ms)
    sizes = sorted(
        {*costs.graph_ms, *(size for size in trace if first <= size <= last)} - costs.failed
    )
    if len(sizes) > MOST_SIZES:
        raise UsageError(
            f"{len(sizes):,} different sizes are more than {MOST_SIZES:,}; round those of the"
            " trace up"
        )
    plain_ms = {size: count * costs.call_ms(None, size) for size, count in trace.items()}
    below = np.array([sum(count for size, count in trace.items() if size <= end) for end in sizes])
    rest_ms = np.array([sum(ms for size, ms in plain_ms.items() if size > end) for end in sizes])
    call_ms = np.array([costs.call_ms(size, size) for size in sizes])
    pool = np.array(
        [value_at(costs.pool_bytes, size) if costs.pool_bytes else 0.0 for size in sizes]
    )
    # steps[i, j]: cost of the calls between sizes i and j, which run graph j
    steps = np.where(
        np.triu(np.ones((len(sizes), len(sizes))), 1), (below - below[:, None]) * call_ms, np.inf
    )
    cost = below * call_ms
    totals, memory, before = [], [], []
    for count in range(1, len(sizes) + 1):  # lists of `count` graphs, by their largest size
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
        # unknown memory is infinite, like lists that are too slow
        known = np.minimum(memory, np.finfo(float).max)
        lightest = np.where(np.array(totals) <= most, known, np.inf).argmin()
        count, end = divmod(int(lightest), len(sizes))
        chosen = [sizes[end]]
        for ends in reversed(before[:count]):
            end = ends[end]
            chosen.insert(0, sizes[end])
    return evaluate("advised", chosen, trace, costs)


def rank_modes(
    rows: Sequence[LabelledRow],
    column: str,
    calls: int | None,
    memory_bytes: int | None,
    baseline_mode: str,
) -> tuple[list[dict[str, Any]], list[str], dict[str, str]]:
    """Rank the modes of one case and batch size. Return their figures, the best in `column` first;
    the modes that tie with the best; and excluded mode -> reason. Raises NothingFoundError if no
    mode is left.

    Marked figures come after all others and tie with none, because the host was disturbed.

    `calls`: number of calls per preparation; None ignores preparation. `memory_bytes`: limit of
    peak reserved memory. Figures: `prepare_s` is the time until the mode is ready (`warm`: with a
    filled compile cache); `score_ms` the time per call including its part of the preparation;
    `break_even` the calls until the preparation pays back.
    """
    reasons = {row.mode: why_excluded(row.source, column, memory_bytes) for row in rows}
    excluded = {mode: reason for mode, reason in reasons.items() if reason}
    if len(excluded) == len(rows):
        by_reason: dict[str, list[str]] = {}
        for mode, reason in excluded.items():
            by_reason.setdefault(reason, []).append(mode)
        lost = "; ".join(f"{', '.join(modes)} ({reason})" for reason, modes in by_reason.items())
        raise NothingFoundError(f"no mode is left: {lost}")
    # an excluded baseline still provides the reference time
    base = next(
        (
            row.source
            for row in rows
            if is_baseline(row, baseline_mode) and row.source["status"] == "ok"
        ),
        {},
    )
    base_ms, bounds = base.get(column), INTERVALS[column]
    ranked, scored = [], []
    for row in rows:
        if row.mode in excluded:
            continue
        source, call_ms = row.source, row.source[column]
        cold, warm = source.get("compile_cold_s"), source.get("compile_warm_s")
        # modes that do not compile still capture or trace: use the time to the first output
        prepare_s = next(
            (value for value in (cold, warm, source.get("first_call_s")) if value is not None), 0.0
        )
        prepare_ms = prepare_s * 1000 / calls if calls else 0.0
        known = {name: source[name] for name in (column, *bounds) if source.get(name) is not None}
        scored.append(source | {name: value + prepare_ms for name, value in known.items()})
        figures = {
            "mode": row.mode,
            "call_ms": call_ms,
            "score_ms": call_ms + prepare_ms,
            "prepare_s": prepare_s,
        }
        is_warm = cold is None and warm is not None
        figures |= {
            "low_ms": known.get(bounds[0]),
            "high_ms": known.get(bounds[1]),
            "warm": is_warm,
        }
        figures |= {
            name: source.get(name) for metric in SPEEDUPS for name in (metric, *INTERVALS[metric])
        }
        bound = source.get(INTERVALS[TIMES[column]][0])
        is_marked = bool(source.get("marked") or base.get("marked"))
        never = base is source or is_marked or (bound is not None and bound <= 1)  # slower, or n.s.
        figures["break_even"] = (
            None if never else break_even_calls(prepare_s, base_ms or 0.0, call_ms)
        )
        figures["memory_bytes"] = source.get("peak_reserved_bytes")
        figures |= {
            name: source.get(name)
            for name in ("trials", "compilations", "hosts", "cell_key", "disturbance")
        }
        figures["marked"] = bool(source.get("marked"))
        ranked.append(figures)
    near = near_best(ranked, scored, column)
    return sorted(ranked, key=lambda mode: (mode["marked"], mode["score_ms"])), near, excluded


def near_best(
    modes: Sequence[Mapping[str, Any]], scored: Sequence[Mapping[str, Any]], column: str
) -> list[str]:
    """Return the modes that tie with the best one, of those that are not marked. `scored`: the
    result of each mode, with its score in `column`."""
    places = [place for place, mode in enumerate(modes) if not mode["marked"]]
    if not places:
        return []
    _, tied = least([scored[place] for place in places], column)
    best_ms = min(modes[place]["score_ms"] for place in places)
    close = [modes[places[number]] for number in tied]
    # without intervals all tie, but a preparation alone may cost more than all of the best mode
    return [mode["mode"] for mode in close if mode["score_ms"] - mode["call_ms"] <= best_ms]


def why_excluded(
    source: Mapping[str, Any], column: str, memory_bytes: int | None = None
) -> str | None:
    """Return why a result cannot be chosen, None if it can."""
    if source["status"] != "ok":
        return f"{source['status']}: {source['reason'] or 'no reason recorded'}"
    if source.get(column) is None:
        return f"no {column.removesuffix('_ms')} was measured"
    if memory_bytes is not None and source.get("peak_reserved_bytes") is None:
        return "its memory was not measured (CUDA only); omit --memory"
    if memory_bytes is not None and source["peak_reserved_bytes"] > memory_bytes:
        return f"needs {format_bytes(source['peak_reserved_bytes'])} of memory, more than allowed"
    return None
