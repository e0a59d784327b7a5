"""Render tables of texts for the scripts of this folder: aligned for a terminal, or as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Sequence

FORMATS = ("text", "markdown")


def render(headings: Sequence[str], rows: Sequence[Sequence[str]], how: str = "text") -> str:
    """Return `rows` under `headings` as text; columns of numbers are right-aligned."""
    if how == "markdown":
        lines = [headings, ["---"] * len(headings), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(len(line[i]) for line in (headings, *rows)) for i in range(len(headings))]
    right = [any(row[i][:1].isdigit() or row[i][:1] in "±-" for row in rows) for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    return "\n".join([line(headings), "  ".join("-" * width for width in widths), *map(line, rows)])
