"""The workload of phase=inference: calls of the module.

Outputs, the inputs that a call writes to, and the state that it changes are compared with eager's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from effbench.core.cell import Status
from effbench.core.parallel import Parallel
from effbench.core.printable import describe
from effbench.measure import gradients, timing
from effbench.measure.accuracy import Parts, not_finite, parts, tensors
from effbench.models.build import set_seed
from effbench.models.inputs import Inputs, Step
from effbench.workloads import quantization, state
from effbench.workloads.base import Workload, copies
from effbench.workloads.endings import (
    Ended,
    GradientAttempts,
    is_caused_by_memory,
    without_float64,
)
from effbench.workloads.state import StateName

#: Why a module that ranks share is not called in inference mode.
GATHERS = (
    "inference mode: torch gathers the inputs of layers that have a bias and are split by rows"
)


class Inference(Workload):
    """Calls of the module. `references`: eager's results by checked input, in host memory.
    `intact`: watches the state that eager's calls do not change."""

    intact: state.Watch

    def __post_init__(self) -> None:
        super().__post_init__()
        self.references: list[Parts] = []
        self.grad_mode = self.cell.numerics.get("grad_mode", gradients.AUTO)

    # --- how calls record gradients

    def example_outputs(self) -> Parts:
        """Call the module with a copy of the first inputs, and return its outputs in host
        memory."""
        set_seed(self.seed)
        args, kwargs = copies(self.inputs.checked[0])
        return state.on_host(parts(self.module(*args, **kwargs)))

    def first_call(self) -> str | None:
        """Make the first call, and return why it needs gradients, or None. It is outside inference
        mode, because a module may create its state."""
        if self.grad_mode == gradients.GRAD:
            with gradients.recording(gradients.GRAD):
                self.example_outputs()
            return None
        attempts = GradientAttempts()
        for attempt in attempts:
            with attempt:
                self.example_outputs()
        return attempts.reason

    def choose_grad_mode(
        self, reason: str | None, watch: state.Watch, initial: state.State
    ) -> None:
        """Choose inference mode if the module allows it, else the mode of the first call, and
        record the choice.

        It depends on the module and its inputs only, so that all modes have the same. `reason`: why
        the first call needs gradients, or None. `watch`: since the first call; `initial`: the state
        then, as far as calls may change it.
        """
        if self.grad_mode == gradients.AUTO:
            self.grad_mode = gradients.GRAD
            if reason is None:
                reason = self.unfit_for_inference_mode(watch, initial)
                self.grad_mode = gradients.NO_GRAD if reason else gradients.INFERENCE
            if reason is not None:
                self.trial.extra["grad_mode_reason"] = reason
        self.trial.extra["grad_mode"] = self.grad_mode

    def unfit_for_inference_mode(self, watch: state.Watch, initial: state.State) -> str | None:
        """Return why the module's calls differ in inference mode, or None. Each starts in the
        `initial` state, which is restored."""
        outputs = []
        try:
            for mode in (gradients.NO_GRAD, gradients.INFERENCE):
                try:
                    with gradients.recording(mode):
                        outputs.append(self.example_outputs())
                finally:
                    watch.restore(initial, self.device)
            reason = self.comparison.compare(outputs[1], outputs[0]).reason
        except Exception as error:  # a module may raise anything without autograd
            if is_caused_by_memory(error):
                raise
            reason = describe(error)
        if reason is None:
            return None
        return f"inference mode: {reason.replace('differs from eager', 'differs from no_grad')}"

    # --- several devices

    def split(self, parallel: Parallel) -> None:
        super().split(parallel)
        is_automatic = self.cell.numerics.get("grad_mode", gradients.AUTO) == gradients.AUTO
        if is_automatic and self.grad_mode == gradients.INFERENCE:
            self.grad_mode = self.trial.extra["grad_mode"] = gradients.NO_GRAD
            self.trial.extra["grad_mode_reason"] = GATHERS
        current = state.read(self.module, self.initial)
        for name, value in self.whole_initial.items():
            self.initial[name] = state.part_of_rank(value, current[name])
        self.references[-1] = self.own_part(self.references[-1])
        self.intact = state.Watch(self.module, self.intact.state.keys())

    def own_part(self, result: Parts) -> Parts:
        """Return an unsplit module's result with this rank's part of the state that is split."""
        if self.parallel is None:
            return result
        current = state.read(self.module, self.initial)
        values = {str(name): value for name, value in current.items()}
        return {name: state.part_of_rank(value, values.get(name)) for name, value in result.items()}

    # --- comparison with eager

    def follow(
        self,
        step: Step,
        module: nn.Module,
        inputs: Sequence[Inputs],
        dtype: torch.dtype | None = None,
    ) -> Iterator[Parts]:
        """Call `step` with copies of all inputs, in order, from the initial state of `module`.
        Yield the outputs and changed inputs of each call, with the changed state after the last
        one, which is not copied. `dtype`: of float inputs; None: their own."""
        self.restore_state(module)
        for number, given in enumerate(inputs, 1):
            args, kwargs = copies(given, dtype)
            result = parts(step(*args, **kwargs))
            timing.synchronizer(self.device)()
            result |= self.changed_inputs(given, (args, kwargs))
            if number == len(inputs):
                result |= self.changed_state(module)
            yield result

    def changed_state(self, module: nn.Module) -> Parts:
        """Return the tensors of the state that the mode must change as eager does."""
        if not self.mode.writes_state:
            return {}
        current = state.whole(state.read(module, self.initial))
        return tensors({str(name): value for name, value in current.items()})

    def take_reference(self) -> None:
        """Keep eager's results. Raises Ended if they have no tensor or are not finite."""
        before = state.Watch(self.module)
        reason = self.first_call()
        watch = state.Watch(self.module)
        # what calls may change: buffers, attributes, and parameters that the first call has changed
        names = before.changed(watch.state)
        names |= {name for name in watch.state if name.kind != "parameter"}
        initial = state.save(self.module, names)
        self.choose_grad_mode(reason, watch, initial)
        written = self.follow_eager(names)
        final = state.whole(state.read(self.module, names))
        # inductor cannot write to inference tensors, which calls may have left in the state
        state.make_ordinary(self.module)
        for name, value in initial.items():
            if name in written or not state.same(value, final.get(name)):
                self.initial[name] = value
        for reference in self.references:
            self.refuse_unusable(reference)
        self.references[-1] |= state.on_host(self.changed_state(self.module))
        # a mode may change other attributes, but not the weights or `training`
        kept = {
            name
            for name in watch.state.keys() - self.initial.keys()
            if name.kind != "attribute" or name.key.endswith("training")
        }
        self.intact = state.Watch(self.module, kept)

    def follow_eager(self, names: set[StateName]) -> set[StateName]:
        """Keep eager's results, and return which of the named state its calls write to."""
        watch = state.Watch(self.module)
        written: set[StateName] = set()
        with self.context():
            for result in self.follow(self.module, self.module, self.inputs.checked):
                self.references.append(state.on_host(result))
                # after each call, because a position may return to where it began
                written |= watch.changed(names)
        return written

    def refuse_unusable(self, reference: Parts) -> None:
        """Raise Ended for outputs of eager with which nothing can be compared."""
        if not tensors(reference):
            raise Ended(
                Status.ERROR,
                "in check: the output has no tensor to compare; return tensors, or a tuple, list or"
                " dict of them",
            )
        name = not_finite(reference)
        if name and not self.cell.model.get("allow_nonfinite"):
            raise Ended(
                Status.INCORRECT,
                f"eager {name} not finite; choose another dtype, or allow it with"
                " model.allow_nonfinite=true",
            )

    def check(self) -> None:
        reason = self.wrong()
        if reason is not None:
            raise Ended(Status.INCORRECT, reason)
        self.restore_state(self.ran)

    def wrong_after_timing(self) -> str | None:
        for given in self.inputs.checked:
            self.kept.restore(given)
        reason = self.wrong()
        if reason is None:
            return None
        return f"outputs differ after timing: {reason}"

    def wrong(self) -> str | None:
        """Return how the step's outputs, the inputs that it writes to or the module's state differ
        from eager's, or None."""
        inputs = self.inputs.checked
        exact_results = enumerate(self.follow_in_float64())
        # one result at a time, on the device: those of a large vocabulary take gigabytes
        results = zip(self.follow(self.step, self.ran, inputs), self.references, strict=True)
        for number, (result, eager) in enumerate(results):
            given = self.input_tensors(inputs[number])
            wanted = self.wanted(given, result, eager)
            verdict = self.comparison.compare(result, wanted)
            if verdict.error is not None:
                self.trial.rel_error = max(self.trial.rel_error or 0.0, verdict.error)
            reason = verdict.reason
            if reason is not None and verdict.only_values:
                # the tolerance may be too strict for this dtype: float64 decides
                try:
                    # each input runs once, after all before it
                    exact = next(exact for index, exact in exact_results if index == number)
                    more = self.comparison.compare_with_float64(result, wanted, given | exact)
                except Exception as error:  # a module may raise anything in an unexpected dtype
                    reason = without_float64(reason, error)
                else:
                    reason = f"{reason}; {more}" if more else None
            if reason is not None:
                self.refuse_own_state()
                return reason
        return None

    def wanted(self, given: Parts, result: Parts, eager: Parts) -> Parts:
        """Return what a `result` must be: eager's outputs, and the inputs that the step has written
        to, which eager may have left as `given`."""
        wanted = dict(eager)
        for name, value in given.items():
            if name in result:
                self.written.add(name)
                wanted.setdefault(name, value)
            elif name in wanted:
                del wanted[name]
                self.degraded = (
                    f"the module writes to its {name}, but this mode leaves the caller's tensor"
                    " unchanged"
                )
        return wanted

    def follow_in_float64(self) -> Iterator[Parts]:
        """Yield the results of a copy of the module in float64, which is made if one is wanted.
        Raises ValueError if its state is not that of eager's calls: a mode that changes weights, or
        trains batch norms, would be right by its own."""
        changed = self.intact.changed(self.intact.state)
        if changed:
            raise ValueError(f"{min(changed)} has changed since eager's calls")
        unsplit = self.unsplit()
        with gradients.outside_inference_mode():
            module = quantization.double(unsplit.module)
        for result in unsplit.follow(module, module, self.inputs.checked, torch.float64):
            yield self.own_part(result)

    def refuse_own_state(self) -> None:
        """Raise Ended if the mode has its own copy of a buffer that eager's outputs depend on.
        Earlier calls have changed the copy, which cannot be restored."""
        copied = [name for name in self.initial if name.kind != "attribute"]
        if self.mode.writes_state or not copied:
            return
        given = self.inputs.checked[0]
        first, second = self.follow(self.module, self.module, [given, given])
        if self.comparison.compare(second, first).reason:
            raise Ended(
                Status.UNSUPPORTED,
                f"this mode has a copy of the {copied[0]}, which each call changes and effbench"
                " cannot restore there: outputs cannot be compared with eager's",
            )

    # --- figures

    def unpaired(self) -> str | None:
        if self.has_varied_calls:
            return "requests and streams are timed as a whole"
        for name in self.initial:
            # compiled code may depend on a plain value: a change by the other side recompiles it
            if name.kind == "attribute":
                return f"each call changes the module's {name}"
        return None
