"""Networks of timm by name. All map images [B, C, H, W] to logits [B, K]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from effbench.models import libraries

timm = libraries.load("timm")


def check(arch: str, **_: Any) -> None:
    """Raise ConfigError for an unknown network or an unknown variant of it (the part behind a
    dot)."""
    name, tag = arch.partition(".")[::2]
    if not timm.is_model(name):
        raise libraries.unknown("network of timm", name, timm.list_models())
    if tag:
        published = timm.list_pretrained(f"{name}.*")
        if arch not in published:
            raise libraries.unknown("network of timm", arch, published)


def network(
    arch: str,
    image_size: int | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a network; its attribute `inputs` describes images of the size in its configuration,
    or of `image_size`. `kwargs` are passed to its constructor. Raises ConfigError."""
    check(arch)
    settings = timm.get_pretrained_cfg(arch)
    arguments = dict(kwargs or {})
    if image_size and getattr(settings, "fixed_input_size", False):
        arguments.setdefault("img_size", image_size)
    model: nn.Module = timm.create_model(arch, pretrained=False, **arguments)
    channels, height, width = model.pretrained_cfg.get("input_size", (3, 224, 224))
    if image_size:
        height = width = image_size
    return libraries.finish_network(model, (channels, height, width))
