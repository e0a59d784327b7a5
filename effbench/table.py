"""Tables of commands, reports and pages: rows are data, and every format renders the same
columns."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from effbench.errors import UsageError
from effbench.printable import csv_value, one_line
from effbench.terminal import escape

#: Tone -> rich style; in HTML the tone is a CSS class.
TONES = {
    "best": "bold green",
    "unsure": "dim",
    "status": "yellow",
    "bad": "bold red",
    "good": "green",
    "": "",
}
#: Least width at which a wide column stays next to the others in a terminal.
READABLE = 40
#: Least width of a column whose words break.
BROKEN = 6
_MARKDOWN = frozenset("|`*[]\\")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


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
        return f"{self.text} ({self.brackets})" if self.sub else self.text

    @property
    def brackets(self) -> str:
        """The further lines on one line."""
        return self.sub.replace("\n", ", ")


@dataclass(frozen=True)
class Column:
    """`key`: name of the value in rows, CSV and JSON. `title`: heading of the rendered column
    (default: the key).

    `format`: turns a value into text. `optional`: hide the column if it is empty in all rows. On
    the site, `help` is a tooltip, `filter` offers the values as a filter, `wide` wraps long text,
    and `mode` hides the column with that mode.
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

    @property
    def heading(self) -> str:
        return self.key if self.title is None else self.title

    def shown(self, row: Mapping[str, Any]) -> Shown:
        value = row.get(self.key)
        if isinstance(value, Shown):
            return value
        text = "" if value is None else str(value)
        return Shown(value, self.format(value) if self.format else text)


@dataclass(frozen=True)
class Table:
    """`rows`: key -> value. `data`: records for CSV and JSON, if they differ from the rows.
    `group`: key of a column; the terminal draws a line where its value changes. `once`: keys whose
    values the terminal shows only if one of them differs from the row above. `caption`: for the
    site."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    data: Sequence[Mapping[str, Any]] | None = None
    group: str | None = None
    once: Sequence[str] = ()
    caption: str = ""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        rows: Iterable[Sequence[Any]],
        caption: str = "",
        **more: Any,
    ) -> Table:
        """Return a table of rows that hold one value per column."""
        keys = [column.key for column in columns]
        return cls(
            columns, [dict(zip(keys, row, strict=True)) for row in rows], caption=caption, **more
        )

    def render(self, fmt: str) -> str:
        """Return the table as text that ends with a newline. Raises UsageError for an unknown
        format."""
        if fmt == "json":
            return as_json(self.records())
        renderers = {"markdown": self._markdown, "csv": self._csv, "html": self._html}
        if fmt not in renderers:
            raise UsageError(
                f"unknown table format {fmt!r}; choose from json, {', '.join(renderers)}"
            )
        return renderers[fmt]()

    def rich(
        self,
        *,
        width: int,
        lines: bool = False,
        stacked: bool = False,
        gap: int = 2,
        breaks: bool = False,
    ) -> RichTable:
        """Return the table for a rich console of `width` characters, with the longest headings
        wrapped to fit.

        `lines`: draw borders. `stacked`: put second lines below the first instead of in brackets.
        `gap`: spaces between columns without borders. `breaks`: for a table that is too wide
        otherwise; breaks words rather than figures.
        """
        columns, rows = self._for_people()
        style = {"box": box.HEAVY_HEAD} if lines else {"box": None, "padding": (0, gap - 1, 0, 1)}
        drawn = RichTable(header_style="bold", pad_edge=False, **style)
        texts = [
            [one_line(line) for row in rows for line in _lines(row[i], stacked)]
            for i in range(len(columns))
        ]
        if breaks:  # intervals and stars go below their figures
            pairs = zip(columns, texts, strict=True)
            texts = [
                re.split(r"\n| (?=[(★])", "\n".join(it)) if column.numeric else it
                for column, it in pairs
            ]
        room = width - (3 * len(columns) - 1 if lines else gap * len(columns))
        headings = fit_headings([escape(column.heading) for column in columns], texts, room)
        widths = fit_widths(
            headings, texts, [not column.numeric for column in columns], room, breaks=breaks
        )
        for column, heading, most in zip(columns, headings, widths, strict=True):
            side = "right" if column.numeric else "left"
            drawn.add_column(heading, justify=side, overflow="fold", max_width=most)
        before: Mapping[str, Any] = {}
        for number, (row, values) in enumerate(zip(rows, self.rows, strict=True)):
            if lines and number and values.get(self.group) != before.get(self.group):
                drawn.add_section()
            blank = (
                self.once
                if all(key in before and before[key] == values[key] for key in self.once)
                else ()
            )
            cells = (
                "" if it.key in blank else _styled(shown, stacked)
                for it, shown in zip(columns, row, strict=True)
            )
            drawn.add_row(*cells)
            before = values
        return drawn

    def roomy(self, width: int) -> RichTable | Group:
        """Return the table with borders for a rich console. If a wide column would wrap below
        READABLE characters, return it without borders instead, each row followed by its wide
        columns on lines of their own."""
        columns, rows = self._for_people()
        drawn = self.rich(width=width, lines=True, stacked=True)
        widths = [column.max_width for column in drawn.columns]
        wide = [i for i, column in enumerate(columns) if column.wide]
        is_cramped = any(
            widths[i] < min(READABLE, cell_len(row[i].line)) for i in wide for row in rows
        )
        return self.split(width) if is_cramped else drawn

    def split(self, width: int) -> Group:
        """Return the table for a rich console without borders, each row followed by its wide
        columns on lines of their own, with their headings if there are several."""
        columns, rows = self._for_people()
        wide = [i for i, column in enumerate(columns) if column.wide]
        titles = {i: f"{escape(columns[i].heading)}: " if len(wide) > 1 else "" for i in wide}
        narrow = replace(self, columns=[column for column in columns if not column.wide])
        for breaks in (False, True):
            drawn = narrow.rich(width=width, stacked=True, gap=1, breaks=breaks)
            widths = [column.max_width for column in drawn.columns]
            if sum(widths) + len(widths) <= width:
                break
        while sum(widths) + len(widths) > width:  # rich breaks words
            widths[widths.index(max(widths))] -= 1
        parts: list[RenderableType] = []
        for row, *cells in zip(rows, *(column.cells for column in drawn.columns), strict=True):
            heads = [
                replace(it.copy(), width=least)
                for it, least in zip(drawn.columns, widths, strict=True)
            ]
            line = RichTable(
                *heads, header_style="bold", box=None, pad_edge=False, padding=(0, 0, 0, 1)
            )
            line.show_header = not parts
            line.add_row(*cells)
            texts = (titles[i] + _styled(row[i], False) for i in wide if row[i].line)
            parts += [line, *(Padding(Text.from_markup(text), (0, 0, 0, 2)) for text in texts)]
        return Group(*parts)

    def _for_people(self) -> tuple[list[Column], list[list[Shown]]]:
        rows = [[column.shown(row) for column in self.columns] for row in self.rows]
        used = [
            i
            for i, column in enumerate(self.columns)
            if not column.optional or any(row[i].line for row in rows)
        ]
        return [self.columns[i] for i in used], [[row[i] for i in used] for row in rows]

    def _markdown(self) -> str:
        columns, rows = self._for_people()
        lines = [[markdown_text(column.heading) for column in columns]]
        lines += [["---:" if column.numeric else "---" for column in columns]]
        for row in rows:
            texts = (markdown_text(shown.line) for shown in row)
            lines.append(
                [
                    f"**{text}**" if it.tone == "best" else text
                    for text, it in zip(texts, row, strict=True)
                ]
            )
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def _html(self) -> str:
        columns, rows = self._for_people()
        classes = [
            " ".join(["num"] * column.numeric + ["reason"] * column.wide) for column in columns
        ]
        heads = "".join(
            _element(
                "th",
                html.escape(column.heading),
                {"scope": "col", "class": names, "title": column.help or ""},
            )
            for names, column in zip(classes, columns, strict=True)
        )
        lines = []
        for row in rows:
            cells = (
                _element(
                    "td",
                    _html_text(shown),
                    {"class": f"{names} {shown.tone}".strip(), "title": shown.hint},
                )
                for names, shown in zip(classes, row, strict=True)
            )
            lines.append(f"<tr>{''.join(cells)}</tr>\n")
        body = "".join(lines)
        return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"

    def records(self) -> list[dict[str, Any]]:
        """Return the exact values of each row, as in CSV and JSON."""
        if self.data is not None:
            return [dict(row) for row in self.data]
        return [
            {column.key: column.shown(row).value for column in self.columns} for row in self.rows
        ]

    def _csv(self) -> str:
        records = self.records()
        out = io.StringIO()
        keys = list(records[0]) if records else [column.key for column in self.columns]
        writer = csv.DictWriter(out, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for record in records:
            writer.writerow(
                {
                    key: str(it).lower() if isinstance(it, bool) else csv_value(it)
                    for key, it in record.items()
                }
            )
        return out.getvalue()


def as_json(data: Any) -> str:
    """Return indented JSON that ends with a newline; numbers that are not finite become null."""
    finite = json.loads(json.dumps(data, default=str), parse_constant=lambda name: None)
    return json.dumps(finite, indent=2, ensure_ascii=False) + "\n"


def markdown_text(text: object) -> str:
    """Return untrusted text escaped for a Markdown table: it cannot end the cell or start HTML,
    code, emphasis, a link or an image."""
    return "".join(f"&#{ord(c)};" if c in _MARKDOWN else _HTML.get(c, c) for c in one_line(text))


def _element(name: str, content: str, attributes: Mapping[str, str]) -> str:
    """Return an HTML element of escaped content; attributes are escaped here, empty ones
    omitted."""
    given = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items() if value)
    return f"<{name}{given}>{content}</{name}>"


def _html_text(shown: Shown) -> str:
    text = html.escape(one_line(shown.text)).replace(" %", "&nbsp;%")
    if shown.link:
        text = _element("a", text, {"href": shown.link})
    if shown.glyph:
        color, character = shown.glyph
        text = (
            _element(
                "span",
                character,
                {"class": "glyph", "style": f"color:{color}", "aria-hidden": "true"},
            )
            + text
        )
    return text + (
        _element("span", html.escape(one_line(shown.brackets)), {"class": "sub"})
        if shown.sub
        else ""
    )


def _styled(shown: Shown, stacked: bool) -> str:
    text = "\n".join(map(escape, _lines(shown, stacked)))
    style = TONES.get(shown.tone)
    return f"[{style}]{text}[/]" if style else text


def _lines(shown: Shown, stacked: bool) -> list[str]:
    star = " ★" if shown.tone == "best" else ""
    return [f"{shown.text}{star}", *shown.sub.splitlines()] if stacked else [f"{shown.line}{star}"]


def fit_headings(headings: Sequence[str], texts: Sequence[Sequence[str]], room: int) -> list[str]:
    """Return the headings with line breaks, added to the longest first until all columns fit into
    `room` characters or no heading can become narrower. `texts`: the lines below each heading."""
    contents = [max(map(cell_len, lines), default=0) for lines in texts]
    widths, fitted = [cell_len(heading) for heading in headings], list(headings)
    while sum(map(max, widths, contents)) > room:
        # `max-autotune`, `compile+graph` and `generate.prompt` break after their signs
        at = max(range(len(widths)), key=lambda i: (widths[i] > contents[i], widths[i]))
        words = re.split(r"(?<=[-+. ])(?!%)", headings[at])
        lines = [""]
        for word in words:
            fits = cell_len((lines[-1] + word).rstrip()) < widths[at]
            lines = [*lines[:-1], lines[-1] + word] if fits or not lines[-1] else [*lines, word]
        narrower = max(cell_len(line.rstrip()) for line in lines)
        if narrower >= widths[at] or widths[at] <= contents[at]:
            break
        widths[at], fitted[at] = narrower, "\n".join(line.rstrip() for line in lines)
    return fitted


def fit_widths(
    headings: Sequence[str],
    texts: Sequence[Sequence[str]],
    wraps: Sequence[bool],
    room: int,
    *,
    breaks: bool,
) -> list[int]:
    """Return the widths of columns in `room` characters: the widest columns that wrap are narrowed,
    at most to their longest word, and with `breaks` further. If they still do not fit, rich breaks
    words of every column."""
    columns = [
        [*heading.split("\n"), *lines] for heading, lines in zip(headings, texts, strict=True)
    ]
    widths = [max(map(cell_len, lines)) for lines in columns]
    words = [
        max(cell_len(word) for line in lines for word in (line.split() or [""])) if wrap else width
        for lines, wrap, width in zip(columns, wraps, widths, strict=True)
    ]
    broken = [min(word, BROKEN) if wrap else word for word, wrap in zip(words, wraps, strict=True)]
    for least in (words, broken) if breaks else (words,):
        while sum(widths) > room and (
            loose := [i for i in range(len(widths)) if widths[i] > least[i]]
        ):
            widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths
