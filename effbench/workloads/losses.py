"""Losses of training steps: `training.loss`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from effbench.measure.accuracy import as_real, is_inexact, parts, tensors
from effbench.models.build import resolve_target
from effbench.models.inputs import seeded_generator

#: Maps a module's output, and its inputs by name, to a scalar.
TrainingLoss = Callable[[Any, dict[str, Any]], Tensor]


class MeanSquare:
    """Sum over the float outputs of the mean square distance from a fixed random target, in
    float32."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.targets: list[Tensor] = []

    def __call__(self, output: Any, inputs: dict[str, Any]) -> Tensor:
        outs = float_outputs(output)
        if not self.targets:
            for number, out in enumerate(outs, self.seed):
                self.targets.append(make_target(out, number))
        losses = []
        for out, target in zip(outs, self.targets, strict=True):
            difference = out - target.to(out.dtype)
            losses.append(difference.square().mean())
        return functools.reduce(torch.add, losses)


def make_loss(name: str, seed: int) -> TrainingLoss:
    """Return the loss that `training.loss` names."""
    if name == "mean-square":
        return MeanSquare(seed)
    loss: TrainingLoss = resolve_target(name)
    return loss


def float_outputs(output: Any) -> list[Tensor]:
    """Return the float outputs as real tensors of float32 or a wider dtype, without empty ones,
    whose mean is NaN."""
    values = [output]
    if not isinstance(output, Tensor):
        values = list(tensors(parts(output, copy=False)).values())
    outs = []
    for tensor in values:
        if is_inexact(tensor) and tensor.numel():
            real = as_real(tensor)
            outs.append(real.to(torch.promote_types(real.dtype, torch.float32)))
    if not outs:
        raise ValueError(
            "the output has no float tensor to compute a loss from; return one, or use"
            " phase=inference"
        )
    return outs


def make_target(out: Tensor, seed: int) -> Tensor:
    """Return normal values in the shape of `out`. Unless `out` is huge, they are the same on all
    devices."""
    generator = seeded_generator(out.numel(), out.device, seed)
    values = torch.randn(
        out.shape,
        generator=generator,
        device=generator.device,
        dtype=torch.float32,
    )
    return values.to(out.device)
