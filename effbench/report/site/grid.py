"""Tables as data: what `static/grid.js` sorts, filters and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: From so many rows a text on are texts held once.
MANY = 4


@dataclass(frozen=True)
class Column:
    """`numeric`: aligned and sorted as numbers; `filter`: the table gets a choice of this column's values;
    `mode`: the column belongs to this mode and can be hidden with it; `wide`: long text that wraps; `digits`: its rows
    hold numbers alone (None: a dash), shown with so many significant digits and copied as they are."""

    title: str
    numeric: bool = False
    filter: bool = False
    mode: str | None = None
    wide: bool = False
    help: str | None = None
    digits: int | None = None

    def plain(self) -> dict[str, Any]:
        found = {"title": self.title, "numeric": self.numeric, "filter": self.filter, "mode": self.mode}
        found |= {"wide": self.wide, "help": self.help, "digits": self.digits}
        return {name: value for name, value in found.items() if value}


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
        """As `static/grid.js` reads it. A column of few texts holds their numbers; `of` are the texts."""
        columns = [column.plain() for column in self.columns]
        values = [list(column) for column in zip(*self.rows, strict=True)]
        for column, own in zip(columns, values, strict=False):  # a table without rows has no values
            texts = {value: number for number, value in enumerate(dict.fromkeys(own))} if _texts(own) else {}
            if texts and MANY * len(texts) <= len(own):
                column["of"] = list(texts)
                own[:] = [texts[value] for value in own]
        return {
            "caption": self.caption,
            "columns": columns,
            "rows": list(zip(*values, strict=True)) if values else [],
            "order": list(self.order),
        }


def _texts(values: Sequence[Any]) -> bool:
    return set(map(type, values)) == {str}
