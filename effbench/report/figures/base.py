"""Shared parts of figures: declaration, drawing, traces by mode, axes, and text escaped for Plotly."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd

from effbench.metrics import INTERVALS, is_missing
from effbench.printable import one_line
from effbench.report.colors import style_of
from effbench.report.columns import interval_text, title_and_unit, value_text

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
GRAY = "rgba(128,136,146,0.8)"
#: Columns that identify a result: model with other swept parameters, label on the x axis and its value (by default the
#: batch size), mode, and the mode's rank.
KEYS = ["case", "axis", "x", "series", "series_rank"]
#: Label on the x axis -> title and unit; others are their own title.
_TITLES = {"bs": ("batch size", " (samples)"), "stream.rate": ("arrival rate", " (requests/s)")}
_BOUNDS = {bound for bounds in INTERVALS.values() for bound in bounds}


@dataclass(frozen=True)
class Figure:
    """A section of the page named `page`.

    `data` turns the report's frame into the table to draw: KEYS, then the columns for hover texts and the table of
    numbers. If this table is empty, the page shows `absent`. `draw` takes the table, or with `small_multiples` the
    rows of one `case`. Without `absent`, the page omits an empty figure.
    """

    name: str
    title: str
    order: int
    caption: str
    absent: str
    data: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Drawing]
    page: str = "scaling"
    small_multiples: bool = False

    def parts(self, table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        """Return (model, rows of the table) for each drawing; the model is empty if one drawing shows all models."""
        if not self.small_multiples:
            return [("", table)] if len(table) else []
        return [(str(case), part) for case, part in table.groupby("case", sort=False)]


class Drawing:
    """A Plotly figure as plain values: a list of traces (`data`) and a mapping (`layout`), with Plotly's names.

    Plotly's own classes validate every property, which takes about 50 ms per figure, and a report has hundreds. The
    tests do it instead. The page's theme sets the colours of text, grid and background.
    """

    def __init__(self, height: int, **layout: Any) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {
            "template": {},
            "height": height,
            "autosize": True,
            "dragmode": False,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12},
            "margin": {"l": 12, "r": 14, "t": 10, "b": 8},
            "showlegend": False,
            "hoverlabel": {"align": "left"},
        } | layout

    def add(self, kind: str = "scatter", **settings: Any) -> None:
        """Add a trace that belongs to no mode."""
        self.data.append({"type": kind, "showlegend": False, **settings})

    def add_mode(self, rows: Sequence[Any], x: Sequence[Any], y: Sequence[Any], **settings: Any) -> None:
        """Add a trace for the rows of one mode, in the mode's style and with one hover text per row."""
        series = rows[0].series
        style = style_of(series)
        trace = {"type": "scatter", "marker": {"symbol": style.symbol, "size": 9}} | settings
        trace["marker"] = {"color": style.color} | trace["marker"]
        if trace["type"] == "scatter":
            trace.setdefault("mode", "markers")
        trace |= {"hoverinfo": "text", "hovertext": [hover(row) for row in rows], "meta": {"mode": series}}
        self.data.append({"x": x, "y": y, "name": safe(series), **trace})

    def annotate(self, text: str, **settings: Any) -> None:
        self.layout.setdefault("annotations", []).append({"text": text, "showarrow": False, **settings})


def by_series(table: pd.DataFrame) -> list[tuple[str, list[Any]]]:
    """Return (mode, rows ordered by x) pairs, modes in canonical order."""
    ordered = sorted(table.itertuples(index=False), key=lambda row: (row.series_rank, row.x))
    return [(str(name), list(part)) for name, part in groupby(ordered, key=lambda row: row.series)]


def of_baseline(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return columns of the baseline's rows, named `baseline_…` and indexed by case and x."""
    base = frame[frame["is_baseline"]].drop_duplicates(["case", "x"])
    return base.set_index(["case", "x"])[columns].add_prefix("baseline_")


# --- text ---


def safe(text: Any) -> str:
    """Return `text` escaped for Plotly, which interprets `<b>`, `<a href>`, `<br>` and entities in any text."""
    return html.escape(one_line(text), quote=False)


def short(text: str, limit: int) -> str:
    """Return the text, shortened in the middle to at most `limit` characters: both ends may distinguish names."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"


def hover(row: Any) -> str:
    """Return the hover text of a row: which result it is, then one value per line."""
    values = row._asdict()
    lines = [f"<b>{safe(row.series)}</b> · {safe(row.case)} · {point(row)}"]
    for name, value in values.items():
        if name in KEYS or name in _BOUNDS or is_missing(value):
            continue
        text = safe(short(value, 160)) if isinstance(value, str) else value_text(name, value)
        interval = interval_text(name, values)
        lines.append(f"{title_and_unit(name)[0]}: {text}" + (f" (95 %: {interval})" if interval else ""))
    return "<br>".join(lines)


def point(row: Any) -> str:
    """Return where a row is on the x axis: `bs 8`."""
    return f"{safe(row.axis)} {number_text(row.x)}"


def number_text(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


# --- axes ---


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(title: str, values: pd.Series, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis. Ticks are at 1, 2 and 5 if the values span a factor between 4 and 1000."""
    spread = values.max() / values[values > 0].min()
    ticks = {"dtick": "D2"} if 4 < spread < 1000 else {}
    return axis(title, type="log", tickformat=",~r", **ticks, **more)


def x_title(table: pd.DataFrame, unit: bool = False) -> str:
    name = "bs" if table.empty else str(table["axis"].iloc[0])
    title, unit_text = _TITLES.get(name, (name, ""))
    return title + unit_text if unit else title


def x_axis(table: pd.DataFrame) -> dict[str, Any]:
    """Return the axis of a table's `x` with at most eight ticks, at its values; logarithmic if all are positive."""
    values = sorted(set(table["x"].tolist()))
    kind = "log" if values[0] > 0 else "linear"
    return axis(safe(x_title(table, unit=True)), type=kind, tickvals=values[:: -(-len(values) // 8)])


def mode_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with one row per mode, the first at the top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis("", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5])
