"""Marks: figures that a disturbed host or GPU affected. They are shown with `~` and explained once
per output."""

from __future__ import annotations

import re
from collections.abc import Sequence

from effbench.cell import Result
from effbench.labels import LabelledRows
from effbench.metrics import (
    METRICS,
    SPEEDUP_COLUMNS,
    SPEEDUPS,
)
from effbench.printable import listed
from effbench.store.summary import OF_BASELINE

#: Comes before a marked figure.
SIGN = "~"
#: Cells that the note names before it counts the others.
MOST_CELLS = 3
#: Reasons that the note lists before it counts the others.
MOST_REASONS = 3
#: Metrics that follow from times, besides times, energies, rates and speedups.
_FROM_TIMES = frozenset(
    {"gpu_idle_fraction", "roofline_fraction", "break_even_calls"}
    | {columns.separate for columns in SPEEDUP_COLUMNS.values()}
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
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
    if len(rows) == 1:
        which = "the only result"
    elif len(reasons) == len(rows):
        which = f"all {len(rows)} results"
    else:
        which = f"{listed([*reasons], MOST_CELLS)} ({len(reasons)} of {len(rows)} results)"
    whys = listed(disturbances([*reasons.values()]), MOST_REASONS, "; ")
    on_cpu = all(row.result.device == "cpu" for row in rows if row.name in reasons)
    advice = ON_GPU
    if on_cpu:
        advice = ON_CPU
    return f"{SIGN} measured on a disturbed machine: {which}; {whys}. {advice}."


def disturbances(reasons: Sequence[str]) -> list[str]:
    """Return the distinct reasons, the most frequent first. Reasons that differ only in their
    numbers become one with ranges: `host busy for 40–95 % of the timing`."""
    groups: dict[str, list[str]] = {}
    for reason in reasons:
        groups.setdefault(_NUMBER.sub("#", reason), []).append(reason)
    texts = []
    for same in sorted(
        groups.values(),
        key=len,
        reverse=True,
    ):
        texts.append(_with_ranges(same))
    return texts


def _with_ranges(reasons: Sequence[str]) -> str:
    """Return a text for reasons that differ only in their numbers, each number replaced by its
    range."""
    words = _NUMBER.split(reasons[0])
    text = words[0]
    by_position = zip(*map(_NUMBER.findall, reasons), strict=True)
    for numbers, word in zip(by_position, words[1:], strict=True):
        low = min(numbers, key=float)
        high = max(numbers, key=float)
        text += low
        if high != low:
            text += f"–{high}"
        text += word
    return text
