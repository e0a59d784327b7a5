"""Marks: figures that a disturbed host or GPU affected. They are shown with `~` and explained once
per output."""

from __future__ import annotations

from effbench.core.labels import LabelledRows
from effbench.core.metrics import why_marked
from effbench.core.printable import listed
from effbench.store.summary import OF_BASELINE

#: Comes before a marked figure.
SIGN = "~"
#: Cells that the note names before it counts the others.
MOST_CELLS = 3
#: What to do about marks, by device.
ON_CPU = "Close other programs, set threads=1 or use a quieter machine, then run the sweep again"
ON_GPU = (
    "Free the GPU and its host (effbench doctor lists what disturbs them), then run the sweep again"
)
NO_REASON = "host or GPU disturbed"


def signed(text: str, marked: bool) -> str:
    """Return the text of a figure, with SIGN if it is marked."""
    if marked:
        return f"{SIGN}{text}"
    return text


def note(rows: LabelledRows) -> str:
    """Return the line that explains the marks of these results: which cells, how disturbed, and
    what to do. Return an empty text if none is marked."""
    reasons = {}
    for row in rows:
        why = row.result.disturbance or why_marked(row.result, "speedup")
        if why is not None:
            reasons[row.name] = why.removeprefix(OF_BASELINE)
    if not reasons:
        return ""
    which = f"{listed([*reasons], MOST_CELLS)} ({len(reasons)} of {len(rows)} results)"
    example = next(iter(reasons.values()))
    advice = ON_GPU
    if all(row.result.device == "cpu" for row in rows):
        advice = ON_CPU
    return f"{SIGN} measured on a disturbed machine: {which}, for example: {example}. {advice}."
