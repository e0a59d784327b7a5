"""Text from models, files and databases, made safe to print: it can neither steer a terminal nor fake a line."""

from __future__ import annotations


def printable(text: object, keep: str = "\n") -> str:
    """Return the text with a space for every character that is not printable: control characters (C0, C1), bidi
    overrides, tabs, lone surrogates. `keep`: characters that stay as they are."""
    return "".join(c if c.isprintable() or c in keep else " " for c in str(text))


def one_line(text: object, longest: int | None = None) -> str:
    """Return the printable text on one line with single spaces, shortened to `longest` characters with `…`."""
    line = " ".join(printable(text, keep="").split())
    return line if longest is None or len(line) <= longest else line[: longest - 1] + "…"


def excerpt(text: str, first: int = 1000, last: int = 4000) -> str:
    """Return the text, or its first and last characters with a note of how many were omitted between them."""
    if len(text) <= first + last:
        return text
    return f"{text[:first]}\n[{len(text) - first - last} characters omitted]\n{text[-last:]}"
