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
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from effbench.measure import accuracy

#: Limits of ‖update - expected update‖ ÷ ‖expected update‖: room for rounding in another kernel and
#: in the weight's dtype. Without a step the ratio is 1, with half or twice the step it is at least
#: 0.5.
UPDATE_TOLERANCES = {
    torch.float64: 0.05,
    torch.float32: 0.05,
    torch.bfloat16: 0.25,
    torch.float16: 0.25,
}
#: Losses that differ from eager's by more than this many tolerances are wrong; float64 is not
#: consulted.
FAR = 10
FINITE = sys.float_info.max  # only NaN and infinity exceed it
#: Parameters or buffers by name.
Named = Mapping[str, Tensor]
#: The same, or gradients by parameter: one may have none.
Gradients = Mapping[str, Tensor | None]


@dataclass
class Trajectory:
    """The results of steps from the initial state. All tensors are on the host.

    `first`, `last`: gradients by parameter after the first and the last step. `before`: parameters
    and buffers before the last step. `alone`: parameters updated by a separate optimizer with the
    same gradients.
    """

    losses: list[float]
    first: Gradients
    last: Gradients
    parameters: Named
    buffers: Named
    before: Named
    alone: Named

    def compared(self) -> dict[str, Gradients]:
        """Return the tensors that are compared with eager's, by how messages name them."""
        return {
            "gradient of {} in the first step": self.first,
            "gradient of {} in the last step": self.last,
            "parameter {} after the last step": self.parameters,
            "buffer {}": self.buffers,
        }

    def not_finite(self) -> str | None:
        """Return which loss or gradient of eager's steps is not finite, or None."""
        last = len(self.losses)
        gradients = {1: self.first, last: self.last}
        for number, loss in enumerate(self.losses, 1):
            advice = "; if training diverged, choose a smaller training.lr" if number > 1 else ""
            if not math.isfinite(loss):
                return f"eager's loss is {loss:g} in step {number}{advice}"
            name = accuracy.not_finite(dict(gradients.get(number, {})))
            if name is not None:
                when = "last" if number == last else "first"
                return f"eager's gradient of {name} is not finite in the {when} step{advice}"
        return None


@dataclass(frozen=True)
class Exact:
    """A step in float64: the loss, the gradients, and the buffers after it."""

    loss: float
    gradients: Gradients
    buffers: Named


#: Maps a state (parameters and buffers) and the number of a step (from 0) to this step in float64.
ExactStep = Callable[[Named, int], Exact]


@dataclass
class TrainingComparison:
    """Compares a mode's steps (`ours`) with eager's, both from the state `initial`. `tolerance` is
    relative."""

    ours: Trajectory
    eager: Trajectory
    initial: Named
    tolerance: float

    def error(self) -> float:
        """Return the largest relative error of losses, gradients, parameters and buffers, each kind
        as a whole."""
        losses = map(self.loss_error, self.ours.losses, self.eager.losses)
        kinds = map(joint_error, self.ours.compared().values(), self.eager.compared().values())
        return max(*losses, *kinds)

    def wrong(self) -> str | None:
        """Return what is wrong regardless of a float64 reference, or None."""
        return (
            next(self.losses_beyond(FINITE), None)
            or self.missing_gradient()
            or self.wrong_update()
            or next(self.losses_beyond(FAR * self.tolerance), None)
        )

    def doubts(self, device: torch.device) -> Iterator[str]:
        """Yield what differs from eager's by more than the tolerance. Tensors are compared on
        `device`."""
        yield from self.losses_beyond(self.tolerance)
        wanted = self.eager.compared()
        for words, tensors in self.ours.compared().items():
            for name, ours in tensors.items():
                theirs = wanted[words][name]
                if ours is None or theirs is None:
                    continue
                title = words.format(name)
                verdict = accuracy.compare(
                    {title: ours},
                    {title: theirs},
                    self.tolerance,
                    device,
                )
                if verdict.reason:
                    yield verdict.reason

    def far_from_float64(self, exact: ExactStep) -> str | None:
        """Return None if the first and the last step are about as close to float64 as eager's, else
        what is wrong.

        The limit is the same as for outputs: rmse(ours, exact) <= k × rmse(eager, exact) +
        tolerance ÷ 10 × rms(exact), with k = 2, or 3 for half types. Each side has its own exact
        step, at its own parameters. A single gradient may be pure noise (that of a bias that
        cancels), so an error within the tolerance of all gradients' rms is ignored, and eager's own
        error is that of all gradients together.
        """
        last = len(self.ours.losses) - 1
        exact_ours = exact_eager = exact(self.initial, 0)
        reason = self.wrong_step(0, exact_ours, exact_eager)
        if reason is None and last:
            exact_ours = exact(self.ours.before, last)
            exact_eager = exact(self.eager.before, last)
            reason = self.wrong_step(last, exact_ours, exact_eager)
        if reason is not None:
            return reason
        reason = self.far_from_exact(
            self.ours.buffers,
            exact_ours.buffers,
            self.eager.buffers,
            exact_eager.buffers,
        )
        return f"wrong buffer: {reason}" if reason else None

    def wrong_step(self, number: int, exact_ours: Exact, exact_eager: Exact) -> str | None:
        """Return what is wrong with the loss or the gradients of the first or the last step, or
        None. `number`: from 0."""
        when, ours, eager = "first", self.ours.first, self.eager.first
        if number:
            when, ours, eager = "last", self.ours.last, self.eager.last
        off = joint_error(eager, exact_eager.gradients)
        if not off <= accuracy.MAX_EAGER_ERROR:
            return (
                f"eager's own gradients are {off:.2g} off float64 in the {when} step: they are"
                " random, or too sensitive to compare"
            )
        loss = self.ours.losses[number]
        if self.loss_error(loss, exact_ours.loss) > self.tolerance:
            return (
                f"the loss of the {when} step is {loss:.9g}, but {exact_ours.loss:.9g} in float64"
            )
        reason = self.far_from_exact(
            ours,
            exact_ours.gradients,
            eager,
            exact_eager.gradients,
        )
        return f"wrong gradient in the {when} step: {reason}" if reason else None

    def loss_error(self, ours: float, theirs: float) -> float:
        if ours == theirs:
            return 0.0
        return abs(ours - theirs) / abs(theirs) if theirs else math.inf

    def losses_beyond(self, limit: float) -> Iterator[str]:
        for number, (ours, theirs) in enumerate(
            zip(self.ours.losses, self.eager.losses, strict=True), 1
        ):
            if not self.loss_error(ours, theirs) <= limit:
                yield f"the loss is {ours:.9g} in step {number}, but eager's is {theirs:.9g}"

    def missing_gradient(self) -> str | None:
        for name, ours in self.ours.last.items():
            if (ours is None) != (self.eager.last[name] is None):
                if ours is None:
                    return f"the step has no gradient of {name}, but eager has one"
                return f"eager has no gradient of {name}, but the step has one"
        return None

    def wrong_update(self) -> str | None:
        """Return which parameter's update differs from a separate optimizer's with the same
        gradients, or None."""
        for name, alone in self.ours.alone.items():
            error = self.update_error(self.ours, name, alone)
            # if eager differs too, the module writes to the parameter, such as an embedding with
            # max_norm
            if error and self.update_error(self.eager, name, self.eager.alone[name]):
                error = self.update_error(self.ours, name, self.eager.parameters[name])
            if error:
                return (
                    f"the update of {name} differs from its optimizer's with the same gradients:"
                    f" {error}"
                )
        return None

    def update_error(self, of: Trajectory, name: str, wanted: Tensor) -> str | None:
        """Return the error of a parameter's update if it is too large, or None. `wanted`: the
        updated parameter."""
        before = real(self.initial[name])
        expected = real(wanted) - before
        moved = real(of.parameters[name]) - before
        difference = (moved - expected).norm().item()
        scale = expected.norm().item()
        if difference <= UPDATE_TOLERANCES.get(wanted.dtype, 0.05) * scale:
            return None
        error = difference / scale if scale else math.inf
        return f"relative error {error:.2g}"

    def far_from_exact(
        self, ours: Gradients, exact: Gradients, eager: Gradients, exact_eager: Gradients
    ) -> str | None:
        """Return which tensor is much farther from float64 than eager's, or None. Each side has its
        own `exact` ones."""
        together = joint_rms(exact)
        for name, value in ours.items():
            true, theirs, their_true = exact[name], eager[name], exact_eager[name]
            if value is None or true is None or theirs is None or their_true is None:
                continue
            if not accuracy.is_inexact(theirs):
                if not torch.equal(value, theirs):
                    return f"{name} differs from eager's"
                continue
            error = accuracy.rmse(value, true)
            allowed = accuracy.rmse(theirs, their_true)
            ignored = self.tolerance * max(together, accuracy.rms(true) / 10)
            if not error <= accuracy.factor_of(theirs.dtype) * allowed + ignored:
                return (
                    f"{name} has an error of {error:.2g} against float64, but eager's has"
                    f" {allowed:.2g}"
                )
        return None


def real(values: Tensor) -> Tensor:
    """Return the values in float64, complex ones as pairs."""
    return accuracy.as_real(values).double()


def joint_error(values: Gradients, reference: Gradients) -> float:
    """Return ‖values - reference‖ ÷ ‖reference‖ over all tensors that both have."""
    difference = scale = 0.0
    for name, ours in values.items():
        theirs = reference[name]
        if ours is not None and theirs is not None:
            difference += float((real(ours) - real(theirs)).square().sum())
            scale += float(real(theirs).square().sum())
    if not difference:
        return 0.0
    return math.sqrt(difference / scale) if scale else math.inf


def joint_rms(values: Gradients) -> float:
    """Return the root mean square over all tensors of floats."""
    squares = 0.0
    count = 0
    for value in values.values():
        if value is not None and accuracy.is_inexact(value):
            numbers = real(value)
            squares += float(numbers.square().sum())
            count += numbers.numel()
    return math.sqrt(squares / max(count, 1))
