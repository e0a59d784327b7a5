"""The console of commands and progress. It drops control characters, so that data cannot control the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import rich.console
from rich import markup
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from effbench.printable import printable

if TYPE_CHECKING:
    from effbench.table import Table

#: Width in characters of output to files and pipes, which must not be cut.
PLAIN_WIDTH = 240


class Console(rich.console.Console):
    """rich's console without emoji codes; it drops unprintable characters from all text."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**{"emoji": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:  # dropped, not replaced: in rich's layout they have no width
                kept = "".join(c for c in text if c.isprintable() or c == "\n")
                yield Segment(kept, segment.style)

    def print_table(self, table: Table, **form: bool) -> None:
        """Print a table at the console's width; `form`: arguments of `Table.rich`."""
        self.print(table.rich(width=self.width, **form))

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line of markup that is neither wrapped nor highlighted."""
        self.print(text, style=style, highlight=False, soft_wrap=True)


def terminal() -> Console:
    """Return a console for standard output, as wide as the terminal or PLAIN_WIDTH columns."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def escape(text: object) -> str:
    """Return data as one printable line, escaped for rich markup."""
    return markup.escape(printable(text, keep=""))
