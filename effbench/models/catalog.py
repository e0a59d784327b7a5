"""Names of networks, without importing torch: presets with published dimensions, and what installed
libraries define.

The sources of the libraries are read, because importing the libraries takes 10 s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from effbench.models.presets import PRESETS

#: Libraries, each with a module of this name in effbench.models.libraries.
LIBRARIES = ("torchvision", "timm", "transformers", "diffusers")
REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n)*def (\w+)\(", re.M)
MODEL_TYPE = re.compile(r"^ +\(?\"([\w.-]+)\"[,:] \"\w+Config\"", re.M)
#: Classes of diffusers, in the folders transformers and unets.
DENOISER = re.compile(r"^class (\w+)\([^)]*\bModelMixin\b", re.M)
DENOISER_FILES = "[tu]*s/*.py"


class ListedNetwork(NamedTuple):
    """A network that `model.arch` accepts."""

    library: str
    name: str
    description: str


def networks() -> Iterator[ListedNetwork]:
    """Yield the networks of all installed libraries."""
    if folder("transformers"):
        for name, preset in PRESETS.items():
            yield ListedNetwork(
                "transformers", name, f"{preset.model_type}, as {preset.repository}"
            )
    for library in ("torchvision", "timm"):
        for name in find_names(library, "*.py", REGISTERED):
            yield ListedNetwork(library, name, "image classification")
    for name in find_names("transformers", "auto/*auto*.py", MODEL_TYPE):
        if name not in PRESETS:
            yield ListedNetwork("transformers", name, "default configuration")
    for name in find_names("diffusers", DENOISER_FILES, DENOISER):
        yield ListedNetwork("diffusers", name, "denoiser of images or videos")


def folder(library: str) -> Path | None:
    """Return the folder of a library's package, without importing it; None if it is not
    installed."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def find_names(library: str, files: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the names that a pattern finds in these files of a library, sorted; none if it is not
    installed."""
    home = folder(library)
    if home is None:
        return []
    names: set[str] = set()
    for file in (home / "models").glob(files):
        names.update(pattern.findall(file.read_text(encoding="utf-8")))
    return sorted(names)
