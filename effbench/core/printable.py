"""Make text from models, files and databases safe to print: it can neither control a terminal nor
forge a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def printable(text: object, keep: str = "\n") -> str:
    """Return the text with each unprintable character replaced by a space: control characters (C0,
    C1), bidi overrides, tabs, lone surrogates. `keep`: characters that are not replaced."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in keep else " " for letter in text)


def one_line(text: object, longest: int | None = None) -> str:
    """Return the printable text on one line with single spaces, shortened with `…` to `longest`
    characters."""
    return shortened(" ".join(printable(text, keep="").split()), longest)


def shortened(line: str, longest: int | None) -> str:
    """Return the line, cut to `longest` characters with `…`."""
    if longest is None or len(line) <= longest:
        return line
    return line[: longest - 1] + "…"


def csv_value(value: object) -> object:
    """Return text that a spreadsheet would run as a formula with an apostrophe before it, other
    values unchanged."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value


def excerpt(text: str, first: int = 1000, last: int = 4000) -> str:
    """Return the text. A longer one is cut to its `first` and `last` characters and the number of
    omitted ones."""
    if len(text) <= first + last:
        return text
    return f"{text[:first]}\n[{len(text) - first - last} characters omitted]\n{text[-last:]}"


def count(number: int, noun: str) -> str:
    """Return `1 cell` or `2,000 cells`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def tally(counts: Iterable[tuple[str, int]]) -> str:
    """Return `2 ok, 1 error` for names with their numbers."""
    return ", ".join(f"{number} {name}" for name, number in counts)


def duration(seconds: float) -> str:
    """Return a rounded duration, such as `40 s`, `4 min` or `2.5 h`."""
    if seconds < 90:
        if seconds < 10:
            return f"{max(1, round(seconds))} s"
        return f"{10 * round(seconds / 10)} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    if hours < 48:
        return f"{hours:.2g} h"
    return f"{hours / 24:.0f} days"


def about(seconds: float) -> str:
    """Return a rounded duration in words: `about 4 min`, or `a few seconds`."""
    if seconds < 10:
        return "a few seconds"
    return f"about {duration(seconds)}"


def between(low_s: float, high_s: float) -> str:
    """Return a range of durations, such as `40 s to 4 min`."""
    low, high = duration(low_s), duration(high_s)
    if low == high:
        return f"about {high}"
    return f"{low} to {high}"


def listed(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Return `eager, default and 2 more`: at most `most` names, and the number of the others."""
    text = between.join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def describe(error: BaseException) -> str:
    """Return the type and the first line of an exception, with the second one if the first only
    announces it, as `backend='inductor' raised:` does. Frames are no second line."""
    first, second = [*filter(None, map(str.strip, text_of(error).splitlines())), "", ""][:2]
    if first.endswith(":") and not second.startswith(('File "', "Traceback")):
        first = f"{first} {second}"
    return f"{type(error).__name__}: {first_line(first)}".rstrip(": ")


def text_of(error: BaseException) -> str:
    """Return `str(error)`, or an empty text if that raises."""
    try:
        return str(error)
    except Exception:  # __str__ of a user's exception may raise anything
        return ""


def first_line(text: str) -> str:
    """Return the first line that is not blank, cut to 300 characters."""
    for line in text.splitlines():
        if line.strip():
            return shortened(line.strip(), 300)
    return ""
