"""Turn rows of the view `results` into a DataFrame for claims, with a column for each swept
parameter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Status
from effbench.errors import nearest
from effbench.experiments.figures import ClaimError, Figure, as_figure, missing
from effbench.labels import OMITTED, flatten
from effbench.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS

if TYPE_CHECKING:
    import pandas as pd

#: Column of a frame -> why the times of a row are marked; missing if they are not.
DISTURBANCE = "disturbance"
#: Columns of a result that say how its figures came about.
TEXTS = frozenset({"marked", DISTURBANCE, "speedup_from", "speedup_disturbance"})
#: Columns of the view -> paths of their parameters.
OF_VIEW = {"mode": "mode.name", "model": "model.name"}


def frame_of(
    rows: Sequence[Mapping[str, Any]],
    paths: Mapping[str, str] | None = None,
    with_marks: bool = False,
) -> pd.DataFrame:
    """Return one line per row: figures with intervals as Figure, and None for all figures of a row
    that is not `ok` or is marked, and for speedups over a marked baseline: the host was disturbed,
    so they decide nothing.

    `paths`: name of a further column -> dotted path of its parameter. `with_marks`: keep marked
    figures, for tables.
    """
    import pandas as pd

    paths = paths or {}
    lines = []
    for row in rows:
        line = {name: parameter(row["params"], path) for name, path in paths.items()}
        for name, value in row.items():
            is_figure = name in RESULT_FIGURES and name not in TEXTS
            line[name] = figure_of(row, name, with_marks) if is_figure else value
        over_marked = row.get("speedup_disturbance")
        if over_marked and not with_marks and not row.get("marked"):
            line[DISTURBANCE] = over_marked
        lines.append(line)
    frame = pd.DataFrame(lines, index=[f"{row['sweep_id']}/{row['cell_key']}" for row in rows])
    frame.attrs["paths"] = dict(paths)
    return frame


def figure_of(row: Mapping[str, Any], name: str, with_marks: bool = False) -> Figure | float | None:
    """Return one figure of a row. The figure of a single trial has no bounds, so its comparisons
    stay open: the interval of a single trial's pairs does not contain the variation between
    processes."""
    value: float | None = row[name]
    is_speedup = name in SPEEDUPS
    is_marked = row.get("speedup_disturbance" if is_speedup else "marked")
    if row["status"] != Status.OK or value is None or (is_marked and not with_marks):
        return None
    if not any(bound in row for bound in INTERVALS.get(name, ())):
        return value  # a count, or a row of an older version, which lacks the interval
    low, high = (row[bound] for bound in INTERVALS[name])
    if low is not None and high is not None and not (is_speedup and row.get("trials") == 1):
        return Figure(value, low, high)
    if name == "speedup" and value == 1.0:
        return as_figure(value)  # the baseline's
    return Figure(value, 0.0, float("inf"))


def parameter(params: Mapping[str, Any], path: str) -> Any:
    """Return a cell's parameter by its dotted path, lists and mappings as JSON; None if the cell
    does not have it."""
    value: Any = params
    for part in path.split("."):
        value = by_name(value)
        if not isinstance(value, Mapping) or part not in value:
            return OMITTED.get(path)
        value = value[part]
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping | list) else value


def by_name(value: Any) -> Any:
    """Return a model's inputs, which are a list, as a mapping; anything else unchanged."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(item, Mapping) and "name" in item for item in value):
        return value
    return {item["name"]: item for item in value}


def column_of(rows: pd.DataFrame, name: str) -> pd.Series:
    if name not in rows:
        raise ClaimError(f"no column {name!r}; nearest: {nearest(name, rows.columns) or 'none'}")
    return rows[name]


def where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values; a list allows several."""
    for name, value in values.items():
        allowed = value if isinstance(value, list) else [value]
        rows = rows[column_of(rows, name).isin(allowed)]
    return rows


def ratio(rows: pd.DataFrame, column: str, **setting: Sequence[Any]) -> pd.Series:
    """Return one cell's figure ÷ another's, for all pairs of cells that differ only in a setting.

    `ratio(rows, "latency_ms", mode=["eager", "default"])`: eager's latency ÷ default's, one line
    per row of default. A row of the same sweep takes precedence. Raises ClaimError.
    """
    import pandas as pd

    if len(setting) != 1 or any(len(values) != 2 for values in setting.values()):
        raise ClaimError("ratio() takes one setting and two values: mode=['eager', 'default']")
    ((name, (upper, lower)),) = setting.items()
    path = {**rows.attrs["paths"], **OF_VIEW}.get(name, name)
    column_of(rows, column)
    dividends: dict[str, dict[str, Figure]] = {}  # identity -> sweep -> figure
    for label, row in selected(rows, path, upper):
        by_sweep = dividends.setdefault(identity(row, path), {})
        if row["sweep_id"] in by_sweep:
            raise ClaimError(
                f"ratio(): several rows have {name} = {upper} and are otherwise the same cell"
            )
        by_sweep[row["sweep_id"]] = labelled_figure(row[column], label)
    ratios = {}
    for label, row in selected(rows, path, lower):
        by_sweep = dividends.get(identity(row, path), {})
        measured = [figure for figure in by_sweep.values() if not figure.is_missing]
        newest = measured[-1] if measured else next(iter(by_sweep.values()), missing(""))
        dividend = by_sweep.get(row["sweep_id"], newest)
        if dividend.is_missing:
            dividend = newest
        ratios[label] = dividend / labelled_figure(row[column], label)
    return pd.Series(ratios, name=f"{column}, {upper} ÷ {lower}", dtype=object)


def selected(rows: pd.DataFrame, path: str, value: Any) -> Iterator[tuple[str, pd.Series]]:
    """Yield the label and the content of each row with this value of a parameter."""
    for label, row in rows.iterrows():
        if parameter(row["params"], path) == value:
            yield label, row


def labelled_figure(value: Any, label: str) -> Figure:
    figure = as_figure(value)
    return missing(figure.why, [label]) if figure.is_missing else figure


def identity(row: Mapping[str, Any], path: str) -> str:
    """Return a key of a cell and its environment without one parameter (or the whole mode or
    model). A model's inputs depend on its settings, so they are omitted with any of these."""
    omitted = [path.partition(".")[0] if path in OF_VIEW.values() else path]
    if path.startswith("model.module."):
        omitted.append("model.inputs")
    prefixes = tuple(f"{name}." for name in omitted)
    kept = [
        (name, value)
        for name, value in flatten(row["params"]).items()
        if name not in omitted and not name.startswith(prefixes)
    ]
    return json.dumps([row["environment_id"], sorted(kept)], default=str)


def split(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the label and the rows of each combination of values, in order of appearance. Rows that
    lack one of the parameters (such as a baseline, which lacks a mode's setting) are in every part
    whose other values they have."""
    combinations = rows[list(names)].dropna().drop_duplicates()
    for values in combinations.itertuples(index=False, name=None):
        part, words = rows, []
        for name, value in zip(names, values, strict=True):
            part = part[part[name].isna() | (part[name] == value)]
            words.append(shown(value) if name in ("model", "mode") else f"{name}={shown(value)}")
        yield " ".join(words), part


def shown(value: Any) -> str:
    return str(value) if isinstance(value, str | bool) else f"{value:g}"
