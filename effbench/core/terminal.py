"""The console for commands and progress. It removes control characters from the data that it
prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import rich.console
from rich import markup
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from effbench.core.printable import printable

#: Columns of output that is not a terminal: wide enough that no table is cut.
PLAIN_WIDTH = 240


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

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line of markup that is neither wrapped nor highlighted."""
        self.print(text, style=style, highlight=False, soft_wrap=True)


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
