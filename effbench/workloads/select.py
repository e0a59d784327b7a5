"""Which workload a cell has."""

from __future__ import annotations

from effbench.core.cell import Cell
from effbench.workloads.arrivals import Arrivals
from effbench.workloads.base import Workload
from effbench.workloads.generation import Generation
from effbench.workloads.inference import Inference
from effbench.workloads.stream import StreamCalls
from effbench.workloads.training import TrainingSteps


def workload_of(cell: Cell) -> type[Workload]:
    """Return the class of the cell's workload."""
    if cell.phase == "training":
        return TrainingSteps
    if cell.phase == "generate":
        return Generation
    if cell.stream is None:
        return Inference
    return Arrivals if "rate" in cell.stream else StreamCalls
