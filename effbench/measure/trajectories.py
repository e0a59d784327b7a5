"""Are some steps of training right? Losses, gradients, parameters and buffers against eager's, the update against the
optimizer's own.

Parameters after some steps are a poor witness of the gradients: Adam divides each gradient by its own size, so that
where a gradient is nearly zero its rounding noise becomes a step of full length, in either direction; and weights of
half precision cannot hold a small update at all. Two right ways therefore differ there, a wrong one hides there. So
the two halves of a step are judged apart: gradients against eager's (with float64 as the judge), and what the optimizer
made of them against the same optimizer outside the mode, fed with the very gradients that the mode came to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from effbench.measure import accuracy

#: ‖update - the optimizer's own‖ ÷ ‖the optimizer's own‖: the same arithmetic in another kernel, rounded to the
#: weight's dtype. No step at all is 1, half or twice the step 0.5 or more.
UPDATE_TOLERANCES = {torch.float64: 0.05, torch.float32: 0.05, torch.bfloat16: 0.25, torch.float16: 0.25}


@dataclass
class Trajectory:
    """Some steps from the initial state; all tensors on the host. `first` and `last`: gradients by parameter after the
    first and the last step; `alone`: the parameters of the optimizer that was given the same gradients; `scale`: what
    the loss is measured by where it may cancel, None: by itself."""

    losses: list[float]
    first: dict[str, Tensor | None]
    last: dict[str, Tensor | None]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    alone: dict[str, Tensor]
    scale: float | None = None


@dataclass
class Judgement:
    """`error`: the worst of losses, all gradients together, all parameters together and all buffers, relative to eager.
    `reason`: what is wrong, None where nothing is. `by_float64`: the float64 steps were asked."""

    error: float
    reason: str | None = None
    by_float64: bool = False


def not_finite(eager: Trajectory) -> str | None:
    """What of eager's own steps is no number, or None."""
    for number, loss in enumerate(eager.losses, 1):
        if not math.isfinite(loss):
            return f"eager's loss is {loss:g} in step {number}"
    for when, gradients in (("first", eager.first), ("last", eager.last)):
        for name, value in gradients.items():
            if value is not None and not bool(torch.isfinite(value).all()):
                return f"eager's gradient of {name} is not finite in the {when} step"
    return None


def judge(
    found: Trajectory,
    eager: Trajectory,
    initial: dict[str, Tensor],
    exact: Callable[[], Trajectory],
    tolerance: float,
    device: torch.device,
) -> Judgement:
    """Compare `found` with `eager`, both from `initial`. `exact` gives the same steps in float64; it is called at most
    once, and only where eager is too strict a judge. `tolerance` is relative."""
    pairs = {"first": (found.first, eager.first), "last": (found.last, eager.last)}
    verdict = Judgement(max(losses_error(found, eager), *(joint_error(*pair) for pair in pairs.values())))
    verdict.error = max(
        verdict.error, joint_error(found.parameters, eager.parameters), joint_error(found.buffers, eager.buffers)
    )
    verdict.reason = plainly_wrong(found, eager, tolerance) or update_reason(found, initial)
    if verdict.reason:
        return verdict
    wrong = [
        Doubt(f"gradient of {name} in the {when} step", name, when, reason)
        for when, (ours, theirs) in pairs.items()
        for name, reason in differing(ours, theirs, tolerance, device).items()
    ] + [
        Doubt(f"buffer {name}", name, "buffers", reason)
        for name, reason in differing(found.buffers, eager.buffers, tolerance, device).items()
    ]
    if not wrong:
        return verdict
    verdict.by_float64 = True
    try:
        true = exact()
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        verdict.reason = f"{wrong[0].what} {wrong[0].reason}; no float64 reference ({why})"
        return verdict
    verdict.reason = by_float64(wrong, found, eager, true, tolerance)
    return verdict


@dataclass(frozen=True)
class Doubt:
    """A tensor that is not eager's within the tolerance; `part`: of the trajectory."""

    what: str
    name: str
    part: str
    reason: str


def losses_error(found: Trajectory, eager: Trajectory) -> float:
    """The worst step's, relative."""
    worst = 0.0
    for ours, theirs in zip(found.losses, eager.losses, strict=True):
        difference, scale = abs(ours - theirs), max(abs(theirs), eager.scale or 0.0)
        worst = max(worst, (difference / scale if scale else math.inf) if difference else 0.0)
    return worst


def joint_error(found: dict[str, Tensor | None], reference: dict[str, Tensor | None]) -> float:
    """‖found - reference‖ ÷ ‖reference‖ over all tensors that both have."""
    difference = scale = 0.0
    for name, ours in found.items():
        theirs = reference[name]
        if ours is not None and theirs is not None and ours.shape == theirs.shape:
            difference += float((ours.double() - theirs.double()).square().sum())
            scale += float(theirs.double().square().sum())
    if not difference:
        return 0.0
    return math.sqrt(difference / scale) if scale else math.inf


def plainly_wrong(found: Trajectory, eager: Trajectory, tolerance: float) -> str | None:
    """What needs no judge: losses, missing gradients, and parameters that are far from eager's as a whole."""
    for number, (ours, theirs) in enumerate(zip(found.losses, eager.losses, strict=True), 1):
        if not math.isfinite(ours):
            return f"the loss is {ours:g} in step {number}, eager's is {theirs:.6g}"
        if abs(ours - theirs) > tolerance * max(abs(theirs), eager.scale or 0.0):
            return f"the loss is {ours:.6g} in step {number}, eager's is {theirs:.6g} (tolerance {tolerance:g})"
    for name, ours in found.last.items():
        if (ours is None) != (eager.last[name] is None):
            who = ("the step", "eager") if ours is None else ("eager", "the step")
            return f"{who[0]} has no gradient of {name}, {who[1]} has one"
    error = joint_error(found.parameters, eager.parameters)
    if not error <= tolerance:
        return f"the parameters differ from eager's after {len(found.losses)} steps: relative error {error:.2g}"
    return None


def update_reason(found: Trajectory, initial: dict[str, Tensor]) -> str | None:
    """Did each parameter move as its optimizer moves it, given the gradients that the step came to?"""
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


def differing(
    found: dict[str, Tensor | None], reference: dict[str, Tensor | None], tolerance: float, device: torch.device
) -> dict[str, str]:
    """The tensors that are not the reference's within the tolerance, with what is wrong with them."""
    reasons = {}
    for name, ours in found.items():
        theirs = reference[name]
        if ours is None or theirs is None:
            continue
        verdict = accuracy.compare(ours.to(device), theirs.to(device), tolerance)
        if not verdict.correct:
            reasons[name] = str(verdict.reason).removeprefix("output ")
    return reasons


def by_float64(
    wrong: list[Doubt], found: Trajectory, eager: Trajectory, exact: Trajectory, tolerance: float
) -> str | None:
    """None where every tensor in doubt is about as near to the float64 result as eager's is, else what is wrong.

    rmse(ours, exact) <= k × rmse(eager, exact) + tolerance × rms(exact), k = 2, or 3 for half types: as for outputs,
    but with the whole tolerance, since the rounding of several steps piles up. A single tensor may be noise alone (the
    gradient of a bias that cancels), so what is asked of eager itself is asked of all tensors together.
    """
    for part in dict.fromkeys(doubt.part for doubt in wrong):
        off = joint_error(getattr(eager, part), getattr(exact, part))
        if not off <= accuracy.MAX_EAGER_ERROR:
            what = "buffers" if part == "buffers" else f"gradients in the {part} step"
            advice = "random, or too sensitive: try a smaller training.lr or protocol.check_steps=1"
            return f"eager's own {what} are {off:.2g} off float64: {advice}"
    for doubt in wrong:
        ours, theirs, true = (getattr(path, doubt.part)[doubt.name] for path in (found, eager, exact))
        if not accuracy.is_inexact(theirs):
            return f"{doubt.what} {doubt.reason}"
        factor = 3 if theirs.dtype in accuracy.HALF else 2
        own, eagers, scale = accuracy.rmse(ours, true), accuracy.rmse(theirs, true), accuracy.rmse(true, true * 0)
        if not own <= factor * eagers + tolerance * scale:
            return f"{doubt.what} {doubt.reason}; error {own:.2g} against float64, eager's is {eagers:.2g}"
    return None


def summary(found: Trajectory, verdict: Judgement) -> dict[str, Any]:
    """For the trial's record."""
    return {"steps": len(found.losses), "losses": found.losses, "judged_by_float64": verdict.by_float64}
