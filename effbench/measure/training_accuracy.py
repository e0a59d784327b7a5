"""Check training steps against eager's, and their updates against a separate optimizer's.

Parameters after some steps reveal little about the gradients: Adam turns rounding noise of a
gradient near zero into a full step, and half-precision weights cannot represent small updates.
Correct implementations therefore differ in their parameters, and after some steps in their
gradients, while wrong ones may agree. So gradients are compared with eager's or, if they differ,
with float64 gradients at the same parameters. Updates are compared with those of the same optimizer
outside the mode, for the mode's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from effbench.measure.accuracy import (
    MAX_EAGER_ERROR,
    AccuracyVerdict,
    Comparison,
    Parts,
    as_real,
    factor_of,
    is_inexact,
    not_finite,
    ratio,
    rms,
    rmse,
    root_mean_square,
)

#: Limits of ‖update - expected update‖ ÷ ‖expected update‖: room for rounding in another kernel and
#: in the weight's dtype. Without a step the ratio is 1, with half or twice the step it is at least
#: 0.5.
UPDATE_TOLERANCE = 0.05
HALF_TYPE_UPDATE_TOLERANCES = {torch.bfloat16: 0.25, torch.float16: 0.25}
#: Losses that differ from eager's by more than this many tolerances are wrong; float64 is not
#: consulted.
FAR = 10
#: Parameters, buffers or gradients by name.
Named = Mapping[str, Tensor]


@dataclass
class Trajectory:
    """The results of steps from the initial state. All tensors are on the host.

    `first`, `last`: gradients by parameter after the first and the last step. `before`: parameters
    and buffers before the last step. `alone`: parameters updated by a separate optimizer with the
    same gradients.
    """

    losses: list[float]
    first: Named
    last: Named
    parameters: Named
    buffers: Named
    before: Named
    alone: Named

    def compared(self) -> dict[str, Named]:
        """Return the tensors that are compared with eager's, by how messages name them."""
        return {
            "gradient of {} in the first step": self.first,
            "gradient of {} in the last step": self.last,
            "parameter {} after the last step": self.parameters,
            "buffer {}": self.buffers,
        }

    def by_title(self) -> Parts:
        """Return the tensors that are compared with eager's."""
        return {
            words.format(name): value
            for words, tensors in self.compared().items()
            for name, value in tensors.items()
        }

    def not_finite(self) -> str | None:
        """Return which loss or gradient is not finite, or None."""
        gradients = {1: self.first, len(self.losses): self.last}
        by_reason: Parts = {}
        for number, loss in enumerate(self.losses, 1):
            by_reason[f"the loss is not finite in step {number}"] = torch.tensor(loss)
            for name, value in gradients.get(number, {}).items():
                by_reason[f"the gradient of {name} is not finite in step {number}"] = value
        return not_finite(by_reason)


@dataclass(frozen=True)
class Exact:
    """A step in float64: the loss, the gradients, and the buffers after it."""

    loss: float
    gradients: Named
    buffers: Named


@dataclass
class TrainingComparison:
    """Compares a mode's steps (`ours`) with eager's, both from the state `initial`. `tolerance` is
    relative. `device`: for large tensors."""

    ours: Trajectory
    eager: Trajectory
    initial: Named
    tolerance: float
    device: torch.device

    def error(self) -> float:
        """Return the largest relative error of losses, gradients, parameters and buffers, each kind
        as a whole."""
        losses = map(loss_error, self.ours.losses, self.eager.losses)
        kinds = map(joint_error, self.ours.compared().values(), self.eager.compared().values())
        return max(*losses, *kinds)

    def verdict(self) -> AccuracyVerdict:
        """Return the result of the comparison. Float64 can decide about small differences of losses
        and tensors, but not about updates and missing gradients."""
        comparison = Comparison(tolerance=self.tolerance, device=self.device)
        tensors = comparison.compare(self.ours.by_title(), self.eager.by_title())
        doubt = self.loss_beyond(self.tolerance) or tensors.reason
        wrong = self.ours.not_finite()
        if wrong is None and not tensors.only_values:
            wrong = tensors.reason
        wrong = wrong or self.wrong_update() or self.loss_beyond(FAR * self.tolerance)
        return AccuracyVerdict(self.error(), wrong or doubt, only_values=wrong is None)

    def loss_beyond(self, limit: float) -> str | None:
        losses = zip(self.ours.losses, self.eager.losses, strict=True)
        for number, (ours, theirs) in enumerate(losses, 1):
            if loss_error(ours, theirs) > limit:
                return f"the loss is {ours:.9g} in step {number}, but eager's is {theirs:.9g}"
        return None

    # --- updates

    def wrong_update(self) -> str | None:
        """Return which parameter's update differs from a separate optimizer's with the same
        gradients, or None."""
        for name, alone in self.ours.alone.items():
            limit = HALF_TYPE_UPDATE_TOLERANCES.get(alone.dtype, UPDATE_TOLERANCE)
            error = self.update_error(self.ours, name, alone)
            # if eager differs too, the module writes to the parameter, such as an embedding with
            # max_norm
            if error > limit < self.update_error(self.eager, name, self.eager.alone[name]):
                error = self.update_error(self.ours, name, self.eager.parameters[name])
            if error > limit:
                return (
                    f"the update of {name} differs from its optimizer's with the same gradients:"
                    f" relative error {error:.2g}"
                )
        return None

    def update_error(self, of: Trajectory, name: str, wanted: Tensor) -> float:
        """Return the relative error of a parameter's update. `wanted`: the updated parameter."""
        expected = real(wanted) - real(self.initial[name])
        difference = real(of.parameters[name]) - real(wanted)
        return ratio(norm([difference]), norm([expected]))

    # --- float64

    def far_from_float64(self, first: Exact, of_ours: Exact, of_eager: Exact) -> str | None:
        """Return None if the first and the last step are about as close to float64 as eager's, else
        what is wrong. `first`: the step from the initial state; `of_ours`, `of_eager`: the last
        step from the state `before` it of each side.

        The limit is the same as for outputs: rmse(ours, exact) <= k × rmse(eager, exact) +
        tolerance ÷ 10 × rms(exact), with k = 2, or 3 for half types. Each side has its own exact
        step, at its own parameters. A single gradient may be pure noise (that of a bias that
        cancels), so an error within the tolerance of all gradients' rms is ignored, and eager's own
        error is that of all gradients together.
        """
        ours, eager = self.ours, self.eager
        reason = self.wrong_step("first", ours.losses[0], first, first)
        reason = reason or self.wrong_step("last", ours.losses[-1], of_ours, of_eager)
        if reason is not None:
            return reason
        reason = self.far_from_exact(ours.buffers, of_ours.buffers, eager.buffers, of_eager.buffers)
        return f"wrong buffer: {reason}" if reason else None

    def wrong_step(
        self, when: str, loss: float, exact_ours: Exact, exact_eager: Exact
    ) -> str | None:
        """Return what is wrong with the `loss` or the gradients of the `first` or the `last` step,
        or None."""
        ours: Named = getattr(self.ours, when)
        eager: Named = getattr(self.eager, when)
        off = joint_error(eager, exact_eager.gradients)
        if off > MAX_EAGER_ERROR:
            return (
                f"eager's own gradients are {off:.2g} off float64 in the {when} step: they are"
                " random, or too sensitive to compare"
            )
        if loss_error(loss, exact_ours.loss) > self.tolerance:
            return (
                f"the loss of the {when} step is {loss:.9g}, but {exact_ours.loss:.9g} in float64"
            )
        reason = self.far_from_exact(ours, exact_ours.gradients, eager, exact_eager.gradients)
        return f"wrong gradient in the {when} step: {reason}" if reason else None

    def far_from_exact(
        self, ours: Named, exact: Named, eager: Named, exact_eager: Named
    ) -> str | None:
        """Return which tensor is much farther from float64 than eager's, or None. Each side has its
        own `exact` ones."""
        floats = filter(is_inexact, exact.values())
        together = root_mean_square(map(as_real, floats))
        for name, value in ours.items():
            theirs = eager[name]
            if not is_inexact(theirs):
                if not torch.equal(value, theirs):
                    return f"{name} differs from eager's"
                continue
            error = rmse(value, exact[name])
            allowed = rmse(theirs, exact_eager[name])
            ignored = self.tolerance * max(together, rms(exact[name]) / 10)
            if not error <= factor_of(theirs.dtype) * allowed + ignored:
                return (
                    f"{name} has an error of {error:.2g} against float64, but eager's has"
                    f" {allowed:.2g}"
                )
        return None


def loss_error(ours: float, theirs: float) -> float:
    """Return the relative error of a loss."""
    return ratio(abs(ours - theirs), abs(theirs))


def real(values: Tensor) -> Tensor:
    """Return the values in float64, complex ones as pairs."""
    return as_real(values).double()


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean norm of all values of these tensors."""
    return math.sqrt(sum(float(real(values).square().sum()) for values in tensors))


def joint_error(values: Named, reference: Named) -> float:
    """Return ‖values - reference‖ ÷ ‖reference‖ over all tensors that both have."""
    names = [name for name in values if name in reference]
    differences = (real(values[name]) - real(reference[name]) for name in names)
    return ratio(norm(differences), norm(reference[name] for name in names))
