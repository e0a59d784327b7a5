"""Turn rows of the view `results` into a DataFrame for claims, with a column for each swept
parameter."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Status
from effbench.errors import nearest
from effbench.experiments.figures import ClaimError, Figure, as_figure, no_figure
from effbench.labels import OMITTED
from effbench.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS, is_missing

if TYPE_CHECKING:
    import pandas as pd


#: Column of a frame -> why the times of a row are marked; NaN if they are not.
DISTURBANCE = "disturbance"
#: Columns of a result that say how its figures came about.
TEXTS = frozenset({"marked", DISTURBANCE, "speedup_from", "speedup_disturbance"})


def frame_of(
    rows: Sequence[Mapping[str, Any]],
    paths: Mapping[str, str] | None = None,
    with_marks: bool = False,
) -> pd.DataFrame:
    """Return one line per row: figures with intervals as Figure, and NaN for all figures of a row
    that is not `ok` or is marked, and for speedups over a marked baseline: the host was disturbed,
    so they decide nothing.

    `paths`: name of a further column -> dotted path of its parameter. `with_marks`: keep marked
    figures, for tables.
    """
    import pandas as pd

    lines = []
    for row in rows:
        line = {name: parameter(row["params"], path) for name, path in (paths or {}).items()}
        line |= {
            name: figure_of(row, name, with_marks) if name in RESULT_FIGURES else row[name]
            for name in row
        }
        of_speedup = row.get("speedup_disturbance")
        if not with_marks and not is_marked(row) and not is_missing(of_speedup):
            line[DISTURBANCE] = of_speedup
        lines.append(line)
    frame = pd.DataFrame(lines, index=[f"{row['sweep_id']}/{row['cell_key']}" for row in rows])
    # parts of the frame need the whole; a function, because pandas copies other attributes with
    # every part
    frame.attrs = {
        "whole": lambda: frame,
        "paths": paths or {},
        "with_marks": lambda: frame_of(rows, paths, with_marks=True),
    }
    return frame


def is_marked(row: Mapping[str, Any]) -> bool:
    """Return whether the times of a row of the view, or of a frame, come from a disturbed host."""
    value = row.get("marked")
    return not is_missing(value) and bool(value)


def is_unsure(row: Mapping[str, Any], name: str) -> bool:
    """Return whether this figure of a row is marked. Speedups have marks of their own."""
    if name in SPEEDUPS:
        return not is_missing(row.get("speedup_disturbance"))
    return is_marked(row)


def figure_of(row: Mapping[str, Any], name: str, with_marks: bool = False) -> Any:
    """Return one figure of a row. The figure of a single trial has no bounds, so its comparisons
    stay open: the interval of a single trial's pairs does not contain the variation between
    processes."""
    value = row[name]
    if name in TEXTS:
        return math.nan if value is None else value
    if row["status"] != Status.OK or value is None or (is_unsure(row, name) and not with_marks):
        return math.nan
    bounds = INTERVALS.get(name, ())
    if not any(bound in row for bound in bounds):  # rows of an older version lack the interval
        return value
    low, high = (row[bound] for bound in bounds)
    has_bounds = low is not None and high is not None
    if has_bounds and (name not in SPEEDUPS or row.get("trials") != 1):
        return Figure(value, low, high)
    return Figure(1.0) if name == "speedup" and value == 1.0 else Figure(value, 0.0, math.inf)


def parameter(params: Mapping[str, Any], path: str) -> Any:
    """Return a cell's parameter by its dotted path, lists and mappings as JSON; NaN if the cell
    does not have it."""
    value: Any = params
    for part in path.split("."):
        value = by_name(value)
        if not isinstance(value, Mapping) or part not in value:
            return OMITTED.get(path, math.nan)
        value = value[part]
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value


def by_name(value: Any) -> Any:
    """Return a model's inputs, which are a list, as a mapping; anything else unchanged."""
    is_inputs = isinstance(value, list) and all(
        isinstance(one, Mapping) and "name" in one for one in value
    )
    return {one["name"]: one for one in value} if is_inputs else value


def column_of(rows: pd.DataFrame, name: str) -> pd.Series:
    if name not in rows:
        raise ClaimError(f"no column {name!r}; nearest: {nearest(name, rows.columns) or 'none'}")
    return rows[name]


def where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values; a list allows several."""
    for name, value in values.items():
        rows = rows[column_of(rows, name).isin(value if isinstance(value, list) else [value])]
    return rows


def relative(rows: pd.DataFrame, column: str, name: str, reference: Any) -> pd.Series:
    """Return for each row the figure of its reference ÷ its own figure. Above 1, the row's figure
    is lower than the reference's, which is the same cell except that `name` is `reference`.

    `name`: mode, model, a swept parameter, or a dotted path. A reference of the same sweep takes
    precedence.
    """
    whole, paths = rows.attrs["whole"](), rows.attrs["paths"]
    path = {**paths, "mode": "mode.name", "model": "model.name"}.get(name, name)
    references: dict[str, dict[str, Any]] = {}  # identity -> sweep -> figure
    failed: dict[str, Any] = {}  # identity -> label of a reference without the figure
    for (label, row), value in zip(whole.iterrows(), column_of(whole, column), strict=True):
        if parameter(row["params"], path) != reference:
            continue
        cell, sweep_id = identity(row, path), row["sweep_id"]
        if is_missing(value):
            failed[cell] = label
        elif sweep_id in references.setdefault(cell, {}):
            raise ClaimError(
                f"relative(): several rows have {name} = {reference} and are otherwise the same"
                " cell"
            )
        else:
            references[cell][sweep_id] = value

    def ratio(row: Any) -> Any:
        others = references.get(cell := identity(row, path))
        if not others and cell in failed:
            no_figure.add(failed[cell])
        if not others or is_missing(row[column]):
            return math.nan
        other = others.get(row["sweep_id"], next(reversed(others.values())))
        # a row compared with itself gives exactly 1
        return (
            Figure(1)
            if parameter(row["params"], path) == reference
            else as_figure(other) / row[column]
        )

    ratios = rows.apply(ratio, axis=1).astype(object) if len(rows) else rows[column]
    return ratios.rename(f"{column}, {reference} ÷ its own")


def identity(row: Any, path: str) -> str:
    """Return a key of a cell and its environment without one parameter (or the whole mode or
    model). A model's inputs depend on its settings, so they are omitted with any of these."""
    params = json.loads(json.dumps(row["params"]))
    params["model"]["inputs"] = by_name(params["model"].get("inputs"))
    *outer, last = (
        [path.partition(".")[0]] if path in ("mode.name", "model.name") else path.split(".")
    )
    if path.startswith("model.module."):
        params["model"].pop("inputs", None)
    holder = params
    for part in outer:
        holder = holder.get(part) if isinstance(holder, dict) else None
    if isinstance(holder, dict):
        holder.pop(last, None)
    return json.dumps([row["environment_id"], params], sort_keys=True)


def split(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the label and the rows of each combination of values, in order of appearance. Rows that
    lack one of the parameters (such as a baseline, which lacks a mode's setting) are in no part."""
    for values, part in rows.groupby(list(names), sort=False):
        pairs = zip(names, values, strict=True)
        yield (
            " ".join(
                shown(v) if name in ("model", "mode") else f"{name}={shown(v)}" for name, v in pairs
            ),
            part,
        )


def shown(value: Any) -> str:
    return str(value) if isinstance(value, str | bool) else f"{value:g}"
