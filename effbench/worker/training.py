"""The training phase of a trial: what it needs, its reference in eager, its check, its state before and after timing.

`effbench.worker.trial` does all else as for inference: there is one timer and one way to count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from effbench.cell import Cell, Status, Trial
from effbench.measure import accuracy, timing, work
from effbench.measure.training import Inputs, Mean, MeanSquare, Own, Training, inputs_of
from effbench.measure.trajectories import Exact, Trajectory, judge, not_finite, summary
from effbench.models.build import resolve_target
from effbench.worker.failures import Ended

TRAINING = "training"


def refusal(mode: Any, cell: Cell) -> str | None:
    """Why this mode cannot run in the cell's phase, or None. A mode that does not say its `phases` has inference."""
    phases = getattr(mode, "phases", ("inference",))
    if cell.phase in phases:
        return None
    return f"the mode {cell.mode_name} has no {cell.phase} step: it is for {', '.join(phases)}"


def loss_of(settings: dict[str, Any], seed: int) -> Callable[[Any, dict[str, Any]], torch.Tensor]:
    """The loss that `training.loss` names."""
    if settings["loss"] == "mean-square":
        return MeanSquare(seed)
    if settings["loss"] == "mean":
        return Mean()
    return Own(resolve_target(settings["loss"]), settings["loss"])


class Trainer:
    """What a trial with phase=training has in the place of a module that is only called."""

    def __init__(self, cell: Cell, mode: Any, module: torch.nn.Module, steps: int, trial: Trial) -> None:
        settings, seed = cell.training or {}, cell.numerics.get("seed", 0)
        self.cell, self.steps, self.trial = cell, steps, trial
        self.device, self.dtype = torch.device(cell.device), getattr(torch, cell.dtype)
        named = cell.model["inputs"]
        names = [spec["name"] for spec in named if not spec.get("keyword")]
        captured = getattr(mode, "captures_step", False)
        self.training = Training(module, settings, loss_of(settings, seed + 104729), names, seed, captured)
        if self.training.dropped:
            trial.extra["dropout_off"] = self.training.dropped

    def reference(self, inputs: Sequence[Inputs]) -> Trajectory:
        """Eager's steps; must be finite."""
        training = self.training
        eager = training.follow(training.step_over(training.module), inputs, self.steps)
        if reason := not_finite(eager):
            raise Ended(Status.INCORRECT, reason)
        training.restore()
        return eager

    def prepare(self, mode: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The mode's training step: its own, or one over its forward."""
        training = self.training
        if hasattr(mode, "prepare_training"):
            return mode.prepare_training(training.module, training.step_over, args, kwargs)
        prepared = mode.prepare(training.module, args, kwargs)
        return dataclasses.replace(prepared, step=training.step_over(prepared.step), copy_inputs=None)

    def check(self, step: Callable, inputs: Sequence[Inputs], eager: Trajectory) -> None:
        """Compare the mode's steps with eager's, then go back to the initial state: timing begins there."""
        training = self.training
        found = training.follow(step, inputs, self.steps)
        tolerance = self.cell.model.get("tolerance") or accuracy.TOLERANCES.get(self.dtype, 1e-4)

        def exact(state: dict[str, torch.Tensor], number: int) -> Exact:
            return training.exact(state, inputs_of(inputs, number, self.steps))

        verdict = judge(found, eager, training.initial, exact, tolerance, self.device)
        self.trial.rel_error = verdict.error
        self.trial.extra["training"] = summary(found, verdict)
        if verdict.reason:
            raise Ended(Status.INCORRECT, verdict.reason)
        training.restore()

    def diverged(self, step: Callable, inputs: Sequence[Inputs]) -> str | None:
        """After all those timed steps: are loss and parameters still numbers?"""
        args, kwargs = inputs[0]
        loss = step(*args, **kwargs)
        timing.synchronizer(self.device)()
        if reason := self.training.not_finite(loss):
            return f"{reason} after timing: training diverged; choose a smaller training.lr"
        return None

    def count(self, args: tuple, kwargs: dict[str, Any]) -> work.Work:
        return self.training.count(args, kwargs)
