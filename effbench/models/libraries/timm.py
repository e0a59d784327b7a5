"""Networks of timm by name. All map images [B, C, H, W] to logits [B, K]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from effbench.models import catalog, libraries

timm = libraries.load("timm")


def check(arch: str, **_: Any) -> None:
    """Raise ConfigError for an unknown network."""
    if not timm.is_model(arch):
        raise catalog.unknown("network of timm", arch, timm.list_models())


def network(
    arch: str,
    image_size: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a network; its attribute `inputs` describes images of the size in its configuration,
    or of `image_size`. `kwargs` are passed to its constructor."""
    arguments = dict(kwargs or {})
    if image_size and getattr(timm.get_pretrained_cfg(arch), "fixed_input_size", False):
        arguments.setdefault("img_size", image_size)
    model = timm.create_model(arch, pretrained=False, **arguments)
    channels, height, width = model.pretrained_cfg.get("input_size", (3, 224, 224))
    if image_size:
        height = width = image_size
    return libraries.finish_network(model, (channels, height, width))
