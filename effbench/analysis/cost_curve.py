"""The measured cost curve that advice rests on: one model's rows of a sweep, by batch size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from effbench.analysis.advice import Costs, Curve
from effbench.analysis.row_labels import LabelledRow, flatten, label_rows
from effbench.errors import NothingFoundError, UsageError

#: Columns of a call's cost, by the name that a user types.
CALL = {"latency": "latency_ms", "period": "period_ms"}
#: Statuses that show that a graph of this size is impossible (noise only hides its time).
FAILED = frozenset({"incorrect", "crashed", "timeout", "error", "oom", "unsupported", "degraded"})


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
