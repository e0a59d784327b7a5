"""Calls that train nothing: how they record gradients, and whether their outputs are eager's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from torch import nn

from effbench.core.cell import Status
from effbench.core.printable import describe
from effbench.measure import accuracy, gradients
from effbench.models.build import set_seed
from effbench.workloads import quantization, state
from effbench.workloads.base import Workload, copies
from effbench.workloads.endings import Ended, is_caused_by_memory, without_float64
from effbench.workloads.first_call import Success, first_success


class Calls(Workload):
    """A workload of calls whose outputs are compared with eager's. `intact`: marks of the state
    that eager's calls do not change."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.intact: dict[state.StateName, Any] = {}
        self.wanted_grad_mode: str = self.cell.numerics.get("grad_mode", gradients.AUTO)
        self.grad_mode = self.wanted_grad_mode
        if self.wanted_grad_mode == gradients.AUTO:  # until eager's calls show it
            self.grad_mode = gradients.INFERENCE

    # --- how calls record gradients

    def example_outputs(self) -> accuracy.Parts:
        """Call the module with a copy of the first inputs, and return its outputs in host
        memory."""
        set_seed(self.seed)
        args, kwargs = copies(self.inputs.checked[0])
        return state.on_host(accuracy.parts(self.module(*args, **kwargs)))

    def first_call(self) -> Success[accuracy.Parts]:
        """Make the first call, which shows whether the module needs gradients. It is outside
        inference mode, because a module may create its state."""
        if self.wanted_grad_mode == gradients.AUTO:
            return first_success(self.example_outputs)
        mode = gradients.NO_GRAD
        if self.wanted_grad_mode == gradients.GRAD:
            mode = gradients.GRAD
        with gradients.recording(mode):
            return Success(mode, self.example_outputs())

    def choose_grad_mode(
        self,
        first: Success[accuracy.Parts],
        start: Callable[[], None],
    ) -> None:
        """Choose inference mode if the module allows it, else the mode of the `first` call, and
        record the choice.

        It depends on the module and its inputs only, so that all modes have the same. `start`:
        restores the state.
        """
        if self.wanted_grad_mode == gradients.AUTO:
            reason = first.reason
            if first.mode == gradients.NO_GRAD:
                reason = self.unfit_for_inference_mode(start)
                start()
            if reason:
                self.grad_mode = first.mode
                self.trial.extra["grad_mode_reason"] = reason
        self.trial.extra["grad_mode"] = self.grad_mode

    def unfit_for_inference_mode(self, start: Callable[[], None]) -> str | None:
        """Return why the module's calls differ in inference mode, or None."""
        outputs = []
        try:
            for mode in (gradients.NO_GRAD, gradients.INFERENCE):
                start()
                with gradients.recording(mode):
                    outputs.append(self.example_outputs())
            reason = self.comparison.compare(outputs[1], outputs[0]).reason
        except Exception as error:  # a module may raise anything without autograd
            if is_caused_by_memory(error):
                raise
            reason = describe(error)
        if reason is None:
            return None
        return f"inference mode: {reason.replace('differs from eager', 'differs from no_grad')}"

    # --- comparison with eager

    @abstractmethod
    def wrong(self) -> str | None:
        """Return how the step's results differ from eager's, or None."""

    def check(self) -> None:
        reason = self.wrong()
        if reason is not None:
            raise Ended(Status.INCORRECT, reason)
        self.restore_state([self.ran])

    def wrong_after_timing(self) -> str | None:
        for given in self.inputs.checked:
            self.renew(given)
        reason = self.wrong()
        if reason is None:
            return None
        return f"outputs differ after timing: {reason}"

    def differs(
        self,
        result: accuracy.Parts,
        eager: accuracy.Parts,
        exact: Callable[[], accuracy.Parts],
    ) -> str | None:
        """Return how a result differs from eager's, or None. `exact`: returns it in float64."""
        verdict = self.comparison.compare(result, eager)
        if verdict.error is not None:
            self.trial.rel_error = max(self.trial.rel_error or 0.0, verdict.error)
        if verdict.reason is None or not verdict.only_values:
            return verdict.reason
        # the tolerance may be too strict for this dtype: float64 decides
        try:
            reason = self.comparison.compare_with_float64(result, eager, exact())
        except Exception as error:  # a module may raise anything in an unexpected dtype
            return without_float64(verdict.reason, error)
        return f"{verdict.reason}; {reason}" if reason else None

    def in_float64(self) -> nn.Module:
        """Return a copy of the module in float64. Raises ValueError if its state is not that of
        eager's calls: a mode that changes weights, or trains batch norms, would be right by its
        own."""
        now = state.marks(self.module, self.intact)
        for name, mark in self.intact.items():
            if now.get(name) != mark:
                raise ValueError(f"{name} has changed since eager's calls")
        with gradients.outside_inference_mode():
            return quantization.double(self.module)
