"""What every figure shares: its declaration, the drawing, axes, marks by mode, and escaping of text that Plotly would
interpret."""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from effbench.printable import one_line
from effbench.report.colors import style_of

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
#: Columns that say which result a row is.
KEYS = ["case", "bs", "series", "series_rank"]
#: Headings of the columns that the tables of numbers begin with.
KEY_HEADINGS = {"case": "model", "bs": "bs (samples)", "series": "mode"}
_COMPACT: dict[str, Any] = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}


@dataclass(frozen=True)
class Figure:
    """A section of the page named `page`.

    `data` takes the report's frame and returns a plain table (empty: the page says `absent` instead of drawing); `draw`
    takes it, or with `small_multiples` the part of one `case`. `numbers` names the columns of the table of numbers
    after model, bs and mode: column → heading with its unit; a column named as a metric is formatted as that metric.
    """

    name: str
    title: str
    order: int
    caption: str
    absent: str
    data: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Drawing]
    numbers: dict[str, str]
    small_multiples: bool = False
    modes: bool = False  # its modes can be switched off also without small multiples
    page: str = "scaling"
    min_width: int = 0  # pixels; narrower screens scroll the figure inside its box


class Drawing:
    """A Plotly figure as plain values: `data` are traces, `layout` a mapping, both by Plotly's names.

    Plotly's own classes check each property of each trace, about 50 ms a figure, and a report has hundreds; here the
    tests do that (`validated`).
    """

    def __init__(self, height: int, **layout: Any) -> None:
        """A bare layout; colours of text, grid and background come from the page's theme."""
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
        """Add a trace."""
        self.data.append({"type": kind, **settings})

    def add_marks(
        self, series: str, x: Sequence[Any], y: Sequence[Any], texts: Sequence[str], mode: str = "markers",
        marker: dict[str, Any] | None = None, **more: Any,
    ) -> None:  # fmt: skip
        """Add a trace in the look of a mode, with a hover text for each point."""
        style = style_of(series)
        look = {"symbol": style.symbol, "size": 9, "color": style.color} | (marker or {})
        self.add(x=x, y=y, mode=mode, name=safe(series), marker=look, hovertext=texts, hoverinfo="text",
                 meta={"mode": series}, **more)  # fmt: skip

    def annotate(self, text: str, **settings: Any) -> None:
        self.layout.setdefault("annotations", []).append({"text": text, "showarrow": False, **settings})

    def add_line(self, axis: str, value: float, **line: Any) -> None:
        """Add a line over the whole width at `value` of the axis `y`, or over the whole height at one of `x`."""
        other = "x" if axis == "y" else "y"
        place = {f"{axis}0": value, f"{axis}1": value, f"{axis}ref": axis}
        whole = {f"{other}0": 0, f"{other}1": 1, f"{other}ref": f"{other} domain"}
        shape = {"type": "line", "line": {"width": 1, "color": "#8a929c"} | line}
        self.layout.setdefault("shapes", []).append(shape | place | whole)

    def to_json(self) -> str:
        return compact_json({"data": self.data, "layout": self.layout})

    def validated(self) -> go.Figure:
        """Return the same as Plotly's own class. Raises ValueError for what Plotly does not know."""
        return go.Figure(json.loads(self.to_json()))


def compact_json(value: Any) -> str:
    """Return JSON in which what is not finite is null; a database that others wrote may hold it as well."""
    try:
        return json.dumps(value, **_COMPACT, default=_listed)
    except ValueError:
        return json.dumps(finite(value), **_COMPACT)


def finite(value: Any) -> Any:
    """Return nested plain values in which numbers that are not finite are None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):
        return _listed(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(value: Any) -> Any:
    """Of numpy and pandas."""
    return finite(value.tolist())


# --- rows ---


def rows_of(table: pd.DataFrame) -> list[Any]:
    """Return the rows with their columns as attributes; `itertuples` takes ten times as long for many small tables."""
    names = tuple(table.columns)
    return list(map(_row_type(names)._make, zip(*(table[name].tolist() for name in names), strict=True)))


@lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names)


def by_series(table: pd.DataFrame) -> list[tuple[str, list[Any]]]:
    """Return (mode, its rows by batch size), in canonical order."""
    ordered = sorted(rows_of(table), key=lambda row: (row.series_rank, row.bs))
    return [(str(name), list(part)) for name, part in groupby(ordered, key=lambda row: row.series)]


def column(rows: Iterable[Any], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]


def of_baseline(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Return columns of the baseline's rows by case and bs."""
    base = frame[frame["is_baseline"]].drop_duplicates(["case", "bs"])
    return base.set_index(["case", "bs"])[columns]


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


def wrapped(text: str) -> str:
    """Return `text`, escaped, on up to three lines, broken at spaces and after hyphens."""
    lines = textwrap.wrap(text, 14, break_long_words=True, break_on_hyphens=True) or [""]
    return "<br>".join(safe(line) for line in (lines if len(lines) <= 3 else [*lines[:2], "…"]))


def hover(row: Any, headline: str, *lines: str) -> str:
    """Return the hover text of a row: a bold headline with the mode, model and bs, and further lines (not escaped)."""
    first = (f"<b>{headline}</b> · {safe(row.series)}", f"{safe(row.case)} · bs {row.bs}")
    return "<br>".join(line for line in (*first, *lines) if line)


def interval_text(low: float, high: float, form: str, unit: str = "") -> str:
    """Return `95 % interval 1.20–1.40`, empty if a bound is unknown."""
    return "" if math.isnan(low) or math.isnan(high) else f"95 % interval {low:{form}}–{high:{form}}{unit}"


# --- axes ---


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(title: str, values: pd.Series, **more: Any) -> dict[str, Any]:
    """Return a logarithmic axis with round 1–2–5 ticks over positive `values` and a little room on both sides."""
    present = [float(value) for value in values if value > 0]
    low, high = math.log10(min(present)), math.log10(max(present))
    pad = max(0.06 * (high - low), 0.08)
    low, high = low - pad, high + pad
    steps = (1, 2, 5) if high - low < 2.2 else (1, 3) if high - low < 3.2 else (1,)
    if high - low < 0.5:
        steps = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9)
    exponents = range(math.floor(low), math.ceil(high) + 1)
    ticks = [step * 10.0**power for power in exponents for step in steps if low <= math.log10(step) + power <= high]
    if len(ticks) < 2:
        return axis(title, type="log", range=[low, high], nticks=5, tickformat=".3~g", **more)
    texts = [tick_text(tick) for tick in ticks]
    return axis(title, type="log", range=[low, high], tickvals=ticks, ticktext=texts, **more)


def tick_text(value: float) -> str:
    """Return a short figure of an axis: `0.05`, `500`, `20k`, `3M`."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:.4g}" if value >= 1e-4 else f"{value:.0e}"


def bs_axis(values: pd.Series) -> dict[str, Any]:
    """Return a logarithmic axis whose ticks are the batch sizes themselves, thinned to eight at most."""
    sizes = sorted({int(value) for value in values})
    ticks = sizes[:: math.ceil(len(sizes) / 8)]
    pad = max(0.05 * math.log10(sizes[-1] / sizes[0]), 0.08)
    low, high = math.log10(sizes[0]) - pad, math.log10(sizes[-1]) + pad
    texts = [str(tick) for tick in ticks]
    return axis("batch size (samples)", type="log", range=[low, high], tickvals=ticks, ticktext=texts)


def mode_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with a row for each mode, the first on top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis("", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5])


def scatter_marks(figure: Drawing, table: pd.DataFrame, x: str, y: str, text: Callable[[Any], str]) -> None:
    """Add a mark for each row at its columns `x` and `y`, by mode."""

    def rounded(rows: Sequence[Any], name: str) -> list[float]:
        # far finer than a screen, and half as long in a file of thousands
        return [float(f"{value:.6g}") for value in column(rows, name)]

    for series, part in by_series(table):
        texts = [text(row) for row in part]
        figure.add_marks(series, rounded(part, x), rounded(part, y), texts, marker={"opacity": 0.85})
