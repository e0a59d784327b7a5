"""Accuracy of training steps: losses, gradients, parameters and buffers against eager's, the update against the
optimizer's own.

Parameters after some steps say little about the gradients: Adam divides each gradient by its own size, so that the
rounding noise of a gradient near zero becomes a step of full length, in either direction; and weights of half precision
cannot hold a small update at all. Two correct implementations differ there, a wrong one could hide there, and some
steps later even their gradients are taken at different points. So the two halves of a step are judged separately:
gradients against eager's or, if those differ, each against float64 at the parameters where it was taken; and the update
against that of the same optimizer outside the mode, given the mode's gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from effbench.measure import accuracy

#: ‖update - expected update‖ ÷ ‖expected update‖: the same arithmetic in another kernel, rounded to the weight's dtype.
#: No step at all is 1, half or twice the step 0.5 or more.
UPDATE_TOLERANCES = {torch.float64: 0.05, torch.float32: 0.05, torch.bfloat16: 0.25, torch.float16: 0.25}

#: Losses further from eager's than so many tolerances are wrong without a float64 reference.
FAR = 10


@dataclass
class Trajectory:
    """Some steps from the initial state; all tensors on the host.

    `first`, `last`: gradients by parameter after the first and the last step; `before`: parameters and buffers before
    the last one; `alone`: the parameters of the separate optimizer that was given the same gradients; `scale`:
    magnitude of a loss that may cancel, None: the loss itself.
    """

    losses: list[float]
    first: dict[str, Tensor | None]
    last: dict[str, Tensor | None]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    before: dict[str, Tensor]
    alone: dict[str, Tensor]
    scale: float | None = None


@dataclass
class Exact:
    """One step in float64: the loss, the gradients and the buffers after it."""

    loss: float
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


#: From a state (parameters and buffers) and the number of a step, counted from 0, to that step in float64.
ExactStep = Callable[[dict[str, Tensor], int], Exact]


@dataclass
class TrainingVerdict:
    """`error`: the worst of losses, all gradients together, all parameters together and all buffers, relative to eager.
    `reason`: what is wrong, or None. `by_float64`: float64 decided."""

    error: float
    reason: str | None = None
    by_float64: bool = False
    doubts: list[str] = field(default_factory=list)


def not_finite(eager: Trajectory) -> str | None:
    """Return what is not finite in eager's own steps, or None."""

    def bad_loss(first: int, last: int) -> str | None:
        numbered = enumerate(eager.losses[first:last], first + 1)
        bad = (f"eager's loss is {loss:g} in step {number}" for number, loss in numbered if not math.isfinite(loss))
        return next(bad, None)

    def bad_gradient(when: str, gradients: dict[str, Tensor | None]) -> str | None:
        for name, value in gradients.items():
            if value is not None and not bool(torch.isfinite(value).all()):
                return f"eager's gradient of {name} is not finite in the {when} step"
        return None

    steps = len(eager.losses)
    return (
        bad_loss(0, 1) or bad_gradient("first", eager.first) or bad_loss(1, steps) or bad_gradient("last", eager.last)
    )


def judge(
    found: Trajectory,
    eager: Trajectory,
    initial: dict[str, Tensor],
    exact: ExactStep,
    tolerance: float,
    device: torch.device,
) -> TrainingVerdict:
    """Compare `found` with `eager`, both from `initial`. `exact` is used only if eager is too strict. `tolerance` is
    relative."""
    verdict = TrainingVerdict(
        max(
            losses_error(found, eager),
            joint_error(found.first, eager.first),
            joint_error(found.last, eager.last),
            joint_error(found.parameters, eager.parameters),
            joint_error(found.buffers, eager.buffers),
        )
    )
    verdict.reason = plainly_wrong(found, eager) or update_reason(found, initial) or far_off(found, eager, tolerance)
    if verdict.reason:
        return verdict
    verdict.doubts = list(doubts(found, eager, tolerance, device))
    if not verdict.doubts:
        return verdict
    verdict.by_float64 = True
    try:
        verdict.reason = float64_reason(found, eager, initial, exact, tolerance)
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        verdict.reason = f"{verdict.doubts[0]}; no float64 reference ({type(error).__name__}: {first_line})"
    return verdict


def losses_error(found: Trajectory, eager: Trajectory) -> float:
    """Return the relative error of the worst step."""
    pairs = zip(found.losses, eager.losses, strict=True)
    return max(loss_error(ours, theirs, eager.scale) for ours, theirs in pairs)


def loss_error(ours: float, theirs: float, scale: float | None) -> float:
    size = max(abs(theirs), scale or 0.0)
    if ours == theirs:
        return 0.0
    return abs(ours - theirs) / size if size else math.inf


def joint_error(found: dict[str, Any], reference: dict[str, Any]) -> float:
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


def plainly_wrong(found: Trajectory, eager: Trajectory) -> str | None:
    """Return an obvious error: a loss that is not finite, or a gradient that only one of them has."""
    for number, (ours, theirs) in enumerate(zip(found.losses, eager.losses, strict=True), 1):
        if not math.isfinite(ours):
            return f"the loss is {ours:g} in step {number}, eager's is {theirs:.6g}"
    for name, ours in found.last.items():
        if (ours is None) != (eager.last[name] is None):
            who = ("the step", "eager") if ours is None else ("eager", "the step")
            return f"{who[0]} has no gradient of {name}, {who[1]} has one"
    return None


def update_reason(found: Trajectory, initial: dict[str, Tensor]) -> str | None:
    """Return which parameter did not move as its optimizer moves it with the step's gradients, or None."""
    for name, alone in found.alone.items():
        before = initial[name].double()
        wanted, moved = alone.double() - before, found.parameters[name].double() - before
        difference, scale = (moved - wanted).norm().item(), wanted.norm().item()
        limit = UPDATE_TOLERANCES.get(alone.dtype, 0.05)
        if not difference <= limit * scale:
            error = difference / scale if scale else math.inf
            return (
                f"{name} moved otherwise than its optimizer moves it with these gradients: relative error {error:.2g}"
            )
    return None


def far_off(found: Trajectory, eager: Trajectory, tolerance: float) -> str | None:
    """Return the first loss that is far from eager's."""
    for number, (ours, theirs) in enumerate(zip(found.losses, eager.losses, strict=True), 1):
        if loss_error(ours, theirs, eager.scale) > FAR * tolerance:
            return f"the loss is {ours:.6g} in step {number}, eager's is {theirs:.6g}"
    return None


def doubts(found: Trajectory, eager: Trajectory, tolerance: float, device: torch.device) -> Iterator[str]:
    """Yield what differs from eager's by more than the tolerance."""
    for number, (ours, theirs) in enumerate(zip(found.losses, eager.losses, strict=True), 1):
        if loss_error(ours, theirs, eager.scale) > tolerance:
            yield f"the loss is {ours:.6g} in step {number}, eager's is {theirs:.6g}"
    parts = (("gradient of {} in the first step", "first"), ("gradient of {} in the last step", "last"),
             ("parameter {} after the last step", "parameters"), ("buffer {}", "buffers"))  # fmt: skip
    for words, part in parts:
        theirs = getattr(eager, part)
        for name, ours in getattr(found, part).items():
            if ours is not None and theirs[name] is not None:
                verdict = accuracy.compare(ours.to(device), theirs[name].to(device), tolerance)
                if not verdict.correct:
                    yield f"{words.format(name)} {str(verdict.reason).removeprefix('output ')}"


def float64_reason(
    found: Trajectory, eager: Trajectory, initial: dict[str, Tensor], exact: ExactStep, tolerance: float
) -> str | None:
    """Return None if the first and the last step are about as near to float64 as eager's are, else what is wrong.

    rmse(ours, exact) <= k × rmse(eager, exact) + tolerance ÷ 10 × rms(exact), k = 2, or 3 for half types, as for
    outputs; exact is taken at the parameters of each. A single gradient may be pure noise (of a bias that cancels): an
    error within the tolerance of all gradients' rms is ignored, and eager itself is judged by all of them together.
    """
    last = len(found.losses) - 1
    start = exact(initial, 0)
    steps = [("first", 0, found.first, eager.first, start, start)]
    if last:
        steps.append(("last", last, found.last, eager.last, exact(found.before, last), exact(eager.before, last)))
    for when, number, ours, theirs, near_ours, near_eager in steps:
        off = joint_error(theirs, near_eager.gradients)
        if not off <= accuracy.MAX_EAGER_ERROR:
            return f"eager's own gradients are {off:.2g} off float64 in the {when} step: random, or not to be compared"
        if loss_error(found.losses[number], near_ours.loss, eager.scale) > tolerance:
            return f"the loss of the {when} step is {found.losses[number]:.6g}, in float64 {near_ours.loss:.6g}"
        reason = far_from_exact(ours, near_ours.gradients, theirs, near_eager.gradients, tolerance)
        if reason:
            return f"wrong gradient in the {when} step: {reason}"
    _, _, _, _, near_ours, near_eager = steps[-1]
    reason = far_from_exact(found.buffers, near_ours.buffers, eager.buffers, near_eager.buffers, tolerance)
    return reason and f"wrong buffer: {reason}"


def far_from_exact(
    ours: dict[str, Any],
    our_exact: dict[str, Any],
    theirs: dict[str, Any],
    their_exact: dict[str, Any],
    tolerance: float,
) -> str | None:
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
        factor = 3 if eagers.dtype in accuracy.HALF else 2
        error, allowed = accuracy.rmse(own, true), accuracy.rmse(eagers, their_exact[name])
        if not error <= factor * allowed + tolerance * max(together, accuracy.rmse(true, true * 0) / 10):
            return f"{name} has an error of {error:.2g} against float64, eager's has {allowed:.2g}"
    return None


def summary(found: Trajectory, verdict: TrainingVerdict) -> dict[str, Any]:
    """Return the facts for the trial's record."""
    return {
        "steps": len(found.losses),
        "losses": found.losses,
        "judged_by_float64": verdict.by_float64,
        "not_within_tolerance": len(verdict.doubts),
    }
