"""Tables as data: what `static/grid.js` sorts, filters and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Column:
    """`numeric`: aligned and sorted as numbers; `filter`: the table gets a choice of this column's values;
    `mode`: the column belongs to this mode and can be hidden with it; `wide`: long text that wraps."""

    title: str
    numeric: bool = False
    filter: bool = False
    mode: str | None = None
    wide: bool = False
    help: str | None = None

    def plain(self) -> dict[str, Any]:
        found = {"title": self.title, "numeric": self.numeric, "filter": self.filter, "mode": self.mode}
        return {name: value for name, value in {**found, "wide": self.wide, "help": self.help}.items() if value}


def cell(
    text: str, value: float | int | str | None = None, *, sub: str | None = None, tone: str | None = None,
    link: str | None = None, title: str | None = None, glyph: tuple[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A cell of more than a text. `value`: what it is sorted by and copied as (the text without one); `sub`: a second
    line; `tone`: a class of the style sheet; `title`: shown on hover and read aloud; `glyph`: (colour, character)."""
    found = {"t": text, "v": value, "s": sub, "c": tone, "h": link, "d": title, "g": glyph}
    return {name: item for name, item in found.items() if item is not None}


@dataclass(frozen=True)
class Grid:
    """`rows`: a text, a number or a `cell` for each column. `caption`: what it holds, for who cannot see it."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    order: Sequence[tuple[int, str]] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        return {
            "caption": self.caption,
            "columns": [column.plain() for column in self.columns],
            "rows": self.rows,
            "order": list(self.order),
        }
