"""Initialise the weights of large models within seconds on the CPU, and give signal to untrained
networks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

#: Maximum number of normal values to draw and reuse for all weights; a prime for the reason given
#: in `draw_weights`.
DRAWN = 16_777_259


def undrawn(*shape: int, std: float) -> nn.Parameter:
    """Return a parameter that `draw_weights` must draw, with this standard deviation."""
    parameter = nn.Parameter(torch.empty(shape))
    parameter.initial_std = std
    return parameter


def linear(in_features: int, out_features: int, gain: float = 1.0) -> nn.Linear:
    """Return a linear layer without bias and with an undrawn weight, which makes outputs `gain`
    times as large as inputs."""
    layer = nn.Linear(in_features, out_features, bias=False, device="meta")
    layer.weight = undrawn(out_features, in_features, std=gain / math.sqrt(in_features))
    return layer


def embedding(rows: int, width: int) -> nn.Embedding:
    """Return an embedding with an undrawn weight, whose rows have a length of 1."""
    layer = nn.Embedding(rows, width, device="meta")
    layer.weight = undrawn(rows, width, std=1 / math.sqrt(width))
    return layer


#: Random images for running statistics: their number, and their height and width.
IMAGES, SIZE = 8, 128
#: Parameters that scale a block's output, by the ends of their names: networks begin with values
#: such as 1e-6.
SCALES = ("layer_scale", "gamma", "gamma_1", "gamma_2", "lambda1", "lambda_1", "lambda_2")


@torch.no_grad()
def wake(model: nn.Module) -> None:
    """Give signal to all branches of an untrained network.

    Draw linear layers that are initialised to zero, such as the head of a ViT, and set the weights
    of norms that are zero, and tiny factors of residual branches, to 1. Otherwise outputs would be
    zero, or independent of most layers, and comparing them would test nothing.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, Tensor) or weight.numel() == 0 or weight.any():
            continue
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        elif weight.dim() == 1:
            weight.fill_(1.0)
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] in SCALES and parameter.abs().max() < 0.1:
            parameter.fill_(1.0)


@torch.no_grad()
def settle_batch_norms(
    model: nn.Module, shape: tuple[int, ...] = (3, SIZE, SIZE), centred: bool = True
) -> None:
    """Set running means and variances to those of random images, layer by layer in one pass.

    In eval mode, an untrained batch norm does not scale its input. In a network of depthwise
    convolutions the signal then shrinks with each layer (to 1e-10 in MobileNetV3): activations are
    linear around zero, and the output of a branch is lost in rounding. A comparison of outputs
    would not detect errors there.

    `centred`: norms subtract the mean. That leaves only differences between images, and deep
    untrained networks amplify rounding errors in them: without it, the error of bfloat16 is 3 times
    smaller in ResNet-50.
    """

    def settle(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0]
        dims = [dim for dim in range(x.dim()) if dim != 1]
        variance, mean = torch.var_mean(x, dims)
        if not centred:
            variance = variance + mean.square()
            mean = torch.zeros_like(mean)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)

    kind = nn.modules.batchnorm._BatchNorm
    norms = [module for module in model.modules() if isinstance(module, kind)]
    if not norms:
        return
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    model.eval()(torch.randn(IMAGES, *shape))
    for hook in hooks:
        hook.remove()


@torch.no_grad()
def draw_weights(model: nn.Module) -> None:
    """Fill the undrawn parameters of a model with normal values.

    Billions of random numbers take minutes on a CPU, copies only seconds. So at most `DRAWN`
    numbers are drawn and reused cyclically, and each tensor continues where the previous one ended.
    As their number is a prime larger than all widths and numbers of layers, no two rows of a matrix
    and no two layers of the same shape start at the same position: all differ and are practically
    independent. Up to `DRAWN` weights, no number is reused.
    """
    weights = dict.fromkeys(undrawn_in(model))  # a shared one once
    total = sum(weight.numel() for weight in weights)
    drawn = torch.randn(min(DRAWN, total))
    position = 0
    for weight in weights:
        rest = weight.view(-1)
        while len(rest):
            values = drawn[position : position + len(rest)]
            torch.mul(values, weight.initial_std, out=rest[: len(values)])
            rest = rest[len(values) :]
            position = (position + len(values)) % len(drawn)
        del weight.initial_std


def undrawn_in(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the undrawn parameters of a module, those of its submodules first."""
    for child in module.children():
        yield from undrawn_in(child)
    for parameter in module.parameters(recurse=False):
        if hasattr(parameter, "initial_std"):
            yield parameter
