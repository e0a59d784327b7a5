"""Networks of transformers with published dimensions (`presets.toml`), by short names and by those
of their repositories."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Preset:
    """`model_type`: name of the configuration class in transformers. `repository`: the network's
    name on the Hugging Face hub.

    `dimensions`: settings that differ from the class's defaults, or that another release could
    change."""

    model_type: str
    repository: str
    dimensions: dict[str, Any] = field(default_factory=dict)


_TEXT = Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
PRESETS = {name: Preset(**entry) for name, entry in tomllib.loads(_TEXT).items()}


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
