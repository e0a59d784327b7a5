"""Turn results into a DataFrame for claims, with a column for each swept parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.claims.figures import Figure, as_figure, missing
from effbench.core.cell import Result, Status
from effbench.core.labels import OMITTED, flatten, row_names
from effbench.core.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS, bounds_of

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result with numbers.
FIGURES = [name for name, kind in RESULT_FIGURES.items() if kind in (int, float)]
#: Columns of the view -> start of the parameters that belong to them.
OF_VIEW = {"mode": "mode.name", "model": "model.name"}


def frame_of(results: Sequence[Result], paths: Mapping[str, str]) -> pd.DataFrame:
    """Return one line per result. `paths`: name of a further column -> dotted path of its
    parameter.

    Figures of a result that is not `ok` are missing, and so are marked ones: the host was
    disturbed, so they decide nothing.
    """
    import pandas as pd

    lines = []
    for result, title in zip(results, row_names(results), strict=True):
        line = dict(vars(result))
        settings = OMITTED | flatten(result.params)
        for name, path in paths.items():
            line.setdefault(name, settings.get(path))
        for name in FIGURES:
            gap = gap_of(result, name, title)
            if gap:
                line[name] = missing(gap)
            else:
                line[name] = figure_of(result, name)
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame.attrs["paths"] = {**paths, **OF_VIEW}
    return frame


def gap_of(result: Result, name: str, title: str) -> str:
    """Return why a result has no figure of this name that decides something; empty if it has."""
    if result.status is not Status.OK:
        return f"{result.status}: {title} ({result.reason})"
    disturbance = result.disturbance
    if name in SPEEDUPS:  # they have marks of their own
        disturbance = result.speedup_disturbance
    if not disturbance:
        return ""
    return f"marked: {title} ({disturbance})"


def figure_of(result: Result, name: str) -> Figure:
    """Return one figure of a result. A single trial gives it no bounds, so its comparisons stay
    open: the interval of a single trial's pairs does not contain the variation between
    processes."""
    figure = as_figure(result.value(name))
    if figure.is_missing or name not in INTERVALS:
        return figure
    low, high = bounds_of(result, name)
    is_single = name in SPEEDUPS and result.trials == 1
    if low is not None and high is not None and not is_single:
        return Figure(figure.value, low, high)
    if name == "speedup" and figure.value == 1.0:  # the baseline's
        return figure
    return Figure(figure.value, 0.0, float("inf"))


def where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values; a list allows several."""
    for name, value in values.items():
        allowed = value if isinstance(value, list) else [value]
        is_allowed = rows[name].isin(allowed)
        rows = rows[is_allowed]
    return rows


def ratio(rows: pd.DataFrame, column: str, **setting: Sequence[Any]) -> pd.Series:
    """Return one cell's figure ÷ another's, for all pairs of cells that differ only in a setting.

    `ratio(rows, "latency_ms", mode=["eager", "default"])`: eager's latency ÷ default's, one line
    per row of default. A row of the same sweep takes precedence. Raises ValueError.
    """
    import pandas as pd

    if len(setting) != 1:
        raise ValueError("ratio() takes one setting with two values: mode=['eager', 'default']")
    ((name, (upper, lower)),) = setting.items()
    path = rows.attrs["paths"].get(name, name)
    tops: dict[Hashable, Figure] = {}
    for _, row in where(rows, **{name: upper}).iterrows():
        cell = identity(row, path)
        key = (cell, row["sweep_id"])
        if key in tops:
            raise ValueError(f"ratio(): several rows with {name} = {upper} are otherwise the same")
        tops[key] = row[column]
        if not row[column].is_missing:
            tops[cell] = row[column]
    ratios = {}
    for index, row in where(rows, **{name: lower}).iterrows():
        cell = identity(row, path)
        key = (cell, row["sweep_id"])
        top = tops[key] if key in tops else tops.get(cell, missing())
        ratios[index] = top / row[column]
    title = f"{column}, {upper} ÷ {lower}"
    return pd.Series(ratios, name=title, dtype=object)


def identity(row: Mapping[str, Any], path: str) -> Hashable:
    """Return a key of a cell and its environment without one parameter (or the whole mode or
    model). A model's inputs depend on its settings, so they are omitted with any of these."""
    omitted = [f"{path}."]
    if path in OF_VIEW.values():
        omitted = [path.removesuffix("name")]
    elif path.startswith("model.module."):
        omitted.append("model.inputs.")
    kept = {}
    for name, value in flatten(row["params"]).items():
        if not f"{name}.".startswith(tuple(omitted)):
            kept[name] = value
    return row["environment_id"], frozenset(kept.items())


def split(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the label and the rows of each combination of values, in order of appearance. Rows that
    lack one of the parameters (such as a baseline, which lacks a mode's setting) are in every part
    whose other values they have."""
    combinations = rows[list(names)].dropna().drop_duplicates()
    for values in combinations.itertuples(index=False, name=None):
        part = rows
        words = []
        for name, value in zip(names, values, strict=True):
            column = part[name]
            part = part[(column == value) | column.isna()]
            words.append(label_of(name, value))
        yield " ".join(words), part


def label_of(name: str, value: Any) -> str:
    """Return the words for a value of a column: `eager`, `width=16`."""
    text = str(value)
    if isinstance(value, float):
        text = f"{value:g}"
    if name in OF_VIEW:
        return text
    return f"{name}={text}"
