"""The workload of a trial and its inputs: the module itself, its training steps (training.py) or
requests that generate tokens (generation.py). Each workload has its own eager reference and check;
the rest of a trial is the same for all."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from effbench.cell import Cell, Status, Trial
from effbench.measure import accuracy, gradients, timing, work
from effbench.measure.timing import Inputs
from effbench.models.build import set_seed
from effbench.models.inputs import cut, make_inputs
from effbench.models.spec import InputSpec, length_dims
from effbench.modes.base import Mode, Prepared, required
from effbench.printable import describe
from effbench.worker import quantization, state
from effbench.worker.failures import Ended, chain, is_out_of_memory, without_float64
from effbench.worker.first_call import Success, first_success


def copies(inputs: Inputs) -> Inputs:
    """Return copies of the inputs as ordinary tensors. Clones made in inference mode are inference
    tensors, for which Dynamo would compile a second graph."""
    with torch.inference_mode(False):
        return accuracy.clone(inputs)


class Inference:
    """The workload of phase=inference: calls of the module. `initial`: the initial state, as far as
    eager changes it; `intact`: marks of the state that eager does not change; `written`: inputs
    that the step writes to; `kept`: their values by id; `degraded`: which effect is missing; `ran`:
    the module that the step runs, which may be a copy; `grad_mode`: how all calls record gradients,
    once eager's calls have shown it.
    """

    def __init__(self, cell: Cell, mode: Mode, module: torch.nn.Module, trial: Trial) -> None:
        self.cell, self.mode, self.module, self.trial = cell, mode, module, trial
        self.device = torch.device(cell.device)
        self.tolerance: float | None = cell.model.get("tolerance")
        self.names = [
            spec["name"] for spec in cell.model.get("inputs", ()) if not spec.get("keyword")
        ]
        self.initial, self.intact, self.written, self.kept, self.degraded, self.ran = (
            {},
            {},
            set(),
            {},
            None,
            module,
        )
        self.wanted_grad_mode = cell.numerics.get("grad_mode", gradients.AUTO)
        is_chosen = self.wanted_grad_mode == gradients.AUTO
        self.grad_mode = gradients.INFERENCE if is_chosen else self.wanted_grad_mode

    def context(self) -> AbstractContextManager[Any]:
        """Return the context in which all calls are made."""
        return gradients.recording(self.grad_mode)

    def example(self, given: Inputs) -> accuracy.Parts:
        """Call the module with a copy of these inputs, and return its outputs in host memory."""
        set_seed(self.cell.numerics.get("seed", 0))
        args, kwargs = copies(given)
        return state.on_host(accuracy.parts(self.module(*args, **kwargs)))

    def first_call(self, given: Inputs) -> Success[accuracy.Parts]:
        """Make the first call, which shows whether the module needs gradients.

        It is outside inference mode, because a module may create its state."""
        modes = {
            gradients.AUTO: (gradients.NO_GRAD, gradients.GRAD),
            gradients.INFERENCE: (gradients.NO_GRAD,),
        }
        allowed = modes.get(self.wanted_grad_mode, (self.wanted_grad_mode,))
        return first_success(functools.partial(self.example, given), allowed)

    def choose_grad_mode(
        self, given: Inputs, first: Success[accuracy.Parts], start: Callable[[], None]
    ) -> None:
        """Choose inference mode if the module allows it, else the mode of the `first` call, and
        record the choice.

        It depends on the module and its inputs only, so that all modes have the same. `start`:
        restores the state.
        """
        if self.wanted_grad_mode == gradients.AUTO:
            reason = first.reason
            if first.mode == gradients.NO_GRAD:
                reason = self.unfit_for_inference_mode(given, first.result, start)
                start()
            self.grad_mode = first.mode if reason else gradients.INFERENCE
            if reason:
                self.trial.extra["grad_mode_reason"] = reason
        self.trial.extra["grad_mode"] = self.grad_mode

    def unfit_for_inference_mode(
        self, given: Inputs, outputs: accuracy.Parts, start: Callable[[], None]
    ) -> str | None:
        """Return why the module's calls differ in inference mode, or None."""

        def again(mode: str) -> accuracy.Parts:
            start()
            with gradients.recording(mode):
                return self.example(given)

        def differs(wanted: accuracy.Parts) -> str | None:
            dtype = getattr(torch, self.cell.dtype)
            return accuracy.compare(
                again(gradients.INFERENCE), wanted, self.tolerance, self.device, dtype
            ).reason

        try:
            reason = differs(outputs)
            if reason is not None:  # perhaps only because the first call has created the state
                reason = differs(again(gradients.NO_GRAD))
        except Exception as error:  # a module may raise anything without autograd
            if any(map(is_out_of_memory, chain(error))):
                raise
            return f"inference mode: {describe(error)}"
        return (
            reason
            and f"inference mode: {reason.replace('differs from eager', 'differs from no_grad')}"
        )

    def tensors_of(self, given: Inputs) -> dict[str, torch.Tensor]:
        """Return the input tensors by names like `input x`."""
        args, kwargs = given
        named = {**dict(zip(self.names, args, strict=False)), **kwargs}
        return {
            f"input {name}": value
            for name, value in named.items()
            if isinstance(value, torch.Tensor)
        }

    def follow(
        self, step: Callable, module: Any, inputs: Sequence[Inputs], copied: Callable = copies
    ) -> Iterator[accuracy.Parts]:
        """Call `step` with copies of all inputs, in order, from the initial state of `module`.
        Yield the outputs and changed inputs of each call, with the changed state after the last
        one."""
        state.restore(module, self.initial, self.device)
        for number, given in enumerate(inputs, 1):
            args, kwargs = copied(given)
            output, before = accuracy.parts(step(*args, **kwargs)), self.tensors_of(given)
            timing.synchronizer(self.device)()
            after = self.tensors_of((args, kwargs)).items()
            output |= {
                name: value
                for name, value in after
                if not torch.equal(value, before[name].to(value))
            }
            if number == len(inputs):
                output |= accuracy.tensors(state.save(module, self.compared()))
            yield output

    def reference(self, inputs: Sequence[Inputs]) -> Any:
        """Return eager's results for all input sets, in host memory. Raises Ended if they have no
        tensor or are not finite."""
        before = state.marks(self.module, state.places(self.module))
        first = self.first_call(inputs[0])
        every = state.places(self.module)
        after = state.marks(self.module, every)
        names = {
            it for it in every if before.get(it) != after.get(it) or not it.startswith("parameter ")
        }
        initial = state.save(self.module, names)
        # the address of a freed tensor may be that of the next one, which would then pass for
        # unchanged
        alive = values_in(self.module)

        def start() -> None:
            now = state.marks(self.module, names)
            changed = {
                name: value for name, value in initial.items() if now.get(name) != after.get(name)
            }
            state.restore(self.module, changed, self.device)

        self.choose_grad_mode(inputs[0], first, start)
        alive += values_in(self.module)
        after = state.marks(self.module, every)
        references, written = [], set()
        with self.context():
            for result in self.follow(self.module, self.module, inputs):
                references.append(state.on_host(result))
                # after each call, because a position may return to where it began
                now = state.marks(self.module, names)
                written |= {name for name in names if now.get(name) != after.get(name)}
        final = state.save(self.module, names)
        del alive
        # inductor cannot write to inference tensors, which calls may have left in the state
        state.make_ordinary(self.module)
        self.initial = {
            name: value
            for name, value in initial.items()
            if name in written or not state.same(value, final.get(name))
        }
        for reference in references:
            self.refuse_unusable(reference)
        references[-1] |= accuracy.tensors(
            {name: final[name] for name in self.compared() if name in final}
        )
        kept = {it for it in every if not it.startswith("attribute ") or it.endswith("training")}
        self.intact = state.marks(self.module, kept - self.initial.keys())
        return references

    def refuse_unusable(self, reference: accuracy.Parts) -> None:
        """Raise Ended for outputs of eager with which nothing can be compared."""
        if not accuracy.tensors(reference):
            advice = "return tensors, or a tuple, list or dict of them"
            raise Ended(Status.ERROR, f"in check: the output has no tensor to compare; {advice}")
        name = accuracy.not_finite(reference, self.device)
        if name and not self.cell.model.get("allow_nonfinite"):
            how = "choose another dtype, or allow it with model.allow_nonfinite=true"
            raise Ended(Status.INCORRECT, f"eager {name} not finite; {how}")

    def in_float64(self) -> torch.nn.Module:
        """Return a copy of the module in float64. Raises ValueError if its state is not that of
        eager's calls: a mode that changes weights, or trains batch norms, would be right by its
        own."""
        now = state.marks(self.module, self.intact)
        if changed := [name for name, mark in self.intact.items() if now.get(name) != mark]:
            raise ValueError(f"{changed[0]} has changed since eager's calls")
        with gradients.outside_inference_mode():
            return quantization.double(self.module)

    def compared(self) -> list[str]:
        """Return the names of the state that the mode must change as eager does."""
        return [name for name in self.initial if name.split(" ")[0] in self.mode.writes_state]

    def calling(self, step: Callable) -> Callable:
        """Return the callable of this workload for a step that a mode prepared."""
        return step

    def made(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        """Return the step that the mode makes of the module."""
        return required(self.mode.prepare(self.module, args, kwargs), self.mode.prepare)

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        prepared = self.made(args, kwargs)
        self.ran = self.module if prepared.module is None else prepared.module
        return prepared

    def check(self, step: Callable, inputs: Sequence[Inputs], references: Any) -> None:
        """Compare the step's results with eager's, then restore the initial state. Raises Ended if
        they differ."""
        if reason := self.wrong(step, inputs, references):
            raise Ended(Status.INCORRECT, reason)
        state.restore(self.ran, self.initial, self.device)

    def wrong(
        self, step: Callable, inputs: Sequence[Inputs], references: Sequence[accuracy.Parts]
    ) -> str | None:
        """Return how the step's outputs, the inputs that it writes to or the module's state differ
        from eager's."""

        @functools.cache
        def exact() -> Iterator[tuple[int, accuracy.Parts]]:
            module = self.in_float64()
            return enumerate(
                self.follow(module, module, inputs, lambda given: accuracy.wide(copies(given)))
            )

        # one result at a time, on the device: those of a large vocabulary take gigabytes
        results = zip(
            map(self.tensors_of, inputs),
            self.follow(step, self.ran, inputs),
            references,
            strict=True,
        )
        for number, (given, result, eager) in enumerate(results):
            for name in eager.keys() & given.keys() - result.keys():
                self.degraded = (
                    f"the module writes to its {name}, but this mode leaves the caller's tensor"
                    " unchanged"
                )
            self.written |= result.keys() & given
            eager = {
                name: part
                for name, part in {**given, **eager}.items()
                if name in result or name not in given
            }
            if reason := self.judged(
                result,
                eager,
                lambda n=number, kept=given: kept | next(it for at, it in exact() if at == n),
            ):
                self.refuse_own_state(inputs[0])
                return reason
        return None

    def refuse_own_state(self, given: Inputs) -> None:
        """Raise Ended if the mode has its own copy of a buffer that eager's outputs depend on.
        Earlier calls have changed the copy, which cannot be restored."""
        compared = self.compared()
        copied = [
            name
            for name in self.initial
            if name not in compared and not name.startswith("attribute ")
        ]
        if not copied:
            return
        first, second = self.follow(self.module, self.module, [given, given])
        if accuracy.compare(second, first, self.tolerance, self.device).reason:
            what = f"the {copied[0]}, which each call changes and effbench cannot restore there"
            raise Ended(
                Status.UNSUPPORTED,
                f"this mode has a copy of {what}: outputs cannot be compared with eager's",
            )

    def judged(
        self, result: accuracy.Parts, eager: accuracy.Parts, exact: Callable[[], accuracy.Parts]
    ) -> str | None:
        """Return how a result differs from eager's, or None. `exact`: returns it in float64."""
        dtype = getattr(torch, self.cell.dtype)
        verdict = accuracy.compare(result, eager, self.tolerance, self.device, dtype)
        if verdict.error is not None:
            self.trial.rel_error = max(self.trial.rel_error or 0.0, verdict.error)
        if verdict.reason is None or not verdict.only_values:
            return verdict.reason
        # the tolerance may be too strict for this dtype: float64 decides
        self.trial.extra["judged_by_float64"] = True
        try:
            reason = accuracy.compare_with_float64(
                result, eager, exact(), self.tolerance, self.device, dtype
            )
        except Exception as error:  # a module may raise anything in an unexpected dtype
            return without_float64(verdict.reason, error)
        return reason and f"{verdict.reason}; {reason}"

    def renew(self, given: Inputs) -> None:
        """Restore the inputs that the step writes to. The first call keeps their values, outside
        device memory."""
        with torch.no_grad():  # the module may have made an input require gradients
            for name, value in self.tensors_of(given).items():
                if name in self.written:
                    if id(value) not in self.kept:
                        self.kept[id(value)] = (
                            value.cpu().pin_memory() if value.is_cuda else value.clone()
                        )
                    value.copy_(self.kept[id(value)], non_blocking=True)

    def after_timing(self, step: Callable, inputs: Sequence[Inputs], references: Any) -> str | None:
        """Return a reason if the results became wrong during timing, else None."""
        for given in inputs:
            self.renew(given)
        reason = self.wrong(step, inputs, references)
        return reason and f"outputs differ after timing: {reason}"

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        """Count the work of one call."""
        return work.count(self.module, args, kwargs)


def values_in(module: torch.nn.Module) -> list[Any]:
    """Return the parameters, buffers and attributes of a module."""
    return [held[key] for held, key in state.places(module).values()]


# --- inputs of one size, or of a stream ---


def sizes_of(cell: Cell) -> list[int]:
    """Return the size of each call of a pass, in order."""
    return cell.stream["sizes"] if cell.stream else [cell.bs]


def batch_sizes_of(cell: Cell) -> list[int]:
    """Return the batch size of each call of a pass, in order."""
    return [cell.bs] if has_lengths(cell) else sizes_of(cell)


def has_lengths(cell: Cell) -> bool:
    """Return whether the cell has a stream that varies another dimension than the batch."""
    return cell.stream is not None and "dim" in cell.stream


def varied_dims(cell: Cell, specs: Mapping[str, InputSpec]) -> dict[str, int | None]:
    """Return the dimension of each input that a stream varies, or would vary: by default the
    batch."""
    if has_lengths(cell):
        return length_dims(specs, cell.stream["dim"], max(cell.stream["sizes"]))
    return {name: spec.batch_dim for name, spec in specs.items()}


def make_sets(
    cell: Cell,
    specs: Mapping[str, InputSpec],
    sets: int,
    dtype: torch.dtype,
    device: torch.device,
    seed: int,
) -> tuple[list[Inputs], list[Inputs]]:
    """Return the inputs to time, in order, and the inputs to compare with eager before timing.

    Without a stream both are the same `sets` input sets. A stream has an entry per call; they are
    slices of `sets` sets of the largest size, so that a long stream of batch sizes takes no more
    memory. All distinct sizes are checked, in descending order and with different values than their
    neighbours, so that a check reveals stale values of a larger input in buffers.
    """
    whole = [make_inputs(specs, cell.bs, dtype, device, seed + 7919 * (i + 1)) for i in range(sets)]
    if cell.numerics.get("channels_last"):
        layout = torch.channels_last
        whole = tree_map_only(
            torch.Tensor, lambda x: x.contiguous(memory_format=layout) if x.dim() == 4 else x, whole
        )
    if not cell.stream:
        return whole, whole
    sizes, dims = sizes_of(cell), varied_dims(cell, specs)
    places = [dim for name, dim in dims.items() if not specs[name].keyword]

    @functools.cache
    def rows(number: int, size: int) -> Inputs:
        args, kwargs = whole[number]
        return (
            tuple(cut(value, dim, size) for value, dim in zip(args, places, strict=True)),
            {name: cut(value, dims[name], size) for name, value in kwargs.items()},
        )

    timed = [rows(position % sets, size) for position, size in enumerate(sizes)]
    checked = [
        rows(number % sets, size) for number, size in enumerate(sorted(set(sizes), reverse=True))
    ]
    return timed, checked


def latency_facts(
    samples_ms: Sequence[float], sizes: Sequence[int], served: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the mean latency of all calls in ms, and for each size its calls per pass and median
    latency. `samples_ms`: the samples of whole passes over `sizes`, in order; of all requests if a
    server has `served` them, whose facts replace those of passes."""
    facts = {"latency_mean_ms": statistics.fmean(samples_ms)}
    if served is not None:
        return facts | served
    of_size, passes = np.array(sizes), np.reshape(samples_ms, (-1, len(sizes)))
    by_size = {
        str(size): {
            "calls": sizes.count(size),
            "latency_ms": float(np.median(passes[:, of_size == size])),
        }
        for size in sorted(set(sizes))
    }
    return {"passes": len(passes), "calls_per_pass": len(sizes), **facts, "by_size": by_size}
