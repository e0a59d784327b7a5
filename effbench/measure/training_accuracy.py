"""Accuracy of training steps: losses, gradients, parameters and buffers against eager's, the update against the
optimizer's own.

Parameters after some steps say little about the gradients: Adam makes a full step of the rounding noise of a gradient
near zero, and weights of half precision cannot hold a small update at all. Two correct implementations differ there, a
wrong one could hide there, and some steps later even their gradients are taken at different points. So gradients are
compared with eager's or, if those differ, each with float64 at the parameters where it was taken; and the update with
that of the same optimizer outside the mode, given the mode's gradients.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from effbench.measure import accuracy

#: ‖update - expected update‖ ÷ ‖expected update‖: the same arithmetic in another kernel, rounded to the weight's dtype.
#: No step at all is 1, half or twice the step 0.5 or more.
UPDATE_TOLERANCES = {torch.float64: 0.05, torch.float32: 0.05, torch.bfloat16: 0.25, torch.float16: 0.25}
#: Losses further from eager's than so many tolerances are wrong without a float64 reference.
FAR = 10
FINITE = sys.float_info.max  # only what is not finite is further off
#: What is compared with eager's: attribute of a trajectory -> how messages name one of its tensors.
COMPARED = {
    "first": "gradient of {} in the first step",
    "last": "gradient of {} in the last step",
    "parameters": "parameter {} after the last step",
    "buffers": "buffer {}",
}

#: Tensors by the names of parameters or buffers; a parameter may have no gradient.
Named = dict[str, Tensor | None]


@dataclass
class Trajectory:
    """Some steps from the initial state; all tensors on the host.

    `first`, `last`: gradients by parameter after the first and the last step; `before`: parameters and buffers before
    the last one; `alone`: the parameters of the separate optimizer that was given the same gradients; `scale`:
    magnitude of a loss that may cancel, None: the loss itself.
    """

    losses: list[float]
    first: Named
    last: Named
    parameters: Named
    buffers: Named
    before: Named
    alone: Named
    scale: float | None = None

    def not_finite(self) -> str | None:
        """Return what is not finite in eager's own steps, or None."""
        for number, loss in enumerate(self.losses, 1):
            if not math.isfinite(loss):
                return f"eager's loss is {loss:g} in step {number}"
            when, gradients = {len(self.losses): ("last", self.last), 1: ("first", self.first)}.get(number, ("", {}))
            for name, value in gradients.items():
                if value is not None and not bool(torch.isfinite(value).all()):
                    return f"eager's gradient of {name} is not finite in the {when} step"
        return None


class Exact(NamedTuple):
    """One step in float64: the loss, the gradients and the buffers after it."""

    loss: float
    gradients: Named
    buffers: Named


#: From a state (parameters and buffers) and the number of a step, counted from 0, to that step in float64.
ExactStep = Callable[[Named, int], Exact]


@dataclass
class Comparison:
    """The steps of a mode against eager's, both from the state `initial`. `tolerance` is relative."""

    found: Trajectory
    eager: Trajectory
    initial: Named
    tolerance: float

    def error(self) -> float:
        """Return the worst relative error of losses, gradients, parameters and buffers, tensors of a kind together."""
        losses = map(self.loss_error, self.found.losses, self.eager.losses)
        return max(*losses, *(joint_error(getattr(self.found, of), getattr(self.eager, of)) for of in COMPARED))

    def wrong(self) -> str | None:
        """Return what is wrong whatever float64 says, or None."""
        return (
            next(self.losses_beyond(FINITE), None)
            or self.missing_gradient()
            or self.wrong_update()
            or next(self.losses_beyond(FAR * self.tolerance), None)
        )

    def doubts(self, device: torch.device) -> Iterator[str]:
        """Yield what differs from eager's by more than the tolerance; compared on `device`."""
        yield from self.losses_beyond(self.tolerance)
        for attribute, words in COMPARED.items():
            theirs = getattr(self.eager, attribute)
            for name, ours in getattr(self.found, attribute).items():
                if ours is not None and theirs[name] is not None:
                    pair = ({words.format(name): value.to(device)} for value in (ours, theirs[name]))
                    if reason := accuracy.compare(*pair, self.tolerance).reason:
                        yield reason

    def far_from_float64(self, exact: ExactStep) -> str | None:
        """Return None if the first and the last step are about as near to float64 as eager's are, else what is wrong.

        rmse(ours, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact), k = 2, or 3 for half types, as for
        outputs; exact is taken at the parameters of each. A single gradient may be pure noise (of a bias that cancels):
        an error within the tolerance of all gradients' rms is ignored, and eager itself is judged by all of them
        together.
        """
        found, eager, last = self.found, self.eager, len(self.found.losses) - 1
        start = exact(self.initial, 0)
        steps = [("first", 0, found.first, eager.first, start, start)]
        if last:
            steps.append(("last", last, found.last, eager.last, exact(found.before, last), exact(eager.before, last)))
        for when, number, ours, theirs, near_ours, near_eager in steps:
            off, loss = joint_error(theirs, near_eager.gradients), found.losses[number]
            if not off <= accuracy.MAX_EAGER_ERROR:
                off_by = f"{off:.2g} off float64 in the {when} step"
                return f"eager's own gradients are {off_by}: random, or not to be compared"
            if self.loss_error(loss, near_ours.loss) > self.tolerance:
                return f"the loss of the {when} step is {loss:.6g}, in float64 {near_ours.loss:.6g}"
            if reason := self.far_from_exact(ours, near_ours.gradients, theirs, near_eager.gradients):
                return f"wrong gradient in the {when} step: {reason}"
        reason = self.far_from_exact(found.buffers, near_ours.buffers, eager.buffers, near_eager.buffers)
        return reason and f"wrong buffer: {reason}"

    def loss_error(self, ours: float, theirs: float) -> float:
        size = max(abs(theirs), self.eager.scale or 0.0)
        if ours == theirs:
            return 0.0
        return abs(ours - theirs) / size if size else math.inf

    def losses_beyond(self, limit: float) -> Iterator[str]:
        for number, (ours, theirs) in enumerate(zip(self.found.losses, self.eager.losses, strict=True), 1):
            if not self.loss_error(ours, theirs) <= limit:
                yield f"the loss is {ours:.6g} in step {number}, eager's is {theirs:.6g}"

    def missing_gradient(self) -> str | None:
        for name, ours in self.found.last.items():
            if (ours is None) != (self.eager.last[name] is None):
                without, owner = ("the step", "eager") if ours is None else ("eager", "the step")
                return f"{without} has no gradient of {name}, {owner} has one"
        return None

    def wrong_update(self) -> str | None:
        """Return which parameter did not move as its optimizer moves it with the step's gradients, or None."""
        for name, alone in self.found.alone.items():
            before = self.initial[name].double()
            wanted, moved = alone.double() - before, self.found.parameters[name].double() - before
            difference, scale = (moved - wanted).norm().item(), wanted.norm().item()
            if not difference <= UPDATE_TOLERANCES.get(alone.dtype, 0.05) * scale:
                error = f"relative error {difference / scale if scale else math.inf:.2g}"
                return f"{name} moved otherwise than its optimizer moves it with these gradients: {error}"
        return None

    def far_from_exact(self, ours: Named, our_exact: Named, theirs: Named, their_exact: Named) -> str | None:
        known = [value for value in our_exact.values() if value is not None and accuracy.is_inexact(value)]
        squares, count = sum(float(value.square().sum()) for value in known), sum(value.numel() for value in known)
        together = math.sqrt(squares / max(count, 1))
        for name, own in ours.items():
            true, eagers = our_exact[name], theirs[name]
            if own is None or true is None or eagers is None:
                continue
            if not accuracy.is_inexact(eagers):
                if not torch.equal(own, eagers):
                    return f"{name} is not eager's"
                continue
            error, allowed = accuracy.rmse(own, true), accuracy.rmse(eagers, their_exact[name])
            ignored = self.tolerance * max(together, accuracy.rms(true) / 10)
            if not error <= accuracy.factor_of(eagers.dtype) * allowed + ignored:
                return f"{name} has an error of {error:.2g} against float64, eager's has {allowed:.2g}"
        return None


def joint_error(found: Named, reference: Named) -> float:
    """Return ‖found - reference‖ ÷ ‖reference‖ over all tensors that both have."""
    difference = scale = 0.0
    for name, ours in found.items():
        theirs = reference[name]
        if ours is not None and theirs is not None:
            difference += float((ours.double() - theirs.double()).square().sum())
            scale += float(theirs.double().square().sum())
    if not difference:
        return 0.0
    return math.sqrt(difference / scale) if scale else math.inf
