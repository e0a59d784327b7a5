"""Names of networks, without importing torch: presets with published dimensions, and what installed
libraries define.

The sources of the libraries are read, because importing the libraries takes 10 s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from effbench.models.presets import PRESETS

#: Library -> module of effbench.models with its `check` and `network`.
LIBRARIES = {
    "torchvision": "vision",
    "timm": "timm_networks",
    "transformers": "transformers_networks",
}
REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n)*def (\w+)\(", re.M)
MODEL_TYPE = re.compile(r"^ +\(?\"([\w.-]+)\"[,:] \"\w+Config\"", re.M)


def folder(library: str) -> Path | None:
    """Return the folder of a library's package, without importing it; None if it is not
    installed."""
    spec = importlib.util.find_spec(library)
    return Path(spec.origin).parent if spec and spec.origin else None


def found(files: Iterator[Path], pattern: re.Pattern[str]) -> list[str]:
    return sorted(
        {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}
    )


def networks() -> Iterator[tuple[str, str, str]]:
    """Yield the library, name and description of each network that `model.arch` accepts."""
    if folder("transformers"):
        for name, preset in PRESETS.items():
            yield "transformers", name, f"{preset.model_type}, as {preset.repository}"
    for library in ("torchvision", "timm"):
        if home := folder(library):
            for name in found((home / "models").glob("*.py"), REGISTERED):
                yield library, name, "image classification"
    if home := folder("transformers"):
        for name in found((home / "models").glob("auto/*auto*.py"), MODEL_TYPE):
            if name not in PRESETS:
                yield "transformers", name, "default configuration"
