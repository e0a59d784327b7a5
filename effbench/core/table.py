"""Tables of commands, reports and pages: columns, and rows with a value for each column. Every
format renders the same table."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypedDict

from rich import box
from rich.table import Table as RichTable

from effbench.core.printable import csv_value, one_line
from effbench.core.terminal import Console, escape

#: Tone -> rich style; in HTML the tone is a CSS class.
TONES = {
    "best": "bold green",
    "unsure": "dim",
    "status": "yellow",
    "bad": "bold red",
    "good": "green",
    "": "",
}
#: Key of a column -> the value of a row, or a `Shown`.
Record = Mapping[str, Any]
#: Characters that begin Markdown or HTML -> entity.
_ENTITIES = {character: f"&#{ord(character)};" for character in "|`*[]\\"}
#: Separates what would be a mention or the number of an issue, which entities do not prevent.
_SEPARATOR = "\u200b"
_ENTITIES |= {"&": "&amp;", "<": "&lt;", ">": "&gt;", _SEPARATOR: "&#8203;"}
_ESCAPES = str.maketrans(_ENTITIES)
_REFERENCE = re.compile(r"([@#])(?=\w)")


class Glyph(TypedDict):
    """The colour and the character of a mode."""

    color: str
    character: str


class Shown(NamedTuple):
    """A value and the text that displays it. `tone`: a key of TONES, or CSS classes of the site.

    `details`: such as an interval; in brackets, or on the site on a second line. Only the site
    shows `href` (a link), `hint` (on hover and to screen readers) and `glyph` (before the text).
    """

    value: Any
    text: str
    tone: str = ""
    details: str = ""
    href: str = ""
    hint: str = ""
    glyph: Glyph | None = None

    @property
    def line(self) -> str:
        """The text with its details in brackets."""
        if self.details:
            return f"{self.text} ({self.details})"
        return self.text

    @property
    def rich(self) -> str:
        """Return markup for a terminal, the best figure with a star."""
        text = self.line
        if self.tone == "best":
            text += " ★"
        style = TONES.get(self.tone)
        if style:
            return f"[{style}]{escape(one_line(text))}[/]"
        return escape(one_line(text))

    @property
    def markdown(self) -> str:
        text = markdown_text(self.line)
        if self.tone == "best":
            return f"**{text}**"
        return text


@dataclass(frozen=True)
class Column:
    """`key`: name of the value in rows, CSV and JSON. `title`: heading of the rendered column
    (default: the key).

    `optional`: hide the column if it is empty in all rows. `once`: the terminal repeats such
    columns, which come first, only if one of them changes. On the site, `help` is a tooltip,
    `filter` offers the values as a filter, `wide` wraps long text, and `mode` hides the column with
    that mode.
    """

    key: str
    title: str | None = None
    numeric: bool = False
    optional: bool = False
    help: str | None = None
    filter: bool = False
    wide: bool = False
    mode: str | None = None
    once: bool = False

    @property
    def heading(self) -> str:
        if self.title is None:
            return self.key
        return self.title

    def shown(self, row: Record) -> Shown:
        value = row.get(self.key)
        if isinstance(value, Shown):
            return value
        return Shown(value, "" if value is None else str(value))


@dataclass(frozen=True)
class Table:
    """`data`: records for CSV and JSON, if they differ from the rows. `caption`: for the site."""

    columns: Sequence[Column]
    rows: Sequence[Record]
    data: Sequence[Record] | None = None
    caption: str = ""

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Table:
        """Return a table of rows that hold one value per column."""
        keys = [column.key for column in columns]
        return cls(columns, [dict(zip(keys, row, strict=True)) for row in rows])

    @cached_property
    def used(self) -> list[Column]:
        """The columns that people see: optional ones only if a row has a text there."""
        used = []
        for column in self.columns:
            if not column.optional or any(column.shown(row).line for row in self.rows):
                used.append(column)
        return used

    @cached_property
    def cells(self) -> list[list[Shown]]:
        """What people see of each row, in the order of `used`."""
        return [[column.shown(row) for column in self.used] for row in self.rows]

    def render(self, fmt: str) -> str:
        """Return the table as `markdown`, `csv` or `json`, with a newline at the end."""
        if fmt == "markdown":
            return self._markdown()
        if fmt == "csv":
            return self._csv()
        return as_json(self.records())

    def print(self, console: Console, *, lines: bool = False) -> None:
        """Print the table; what is wider than the console is folded. `lines`: draw borders, and a
        line where the first column changes."""
        drawn = RichTable(header_style="bold", pad_edge=False, box=box.HEAVY_HEAD)
        if not lines:
            drawn.box = None
            drawn.padding = (0, 1)
        for column in self.used:
            justify: Literal["left", "right"] = "right" if column.numeric else "left"
            drawn.add_column(escape(column.heading), justify=justify, overflow="fold")
        labels = sum(column.once for column in self.used)
        before: list[Shown] = []
        for cells in self.cells:
            if lines and before and cells[0] != before[0]:
                drawn.add_section()
            texts = [shown.rich for shown in cells]
            if cells[:labels] == before[:labels]:
                texts[:labels] = [""] * labels
            drawn.add_row(*texts)
            before = cells
        console.print(drawn)

    def _markdown(self) -> str:
        lines = [
            [markdown_text(column.heading) for column in self.used],
            ["---:" if column.numeric else "---" for column in self.used],
        ]
        for cells in self.cells:
            lines.append([shown.markdown for shown in cells])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def records(self) -> Sequence[Record]:
        """Return the exact values of each row, as in CSV and JSON."""
        if self.data is not None:
            return self.data
        records = []
        for row in self.rows:
            records.append({column.key: column.shown(row).value for column in self.columns})
        return records

    def _csv(self) -> str:
        records = self.records()
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(records[0] if records else [column.key for column in self.columns])
        for record in records:
            writer.writerow(map(_csv_text, record.values()))
        return out.getvalue()


def _csv_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return csv_value(value)


def as_json(data: Any) -> str:
    """Return indented JSON that ends with a newline; numbers that are not finite become null."""
    finite = json.loads(json.dumps(data, default=str), parse_constant=lambda name: None)
    return json.dumps(finite, indent=2, ensure_ascii=False) + "\n"


def markdown_text(text: object) -> str:
    """Return untrusted text escaped for a Markdown table: it cannot end the cell, start HTML, code,
    emphasis, a link or an image, mention a user or refer to an issue."""
    return _REFERENCE.sub(rf"\1{_SEPARATOR}", one_line(text)).translate(_ESCAPES)
