"""Pair cells that use several devices with the same cells on one device (`scalings_of`).

Tensor parallel divides a call among n devices, so at best it takes 1 ÷ n of the time. In data
parallel training each device has a batch of its own, so at best a step takes the same time. The
efficiency, ideal ÷ measured time, is a column of results, which `store.summary` computes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from effbench.core.cell import Cell, Result
from effbench.core.labels import LabelledResult, LabelledResults
from effbench.core.parallel import Parallel


@dataclass(frozen=True)
class Scaling:
    """Two results that differ only in `parallel`. `single`: on one device; `several`: on the
    devices of `parallel`, with this `efficiency`."""

    single: LabelledResult
    several: LabelledResult
    parallel: Parallel
    efficiency: float

    @property
    def name(self) -> str:
        """The value of `parallel`."""
        return str(self.several.params["parallel"])

    @property
    def metric(self) -> str:
        """The time that gives the efficiency."""
        if self.single.period_ms and self.several.period_ms:
            return "period_ms"
        return "latency_ms"

    @property
    def time_ratio(self) -> float:
        """The time on several devices ÷ the time on one device."""
        return self.parallel.ideal_ratio / self.efficiency


def scalings_of(rows: LabelledResults) -> list[Scaling]:
    """Return a pair for each result that has a scaling efficiency, in the order of the rows."""
    by_cell = {_place(row, row.cell_key): row for row in rows}
    scalings = []
    for row in rows:
        parallel = Parallel.of(row.params)
        if parallel is None or not row.scaling_efficiency:
            continue
        single = by_cell.get(_place(row, Cell(**row.params).over(None).key))
        if single is not None:
            scalings.append(Scaling(single, row, parallel, row.scaling_efficiency))
    return scalings


def _place(row: Result, cell_key: str) -> Hashable:
    """Return what identifies the result of this cell in the sweep and environment of a row."""
    return row.sweep_id, row.environment_id, cell_key
