"""What a trial does otherwise where its cell has a stream of batch sizes. Without one each function gives what a
trial of one size does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from effbench.cell import Cell
from effbench.measure import passes, timing
from effbench.measure.timing import Inputs
from effbench.models.batch import Batch, cut
from effbench.models.inputs import make_inputs
from effbench.models.spec import InputSpec

ONE_SHAPE = "this mode has one static shape, and a stream has many batch sizes: use bucketed-graph, or one bs"


def sizes_of(cell: Cell) -> list[int]:
    """The batch sizes of the calls, in order."""
    return cell.stream["sizes"] if cell.stream else [cell.bs]


def timers(cell: Cell) -> ModuleType:
    """`warm_up`, `time_latency` and `time_period`: over whole passes of a stream, or call by call."""
    return passes if cell.stream else timing


def unsupported(cell: Cell, mode: Any) -> str | None:
    """Why the mode cannot run this stream, or None."""
    return ONE_SHAPE if cell.stream and getattr(mode, "static_shape", False) else None


def inform(cell: Cell, mode: Any, specs: Mapping[str, InputSpec]) -> None:
    """Tell a mode that wants to know what the batch is, before it prepares."""
    if expect := getattr(mode, "expect", None):
        expect(Batch.of(specs, sizes_of(cell)))


def make_sets(
    cell: Cell, specs: Mapping[str, InputSpec], sets: int, dtype: torch.dtype, device: torch.device, seed: int
) -> tuple[list[Inputs], list[Inputs]]:
    """What is timed, in order, and what is checked against eager before.

    Without a stream both are `sets` input sets. With one there is an entry for each call, and what is checked is every
    distinct size from the largest down: whatever a larger batch left behind in buffers is there when a smaller one
    comes. All are slices of `sets` sets of the largest size, so that a long stream costs no memory; neighbours in the
    check are of different sets, so that what is left behind are other values.
    """
    whole = [make_inputs(specs, cell.bs, dtype, device, seed + 7919 * (i + 1)) for i in range(sets)]
    if not cell.stream:
        return whole, whole
    batch = Batch.of(specs, sizes_of(cell))
    made: dict[tuple[int, int], Inputs] = {}

    def entry(number: int, size: int) -> Inputs:
        key = (number % sets, size)
        if key not in made:
            made[key] = sliced(whole[key[0]], batch, size)
        return made[key]

    timed = [entry(position, size) for position, size in enumerate(batch.sizes)]
    checked = [entry(number, size) for number, size in enumerate(sorted(set(batch.sizes), reverse=True))]
    return timed, checked


def sliced(given: Inputs, batch: Batch, size: int) -> Inputs:
    """The first `size` rows of every input that has a batch dimension."""
    args, kwargs = given
    return (
        tuple(cut(value, known.dim, size) for value, known in zip(args, batch.args, strict=True)),
        {name: cut(value, batch.kwargs[name].dim, size) for name, value in kwargs.items()},
    )


def settling_calls(cell: Cell, mode: Any, checked: Sequence[Inputs]) -> int:
    """First calls that still prepare: in a stream every size has them."""
    return mode.settling_calls * (len(checked) if cell.stream else 1)


def whole_passes(cell: Cell, calls: int) -> int:
    """So many calls or more, in whole passes of a stream."""
    length = len(sizes_of(cell))
    return math.ceil(calls / length) * length


def facts(cell: Cell, latency_ms: Sequence[float]) -> dict[str, Any]:
    """What a stream adds to a trial's facts."""
    return {"stream": passes.describe(latency_ms, sizes_of(cell))} if cell.stream else {}
