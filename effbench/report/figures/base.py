"""What figures share: their declaration, the drawing, marks by mode, axes, and text that Plotly cannot interpret."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from effbench.metrics import INTERVALS
from effbench.printable import one_line
from effbench.report.colors import style_of
from effbench.report.columns import interval_text, is_missing, title_and_unit, value_text

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
GRAY = "rgba(128,136,146,0.8)"
#: Columns that identify a result: model with whatever else was swept, batch size, mode, its place in canonical order.
KEYS = ["case", "bs", "series", "series_rank"]
_BOUNDS = {bound for bounds in INTERVALS.values() for bound in bounds}


@dataclass(frozen=True)
class Figure:
    """A section of the page named `page`.

    `data` takes the report's frame and returns the table that is drawn: KEYS, then every column that hover texts and
    the table of numbers show. If it is empty, the page shows `absent`. `draw` takes this table, or with
    `small_multiples` the part of one `case`. A `matrix` has a column for each mode, so it needs no legend; narrow
    screens scroll it.
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
    matrix: bool = False

    def parts(self, table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
        """Return (model, its part of the table) for each drawing; the model is empty if one drawing shows all."""
        if not self.small_multiples:
            return [("", table)] if len(table) else []
        return [(str(case), part) for case, part in table.groupby("case", sort=False)]


class Drawing:
    """A Plotly figure as plain values: `data` are traces, `layout` a mapping, both by Plotly's names.

    Plotly's own classes check each property of each trace, about 50 ms a figure, and a report has hundreds. The tests
    check them instead (`validated`). Colours of text, grid and background come from the page's theme.
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
        """Add a trace for rows of one mode, in its look, with a hover text for each point."""
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

    def validated(self) -> go.Figure:
        """Return the same as Plotly's own class. Raises ValueError for what Plotly does not know."""
        return go.Figure(vars(self))


def by_series(table: pd.DataFrame) -> list[tuple[str, list[Any]]]:
    """Return (mode, its rows by batch size), in canonical order."""
    ordered = sorted(table.itertuples(index=False), key=lambda row: (row.series_rank, row.bs))
    return [(str(name), list(part)) for name, part in groupby(ordered, key=lambda row: row.series)]


def of_baseline(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return columns of the baseline's rows by case and bs, named `baseline_…`."""
    base = frame[frame["is_baseline"]].drop_duplicates(["case", "bs"])
    return base.set_index(["case", "bs"])[columns].add_prefix("baseline_")


# --- text ---


def safe(text: Any) -> str:
    """Return `text` as Plotly must be given it: it reads `<b>`, `<a href>`, `<br>` and entities in any text."""
    return html.escape(one_line(text), quote=False)


def short(text: str, limit: int) -> str:
    """Return at most `limit` characters, cut in the middle, so that heads and tails remain distinct."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"


def hover(row: Any) -> str:
    """Return which result a row is, and each of its values on a line."""
    values = row._asdict()
    lines = [f"<b>{safe(row.series)}</b> · {safe(row.case)} · bs {row.bs}"]
    for name, value in values.items():
        if name in KEYS or name in _BOUNDS or is_missing(value):
            continue
        text = safe(short(value, 160)) if isinstance(value, str) else value_text(name, value)
        interval = interval_text(name, values)
        lines.append(f"{title_and_unit(name)[0]}: {text}" + (f" (95 %: {interval})" if interval else ""))
    return "<br>".join(lines)


# --- axes ---


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(title: str, values: pd.Series, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis for these values, with ticks at 1, 2 and 5 unless they are within a factor of 4 or over
    three decades."""
    spread = values.max() / values[values > 0].min()
    ticks = {"dtick": "D2"} if 4 < spread < 1000 else {}
    return axis(title, type="log", tickformat=",~r", **ticks, **more)


def bs_axis(values: pd.Series) -> dict[str, Any]:
    """Return a logarithmic axis whose ticks are the batch sizes themselves, thinned to eight at most."""
    sizes = sorted({int(value) for value in values})
    return axis("batch size (samples)", type="log", tickvals=sizes[:: -(-len(sizes) // 8)])


def mode_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with a row for each mode, the first on top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis("", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5])
