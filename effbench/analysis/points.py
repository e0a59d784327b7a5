"""The measured points that advice rests on: one model's rows of a sweep, by batch size, told apart by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis.advice import Costs, Curve
from effbench.analysis.swept import SweptRow, flatten, plain_rows, swept_rows
from effbench.errors import NothingFoundError, UsageError

#: What a call may cost, by the name that a user gives it.
CALL = {"latency": "latency_ms", "period": "period_ms"}
#: What says that a graph of this size cannot be had (noise only says that its time is not known).
FAILED = frozenset({"incorrect", "crashed", "timeout", "error", "oom", "unsupported", "degraded"})


@dataclass(frozen=True)
class Points:
    """`case`: the model with whatever else was swept. `missing`: results that are not ok, each with its reason."""

    case: str
    mode: str
    costs: Costs
    missing: list[str] = field(default_factory=list)


def rows_of_case(rows_or_frame: Any, model: str | None) -> list[SweptRow]:
    """The rows of one model with one batch size (none of a stream), of one sweep or more.

    `model` is its name, or its name with what else was swept, as `mlp · dtype=float32`. Raises NothingFoundError where
    there is none, UsageError where several fit.
    """
    rows = [row for row in plain_rows(rows_or_frame) if "stream.name" not in flatten(row.get("params") or {})]
    swept = swept_rows(rows)
    cases = list(dict.fromkeys(row.case for row in swept if model in (None, row.case, row.labels["model"])))
    if not cases:
        there = ", ".join(dict.fromkeys(row.case for row in swept)) or "none with one batch size"
        what = "no result" if model is None else f"no result of {model}"
        raise NothingFoundError(f"{what} in this sweep; measured models: {there}")
    if len(cases) > 1:
        raise UsageError(f"several fit: {'; '.join(cases)}; choose one of them with --model (in quotes)")
    return [row for row in swept if row.case == cases[0]]


def points(rows_or_frame: Any, model: str | None, mode: str, metric: str, eager: str = "eager") -> Points:
    """Costs of a call and of memory by batch size: of `mode` as graphs, of `eager` as calls without one.

    `metric`: latency or period. Raises NothingFoundError without an ok result of the mode, UsageError where settings of
    the mode were swept and `mode` names none of them.
    """
    own = rows_of_case(rows_or_frame, model)
    named = list(dict.fromkeys(row.mode for row in own if mode in (row.mode, row.base_mode)))
    if len(named) > 1:
        raise UsageError(f"several fit: {'; '.join(named)}; choose one of them with --mode (in quotes)")
    graphs = [row for row in own if row.mode in named]
    found = values(graphs, CALL[metric])
    if not found:
        there = ", ".join(dict.fromkeys(row.mode for row in own if values([row], CALL[metric])))
        raise NothingFoundError(
            f"no ok result of mode {mode} with a {metric} for {own[0].case}; there are: {there or 'none at all'}"
        )
    plain = values([row for row in own if row.base_mode == eager], CALL[metric])
    pool = values(graphs, "graph_pool_bytes")
    failed = frozenset(row.labels["bs"] for row in graphs if row.source["status"] in FAILED)
    costs = Costs(Curve.of(found), Curve.of(plain) if plain else None, Curve.of(pool) if pool else None, failed)
    return Points(own[0].case, named[0], costs, missing(graphs))


def values(rows: Iterable[SweptRow], column: str) -> dict[int, float]:
    """Batch size -> value, of ok rows that have it."""
    return {
        row.labels["bs"]: row.source[column]
        for row in rows
        if row.source["status"] == "ok" and row.source.get(column) is not None
    }


def missing(rows: Iterable[SweptRow]) -> list[str]:
    return [
        f"{row.mode} bs={row.labels['bs']}: {row.source['status']} ({row.source['reason'] or 'no reason recorded'})"
        for row in rows
        if row.source["status"] != "ok"
    ]
