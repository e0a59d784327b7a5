"""The workload of a trial and its inputs: the module itself, or training steps of it (training.py). Each workload has
its own eager reference and check; the rest of a trial is the same for both."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from effbench.cell import Cell, Status, Trial
from effbench.measure import accuracy, timing, work
from effbench.measure.timing import Inputs
from effbench.models.inputs import Batch, cut, make_inputs
from effbench.models.spec import InputSpec
from effbench.modes.base import Mode, Prepared
from effbench.worker import failures
from effbench.worker.failures import Ended


def copies(inputs: Inputs) -> Inputs:
    """Return copies of the inputs as ordinary tensors. Clones made in inference mode are inference tensors, for which
    Dynamo would compile a second graph."""
    with torch.inference_mode(False):
        return accuracy.clone(inputs)


class Inference:
    """The workload of phase=inference: calls of the module."""

    def __init__(self, cell: Cell, mode: Mode, module: torch.nn.Module, trial: Trial) -> None:
        self.cell, self.mode, self.module, self.trial = cell, mode, module, trial
        self.device = torch.device(cell.device)
        self.tolerance: float | None = cell.model.get("tolerance")

    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which all calls are made."""
        return torch.inference_mode()

    def output(self, function: Callable, given: Inputs) -> accuracy.Parts:
        """Return a function's output, called with copies of the inputs because it may write to them."""
        args, kwargs = copies(given)
        parts = accuracy.parts(function(*args, **kwargs))
        timing.synchronizer(self.device)()
        return parts

    def reference(self, inputs: Sequence[Inputs]) -> Any:
        """Return eager's outputs for all input sets. Raises Ended if they have no tensor or are not finite."""
        references = [self.output(self.module, given) for given in inputs]
        if not accuracy.tensors(references[0]):
            advice = "return tensors, or a tuple, list or dict of them"
            raise Ended(Status.ERROR, f"in check: the output has no tensor to compare; {advice}")
        if not self.cell.model.get("allow_nonfinite"):
            for reference in references:
                if name := accuracy.not_finite(reference):
                    raise Ended(Status.INCORRECT, f"eager {name} not finite")
        return references

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return self.mode.prepare(self.module, args, kwargs)

    def check(self, step: Callable, inputs: Sequence[Inputs], references: Any) -> None:
        """Compare the step's outputs with eager's on all input sets. Raises Ended if they differ."""
        for given, reference in zip(inputs, references, strict=True):
            output = self.output(step, given)
            verdict = accuracy.compare(output, reference, self.tolerance)
            if verdict.error is not None:
                self.trial.rel_error = max(self.trial.rel_error or 0.0, verdict.error)
            if verdict.reason is None:
                continue
            if not verdict.only_values:
                raise Ended(Status.INCORRECT, verdict.reason)
            # the tolerance may be too strict for this dtype: float64 decides
            self.trial.extra["judged_by_float64"] = True
            try:
                exact = accuracy.parts(accuracy.in_float64(self.module, *copies(given)))
                reason = accuracy.compare_with_float64(output, reference, exact, self.tolerance)
            except Exception as error:  # a module may raise anything in an unexpected dtype
                reason = f"no float64 reference ({failures.describe(error)})"
            if reason:
                raise Ended(Status.INCORRECT, f"{verdict.reason}; {reason}")

    def diverged(self, step: Callable, inputs: Sequence[Inputs]) -> str | None:
        """Return a reason if the results became wrong during timing, else None."""
        return None

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        """Count the work of one call."""
        return work.count(self.module, args, kwargs)


# --- inputs of one batch size, or of a stream ---


def sizes_of(cell: Cell) -> list[int]:
    """Return the batch size of each call of a pass, in order."""
    return cell.stream["sizes"] if cell.stream else [cell.bs]


def make_sets(
    cell: Cell, specs: Mapping[str, InputSpec], sets: int, dtype: torch.dtype, device: torch.device, seed: int
) -> tuple[list[Inputs], list[Inputs]]:
    """Return the inputs to time, in order, and the inputs to compare with eager before timing.

    Without a stream both are the same `sets` input sets. A stream has an entry per call; they are slices of `sets` sets
    of the largest size, so that a long stream takes no more memory. All distinct sizes are checked, in descending order
    and with different values than their neighbours, so that a check reveals stale values of a larger batch in buffers.
    """
    whole = [make_inputs(specs, cell.bs, dtype, device, seed + 7919 * (i + 1)) for i in range(sets)]
    if not cell.stream:
        return whole, whole
    batch = Batch.of(specs, sizes_of(cell))

    @functools.cache
    def rows(number: int, size: int) -> Inputs:
        args, kwargs = whole[number]
        return (
            tuple(cut(value, known.dim, size) for value, known in zip(args, batch.args, strict=True)),
            {name: cut(value, batch.kwargs[name].dim, size) for name, value in kwargs.items()},
        )

    timed = [rows(position % sets, size) for position, size in enumerate(batch.sizes)]
    checked = [rows(number % sets, size) for number, size in enumerate(sorted(set(batch.sizes), reverse=True))]
    return timed, checked


def latency_facts(samples_ms: Sequence[float], sizes: Sequence[int]) -> dict[str, Any]:
    """Return percentiles and mean of the latency of all calls in ms, and for each size its calls per pass and median.
    `samples_ms`: the samples of whole passes over `sizes`, in order."""
    of_size, passes = np.array(sizes), np.reshape(samples_ms, (-1, len(sizes)))
    p50, p95, p99 = (float(value) for value in np.quantile(samples_ms, (0.5, 0.95, 0.99)))
    return {
        "passes": len(passes),
        "calls_per_pass": len(sizes),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_p99_ms": p99,
        "latency_mean_ms": statistics.fmean(samples_ms),
        "by_size": {
            str(size): {"calls": sizes.count(size), "latency_ms": float(np.median(passes[:, of_size == size]))}
            for size in sorted(set(sizes))
        },
    }
