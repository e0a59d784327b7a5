"""What a trial calls, by phase: inference calls the module, training takes steps over it. Each phase has its reference
in eager and its check; everything else of a trial is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from effbench.cell import Cell, Status, Trial
from effbench.measure import accuracy, timing, work
from effbench.measure.timing import Inputs
from effbench.measure.training import Mean, MeanSquare, Training, UserLoss, inputs_of
from effbench.measure.training_accuracy import Exact, Trajectory, judge, not_finite, summary
from effbench.models.build import resolve_target
from effbench.modes.base import Mode, Prepared
from effbench.worker import failures
from effbench.worker.failures import Ended

TRAINING = "training"


def copies(inputs: Inputs) -> Inputs:
    """Return copies that are tensors of the same kind: clones made in inference mode are of another, for which Dynamo
    would compile a second graph."""
    with torch.inference_mode(False):
        return accuracy.clone(inputs)


def workload_of(cell: Cell, mode: Mode, module: torch.nn.Module, check_steps: int, trial: Trial) -> Inference:
    if cell.phase == TRAINING:
        return TrainingSteps(cell, mode, module, trial, check_steps)
    return Inference(cell, mode, module, trial)


class Inference:
    """The module as it is called."""

    def __init__(self, cell: Cell, mode: Mode, module: torch.nn.Module, trial: Trial) -> None:
        self.cell, self.mode, self.module, self.trial = cell, mode, module, trial
        self.device = torch.device(cell.device)

    def context(self) -> AbstractContextManager[Any]:
        """Everything is called in this context."""
        return torch.inference_mode()

    def reference(self, inputs: Sequence[Inputs]) -> Any:
        """Return eager's outputs for all input sets, cloned. The module gets copies: it may write into its inputs."""
        references = []
        for given in inputs:
            args, kwargs = copies(given)
            references.append(accuracy.kept(self.module(*args, **kwargs)))
        timing.synchronizer(self.device)()
        if not accuracy.leaves(references[0]):
            kind = type(references[0]).__name__
            advice = "return tensors, or a tuple, list or dict of them"
            raise Ended(Status.ERROR, f"in check: the output ({kind}) holds no tensor to compare: {advice}")
        if not self.cell.model.get("allow_nonfinite"):
            for reference in references:
                if reason := accuracy.not_finite(reference):
                    raise Ended(Status.INCORRECT, reason)
        return references

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return self.mode.prepare(self.module, args, kwargs)

    def check(self, step: Callable, inputs: Sequence[Inputs], references: Any) -> None:
        """Compare the step with eager on every input set."""
        tolerance = self.cell.model.get("tolerance")
        for given, reference in zip(inputs, references, strict=True):
            args, kwargs = copies(given)
            output = accuracy.kept(step(*args, **kwargs))
            timing.synchronizer(self.device)()
            verdict = accuracy.compare(output, reference, tolerance)
            if verdict.error is not None:
                self.trial.rel_error = max(self.trial.rel_error or 0.0, verdict.error)
            if verdict.correct:
                continue
            if not verdict.only_values:
                raise Ended(Status.INCORRECT, str(verdict.reason))
            # the tolerance may be too strict for this dtype: float64 decides
            self.trial.extra["judged_by_float64"] = True
            if reason := self.far_from_float64(given, output, reference):
                raise Ended(Status.INCORRECT, f"{verdict.reason}; {reason}")

    def far_from_float64(self, given: Inputs, output: Any, reference: Any) -> str | None:
        """Return None if `output` is as near to the float64 result as eager's is, else what is wrong; also for a module
        that cannot run in float64."""
        args, kwargs = copies(given)
        try:
            exact = accuracy.in_float64(self.module)(*args, **kwargs)
            return accuracy.compare_with_float64(output, reference, exact, self.cell.model.get("tolerance"))
        except Exception as error:
            return f"no float64 reference ({failures.describe(error)})"

    def diverged(self, step: Callable, inputs: Sequence[Inputs]) -> str | None:
        """Return what became wrong while timing, or None."""
        return None

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        """Count the work of one call."""
        return work.count(self.module, args, kwargs)


class TrainingSteps(Inference):
    """Training steps over the module: loss, backward, optimizer."""

    def __init__(self, cell: Cell, mode: Mode, module: torch.nn.Module, trial: Trial, check_steps: int) -> None:
        super().__init__(cell, mode, module, trial)
        settings, seed, self.check_steps = cell.training or {}, cell.numerics.get("seed", 0), check_steps
        names = [spec["name"] for spec in cell.model["inputs"] if not spec.get("keyword")]
        loss = loss_of(settings["loss"], seed + 104729)
        self.training = Training(module, settings, loss, names, seed, mode.captures_step)
        if self.training.dropped:
            trial.extra["dropout_off"] = self.training.dropped

    def context(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def reference(self, inputs: Sequence[Inputs]) -> Trajectory:
        """Return eager's steps, which must be finite."""
        training = self.training
        eager = training.follow(training.step_over(training.module), inputs, self.check_steps)
        if reason := not_finite(eager):
            raise Ended(Status.INCORRECT, reason)
        training.restore()
        return eager

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        return self.mode.prepare_training(self.module, self.training.step_over, args, kwargs)

    def check(self, step: Callable, inputs: Sequence[Inputs], references: Trajectory) -> None:
        """Compare the mode's steps with eager's, then return to the initial state: timing begins there."""
        training = self.training
        found = training.follow(step, inputs, self.check_steps)
        dtype = getattr(torch, self.cell.dtype)
        tolerance = self.cell.model.get("tolerance") or accuracy.TOLERANCES.get(dtype, 1e-4)

        def exact(state: dict[str, torch.Tensor], number: int) -> Exact:
            return training.exact(state, inputs_of(inputs, number, self.check_steps))

        verdict = judge(found, references, training.initial, exact, tolerance, self.device)
        self.trial.rel_error = verdict.error
        self.trial.extra["training"] = summary(found, verdict)
        if verdict.reason:
            raise Ended(Status.INCORRECT, verdict.reason)
        training.restore()

    def diverged(self, step: Callable, inputs: Sequence[Inputs]) -> str | None:
        """Return which of loss and parameters is no number after all the timed steps, or None."""
        args, kwargs = inputs[0]
        loss = step(*args, **kwargs)
        timing.synchronizer(self.device)()
        if reason := self.training.not_finite(loss):
            return f"{reason} after timing: training diverged; choose a smaller training.lr"
        return None

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        return self.training.count(args, kwargs)


def loss_of(name: str, seed: int) -> Callable[[Any, dict[str, Any]], torch.Tensor]:
    """Return the loss that `training.loss` names."""
    if name == "mean-square":
        return MeanSquare(seed)
    if name == "mean":
        return Mean()
    return UserLoss(resolve_target(name), name)
