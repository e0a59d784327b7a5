"""Networks of timm by name. All map images [B, C, H, W] to logits [B, K]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from effbench.core.errors import ConfigError
from effbench.models import libraries

timm = libraries.load("timm")


def check(arch: str, pretrained: bool | str = False, **_: Any) -> None:
    """Raise ConfigError for an unknown network or unknown published weights (the part behind a
    dot), and for a file of weights that does not exist."""
    name, tag = arch.partition(".")[::2]
    if not timm.is_model(name):
        raise libraries.unknown("network of timm", name, timm.list_models())
    if tag:
        published = timm.list_pretrained(f"{name}.*")
        if arch not in published:
            raise libraries.unknown("network of timm", arch, published)
    if pretrained and pretrained is not True:
        libraries.weights_file(str(pretrained))


def network(
    arch: str,
    image_size: int | None = None,
    pretrained: bool | str = False,
    kwargs: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Return a network; its attribute `inputs` describes images of the size in its configuration,
    or of `image_size`. `kwargs` are passed to its constructor. Raises ConfigError."""
    settings = timm.get_pretrained_cfg(arch)
    arguments = dict(kwargs or {})
    if image_size and getattr(settings, "fixed_input_size", False):
        arguments.setdefault("img_size", image_size)
    model: nn.Module = timm.create_model(arch, pretrained=False, **arguments)
    channels, height, width = model.pretrained_cfg.get("input_size", (3, 224, 224))
    if image_size:
        height = width = image_size
    weights = download_weights(arch, settings) if pretrained is True else pretrained
    return libraries.finish_network(model, (channels, height, width), weights)


def download_weights(arch: str, settings: Any) -> str:
    """Return the path of a network's published weights, downloaded if necessary. Raises
    ConfigError."""
    from huggingface_hub import hf_hub_download

    repository = getattr(settings, "hf_hub_id", None)
    if not repository:
        raise ConfigError(
            f"timm publishes no safetensors weights of {arch}; give model.pretrained=FILE"
        )
    try:
        return str(hf_hub_download(repository, "model.safetensors"))
    except Exception as error:  # errors of several libraries: offline, no such file, no access
        raise libraries.not_loaded(repository, error) from error
