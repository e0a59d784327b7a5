"""Turn results into a DataFrame for claims, with a column for each swept
parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Result, Status
from effbench.errors import nearest
from effbench.experiments.figures import ClaimError, Figure, Gap, as_figure, missing
from effbench.labels import OMITTED, flatten, row_names
from effbench.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS, bounds_of

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result with figures, without those that say how they came about.
TEXTS = {"marked", "disturbance", "speedup_from", "speedup_disturbance"}
FIGURES = RESULT_FIGURES.keys() - TEXTS
#: Stands for the status of a row whose figures decide nothing, because the host was disturbed.
MARKED = "marked"
#: Columns of the view -> start of the parameters that belong to them.
OF_VIEW = {"mode": "mode.name", "model": "model.name"}

#: A row of a frame.
Row = Mapping[str, Any]


def frame_of(
    results: Sequence[Result], paths: Mapping[str, str], with_marks: bool = False
) -> pd.DataFrame:
    """Return one line per result: figures with intervals as Figure, and missing figures for one
    that is not `ok` or is marked, and for speedups over a marked baseline: the host was disturbed,
    so they decide nothing.

    `paths`: name of a further column -> dotted path of its parameter. `with_marks`: keep marked
    figures, for tables.
    """
    import pandas as pd

    lines = []
    for result, title in zip(results, row_names(results), strict=True):
        settings = OMITTED | flatten(result.params)
        line = vars(result) | {"status": str(result.status)}
        for name, path in paths.items():
            line.setdefault(name, settings.get(path))
        for name in FIGURES:
            gap = gap_of(result, name, title)
            line[name] = figure_of(result, name)
            if gap and not (with_marks and gap.status == MARKED):
                line[name] = missing(f"no measured row has {name}", [gap])
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame.attrs["paths"] = {**paths, **OF_VIEW}
    return frame


def gap_of(result: Result, name: str, title: str) -> Gap | None:
    """Return why a result has no figure of this name that decides something. Speedups have marks of
    their own."""
    if result.status is not Status.OK:
        return Gap(title, result.status, str(result.reason))
    disturbance = result.speedup_disturbance if name in SPEEDUPS else result.disturbance
    if disturbance:
        return Gap(title, MARKED, disturbance)
    return None


def figure_of(result: Result, name: str) -> Figure | float | None:
    """Return one figure of a result. The figure of a single trial has no bounds, so its comparisons
    stay open: the interval of a single trial's pairs does not contain the variation between
    processes."""
    value = result.value(name)
    if value is None or name not in INTERVALS:
        return value
    low, high = bounds_of(result, name)
    is_single = name in SPEEDUPS and result.trials == 1
    if low is not None and high is not None and not is_single:
        return Figure(value, low, high)
    if name == "speedup" and value == 1.0:
        return value  # the baseline's
    return Figure(value, 0.0, float("inf"))


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

    try:
        ((name, (upper, lower)),) = setting.items()
    except ValueError as error:
        how = "ratio() takes one setting and two values: mode=['eager', 'default']"
        raise ClaimError(how) from error
    path = rows.attrs["paths"].get(name, name)
    figures = column_of(rows, column)
    tops: dict[Hashable, Figure] = {}
    for index, row in where(rows, **{name: upper}).iterrows():
        cell = identity(row, path)
        key = (cell, row["sweep_id"])
        if key in tops:
            raise ClaimError(
                f"ratio(): several rows have {name} = {upper} and are otherwise the same cell"
            )
        tops[key] = as_figure(figures[index])
        if not tops[key].is_missing:
            tops[cell] = tops[key]
    ratios = {}
    for index, row in where(rows, **{name: lower}).iterrows():
        cell = identity(row, path)
        top = tops.get((cell, row["sweep_id"]), tops.get(cell))
        ratios[index] = as_figure(top) / figures[index]
    return pd.Series(ratios, name=f"{column}, {upper} ÷ {lower}", dtype=object)


def identity(row: Row, path: str) -> Hashable:
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
            has_value = part[name] == value
            part = part[has_value | part[name].isna()]
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(text if name in OF_VIEW else f"{name}={text}")
        yield " ".join(words), part
