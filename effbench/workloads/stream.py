"""The workload of a stream: calls of many sizes, one after the other."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from effbench.core.cell import Cell
from effbench.models.inputs import Batch, Inputs, as_arguments, cut
from effbench.models.spec import length_dims
from effbench.modes.base import Mode
from effbench.workloads.base import InputSets, Specs, make_sets
from effbench.workloads.inference import Inference


def sizes_of(cell: Cell) -> list[int]:
    """Return the size of each call of a pass, in order."""
    sizes: list[int] = (cell.stream or {})["sizes"]
    return sizes


def dim_of(cell: Cell) -> int | None:
    """Return the dimension that calls vary, with the batch counted; None: the batch itself."""
    return (cell.stream or {}).get("dim")


def slice_sets(cell: Cell, specs: Specs, sets: int) -> InputSets:
    """Return the inputs of a stream.

    They are slices of `sets` sets of the largest size, so that a long stream of batch sizes takes
    no more memory. All distinct sizes are checked, in descending order and with different values
    than their neighbours, so that a check reveals stale values of a larger input in buffers.
    """
    whole = make_sets(cell, specs, sets)
    sizes = sizes_of(cell)
    dims = StreamCalls.batch(cell, specs).dims

    @functools.cache
    def rows(number: int, size: int) -> Inputs:
        args, kwargs = whole[number]
        values = []
        for value, dim in zip((*args, *kwargs.values()), dims, strict=True):
            values.append(cut(value, dim, size))
        return as_arguments(values, kwargs)

    def in_turn(calls: Sequence[int]) -> list[Inputs]:
        return [rows(number % sets, size) for number, size in enumerate(calls)]

    descending = sorted(set(sizes), reverse=True)
    return InputSets(timed=in_turn(sizes), checked=in_turn(descending))


class StreamCalls(Inference):
    """Calls of the module with inputs of many sizes. A pass is one call of each entry."""

    has_varied_calls = True

    @classmethod
    def unsupported(cls, cell: Cell, mode: Mode) -> str | None:
        if dim_of(cell) is not None and (mode.static_shape or mode.static_lengths):
            return "this mode has one static length, but the stream has many: use stream=none"
        if mode.static_shape:
            return (
                "this mode has one static shape, but a stream has many batch sizes: use"
                " bucketed-graph, or one bs"
            )
        return None

    @classmethod
    def example(cls, cell: Cell, specs: Specs) -> Inputs:
        return slice_sets(cell, specs, 1).timed[0]

    @classmethod
    def batch(cls, cell: Cell, specs: Specs) -> Batch:
        dim = dim_of(cell)
        if dim is None:
            return Batch.of(specs, sizes_of(cell))
        dims = length_dims(specs, dim, max(sizes_of(cell)))
        return Batch.of(specs, [cell.bs], dims)

    def make_inputs(self, sets: int) -> None:
        self.inputs = slice_sets(self.cell, self.specs, sets)

    def settling_calls(self) -> int:
        # each size has its own
        return self.mode.settling_calls * len(self.inputs.checked)

    def calls_per_pass(self) -> int:
        return len(self.inputs.timed)

    def figures(self, latency_ms: float) -> dict[str, Any]:
        samples_ms = self.trial.samples["latency_ms"]
        return {"stream": latency_by_size(samples_ms, sizes_of(self.cell))}

    def unpaired(self) -> str | None:
        return "requests and streams are timed as a whole"


def latency_by_size(samples_ms: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Return the mean latency of all calls in ms, and for each size its calls per pass and median
    latency. `samples_ms`: the samples of whole passes over `sizes`, in order."""
    passes = np.reshape(samples_ms, (-1, len(sizes)))
    by_size = {}
    for size in sorted(set(sizes)):
        of_size = passes[:, np.array(sizes) == size]
        by_size[str(size)] = {
            "calls": sizes.count(size),
            "latency_ms": float(np.median(of_size)),
        }
    return {
        "passes": len(passes),
        "calls_per_pass": len(sizes),
        "latency_mean_ms": statistics.fmean(samples_ms),
        "by_size": by_size,
    }
