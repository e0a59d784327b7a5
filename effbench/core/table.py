"""Tables of commands, reports and pages. A column declares how to get its value from a row and how
to show it; every format renders the same columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from rich import box
from rich.table import Table as RichTable

from effbench.core.printable import csv_value, one_line
from effbench.core.terminal import escape

#: Tone -> rich style; in HTML the tone is a CSS class.
TONES = {
    "best": "bold green",
    "unsure": "dim",
    "status": "yellow",
    "bad": "bold red",
    "good": "green",
    "": "",
}
#: Values by the keys of columns.
Record = Mapping[str, Any]
#: Characters that begin Markdown or HTML -> entity.
_ENTITIES = {character: f"&#{ord(character)};" for character in "|`*[]\\"}
_ENTITIES |= {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Shown(NamedTuple):
    """A value and the text that displays it. `tone`: a key of TONES, or CSS classes of the site.

    `sub`: further lines such as an interval, or brackets on the first. Only the site shows `link`,
    `hint` (on hover and to screen readers) and `glyph` (colour and character before the text).
    """

    value: Any
    text: str
    tone: str = ""
    sub: str = ""
    link: str = ""
    hint: str = ""
    glyph: tuple[str, str] | None = None

    @property
    def line(self) -> str:
        """Return the text with its further lines in brackets."""
        if self.sub:
            return f"{self.text} ({self.brackets})"
        return self.text

    @property
    def brackets(self) -> str:
        """The further lines on one line."""
        return self.sub.replace("\n", ", ")

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
    """`key`: name of the value in CSV and JSON. `title`: heading of the rendered column (default:
    the key). `value`: returns the value of a row, or a `Shown`; by default the row is a mapping
    with this key.

    `format`: turns a value into text. `optional`: hide the column if it is empty in all rows.
    `once`: the terminal repeats such columns only if one of them changes. On the site, `help` is a
    tooltip, `filter` offers the values as a filter, `wide` wraps long text, and `mode` hides the
    column with that mode.
    """

    key: str
    title: str | None = None
    numeric: bool = False
    format: Callable[[Any], str] | None = None
    optional: bool = False
    help: str | None = None
    filter: bool = False
    wide: bool = False
    mode: str | None = None
    once: bool = False
    value: Callable[[Any], Any] | None = None

    @property
    def heading(self) -> str:
        if self.title is None:
            return self.key
        return self.title

    def of(self, row: Any) -> Any:
        """Return the value of a row, or a `Shown`."""
        if self.value is None:
            return row.get(self.key)
        return self.value(row)

    def shown(self, row: Any) -> Shown:
        value = self.of(row)
        if isinstance(value, Shown):
            return value
        if self.format is not None:
            return Shown(value, self.format(value))
        return Shown(value, "" if value is None else str(value))


@dataclass(frozen=True)
class Table:
    """`rows`: what the columns get their values from. `data`: records for CSV and JSON, if they
    differ from the columns. `caption`: for the site."""

    columns: Sequence[Column]
    rows: Sequence[Any]
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

    def rich(self, *, lines: bool = False) -> RichTable:
        """Return the table for a rich console. `lines`: draw borders, and a line where the first
        column changes."""
        drawn = RichTable(header_style="bold", pad_edge=False, box=box.HEAVY_HEAD)
        if not lines:
            drawn.box = None
            drawn.padding = (0, 1)
        for column in self.used:
            justify: Literal["left", "right"] = "right" if column.numeric else "left"
            drawn.add_column(escape(column.heading), justify=justify, overflow="fold")
        before: list[Shown] = []
        for cells in self.cells:
            if lines and before and cells[0] != before[0]:
                drawn.add_section()
            drawn.add_row(*self._texts(cells, before))
            before = cells
        return drawn

    def _texts(self, cells: Sequence[Shown], before: Sequence[Shown]) -> list[str]:
        """Return the markup of a row. Labels that are all those of the row before are left out."""
        texts = [shown.rich for shown in cells]
        labels = [index for index, column in enumerate(self.used) if column.once]
        if before and all(cells[index] == before[index] for index in labels):
            for index in labels:
                texts[index] = ""
        return texts

    def _markdown(self) -> str:
        lines = [
            [markdown_text(column.heading) for column in self.used],
            ["---:" if column.numeric else "---" for column in self.used],
        ]
        for cells in self.cells:
            lines.append([shown.markdown for shown in cells])
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def records(self) -> list[dict[str, Any]]:
        """Return the exact values of each row, as in CSV and JSON."""
        if self.data is not None:
            return [dict(row) for row in self.data]
        records = []
        for row in self.rows:
            records.append({column.key: column.shown(row).value for column in self.columns})
        return records

    def _csv(self) -> str:
        records = self.records()
        out = io.StringIO()
        keys = list(records[0]) if records else [column.key for column in self.columns]
        writer = csv.DictWriter(out, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow({key: _csv_text(value) for key, value in record.items()})
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
    """Return untrusted text escaped for a Markdown table: it cannot end the cell or start HTML,
    code, emphasis, a link or an image."""
    return "".join(_ENTITIES.get(character, character) for character in one_line(text))
