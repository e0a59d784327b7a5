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
) -> list[Inputs]:
    """What is timed, in order: `sets` input sets, or one entry for each call of a stream.

    Those are slices of `sets` sets of the largest size, shared by all calls, so that a long stream costs no memory.
    """
    whole = [make_inputs(specs, cell.bs, dtype, device, seed + 7919 * (i + 1)) for i in range(sets)]
    if not cell.stream:
        return whole
    batch = Batch.of(specs, sizes_of(cell))
    made: dict[tuple[int, int], Inputs] = {}
    inputs = []
    for position, size in enumerate(batch.sizes):
        key = (position % sets, size)
        if key not in made:
            made[key] = sliced(whole[key[0]], batch, size)
        inputs.append(made[key])
    return inputs


def sliced(given: Inputs, batch: Batch, size: int) -> Inputs:
    """The first `size` rows of every input that has a batch dimension."""
    args, kwargs = given
    return (
        tuple(cut(value, known.dim, size) for value, known in zip(args, batch.args, strict=True)),
        {name: cut(value, batch.kwargs[name].dim, size) for name, value in kwargs.items()},
    )


def to_check(cell: Cell, inputs: list[Inputs]) -> list[Inputs]:
    """What is checked against eager: every set, or every distinct size of a stream from the largest down: whatever a
    larger batch left behind in buffers is there when a smaller one comes. Neighbours are of different sets where the
    stream has them, so that what is left behind are other values."""
    if not cell.stream:
        return inputs
    by_size: dict[int, list[Inputs]] = {}
    for size, given in zip(sizes_of(cell), inputs, strict=True):
        by_size.setdefault(size, []).append(given)
    return [by_size[size][number % len(by_size[size])] for number, size in enumerate(sorted(by_size, reverse=True))]


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
