"""What every figure shares: its declaration, escaping of text that Plotly would interpret, and plain layouts."""

from __future__ import annotations

import html
import math
import textwrap
from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import pandas as pd

from effbench.printable import one_line
from effbench.report.figures.drawing import Drawing

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Figure:
    """A section of the page named `page`.

    `data` takes the frame of `prepare` and gives a plain DataFrame (empty: the page says `absent` instead of drawing);
    `draw` takes it, or with `small_multiples` the part of one `case`. `numbers` names the columns of the table of
    numbers: column → heading with its unit; a column named as a metric is formatted as that metric.
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


def rows_of(table: pd.DataFrame) -> list[Any]:
    """The rows with their columns as attributes; of many small tables a tenth of what `itertuples` takes."""
    names = tuple(table.columns)
    return list(map(_row_type(names)._make, zip(*(table[name].tolist() for name in names), strict=True)))


@lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names)


def by_series(table: pd.DataFrame) -> list[tuple[str, list[Any]]]:
    """(mode, its rows by batch size), in canonical order."""
    ordered = sorted(rows_of(table), key=lambda row: (row.series_rank, row.bs))
    return [(str(name), list(part)) for name, part in groupby(ordered, key=lambda row: row.series)]


def column(rows: Iterable[Any], name: str) -> list[Any]:
    return [getattr(row, name) for row in rows]


def safe(text: Any) -> str:
    """`text` as Plotly must be given it: it reads `<b>`, `<a href>`, `<br>` and entities in any text."""
    return html.escape(one_line(text), quote=False)


def short(text: str, limit: int) -> str:
    """At most `limit` characters, cut in the middle, so that heads and tails stay told apart."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"


def wrapped(text: str, width: int = 14) -> str:
    """`text`, escaped, on up to three lines, broken at spaces and after hyphens."""
    lines = textwrap.wrap(text, width, break_long_words=True, break_on_hyphens=True) or [""]
    return "<br>".join(safe(line) for line in (lines if len(lines) <= 3 else [*lines[:2], "…"]))


def hover(*lines: str) -> str:
    """Lines of hover text; give user strings through `safe`."""
    return "<br>".join(line for line in lines if line)


def layout(height: int, **more: Any) -> dict[str, Any]:
    """A bare layout; colours of text, grid and background come from the page's theme."""
    settings: dict[str, Any] = {
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
    }
    return settings | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(title: str, values: pd.Series, **more: Any) -> dict[str, Any]:
    """A logarithmic axis with round 1–2–5 ticks over positive `values` and a little room on both sides."""
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
    """`0.05`, `500`, `20k`, `3M`: a figure of an axis, short."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:.4g}" if value >= 1e-4 else f"{value:.0e}"


def bs_axis(values: pd.Series) -> dict[str, Any]:
    """A logarithmic axis whose ticks are the batch sizes themselves, thinned to eight at most."""
    sizes = sorted({int(value) for value in values})
    ticks = sizes[:: math.ceil(len(sizes) / 8)]
    pad = max(0.05 * math.log10(sizes[-1] / sizes[0]), 0.08)
    low, high = math.log10(sizes[0]) - pad, math.log10(sizes[-1]) + pad
    texts = [str(tick) for tick in ticks]
    return axis("batch size (samples)", type="log", range=[low, high], tickvals=ticks, ticktext=texts)
