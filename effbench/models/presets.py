"""Networks of transformers with published dimensions (`presets.toml`), by short names and by those
of their repositories, and denoisers of diffusers by class (`denoisers.toml`)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Preset:
    """`model_type`: name of the configuration class in transformers. `repository`: the network's
    name on the Hugging Face hub.

    `dimensions`: settings that differ from the class's defaults, or that another release could
    change."""

    model_type: str
    repository: str
    dimensions: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DenoiserPreset:
    """What a pipeline asks of a denoiser: how many `steps` an image or a video takes, its height
    and width (`resolution`) in pixels, its `frames`, and the `tokens` of its prompt.

    `layout`: how latents are passed; None: by the class. `patch`: pixels on a side of a latent,
    `frames_per_latent`: frames of a latent after the first one. `dimensions`: settings of the
    published network that differ from the defaults of its class.
    """

    steps: int = 28
    resolution: int = 1024
    frames: int = 1
    tokens: int = 512
    layout: Literal["grid", "volume", "frames", "tokens"] | None = None
    patch: int = 8
    frames_per_latent: int = 4
    dimensions: dict[str, Any] = field(default_factory=dict)


def _read(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


PRESETS = {name: Preset(**entry) for name, entry in _read("presets.toml").items()}
DENOISERS = {name: DenoiserPreset(**entry) for name, entry in _read("denoisers.toml").items()}


def canonical(library: str, arch: str) -> str:
    """Return the name of a network for one of its names on the Hugging Face hub, with or without
    the owner; an unknown name unchanged."""
    if library == "timm":
        return arch.removeprefix("hf-hub:").removeprefix("hf_hub:").removeprefix("timm/")
    if library == "transformers":
        for name, preset in PRESETS.items():
            repository = preset.repository.casefold()
            if arch.casefold() in (name, repository, repository.partition("/")[2]):
                return name
    return arch
