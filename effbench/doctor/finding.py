"""One thing that the doctor has to say."""

from __future__ import annotations

from dataclasses import dataclass

#: Worst last. `warning`: results suffer; `problem`: something cannot be measured at all.
LEVELS = ("good", "note", "warning", "problem")


@dataclass(frozen=True)
class Finding:
    """`level` (one of LEVELS), `what` it is, its `effect` on results, how to `mend` it, and the `area` it is in."""

    level: str
    what: str
    effect: str = ""
    mend: str = ""
    area: str = ""

    @property
    def needs_attention(self) -> bool:
        return self.level in ("warning", "problem")


def good(what: str, effect: str = "") -> Finding:
    return Finding("good", what, effect)


def note(what: str, effect: str = "", mend: str = "") -> Finding:
    return Finding("note", what, effect, mend)


def warning(what: str, effect: str, mend: str = "") -> Finding:
    return Finding("warning", what, effect, mend)


def problem(what: str, effect: str, mend: str = "") -> Finding:
    return Finding("problem", what, effect, mend)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 process`, `2 processes`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
