"""The console for commands and progress. It removes control characters from the data that it
prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import rich.console
from rich import markup
from rich.console import ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table as RichTable

from effbench.core.printable import printable

#: Columns of output that is not a terminal: wide enough that no table is cut.
PLAIN_WIDTH = 240


class Tabular(Protocol):
    """A table that can be drawn in several forms, as `table.Table`."""

    def rich(self, *, lines: bool = False, stacked: bool = False) -> RichTable: ...

    def rich_list(self) -> RichTable: ...


class Console(rich.console.Console):
    """A rich console without emoji codes that drops unprintable characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"emoji": False, **settings})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:  # dropped, not replaced: rich gave them no width in the layout
                kept = "".join(c for c in text if c.isprintable() or c == "\n")
                yield Segment(kept, segment.style)

    def print_table(self, table: Tabular, *, lines: bool = False) -> None:
        """Print a table in the first of its forms that needs no wrapping, else in the first in
        which no word breaks: with `lines` as borders, with second lines below the first, without
        borders, or as one line per value."""
        unlimited = self.options.update(max_width=10_000)
        forms = list(_forms(table, lines))
        widths = [Measurement.get(self, unlimited, drawn) for drawn in forms]
        measured = list(zip(forms, widths, strict=True))
        fitting = [drawn for drawn, width in measured if width.maximum <= self.width]
        fitting += [drawn for drawn, width in measured if width.minimum <= self.width]
        if fitting:
            self.print(fitting[0])
        else:
            self.print(table.rich_list())

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line of markup that is neither wrapped nor highlighted."""
        self.print(text, style=style, highlight=False, soft_wrap=True)


def _forms(table: Tabular, lines: bool) -> Iterator[RichTable]:
    """Yield the forms of a table, the widest first."""
    yield table.rich(lines=lines)
    yield table.rich(lines=lines, stacked=True)
    yield table.rich(stacked=True)


def terminal() -> Console:
    """Return a console for standard output, as wide as the terminal; PLAIN_WIDTH columns without a
    terminal."""
    console = Console()
    if console.is_terminal:
        return console
    return Console(width=PLAIN_WIDTH)


def escape(text: object) -> str:
    """Return data as rich markup that shows it literally, on one line."""
    return markup.escape(printable(text, keep=""))
