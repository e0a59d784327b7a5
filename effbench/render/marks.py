"""How is a metric of a result written? With its unit, its 95 % interval, and `~` if a disturbed
host or GPU affected it; a line explains marks once per output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from effbench.core.cell import Result
from effbench.core.disturbances import cause_of
from effbench.core.labels import LabelledResults, grouped
from effbench.core.metrics import METRICS, SPEEDUPS, bounds_of, why_marked
from effbench.core.printable import count, listed
from effbench.core.quantities import interval_text
from effbench.core.table import Shown

#: Comes before a marked figure.
SIGN = "~"
#: Follows a speedup whose interval includes 1.
NOT_SIGNIFICANT = "n.s."
#: Cells that this line names before it counts the others.
MOST_CELLS = 3
#: Reasons that it gives.
MOST_REASONS = 3
#: In reasons that are alike, these differ.
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
#: What to do about marks, by device.
ON_CPU = "Close other programs, set threads=1 or use a quieter machine, then run the sweep again"
ON_GPU = (
    "Free the GPU and its host (effbench doctor lists what disturbs them), then run the sweep again"
)


@dataclass(frozen=True)
class Estimate:
    """A metric of a result, with the bounds of its 95 % interval. `disturbance`: why it is marked,
    None if it is not."""

    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    disturbance: str | None = None

    @classmethod
    def of(cls, result: Result, metric: str) -> Estimate:
        low, high = bounds_of(result, metric)
        return cls(metric, result.value(metric), low, high, why_marked(result, metric))

    @property
    def is_marked(self) -> bool:
        return self.disturbance is not None

    @property
    def is_significant(self) -> bool | None:
        """Whether a speedup's interval excludes 1; None without an interval or with a mark."""
        if self.low is None or self.high is None or self.metric not in SPEEDUPS:
            return None
        is_of_baseline = self.low == self.high == 1
        if self.is_marked or is_of_baseline:
            return None
        return not self.low <= 1 <= self.high

    @property
    def text(self) -> str:
        """Return `1.30×`, `~1.30×` or `1.02× n.s.`; an em dash for an unknown value."""
        text = signed(METRICS[self.metric].format(self.value), self.is_marked)
        if self.is_significant is False:
            return f"{text} {NOT_SIGNIFICANT}"
        return text

    @property
    def interval(self) -> str:
        """Return `1.25–1.35`; empty without an interval."""
        if self.low is None or self.high is None or self.low == self.high:
            return ""
        return interval_text(self.low, self.high, METRICS[self.metric].number)

    @property
    def tone(self) -> str:
        if self.is_marked or self.is_significant is False:
            return "unsure"
        return ""

    @property
    def shown(self) -> Shown:
        """The text with its interval; empty for an unknown value."""
        if self.value is None:
            return Shown(None, "")
        return Shown(self.value, self.text, self.tone, self.interval)


def signed(text: str, marked: bool) -> str:
    """Return the text of a figure, with SIGN if it is marked."""
    if marked:
        return f"{SIGN}{text}"
    return text


def explain_marks(rows: LabelledResults) -> str:
    """Return the line that explains the marks of these results: which cells, how disturbed, and
    what to do. Return an empty text if none is marked."""
    reasons = {}
    for row in rows:
        why = row.disturbance or why_marked(row, "speedup")
        if why is not None:
            reasons[row.name] = cause_of(why)
    if not reasons:
        return ""
    alike = grouped(reasons, lambda name: NUMBER.sub("", reasons[name]))
    groups = sorted(alike.values(), key=len, reverse=True)
    texts = []
    for names in groups:
        text = reason_text(names, reasons)
        if len(names) < len(rows):
            text = f"{cells_text(names, rows)}: {text}"
        texts.append(text)
    which = f"{len(reasons)} of {count(len(rows), 'result')}"
    advice = ON_GPU
    if all(row.device == "cpu" for row in rows):
        advice = ON_CPU
    why = listed(texts, MOST_REASONS, "; ")
    return f"{SIGN} measured on a disturbed machine ({which}): {why}. {advice}."


def cells_text(names: Sequence[str], rows: LabelledResults) -> str:
    """Return which of these results have these names: `all of eager, and mlp bs=8 default`."""
    rest = list(names)
    modes = []
    for mode, of_mode in grouped(rows, attrgetter("mode_label")).items():
        names_of_mode = {row.name for row in of_mode}
        if len(names_of_mode) > 1 and names_of_mode.issubset(rest):
            modes.append(mode)
            rest = [name for name in rest if name not in names_of_mode]
    texts = []
    if modes:
        texts.append(f"all of {listed(modes, MOST_CELLS)}")
    if rest:
        texts.append(listed(rest, MOST_CELLS))
    return ", and ".join(texts)


def reason_text(names: Sequence[str], reasons: Mapping[str, str]) -> str:
    """Return the reason of results whose reasons differ at most in numbers."""
    first = reasons[names[0]]
    if all(reasons[name] == first for name in names):
        return first
    return f"for example, {first}"
