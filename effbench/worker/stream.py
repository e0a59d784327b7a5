"""The inputs of a trial, of one batch size or of a stream of them, and the facts of a stream."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from effbench.cell import Cell
from effbench.measure.timing import Inputs
from effbench.models.inputs import Batch, cut, make_inputs
from effbench.models.spec import InputSpec


def sizes_of(cell: Cell) -> list[int]:
    """Return the batch sizes of the calls of one pass, in order."""
    return cell.stream["sizes"] if cell.stream else [cell.bs]


def make_sets(
    cell: Cell, specs: Mapping[str, InputSpec], sets: int, dtype: torch.dtype, device: torch.device, seed: int
) -> tuple[list[Inputs], list[Inputs]]:
    """Return the inputs that are timed, in order, and those that are compared with eager before.

    Without a stream both are `sets` input sets. A stream has an entry for each call, and every distinct size is
    checked, from the largest down: whatever a larger batch left behind in buffers is there when a smaller one comes.
    All are slices of `sets` sets of the largest size, so that a long stream costs no memory; neighbours in the check
    are of different sets, so that other values are left behind.
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
    """Return the first `size` rows of every input that has a batch dimension."""
    args, kwargs = given
    return (
        tuple(cut(value, known.dim, size) for value, known in zip(args, batch.args, strict=True)),
        {name: cut(value, batch.kwargs[name].dim, size) for name, value in kwargs.items()},
    )


def latency_facts(samples_ms: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Return percentiles and mean over all calls, and for each size its calls a pass and their median.

    `samples_ms`: whole passes over `sizes`, in order.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for position, sample in enumerate(samples_ms):
        by_size[sizes[position % len(sizes)]].append(sample)
    passes = len(samples_ms) // len(sizes)
    p50, p95, p99 = (float(value) for value in np.quantile(samples_ms, (0.5, 0.95, 0.99)))
    return {
        "passes": passes,
        "calls_per_pass": len(sizes),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_p99_ms": p99,
        "latency_mean_ms": statistics.fmean(samples_ms),
        "by_size": {
            str(size): {"calls": len(found) // passes, "latency_ms": statistics.median(found)}
            for size, found in sorted(by_size.items())
        },
    }
