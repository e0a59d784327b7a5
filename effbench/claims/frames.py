"""Turn results into a DataFrame for claims, with a column for each figure and each parameter."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from effbench.claims.figures import Figure, as_figure, missing
from effbench.core.cell import Result, Status
from effbench.core.labels import all_parameters, row_names
from effbench.core.metrics import INTERVALS, METRICS, SPEEDUPS, bounds_of, why_marked

if TYPE_CHECKING:
    import pandas as pd

#: Metrics that are numbers.
NUMBERS = [name for name, metric in METRICS.items() if metric.kind in (int, float)]
#: Columns whose values need no name in a label.
NAMES = ("model", "mode")


def frame_of(results: Sequence[Result]) -> pd.DataFrame:
    """Return one line per result, with a column for each parameter: the last part of its path, or
    the whole path if several have this name or it is a column of the view.

    Metrics are figures. Those of a result that is not `ok` are missing, and so are marked ones: the
    host was disturbed, so they decide nothing. `attrs["paths"]`: column -> path.
    """
    import pandas as pd

    settings = [all_parameters(result.params) for result in results]
    paths = dict.fromkeys(chain.from_iterable(settings))
    taken = Counter(path.rpartition(".")[2] for path in paths)
    taken.update(field.name for field in dataclasses.fields(Result))
    columns = {}
    for path in paths:
        _, _, name = path.rpartition(".")
        if taken[name] > 1:
            name = path
        columns[name] = path
    lines = []
    for result, values, title in zip(results, settings, row_names(results), strict=True):
        parameters = {column: values.get(path) for column, path in columns.items()}
        figures = {name: figure_of(result, name, title) for name in NUMBERS}
        lines.append(parameters | vars(result) | figures)
    frame = pd.DataFrame(lines, dtype=object)
    frame.attrs["paths"] = columns
    return frame


def figure_of(result: Result, name: str, title: str) -> Figure:
    """Return a metric of a result; a missing figure, with the title of the row, if it decides
    nothing.

    A single trial gives it no bounds, so its comparisons stay open: the interval of a single
    trial's pairs does not contain the variation between processes.
    """
    if result.status is not Status.OK:
        return missing(f"{result.status}: {title} ({result.reason})")
    disturbance = why_marked(result, name)
    if disturbance:
        return missing(f"marked: {title} ({disturbance})")
    figure = as_figure(result.value(name))
    is_speedup = name in SPEEDUPS
    if figure.is_missing or name not in INTERVALS or (is_speedup and result.is_baseline):
        return figure
    low, high = bounds_of(result, name)
    if low is None or high is None or (is_speedup and result.trials == 1):
        return Figure(figure.value, 0.0, math.inf)
    return Figure(figure.value, low, high)


def where(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows whose columns have these values; a list allows several."""
    for name, value in values.items():
        allowed = value if isinstance(value, list) else [value]
        rows = rows[rows[name].isin(allowed)]
    return rows


def ratio(rows: pd.DataFrame, column: str, **setting: Sequence[Any]) -> pd.Series:
    """Return one cell's figure ÷ another's, for all pairs of cells of a sweep that differ only in a
    setting.

    `ratio(rows, "latency_ms", mode=["eager", "default"])`: eager's latency ÷ default's, one line
    per row of default. Raises ValueError if several rows of eager are otherwise the same.
    """
    [name] = setting
    upper, lower = setting[name]
    paths = rows.attrs["paths"]
    path = paths.get(name, name)
    differing = [f"{path}."]
    if path.startswith("model.module."):
        differing.append("model.inputs.")  # they depend on the module's arguments
    alike = ["sweep_id", "environment_id"]
    for parameter, whole in paths.items():
        if not f"{whole}.".startswith(tuple(differing)):
            alike.append(parameter)
    numerators = where(rows, **{name: upper})[[*alike, column]]
    denominators = where(rows, **{name: lower})
    pairs = denominators[alike].merge(
        numerators,
        how="left",
        on=alike,
        validate="m:1",
    )
    return pairs[column].set_axis(denominators.index) / denominators[column]


def by(
    rows: pd.DataFrame, names: list[str], function: Callable[[pd.DataFrame], Figure]
) -> dict[str, Figure]:
    """Return label -> the figure of the rows with each combination of these columns' values, in
    order of appearance, without figures that were not measured."""
    figures = {}
    for values, part in rows.groupby(names, sort=False):
        words = [
            value if name in NAMES else f"{name}={value}"
            for name, value in zip(names, values, strict=True)
        ]
        figure = function(part)
        if not figure.is_missing:
            figures[" ".join(words)] = figure
    return figures
