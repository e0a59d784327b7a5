"""Marks: figures that a disturbed host or GPU affected. They are shown with `~` and explained once
per output."""

from __future__ import annotations

from effbench.core.cell import Result
from effbench.core.labels import LabelledRows
from effbench.core.metrics import (
    METRICS,
    SPEEDUP_COLUMNS,
    SPEEDUPS,
)
from effbench.core.printable import listed
from effbench.store.summary import OF_BASELINE

#: Comes before a marked figure.
SIGN = "~"
#: Cells that the note names before it counts the others.
MOST_CELLS = 3
#: Metrics that follow from times, besides times, energies, rates and speedups.
_FROM_TIMES = frozenset(
    {"gpu_idle_fraction", "roofline_fraction", "break_even_calls"}
    | {columns.separate for columns in SPEEDUP_COLUMNS.values()}
)
#: What to do about marks, by device.
ON_CPU = "Close other programs, set threads=1 or use a quieter machine, then run the sweep again"
ON_GPU = (
    "Free the GPU and its host (effbench doctor lists what disturbs them), then run the sweep again"
)
NO_REASON = "host or GPU disturbed"


def is_timed(metric: str) -> bool:
    """Return whether a disturbed host or GPU changes this metric, so that marks apply to it."""
    return metric in _FROM_TIMES or METRICS[metric].is_timed


def why_marked(result: Result) -> str | None:
    """Return why the times of a result are marked; None if they are not."""
    if not result.marked:
        return None
    return result.disturbance or NO_REASON


def signed(text: str, marked: bool) -> str:
    """Return the text of a figure, with SIGN if it is marked."""
    if marked:
        return f"{SIGN}{text}"
    return text


def reason(result: Result, metric: str) -> str | None:
    """Return why a metric of a result is marked; None if it is not.

    Speedups have marks of their own: both sides of a pair meet the same host, which its times do
    not.
    """
    if result.value(metric) is None or not is_timed(metric):
        return None
    if metric in SPEEDUPS:
        return result.speedup_disturbance
    return why_marked(result)


def note(rows: LabelledRows) -> str:
    """Return the line that explains the marks of these results: which cells, how disturbed, and
    what to do. Return an empty text if none is marked."""
    reasons = {}
    for row in rows:
        why = why_marked(row.result) or reason(row.result, "speedup")
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
