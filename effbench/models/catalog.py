"""Names of networks, without importing torch: presets with published dimensions, and what installed
libraries define.

The sources of the libraries are read, because importing the libraries takes 10 s.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from effbench.core.errors import ConfigError, suggest
from effbench.models.presets import PRESETS

#: Libraries, each with a module of this name in effbench.models.libraries -> what a network is.
LIBRARIES = {
    "torchvision": "image classification",
    "timm": "image classification",
    "transformers": "default configuration",
    "diffusers": "denoiser of images or videos",
}
REGISTERED = re.compile(r"^@register_model\b.*\n(?:@.*\n)*def (\w+)\(", re.M)
MODEL_TYPE = re.compile(r"(?:^ +\(?|\{)\"([\w.-]+)\"[,:] \"\w+Config\"", re.M)
#: Classes of diffusers, in the folders transformers and unets.
DENOISER = re.compile(r"^class (\w+)\([^)]*\bModelMixin\b", re.M)
DENOISER_FILES = "[tu]*s/*.py"
#: What the names are in libraries whose sources have them all. timm also accepts former names, and
#: one may work in a checkout of torchvision.
COMPLETE = {
    "transformers": "architecture of transformers",
    "diffusers": "denoiser of diffusers",
}


class ListedNetwork(NamedTuple):
    """A network that `model.arch` accepts."""

    library: str
    name: str
    description: str


def networks() -> Iterator[ListedNetwork]:
    """Yield the networks of all installed libraries, those with published dimensions first."""
    if names_in("transformers"):
        for name, preset in PRESETS.items():
            yield ListedNetwork(
                "transformers", name, f"{preset.model_type}, as {preset.repository}"
            )
    for library, description in LIBRARIES.items():
        for name in names_in(library):
            if library != "transformers" or name not in PRESETS:
                yield ListedNetwork(library, name, description)


@cache
def names_in(library: str) -> list[str]:
    """Return the names that `model.arch` accepts for a library; none if it is not installed."""
    if library == "diffusers":
        return find_names(library, DENOISER_FILES, DENOISER)
    if library != "transformers":
        return find_names(library, "*.py", REGISTERED)
    types = find_names(library, "auto/*auto*.py", MODEL_TYPE)
    if not types:
        return []
    return [*PRESETS, *(name for name in types if name not in PRESETS)]


def check_name(library: str, name: str) -> None:
    """Raise ConfigError for a name that is not in the sources of an installed library, if these
    have all names. This takes milliseconds."""
    known = names_in(library)
    if library in COMPLETE and known and name not in known:
        raise unknown(COMPLETE[library], name, known)


def unknown(
    what: str,
    name: str,
    known: Iterable[str],
    advice: str = "see `effbench models`",
) -> ConfigError:
    """Return the error for an unknown name, with the most similar known one, which may be a wrong
    guess, and advice."""
    return ConfigError(f"unknown {what} {name!r}{suggest(name, known)}; {advice}")


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
