"""The workload of a stream: calls of many sizes, one after the other."""

from __future__ import annotations

import functools

from effbench.core.cell import Cell
from effbench.models.inputs import Batch, Inputs, as_arguments, cut
from effbench.modes.base import Mode
from effbench.workloads.base import InputSets, Specs, make_sets
from effbench.workloads.inference import Inference


def slice_sets(cell: Cell, specs: Specs, batch: Batch, sets: int) -> InputSets:
    """Return the inputs of a stream.

    They are slices of `sets` sets of the largest size, so that a long stream takes no more
    memory. All distinct sizes are checked, in descending order and with different values than their
    neighbours, so that a check reveals stale values of a larger input in buffers.
    """
    whole = make_sets(cell, specs, sets)

    @functools.cache
    def rows(number: int, size: int) -> Inputs:
        args, kwargs = whole[number]
        every = (*args, *kwargs.values())
        values = [cut(value, dim, size) for value, dim in zip(every, batch.dims, strict=True)]
        return as_arguments(values, kwargs)

    descending = sorted(set(batch.sizes), reverse=True)
    return InputSets(
        timed=[rows(number % sets, size) for number, size in enumerate(batch.sizes)],
        checked=[rows(number % sets, size) for number, size in enumerate(descending)],
    )


class StreamCalls(Inference):
    """Calls of the module with inputs of many sizes. A pass is one call of each entry."""

    has_varied_calls = True

    @classmethod
    def unsupported(cls, cell: Cell, mode: Mode) -> str | None:
        if mode.static_shape:
            return (
                "this mode has one static shape, but a stream has many: use one size (stream=none),"
                " or bucketed-graph for many batch sizes"
            )
        return super().unsupported(cell, mode)

    def batch(self) -> Batch:
        return Batch.of(self.specs, (self.cell.stream or {})["sizes"])

    def make_inputs(self, sets: int) -> None:
        self.inputs = slice_sets(self.cell, self.specs, self.batch(), sets)

    def settling_calls(self) -> int:
        # each size has its own
        return self.mode.settling_calls * len(self.inputs.checked)

    def calls_per_pass(self) -> int:
        return len(self.inputs.timed)
