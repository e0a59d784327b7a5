"""Classification networks of torchvision by name. All map images [B, 3, H, W] to logits [B, K]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from effbench.models import catalog, libraries

torchvision = libraries.load("torchvision")


def check(arch: str, **_: Any) -> None:
    """Raise ConfigError for an unknown classification network."""
    known = torchvision.models.list_models(module=torchvision.models)
    if arch not in known:
        raise catalog.unknown("classification network of torchvision", arch, known)


def network(
    arch: str,
    image_size: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a classification network; its attribute `inputs` describes images of the size of its
    published weights, or of `image_size`. `kwargs` are passed to its constructor."""
    arguments = dict(kwargs or {})
    if image_size and arch.startswith("vit_"):
        arguments.setdefault("image_size", image_size)
    model = torchvision.models.get_model(arch, weights=None, **arguments)
    size = image_size
    if not size:
        published = torchvision.models.get_model_weights(arch).DEFAULT
        size = published.transforms().crop_size[0]
    return libraries.finish_network(model, (3, size, size))
