"""Turn rows of the view `results` into a DataFrame for claims, with a column for each swept
parameter."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effbench.cell import Status
from effbench.errors import nearest
from effbench.experiments.figures import ClaimError, Figure, Gap, as_figure, missing
from effbench.labels import OMITTED, flatten, row_names
from effbench.metrics import INTERVALS, RESULT_FIGURES, SPEEDUPS

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result that say how its figures came about.
TEXTS = frozenset({"marked", "disturbance", "speedup_from", "speedup_disturbance"})
#: Stands for the status of a row whose figures decide nothing, because the host was disturbed.
MARKED = "marked"
#: Columns of the view -> start of the parameters that belong to them.
OF_VIEW = {"mode": "mode.name", "model": "model.name"}


def frame_of(
    rows: Sequence[Mapping[str, Any]], paths: Mapping[str, str], with_marks: bool = False
) -> pd.DataFrame:
    """Return one line per row: figures with intervals as Figure, and missing figures for a row that
    is not `ok` or is marked, and for speedups over a marked baseline: the host was disturbed, so
    they decide nothing.

    `paths`: name of a further column -> dotted path of its parameter. `with_marks`: keep marked
    figures, for tables.
    """
    import pandas as pd

    lines = []
    for row, title in zip(rows, row_names(rows), strict=True):
        settings = OMITTED | flatten(row["params"])
        line = {name: settings.get(path) for name, path in paths.items()}
        for name, value in row.items():
            gap = None
            if name in RESULT_FIGURES and name not in TEXTS:
                value = figure_of(row, name)
                gap = gap_of(row, name, title)
            if gap is None or (gap.status == MARKED and with_marks):
                line[name] = value
            else:
                line[name] = missing(f"no measured row has {name}", [gap])
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame.attrs["paths"] = {**paths, **OF_VIEW}
    return frame


def gap_of(row: Mapping[str, Any], name: str, title: str) -> Gap | None:
    """Return why a row has no figure of this name that decides something. Speedups have marks of
    their own."""
    if row["status"] != Status.OK:
        return Gap(title, row["status"], str(row["reason"]))
    if name in SPEEDUPS:
        disturbance = row.get("speedup_disturbance")
    else:
        disturbance = row.get("marked") and row.get("disturbance")
    return Gap(title, MARKED, disturbance) if disturbance else None


def figure_of(row: Mapping[str, Any], name: str) -> Figure | float | None:
    """Return one figure of a row. The figure of a single trial has no bounds, so its comparisons
    stay open: the interval of a single trial's pairs does not contain the variation between
    processes."""
    value: float | None = row[name]
    bounds = INTERVALS.get(name)
    # rows of an older version lack the columns of an interval
    if value is None or bounds is None or not set(bounds) & row.keys():
        return value
    low, high = (row.get(bound) for bound in bounds)
    is_single = name in SPEEDUPS and row.get("trials") == 1
    if low is not None and high is not None and not is_single:
        return Figure(value, low, high)
    is_baseline = name == "speedup" and value == 1.0
    return value if is_baseline else Figure(value, 0.0, float("inf"))


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
    column_of(rows, column)
    tops: dict[Hashable, Figure] = {}
    for _, row in where(rows, **{name: upper}).iterrows():
        cell, figure = identity(row, rows.attrs["paths"].get(name, name)), as_figure(row[column])
        if (cell, row["sweep_id"]) in tops:
            raise ClaimError(
                f"ratio(): several rows have {name} = {upper} and are otherwise the same cell"
            )
        tops[cell, row["sweep_id"]] = figure
        if not figure.is_missing:
            tops[cell] = figure
    ratios = {}
    for index, row in where(rows, **{name: lower}).iterrows():
        cell = identity(row, rows.attrs["paths"].get(name, name))
        top = tops.get((cell, row["sweep_id"]), tops.get(cell))
        ratios[index] = as_figure(top) / row[column]
    return pd.Series(ratios, name=f"{column}, {upper} ÷ {lower}", dtype=object)


def identity(row: Mapping[str, Any], path: str) -> Hashable:
    """Return a key of a cell and its environment without one parameter (or the whole mode or
    model). A model's inputs depend on its settings, so they are omitted with any of these."""
    omitted = path.partition(".")[0] if path in OF_VIEW.values() else path
    prefixes = [f"{omitted}."]
    if path.startswith("model.module."):
        prefixes.append("model.inputs.")
    settings = flatten(row["params"]).items()
    kept = [item for item in settings if not f"{item[0]}.".startswith(tuple(prefixes))]
    return row["environment_id"], frozenset(kept)


def split(rows: pd.DataFrame, names: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the label and the rows of each combination of values, in order of appearance. Rows that
    lack one of the parameters (such as a baseline, which lacks a mode's setting) are in every part
    whose other values they have."""
    combinations = rows[list(names)].dropna().drop_duplicates()
    for values in combinations.itertuples(index=False, name=None):
        part, words = rows, []
        for name, value in zip(names, values, strict=True):
            part = part[part[name].isna() | (part[name] == value)]
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words.append(text if name in ("model", "mode") else f"{name}={text}")
        yield " ".join(words), part
