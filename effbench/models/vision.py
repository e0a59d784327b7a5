"""Convolutional and other networks from torchvision, with random weights.

B batch, C channels, H height, W width, K classes. All map [B, 3, H, W] to [B, K].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from effbench.errors import ConfigError
from effbench.models import libraries
from effbench.models.weights import wake

torchvision = libraries.load("torchvision")

#: Random images for running statistics: their number, and their height and width.
IMAGES, SIZE = 8, 128


def torchvision_model(arch: str, settled: bool = False, **kwargs: Any) -> nn.Module:
    """Return the architecture `arch` of `torchvision.models`; `kwargs` are passed to its
    constructor.

    `settled`: give batch norms the statistics of their inputs, as training would.
    """
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    wake(model)
    if settled:
        settle_batch_norms(model)
    return model


def check(arch: str, pretrained: bool | str = False, **_: Any) -> None:
    """Raise ConfigError for an unknown classification network, and for weights in a pickle or in no
    file."""
    known = torchvision.models.list_models(module=torchvision.models)
    if arch not in known:
        raise libraries.unknown("classification network of torchvision", arch, known)
    if pretrained is True:
        where = "save them as .safetensors elsewhere and give model.pretrained=FILE"
        raise ConfigError(
            f"torchvision publishes weights as pickle files, which effbench does not load; {where}"
        )
    if pretrained:
        libraries.weights_file(str(pretrained))


def network(
    arch: str,
    image_size: int | None = None,
    pretrained: bool | str = False,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a classification network; its attribute `inputs` describes images of the size of its
    published weights, or of `image_size`. `kwargs` are passed to its constructor. Raises
    ConfigError."""
    check(arch, pretrained)
    kwargs = dict(kwargs or {})
    if image_size and arch.startswith("vit_"):
        kwargs.setdefault("image_size", image_size)
    if image_size and arch.startswith("maxvit"):
        kwargs.setdefault("input_size", [image_size, image_size])
    model = torchvision.models.get_model(arch, weights=None, **kwargs)
    size = (
        image_size or torchvision.models.get_model_weights(arch).DEFAULT.transforms().crop_size[0]
    )
    return finished(model, (3, size, size), pretrained)


def finished(model: nn.Module, shape: tuple[int, ...], pretrained: bool | str) -> nn.Module:
    """Return the network with its inputs [C, H, W], and with the weights of a file or with useful
    random ones."""
    model.inputs = {"x": {"shape": list(shape)}}
    if pretrained:
        libraries.load_weights(model, str(pretrained))
    else:
        wake(model)
        settle_batch_norms(model, shape, centred=False)
    return model


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
        dims = [dim for dim in range(inputs[0].dim()) if dim != 1]
        variance, mean = torch.var_mean(inputs[0], dims)
        norm.running_mean.copy_(mean if centred else torch.zeros_like(mean))
        norm.running_var.copy_(variance if centred else variance + mean.square())

    norms = [
        module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    if not norms:
        return
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    model.eval()(torch.randn(IMAGES, *shape))
    for hook in hooks:
        hook.remove()
