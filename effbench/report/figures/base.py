"""Shared parts of figures: declaration, drawing, traces by mode, axes, and text escaped for
Plotly."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from effbench.metrics import INTERVALS, METRICS
from effbench.printable import one_line
from effbench.report.colors import style_of
from effbench.report.columns import interval_text, title_and_unit, value_text
from effbench.report.marks import SIGN, is_timed, signed

GRAY = "rgba(128,136,146,0.8)"
#: Columns that identify a result: model with other swept parameters, label on the x axis and its
#: value (by default the batch size), mode, and the mode's rank; and why it is marked.
KEYS = ("case", "axis", "x", "series", "series_rank", "mark")
#: Opacity of marks of results that are marked, in figures that use open symbols for something else.
PALE = 0.4
#: Label on the x axis -> title and unit; others are their own title.
_TITLES = {
    "bs": ("batch size", " (samples)"),
    "stream.rate": ("arrival rate", " (requests/s)"),
    "prompt": ("prompt length", " (tokens)"),
    "new_tokens": ("new tokens", ""),
}
#: Columns that hover texts omit: the first line or the interval of another column shows them.
_UNLISTED = {*KEYS, *(bound for bounds in INTERVALS.values() for bound in bounds)}
#: A result: column -> value, None if unknown.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A section of the page named `page`.

    `data` turns the results (`data.drawn_rows`) into the rows to draw, with equal columns: KEYS,
    then the columns for hover texts and the table of numbers. Without rows, the page shows
    `absent`. `draw` takes all rows, or with `small_multiples` those of one `case`. Without
    `absent`, the page omits an empty figure.
    """

    name: str
    title: str
    order: int
    caption: str
    absent: str
    data: Callable[[Sequence[Row]], list[Row]]
    draw: Callable[[Sequence[Row]], Drawing]
    page: str = "scaling"
    small_multiples: bool = False


class Drawing:
    """A Plotly figure as plain values: a list of traces (`data`) and a mapping (`layout`), with
    Plotly's names.

    Plotly's own classes validate every property, which takes about 50 ms per figure, and a report
    has hundreds. The tests do it instead. The page adds the layout that all figures share, and its
    theme sets the colours.
    """

    def __init__(self, height: int, **layout: Any) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"height": height} | layout

    def add(self, kind: str = "scatter", **settings: Any) -> None:
        """Add a trace that belongs to no mode."""
        self.data.append({"type": kind, "showlegend": False, **settings})

    def add_mode(
        self, rows: Sequence[Row], x: Sequence[Any], y: Sequence[Any], **settings: Any
    ) -> None:
        """Add a trace for the rows of one mode, in the mode's style and with one hover text per
        row.

        Symbols of marked results are open, or pale if the settings choose the symbol. Bars are not
        marked.
        """
        series = rows[0]["series"]
        style = style_of(series)
        is_marked = [row["mark"] is not None for row in rows]
        marker: dict[str, Any] = {"symbol": style.symbol, "size": 9}
        if any(is_marked):
            marker["symbol"] = [
                f"{style.symbol}-open" if marked else style.symbol for marked in is_marked
            ]
        trace = {"type": "scatter", "marker": marker} | settings
        trace["marker"] = {"color": style.color} | trace["marker"]
        if trace["type"] == "scatter":
            trace.setdefault("mode", "markers")
            if any(is_marked) and "marker" in settings:
                trace["marker"]["opacity"] = [PALE if marked else 1.0 for marked in is_marked]
        trace |= {
            "hoverinfo": "text",
            "hovertext": [hover(row) for row in rows],
            "meta": {"mode": series},
        }
        self.data.append({"x": x, "y": y, "name": safe(series), **trace})

    def annotate(self, text: str, **settings: Any) -> None:
        self.layout.setdefault("annotations", []).append(
            {"text": text, "showarrow": False, **settings}
        )


def columns_of(row: Row, *names: str) -> dict[str, Any]:
    """Return KEYS and these columns of a row."""
    return {name: row[name] for name in (*KEYS, *names)}


def known(rows: Iterable[Row], *names: str) -> list[Any]:
    """Return the known values of these columns."""
    return [row[name] for name in names for row in rows if row[name] is not None]


def is_positive(row: Row, *names: str) -> bool:
    return all(row[name] is not None and row[name] > 0 for name in names)


def by_series(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """Return (mode, rows ordered by x) pairs, modes in canonical order."""
    ordered = sorted(rows, key=lambda row: (row["series_rank"], row["x"]))
    return [(name, list(part)) for name, part in groupby(ordered, key=lambda row: row["series"])]


def with_baseline(
    rows: Sequence[Row], others: Iterable[Row], *names: str
) -> list[tuple[Row, dict[str, Any]]]:
    """Return each of the `others` that has a baseline among the rows, with these columns of the
    baseline, named `baseline_…`."""
    base: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        if row["is_baseline"]:
            base.setdefault(
                (row["case"], row["x"]), {f"baseline_{name}": row[name] for name in names}
            )
    return [(row, base[row["case"], row["x"]]) for row in others if (row["case"], row["x"]) in base]


# --- text ---


def safe(text: Any) -> str:
    """Return `text` escaped for Plotly, which interprets `<b>`, `<a href>`, `<br>` and entities in
    any text."""
    return html.escape(one_line(text), quote=False)


def short(text: str, limit: int) -> str:
    """Return the text, shortened in the middle to at most `limit` characters: both ends may
    distinguish names."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[-(limit - 1 - head) :]}"


def hover(row: Row) -> str:
    """Return the hover text of a row: which result it is, then one value per line."""
    lines = [f"<b>{safe(row['series'])}</b> · {safe(row['case'])} · {point(row)}"]
    for name, value in row.items():
        if name in _UNLISTED or value is None:
            continue
        text = safe(short(value, 160)) if isinstance(value, str) else value_text(name, value)
        text = signed(text, is_marked_figure(row, name))
        interval = interval_text(name, row)
        lines.append(
            f"{title_and_unit(name)[0]}: {text}" + (f" (95 %: {interval})" if interval else "")
        )
    if row["mark"] is not None:
        lines.append(f"{SIGN} marked: {safe(short(row['mark'], 160))}")
    return "<br>".join(lines)


def is_marked_figure(row: Row, name: str) -> bool:
    """Return whether the row is marked and a disturbance changes this column."""
    return row["mark"] is not None and name in METRICS and is_timed(name)


def point(row: Row) -> str:
    """Return where a row is on the x axis: `bs 8`."""
    return f"{safe(row['axis'])} {number_text(row['x'])}"


def number_text(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


# --- axes ---


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | more


def log_axis(
    title: str, values: Sequence[float], narrow: bool = False, **more: Any
) -> dict[str, Any]:
    """Return a logarithmic axis. Ticks are at 1, 2 and 5 if the values span a factor between 4 and
    1000. `narrow`: at most five ticks for a smaller factor, as the labels of Plotly's own overlap
    on the x axis of a small drawing, also about a single value, for which Plotly shows two
    decades."""
    positive = [value for value in values if value > 0]
    low, high = (min(positive), max(positive)) if positive else (1.0, 1.0)
    ticks: dict[str, Any] = (
        {"dtick": "D2"} if 4 < high / low < 1000 or (narrow and low == high) else {}
    )
    if narrow and low < high <= 4 * low:
        powers = range(math.floor(math.log10(high - low)) - 1, math.ceil(math.log10(high)) + 1)
        steps = (factor * 10.0**power for power in powers for factor in (1, 2, 5))
        step = next(step for step in steps if high // step - low // step <= 4)
        ticks = {
            "tickvals": [
                round(step * at, 12) for at in range(math.ceil(low / step), int(high // step) + 1)
            ]
        }
    return axis(title, type="log", tickformat=",~r", **ticks, **more)


def x_title(rows: Sequence[Row], unit: bool = False) -> str:
    name = str(rows[0]["axis"]) if rows else "bs"
    title, unit_text = _TITLES.get(name, (name, ""))
    return title + unit_text if unit else title


def x_axis(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the axis of `x` with at most eight ticks, at its values; logarithmic if all are
    positive."""
    values = sorted({row["x"] for row in rows})
    kind = "log" if values[0] > 0 else "linear"
    return axis(safe(x_title(rows, unit=True)), type=kind, tickvals=values[:: -(-len(values) // 8)])


def mode_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with one row per mode, the first at the top."""
    ticks = [safe(short(name, 18)) for name in names]
    return axis(
        "", tickvals=list(range(len(names))), ticktext=ticks, range=[len(names) - 0.5, -0.5]
    )
