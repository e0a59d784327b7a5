"""Compare cells that use several devices with the same cells on one device (`scalings_of`).

Tensor parallel divides a call among n devices, so at best it takes 1 ÷ n of the time. In data
parallel training each device has a batch of its own, so at best a step takes the same time. The
efficiency is this best time ÷ the measured time.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from effbench.analysis.winners import log_of
from effbench.core.cell import digest
from effbench.core.labels import LabelledResult, LabelledResults
from effbench.core.parallel import Parallel
from effbench.stats.intervals import Interval, LogEstimate, log_difference

#: The times that can be compared; the first one that both results have is.
TIMES = ("period_ms", "latency_ms")


@dataclass(frozen=True)
class Scaling:
    """Two `ok` results that differ only in `parallel`. `single`: on one device; `several`: on the
    devices of `parallel`. `metric`: the time that is compared, one of TIMES."""

    single: LabelledResult
    several: LabelledResult
    parallel: Parallel
    metric: str

    @property
    def name(self) -> str:
        """The value of `parallel`."""
        return str(self.several.params["parallel"])

    @cached_property
    def time_ratio(self) -> Interval:
        """The time on several devices ÷ the time on one device."""
        return log_difference(self._time_of(self.several), self._time_of(self.single)).interval()

    @cached_property
    def efficiency(self) -> Interval:
        """The best possible time ÷ the time on several devices: 1 is ideal."""
        gain = log_difference(self._time_of(self.single), self._time_of(self.several))
        best = self.parallel.batches / self.parallel.size
        return replace(gain, value=gain.value + math.log(best)).interval()

    def _time_of(self, row: LabelledResult) -> LogEstimate:
        return log_of(row, self.metric)

    @property
    def disturbance(self) -> str | None:
        """Why the comparison is marked; None if it is not."""
        return self.single.disturbance or self.several.disturbance


def scalings_of(rows: LabelledResults) -> list[Scaling]:
    """Return the comparison of each `ok` result on several devices for which the same sweep and
    environment have the same cell on one device, also `ok`, in the order of the rows."""
    ok = [row for row in rows if row.is_ok]
    singles = {_others_of(row): row for row in ok if "parallel" not in row.params}
    scalings = []
    for row in ok:
        parallel = Parallel.of(row.params)
        single = singles.get(_others_of(row))
        if parallel is None or single is None:
            continue
        for metric in TIMES:
            if single.value(metric) and row.value(metric):
                scalings.append(Scaling(single, row, parallel, metric))
                break
    return scalings


def _others_of(row: LabelledResult) -> Hashable:
    """Return what identifies a result except `parallel`."""
    params = {name: value for name, value in row.params.items() if name != "parallel"}
    return row.sweep_id, row.environment_id, digest(params)
