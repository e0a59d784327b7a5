"""One table for every command, report and page: rows are data, and each format renders the same columns."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as RichTable

from effbench.errors import UsageError
from effbench.printable import one_line
from effbench.terminal import PLAIN_WIDTH, Console, escape

FORMATS = ("terminal", "markdown", "csv", "json", "html")
#: tone -> rich style; in HTML the tone is the class
TONES = {"best": "bold green", "unsure": "dim", "status": "yellow", "bad": "bold red", "good": "green", "": ""}
_MARKDOWN = frozenset("|`*[]\\")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Shown(NamedTuple):
    """A value with its own text for people; `tone` is a key of TONES, or on the site classes of its style sheet.

    `sub`: a second line, or in brackets on the first, such as an interval. Only the site shows the others: `link`,
    `hint` (on hover, and read aloud) and `glyph` (colour and character in front of the text).
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
        """The text with its second line in brackets."""
        return f"{self.text} ({self.sub})" if self.sub else self.text


@dataclass(frozen=True)
class Column:
    """`key` names the value in a row and in CSV and JSON, `title` heads the column for people (default: the key).

    `format` turns a value into text for people. `optional`: people do not see the column if it is empty in all rows.
    `data_only`: only CSV and JSON have it. Of the site's tables: `filter` offers a choice of the values, `wide` wraps
    long text, `mode` hides the column with that mode.
    """

    key: str
    title: str | None = None
    numeric: bool = False
    format: Callable[[Any], str] | None = None
    optional: bool = False
    data_only: bool = False
    help: str | None = None
    filter: bool = False
    wide: bool = False
    mode: str | None = None

    @property
    def heading(self) -> str:
        return self.key if self.title is None else self.title

    def shown(self, row: Mapping[str, Any]) -> Shown:
        value = row.get(self.key)
        if isinstance(value, Shown):
            return value
        if self.format is not None:
            return Shown(value, self.format(value))
        return Shown(value, "" if value is None else str(value))


@dataclass(frozen=True)
class Table:
    """`rows`: key -> value. `data`: other records for CSV and JSON where a row for people combines several.

    `group`: key of a column that is blank in the terminal where it repeats the row above; a change draws a line.
    `caption` and `order` (numbers of columns with `asc` or `desc`) are for the site's tables.
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    data: Sequence[Mapping[str, Any]] | None = None
    group: str | None = None
    caption: str = ""
    order: Sequence[tuple[int, str]] = ()

    @classmethod
    def of(cls, columns: Sequence[Column], rows: Iterable[Sequence[Any]], caption: str = "", **more: Any) -> Table:
        """Return a table of rows that hold a value for each column."""
        keys = [column.key for column in columns]
        return cls(columns, [dict(zip(keys, row, strict=True)) for row in rows], caption=caption, **more)

    def render(self, fmt: str, width: int = PLAIN_WIDTH) -> str:
        """Return the table as text that ends with a newline. `width`: columns of the terminal.

        Raises UsageError for a format that is not one of FORMATS.
        """
        renderers = {"markdown": self._markdown, "csv": self._csv, "json": self._json, "html": self._html}
        if fmt == "terminal":
            console = Console(file=io.StringIO(), width=width)
            console.print(self.rich())
            return console.file.getvalue()
        if fmt not in renderers:
            raise UsageError(f"unknown table format {fmt!r}; choose from {', '.join(FORMATS)}")
        return renderers[fmt]()

    def rich(self, *, lines: bool = False, stacked: bool = False) -> RichTable:
        """Return the table for a rich console. `lines`: with borders instead of spaces; `stacked`: with second lines
        below the first instead of next to it."""
        columns, rows = self._for_people()
        drawn = RichTable(header_style="bold", pad_edge=False, box=box.HEAVY_HEAD if lines else None)
        for column in columns:
            drawn.add_column(escape(column.heading), justify="right" if column.numeric else "left", overflow="fold")
        before = None
        for source, row in zip(self.rows, rows, strict=True):
            group = source.get(self.group) if self.group else None
            if self.group and before is not None and group != before and lines:
                drawn.add_section()
            texts = [_styled(shown, stacked) for shown in row]
            if self.group and group == before:
                texts = ["" if column.key == self.group else text for column, text in zip(columns, texts, strict=True)]
            drawn.add_row(*texts)
            before = group
        return drawn

    def _for_people(self) -> tuple[list[Column], list[list[Shown]]]:
        columns = [column for column in self.columns if not column.data_only]
        rows = [[column.shown(row) for column in columns] for row in self.rows]
        used = [i for i, column in enumerate(columns) if not column.optional or any(row[i].line for row in rows)]
        return [columns[i] for i in used], [[row[i] for i in used] for row in rows]

    def _markdown(self) -> str:
        columns, rows = self._for_people()
        lines = [[markdown_text(column.heading) for column in columns]]
        lines += [["---:" if column.numeric else "---" for column in columns]]
        for row in rows:
            texts = [markdown_text(shown.line) for shown in row]
            lines.append(
                [f"**{text}**" if shown.tone == "best" else text for text, shown in zip(texts, row, strict=True)]
            )
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def _html(self) -> str:
        columns, rows = self._for_people()
        classes = [" ".join(["num"] * column.numeric + ["reason"] * column.wide) for column in columns]
        heads = "".join(
            _element("th", html.escape(column.heading), {"scope": "col", "class": own, "title": column.help or ""})
            for own, column in zip(classes, columns, strict=True)
        )
        lines = []
        for row in rows:
            cells = (
                _element("td", _html_text(shown), {"class": f"{own} {shown.tone}".strip(), "title": shown.hint})
                for own, shown in zip(classes, row, strict=True)
            )
            lines.append(f"<tr>{''.join(cells)}</tr>\n")
        body = "".join(lines)
        return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"

    def records(self) -> list[dict[str, Any]]:
        """Return the exact values by row, as CSV and JSON hold them."""
        if self.data is not None:
            return [dict(row) for row in self.data]
        keys = [column.key for column in self.columns]
        return [{key: exact(row.get(key)) for key in keys} for row in self.rows]

    def _csv(self) -> str:
        records = self.records()
        out = io.StringIO()
        keys = list(records[0]) if records else [column.key for column in self.columns]
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(keys)
        for record in records:
            values = [record.get(key) for key in keys]
            writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in values])
        return out.getvalue()

    def _json(self) -> str:
        return as_json(self.records())


def exact(value: Any) -> Any:
    """Return the value itself, also of one with a text for people."""
    return value.value if isinstance(value, Shown) else value


def as_json(data: Any) -> str:
    """Return indented JSON in which numbers that are not finite are null, with a newline."""
    return json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def markdown_text(text: object) -> str:
    """Return text from users for a cell of a Markdown table: it cannot end the cell nor begin HTML, code, emphasis, a
    link or an image."""
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else _HTML.get(c, c) for c in one_line(text))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _element(name: str, content: str, attributes: Mapping[str, str]) -> str:
    """An HTML element of escaped content; attributes are escaped here, empty ones left out."""
    given = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items() if value)
    return f"<{name}{given}>{content}</{name}>"


def _html_text(shown: Shown) -> str:
    text = html.escape(one_line(shown.text))
    if shown.link:
        text = _element("a", text, {"href": shown.link})
    if shown.glyph:
        color, character = shown.glyph
        text = _element("span", character, {"class": "glyph", "style": f"color:{color}", "aria-hidden": "true"}) + text
    return text + (_element("span", html.escape(one_line(shown.sub)), {"class": "sub"}) if shown.sub else "")


def _styled(shown: Shown, stacked: bool) -> str:
    text = f"{escape(shown.text)}\n({escape(shown.sub)})" if stacked and shown.sub else escape(shown.line)
    style = TONES.get(shown.tone)
    return f"[{style}]{text}[/]" if style else text
