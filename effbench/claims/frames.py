"""Turn results into a DataFrame for claims, with a column for each figure and each parameter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.claims.figures import Figure, as_figure, missing
from effbench.core.cell import Result, Status
from effbench.core.labels import all_parameters, flatten, grouped, row_names
from effbench.core.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS, bounds_of

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result with numbers.
FIGURES = [name for name, kind in RESULT_FIGURES.items() if kind in (int, float)]
#: Columns of the view that stand for several parameters -> start of these.
GROUPS = {"mode": "mode.", "model": "model."}


def frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """Return one line per result, with a column for each parameter: the last part of its path, or
    the whole path if several have this name or it is a column of the view.

    Figures of a result that is not `ok` are missing, and so are marked ones: the host was
    disturbed, so they decide nothing.
    """
    import pandas as pd

    settings = [all_parameters(result.params) for result in results]
    paths = dict.fromkeys(path for values in settings for path in values)
    last = {path: path.rpartition(".")[2] for path in paths}
    counts = Counter(last.values())
    view = vars(results[0]) if results else {}
    columns = {}
    for path, name in last.items():
        is_unique = counts[name] == 1 and name not in view
        columns[name if is_unique else path] = path
    lines = []
    for result, values, title in zip(results, settings, row_names(results), strict=True):
        line = {column: values.get(path) for column, path in columns.items()}
        line |= vars(result)
        line |= {name: figure_of(result, name, title) for name in FIGURES}
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame.attrs["paths"] = columns
    return frame


def figure_of(result: Result, name: str, title: str) -> Figure:
    """Return one figure of a result; a missing one, with the title of the row, if it decides
    nothing.

    A single trial gives it no bounds, so its comparisons stay open: the interval of a single
    trial's pairs does not contain the variation between processes.
    """
    if result.status is not Status.OK:
        return missing(f"{result.status}: {title} ({result.reason})")
    is_speedup = name in SPEEDUPS  # speedups have marks of their own
    disturbance = result.speedup_disturbance if is_speedup else result.disturbance
    if disturbance:
        return missing(f"marked: {title} ({disturbance})")
    figure = as_figure(result.value(name))
    is_of_baseline = is_speedup and result.is_baseline
    if figure.is_missing or name not in INTERVALS:
        return figure
    low, high = bounds_of(result, name)
    if low is not None and high is not None and not (is_speedup and result.trials == 1):
        return Figure(figure.value, low, high)
    if is_of_baseline:
        return figure
    return Figure(figure.value, 0.0, float("inf"))


def where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values; a list allows several."""
    for name, value in values.items():
        allowed = value if isinstance(value, list) else [value]
        rows = rows[rows[name].isin(allowed)]
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
    omitted = parameters_of(name, rows.attrs["paths"])
    numerators = [row for _, row in where(rows, **{name: upper}).iterrows()]
    by_cell = grouped(numerators, lambda row: identity(row, omitted))
    ratios = {}
    for index, row in where(rows, **{name: lower}).iterrows():
        alike = by_cell.get(identity(row, omitted), [])
        same_sweep = [top[column] for top in alike if top["sweep_id"] == row["sweep_id"]]
        if len(same_sweep) > 1:
            raise ValueError(f"ratio(): several rows with {name} = {upper} are otherwise the same")
        measured = [top[column] for top in reversed(alike) if not top[column].is_missing]
        candidates = [*same_sweep, *measured, missing()]
        ratios[index] = candidates[0] / row[column]
    title = f"{column}, {upper} ÷ {lower}"
    return pd.Series(ratios, name=title, dtype=object)


def parameters_of(column: str, paths: Mapping[str, str]) -> tuple[str, ...]:
    """Return the starts of the parameters that differ between rows which differ only in a column. A
    model's inputs depend on its settings."""
    if column in GROUPS:
        return (GROUPS[column],)
    path = paths.get(column, column)
    if path.startswith("model.module."):
        return f"{path}.", "model.inputs."
    return (f"{path}.",)


def identity(row: Mapping[str, Any], omitted: tuple[str, ...]) -> Hashable:
    """Return a key of a row's cell, without the `omitted` parameters, and of its environment."""
    kept = []
    for item in flatten(row["params"]).items():
        if not f"{item[0]}.".startswith(omitted):
            kept.append(item)
    return row["environment_id"], frozenset(kept)


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
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name in GROUPS:
        return text
    return f"{name}={text}"
