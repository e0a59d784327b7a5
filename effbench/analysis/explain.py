"""Explain where the time went between two cells: `Explanation.of`.

A call of a traced trial is divided into terms: host time before the first kernel, idle time between
kernels, the time of kernels by class, and host time after the last kernel. Tracing delays a call;
`without_delay` takes the delay out, and what remains between the terms and the latency that was
measured without tracing is the term `not explained`. So the terms add up to the mean latency of a
side, and their differences to the difference between two sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from effbench.analysis.kernel_changes import (
    ChangeKind,
    KernelChange,
    changes_between,
    with_operators,
)
from effbench.analysis.kernel_classes import KernelClass, class_of, counted
from effbench.analysis.winners import winners
from effbench.core.cell import Result
from effbench.core.labels import LabelledResult, grouped, label_rows
from effbench.core.printable import listed
from effbench.core.trace import Kernel, Trace
from effbench.stats.intervals import Interval, t_quantile
from effbench.store.trials import TracedTrial

#: A part is named as a cause without intervals if it is this fraction of the difference.
LARGE = 0.25
#: Without intervals, a smaller relative difference is none.
FLOOR = 0.02
#: Work of the host is named if it is this fraction of a term's difference.
LARGE_WORK = 0.2
#: Names of the host's work in traces.
GRAPH_LAUNCH, WAITING = "graph launch", "waiting for the GPU"


class Part(StrEnum):
    """Parts of a call in which no kernel runs, and the rest."""

    BEFORE = "host before the first kernel"
    GAPS = "idle between kernels"
    AFTER = "host after the last kernel"
    REST = "not explained"


#: All terms in the order of a call; the rest is last.
TERMS = (Part.BEFORE, Part.GAPS, *KernelClass, Part.AFTER, Part.REST)
ON_CPU = {
    Part.BEFORE: "Python before the first operator",
    Part.GAPS: "Python between operators",
    Part.AFTER: "Python after the last operator",
}


@dataclass(frozen=True)
class Term:
    """A part of a call: its `ms` with the 95 % interval over trials; without bounds for a single
    trial. `name` is a value of Part or KernelClass."""

    name: str
    title: str
    ms: Interval


@dataclass(frozen=True)
class TermChange(Term):
    """The difference `second_ms` - `first_ms` of a part of a call."""

    first_ms: float
    second_ms: float

    def is_cause(self, difference: float) -> bool:
        """Return whether it certainly differs, or without intervals is a large part of the
        difference."""
        if self.ms.low is None or self.ms.high is None:
            return abs(self.ms.value) > LARGE * abs(difference)
        return self.ms.low > 0 or self.ms.high < 0


# --- one side


@dataclass(frozen=True)
class Breakdown:
    """The terms of one side. `values`: name of a term -> its ms in each trial; `host`: the same for
    what the host did, which overlaps with the terms."""

    trials: int
    traces: Sequence[Trace]
    latency: Sequence[float]
    values: Mapping[str, Sequence[float]]
    host: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, traced: Sequence[TracedTrial]) -> Breakdown:
        """Return the terms of the trials that have a trace and a latency. Raises ValueError without
        any."""
